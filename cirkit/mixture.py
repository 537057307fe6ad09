"""Clean and noisy rows of a data set by one value each: a mixture of two Gaussians, a threshold, or a share (TME).

Values are losses (small = clean) or similarities (large = clean), brought to [0, 1] over the whole data set.
"""

from __future__ import annotations

import warnings
from typing import Literal, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

Rule = Literal["mixture", "direct", "percent"]
Value = Literal["loss", "similarity"]


def min_max(values: np.ndarray) -> np.ndarray:
    """Values [n] brought to [0, 1], float64; all 0 where they are all equal, for which the released code divides by 0.

    Raises:
        ValueError: the values are not [n] with n at least 1, or not all finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values must be [n] with n at least 1, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{(~np.isfinite(values)).sum()} of {len(values)} values are NaN or infinite")
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def clean_probability(losses: np.ndarray, seed: int = 0) -> np.ndarray:
    """Posterior [n] that a row belongs to the component of lower mean, of two Gaussians fitted to its loss.

    Settings of TME's released code: 10 iterations, tolerance 0.01, variances at least 0.0005, start by k-means.

    Args:
        losses: [n] in [0, 1], see :func:`min_max`. seed: of the k-means start.

    Returns:
        [n].
    """
    column = np.asarray(losses, dtype=np.float64)[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 10 iterations are what the method has
        mixture.fit(column)
    return mixture.predict_proba(column)[:, mixture.means_[:, 0].argmin()]


def clean_rows(
    values: np.ndarray,
    rule: Rule = "mixture",
    threshold: float = 0.5,
    by: Value = "loss",
    flip_similarity: bool = True,
    seed: int = 0,
) -> np.ndarray:
    """Which rows count as clean.

    Args:
        values: losses or similarities [n], as ``by`` says; they are brought to [0, 1] here.
        rule: ``mixture``, clean by a posterior above ``threshold``; ``direct``, by a loss below it; ``percent``, all
            but the ``threshold`` share of the rows of highest loss.
        flip_similarity: take 1 - similarity for a loss. Without it (released), ``direct`` and ``percent`` treat the
            similarity itself as one, so that rows of low similarity count as clean. ``mixture`` always flips.
        seed: of the mixture's start.

    Returns:
        bool [n]; all True where all values are equal, so that there is nothing to tell apart.

    Raises:
        ValueError: another rule, or values that :func:`min_max` refuses.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}; got {rule!r}")
    losses = min_max(values)
    if np.ptp(losses) == 0:
        return np.ones(len(losses), dtype=bool)
    if by == "similarity" and (flip_similarity or rule == "mixture"):
        losses = 1 - losses
    if rule == "mixture":
        return clean_probability(losses, seed) > threshold
    if rule == "direct":
        return losses < threshold
    kept = len(losses) - round(threshold * len(losses))
    clean = np.zeros(len(losses), dtype=bool)
    clean[losses.argsort(kind="stable")[:kept]] = True
    return clean


def scoring_batches(n: int, size: int, seed: list[int], all_rows: bool) -> list[np.ndarray]:
    """Rows that are scored against each other: a seeded permutation cut into full batches.

    Args:
        all_rows: fill a last batch up with rows of others, so that every row's loss has equally many negatives; else
            the rest is left out, unless it is all there is.
    """
    order, size = np.random.default_rng(seed).permutation(n), min(size, n)
    batches = [order[start : start + size] for start in range(0, n - size + 1, size)]
    return [*batches, order[-size:]] if all_rows and n % size else batches
