"""Vision towers: pixels in, patch tokens out. Frozen once stage 1 is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from cirkit.backbone import BackboneConfig


class ConvolutionalTower(nn.Module):
    """Three strided convolutions and a few transformer layers: [B,3,S,S] -> [B,(S/8)^2,Dv].

    The tower of the preset ``tiny``: small enough to be trained from nothing on a laptop.
    """

    def __init__(self, image_size: int, width: int, layers: int, heads: int = 4):
        super().__init__()
        if image_size % 8:
            raise ValueError(f"image_size must be a multiple of 8, got {image_size}")
        channels = (3, width // 3, 2 * width // 3, width)
        self.stem = nn.Sequential()
        for i, (before, after) in enumerate(zip(channels, channels[1:], strict=False)):
            self.stem.append(nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1))
            if i < 2:
                self.stem.append(nn.GroupNorm(1, after))
                self.stem.append(nn.GELU())
        # A start at 0.02 leaves positions invisible beside the content, and sleeve and neckline unread.
        self.position = nn.Parameter(torch.randn(1, (image_size // 8) ** 2, width) * 0.5)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.stem(pixels).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def build_tower(config: BackboneConfig) -> nn.Module:
    """The tower that a backbone config names.

    Raises:
        ValueError: unknown tower name.
    """
    if config.tower == "convolutional":
        return ConvolutionalTower(config.image_size, config.vision_width, config.vision_layers)
    raise ValueError(f"unknown tower {config.tower!r}; known: convolutional")
