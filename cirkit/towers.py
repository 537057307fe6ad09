"""Vision towers: pixels in, patch tokens out. Frozen once stage 1 is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from cirkit.backbone_config import BackboneConfig


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


class PatchTransformer(nn.Module):
    """A class token and square patches through transformer layers: [B,3,S,S] -> [B,1+(S/patch)^2,Dv].

    It ends before the last LayerNorm of the published models, which is the backbone's ``ln_vision``. ``embeddings`` and
    ``encoder`` are those of transformers' vision models, and so are the names of their weights.
    """

    def __init__(self, image_size: int, embeddings: nn.Module, encoder: nn.Module, first_norm: nn.Module | None = None):
        super().__init__()
        self.image_size = image_size
        self.embeddings = embeddings
        self.encoder = encoder
        self.first_norm = first_norm

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.shape[-2:] != (self.image_size, self.image_size):
            raise ValueError(f"the tower takes {self.image_size} x {self.image_size} pixels, got {tuple(pixels.shape)}")
        tokens = self.embeddings(pixels)
        if self.first_norm is not None:
            tokens = self.first_norm(tokens)
        return self.encoder(inputs_embeds=tokens).last_hidden_state


def _settings(config: BackboneConfig) -> dict[str, object]:
    return {
        "hidden_size": config.vision_width,
        "intermediate_size": config.vision_intermediate,
        "num_hidden_layers": config.vision_layers,
        "num_attention_heads": config.vision_heads,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "layer_norm_eps": config.tower_norm_eps,
        "attn_implementation": "sdpa",
    }


def _convolutional(config: BackboneConfig) -> nn.Module:
    return ConvolutionalTower(config.image_size, config.vision_width, config.vision_layers, config.vision_heads)


def _vit(config: BackboneConfig) -> nn.Module:
    """ViT-g of EVA-CLIP in BLIP-2, and the ViT of BLIP: the same layers, GELU, one matrix for query, key and value."""
    from transformers.models.blip_2.configuration_blip_2 import Blip2VisionConfig
    from transformers.models.blip_2.modeling_blip_2 import Blip2Encoder, Blip2VisionEmbeddings

    described = Blip2VisionConfig(**_settings(config), hidden_act="gelu", qkv_bias=True)
    return PatchTransformer(config.image_size, Blip2VisionEmbeddings(described), Blip2Encoder(described))


def _clip_vit(config: BackboneConfig) -> nn.Module:
    """ViT of CLIP: a LayerNorm before the layers too, and the quick form of GELU."""
    from transformers.models.clip.configuration_clip import CLIPVisionConfig
    from transformers.models.clip.modeling_clip import CLIPEncoder, CLIPVisionEmbeddings

    described = CLIPVisionConfig(**_settings(config), hidden_act="quick_gelu")
    norm = nn.LayerNorm(config.vision_width, eps=config.tower_norm_eps)
    return PatchTransformer(config.image_size, CLIPVisionEmbeddings(described), CLIPEncoder(described), norm)


def _efficientnet(config: BackboneConfig) -> nn.Module:
    from cirkit.efficientnet import EfficientNetTower

    return EfficientNetTower(config.image_size)


# name -> (config -> module): pixels [B,3,S,S], normalised by the config's mean and std, to patch tokens [B,P,Dv]
TOWERS: dict[str, Callable[[BackboneConfig], nn.Module]] = {
    "convolutional": _convolutional,
    "vit": _vit,
    "clip-vit": _clip_vit,
    "efficientnet-lite0": _efficientnet,
}


def build_tower(config: BackboneConfig) -> nn.Module:
    """The tower that a backbone config names, with random weights.

    Raises:
        ValueError: unknown tower name.
    """
    if config.tower not in TOWERS:
        raise ValueError(f"unknown tower {config.tower!r}; known: {', '.join(TOWERS)}")
    return TOWERS[config.tower](config)
