"""Golden arrays as tensors."""

from __future__ import annotations

import numpy as np
import torch


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The numeric ones of them."""
    return {name: torch.from_numpy(value) for name, value in arrays.items() if value.dtype.kind in "fib"}
