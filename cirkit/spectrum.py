"""Spectrum mix (INTENT): give an image some of the amplitudes of another one, and keep its own phases.

Amplitudes carry colours, brightness and texture, phases where things are: an intervention on what an image looks like
that leaves what it shows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def centred_window(height: int, width: int, ratio: float) -> Tensor:
    """Which frequencies count as low, bool [height,width], in the order of an unshifted 2-D Fourier transform.

    With the zero frequency shifted to the centre: ``int(height sqrt(ratio))`` by ``int(width sqrt(ratio))`` of them,
    from ``height // 2`` minus half of that on, and likewise across.
    """
    window = torch.zeros(height, width, dtype=torch.bool)
    high, wide = int(height * ratio**0.5), int(width * ratio**0.5)
    top, left = height // 2 - high // 2, width // 2 - wide // 2
    window[top : top + high, left : left + wide] = True
    return torch.fft.ifftshift(window)


def spectrum_mix(images: Tensor, others: Tensor, strength: Tensor, ratio: float = 1.0) -> Tensor:
    """Images with amplitudes ``A <- strength A' + (1 - strength) A`` inside a centred window, clamped to [0,1].

    Args:
        images, others: pixel values in [0,1], [B,C,H,W]; A and A' are their amplitudes per channel.
        strength: lambda [B], in [0,1]: 0 changes nothing.
        ratio: share of the frequencies inside the window, in (0,1]; 1 takes all.

    Returns:
        [B,C,H,W], float32 at least.

    Raises:
        ValueError: shapes that do not fit.
    """
    if images.dim() != 4 or images.shape != others.shape or strength.shape != images.shape[:1]:
        shapes = f"{tuple(images.shape)}, {tuple(others.shape)} and {tuple(strength.shape)}"
        raise ValueError(f"need two batches of images [B,C,H,W] and one strength each, got {shapes}")
    dtype = torch.promote_types(images.dtype, torch.float32)
    window = centred_window(*images.shape[2:], ratio).to(images.device)
    own, other = (torch.fft.fft2(x.to(dtype)) for x in (images, others))
    share = strength.to(dtype)[:, None, None, None] * window
    amplitude = own.abs() + share * (other.abs() - own.abs())
    return torch.fft.ifft2(torch.polar(amplitude, own.angle())).real.clamp(0, 1)
