"""Rank correlation of a few methods: Kendall's tau-b and Spearman's rho, and what chance does, counted exactly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
from scipy.stats import rankdata

MOST = 8  # values whose orders are counted one by one: 40,320


def kendall(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Kendall's tau-b of x [m] with each row of y [..., m]; NaN where all values of one are equal.

    >>> round(float(kendall(np.array([1, 2, 3]), np.array([1, 3, 2]))), 4)
    0.3333
    """
    i, j = np.triu_indices(len(x), 1)
    a, b = np.sign(x[i] - x[j]), np.sign(np.asarray(y)[..., i] - np.asarray(y)[..., j])
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(-1) / np.sqrt(np.square(a).sum() * np.square(b).sum(-1))


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rho of x [m] with each row of y [..., m], ties by mean ranks; NaN where all of one are equal."""
    a, b = rankdata(x), rankdata(y, axis=-1)
    a, b = a - a.mean(), b - b.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(-1) / np.sqrt(np.square(a).sum() * np.square(b).sum(-1))


def exact_p(x: np.ndarray, y: np.ndarray, statistic: Callable[[np.ndarray, np.ndarray], np.ndarray] = kendall) -> float:
    """Share of all orders of y whose agreement with x is at least as far from 0 (two-sided); 1 where there is none.

    Raises:
        ValueError: more than :data:`MOST` values.
    """
    if len(x) > MOST:
        raise ValueError(f"all orders of {len(x)} methods are too many to count; at most {MOST}.")
    found = statistic(x, y)
    every = statistic(x, np.array([np.asarray(y)[list(order)] for order in permutations(range(len(y)))]))
    return float((np.abs(every) >= abs(found) - 1e-9).mean()) if np.isfinite(found) else 1.0
