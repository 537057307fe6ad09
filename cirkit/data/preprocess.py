"""RGB image to the tensor a model takes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from torch import Tensor

_INTERPOLATION = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocess:
    """RGB image -> float32 tensor [3, size, size]: target pad, resize, centre crop, normalise.

    Attributes:
        size: side of the square in pixels.
        pad_ratio: images longer than this (long side / short side; 1.25 in CLIP4CIR) get black bars beside
            the short side, so that the crop cuts less from tall garments; None or 0 pads nothing.
        mean, std: per channel, of values in [0, 1]; defaults are those of CLIP and BLIP-2.
        interpolation: "bicubic", "bilinear" or "lanczos", always antialiased.

    Raises:
        ValueError: a field out of range.

    Source: the transform of CLIP4CIR (Baldrati et al., "Effective conditioned and composed image retrieval
    combining CLIP-based features", CVPR 2022).
    """

    size: int = 224
    pad_ratio: float | None = 1.25
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != 3 or not np.isfinite(values).all():
                raise ValueError(f"{name} needs three finite numbers, got {getattr(self, name)}.")
            object.__setattr__(self, name, values)
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}.")
        if not isinstance(self.size, (int, np.integer)) or self.size < 1:
            raise ValueError(f"size must be a positive whole number of pixels, got {self.size!r}.")
        if self.pad_ratio and not 1 <= self.pad_ratio < float("inf"):
            raise ValueError(f"pad_ratio must be at least 1, or None for no padding, got {self.pad_ratio}.")
        object.__setattr__(self, "size", int(self.size))
        object.__setattr__(self, "pad_ratio", float(self.pad_ratio) if self.pad_ratio else None)
        if self.interpolation not in _INTERPOLATION:
            raise ValueError(f"interpolation {self.interpolation!r} is none of {', '.join(_INTERPOLATION)}.")

    def __call__(self, image: Image.Image) -> Tensor:
        """Returns the tensor [3, size, size]; `ValueError` if the image is not RGB."""
        import torch  # here, so that checking a data folder does not wait for it

        if image.mode != "RGB":
            raise ValueError(f"Preprocess takes RGB images, got mode {image.mode}; open files with open_rgb.")
        square = self._centre_crop(self._resize(self._pad(image)))
        pixels = torch.from_numpy(np.array(square, dtype=np.float32)).div_(255).permute(2, 0, 1)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return ((pixels - mean) / std).contiguous()

    def fingerprint(self) -> str:
        """16 hex digits that change with any field, and with the version of this transform's arithmetic."""
        fields = json.dumps({"transform": "target-pad-1", **asdict(self)}, sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()[:16]

    def _pad(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        if self.pad_ratio is None or max(width, height) / min(width, height) < self.pad_ratio:
            return image
        side = max(width, height) / self.pad_ratio
        across, down = (max(int((side - length) / 2), 0) for length in (width, height))
        return ImageOps.expand(image, border=(across, down), fill=0)

    def _resize(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        long_side = int(self.size * max(width, height) / min(width, height))
        new_size = (self.size, long_side) if width <= height else (long_side, self.size)
        return image if new_size == image.size else image.resize(new_size, _INTERPOLATION[self.interpolation])

    def _centre_crop(self, image: Image.Image) -> Image.Image:
        left, top = (round((length - self.size) / 2) for length in image.size)
        return image.crop((left, top, left + self.size, top + self.size))
