"""Which device to compute on, checked before anything long starts."""

from __future__ import annotations

import torch

PRECISIONS = ("no", "bf16", "fp16")


def check_device(name: str | torch.device = "auto", mixed_precision: str = "no") -> torch.device:
    """The torch device of a name; ``auto`` is the first CUDA device, or the CPU where there is none.

    Raises:
        ValueError: no such device here, or one that cannot compute in the precision asked for.
    """
    if mixed_precision not in PRECISIONS:
        raise ValueError(f"mixed_precision {mixed_precision!r} is none of {', '.join(PRECISIONS)}")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device {str(name)!r} cannot be used here ({reason}); 'auto' takes what there is") from None
    if mixed_precision == "fp16" and device.type == "cpu":
        raise ValueError("mixed_precision 'fp16' needs a GPU; use 'no' or 'bf16' on the CPU")
    return device
