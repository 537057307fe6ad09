"""Bootstrap intervals of means over queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

_BLOCK = 64  # resamples drawn at once: bounds the memory, and is part of the random stream


class Interval(NamedTuple):
    """A mean (or macro mean), its bootstrap interval, and the number of values behind it."""

    value: float
    low: float
    high: float
    n: int


def bootstrap_interval(values: Any, groups: Any = None, n: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Percentile bootstrap interval of a mean over queries (Efron & Tibshirani, 1993, ch. 13).

    Args:
        values: [B], one per query.
        groups: [B] labels; then the statistic is the mean of the group means, and queries are resampled
            within their group. None: one group.
        n: resamples.
        seed: seed of numpy's `default_rng`; equal arguments give equal intervals.
        level: coverage, between 0 and 1.

    Raises:
        ValueError: no values, NaN or infinite values (with their number), or shapes that differ.
    """
    values = np.asarray(values, dtype=float)
    groups = np.zeros(len(values)) if groups is None else np.asarray(groups)
    codes, _ = pd.factorize(groups, sort=True)
    if values.ndim != 1 or not len(values) or codes.shape != values.shape:
        raise ValueError(f"need values [B] and groups [B] with B at least 1, got {values.shape} and {codes.shape}.")
    bad = int((~np.isfinite(values) | (codes < 0)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(values)} values are NaN or infinite, or without a group.")
    check_resampling(n, level)
    rng = np.random.default_rng(seed)
    parts = [values[codes == code] for code in range(codes.max() + 1)]
    means = np.zeros(n)
    for part in parts:
        for block in resample_blocks(n):
            drawn = rng.integers(len(part), size=(block.stop - block.start, len(part)))
            means[block] += part[drawn].mean(axis=1) / len(parts)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.mean([part.mean() for part in parts])), float(low), float(high), len(values))


def paired_bootstrap(a: Any, b: Any, groups: Any = None, n: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Interval of the mean difference a - b of two systems on the same queries.

    Resampling the per-query differences keeps what both systems find hard in common out of the interval,
    which two separate intervals would not.

    Args:
        a, b: [B] per-query values, of the same queries in the same order.
        groups, n, seed, level: as in `bootstrap_interval`.

    Raises:
        ValueError: as `bootstrap_interval`.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise ValueError(f"a and b must hold the same queries, got shapes {a.shape} and {b.shape}.")
    return bootstrap_interval(a - b, groups, n, seed, level)


def resample_blocks(n: int) -> Iterator[slice]:
    """The n resamples in blocks that fit into memory."""
    return (slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


def check_resampling(n: int, level: float) -> None:
    """Refuse impossible settings of the bootstrap with a ValueError."""
    if n < 1 or not 0 < level < 1:
        raise ValueError(f"need n >= 1 resamples and a level between 0 and 1, got n={n} and level={level}.")
