"""Numbers of a state that a reader chooses (notebooks 02, 03, 04, 06): flags, a boundary, a plan, what was asked.

Pure functions of scores that are there already: nothing is trained and nothing encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from cirkit.boundary import fidelity, noisy_rows
from cirkit.noise import selected_count
from cirkit.transport import sinkhorn_pot

Pairs = Literal["all", "matched"]
Marginals = Literal["uniform", "labels"]


class Flags(NamedTuple):
    """Which clean and which noisy triplets were taken, and what flagging does to them.

    Attributes:
        clean, noisy: rows taken of each group.
        cut: the similarity below which a triplet is flagged.
        kept, wrong: share of all that is not flagged, and share of noise among it.
        precision, recall: share of the flagged that is noisy, and of the noisy that is flagged.

    A share of nothing is NaN.
    """

    clean: np.ndarray
    noisy: np.ndarray
    cut: float
    kept: float
    wrong: float
    precision: float
    recall: float


def flags_at(clean: np.ndarray, noisy: np.ndarray, boundary: float, rate: float, omega: float) -> Flags:
    """Mix scored triplets at a noise rate and flag by ``omega``: fidelity (monotone) below it, over the whole mixture.

    The mixture has as many triplets as the smaller group has, the first ones of an order drawn once, so that a higher
    rate exchanges some of them and keeps the others.

    Args:
        clean, noisy: s_ii [n] and [m].
        boundary: the noise boundary of the model that gave the scores.

    Raises:
        ValueError: a rate or omega outside [0, 1], or a group without rows.
    """
    if not len(clean) or not len(noisy):
        raise ValueError(f"need clean and noisy triplets, got {len(clean)} and {len(noisy)}")
    if not 0 <= omega <= 1:
        raise ValueError(f"omega must lie in [0, 1], got {omega}")
    total = min(len(clean), len(noisy))
    wrong = selected_count(rate, total)
    order = np.random.default_rng(0)
    rows = order.permutation(len(clean))[: total - wrong], order.permutation(len(noisy))[:wrong]
    own = torch.from_numpy(np.concatenate([clean[rows[0]], noisy[rows[1]]]).astype(np.float64))
    flagged = noisy_rows(own, boundary, fidelity(own, boundary), "threshold", omega).numpy()
    is_noisy = np.arange(total) >= total - wrong
    best = max(float(own.max()), boundary)
    return Flags(
        *rows, boundary + omega * (best - boundary), (~flagged).mean(), share_of(is_noisy[~flagged]),
        share_of(is_noisy[flagged]), share_of(flagged[is_noisy]),
    )  # fmt: skip


class Draws(NamedTuple):
    """Similarities [K,K] of drawn Gaussian triplets, query by target; the pairs that count, bool; their mean."""

    similarity: np.ndarray
    used: np.ndarray
    boundary: float


def boundary_draws(block: np.ndarray, count: int, seed: int, pairs: Pairs = "all") -> Draws:
    """Draw ``count`` references, texts and targets with replacement, and estimate the boundary from them.

    Args:
        block: similarities [R,T,G] of every Gaussian reference with every text, against every Gaussian target.
        pairs: as in :func:`cirkit.boundary.noise_boundary`.

    Raises:
        ValueError: a count below 1, or unknown pairs.
    """
    if count < 1:
        raise ValueError(f"a boundary needs at least one draw a side, got K = {count}")
    if pairs not in ("all", "matched"):
        raise ValueError(f"pairs must be 'all' or 'matched', got {pairs!r}")
    reference, text, target = (
        np.random.default_rng([seed, i]).integers(n, size=count) for i, n in enumerate(block.shape)
    )
    similarity = block[reference, text][:, target]
    used = np.ones((count, count), dtype=bool) if pairs == "all" else np.eye(count, dtype=bool)
    return Draws(similarity, used, float(similarity[used].mean()))


def plan_at(
    similarity: np.ndarray, noisy: np.ndarray, opened: np.ndarray | None, reg: float, marginals: Marginals = "uniform"
) -> np.ndarray:
    """The entropic plan of a batch by POT, in shares of a row's mass, [B,2B].

    Args:
        similarity: [B,2B], of each query with the B targets and the B anchors; the cost is 1 - similarity.
        noisy: bool [B]. opened: bool [B,2B], or None for a transport without a mask.
        marginals: of the columns, as in :func:`cirkit.unlearning.unlearning`.

    Raises:
        ValueError: reg is not positive, unknown marginals, or there is no plan with these marginals.
    """
    if not reg > 0:
        raise ValueError(f"the regularisation must be positive, got {reg}")
    if marginals not in ("uniform", "labels"):
        raise ValueError(f"marginals must be 'uniform' or 'labels', got {marginals!r}")
    size = len(noisy)
    labels = np.concatenate([~noisy, noisy]).astype(float) / size
    columns = torch.from_numpy(labels if marginals == "labels" else np.full(2 * size, 0.5 / size))
    mask = None if opened is None else torch.from_numpy(opened)
    cost = torch.from_numpy(1 - similarity.astype(np.float64))
    plan = sinkhorn_pot(cost, torch.full((size,), 1 / size, dtype=torch.float64), columns, mask, reg, rounds=5000)
    return size * plan.numpy()


def asked_marks(truth: pd.DataFrame, reference: str, target: str | None, images: Sequence[str]) -> list[str]:
    """What each image has of what was asked, a line per attribute: "✓ colour red" or "✗ colour blue".

    Asked are the attributes in which reference and target differ. With a text that nobody knows the target of, the
    lines name what differs from the reference, without a judgement.

    Args:
        truth: attributes of every image, as :func:`cirkit.data.truth.attributes` gives them.
    """
    before = truth.loc[reference]
    if target is None:
        seen = [[f"{name} {v}" for name, v in truth.loc[i].items() if v != before[name]] for i in images]
        return ["\n".join(lines) or "as the reference" for lines in seen]
    after = truth.loc[target]
    asked = [name for name in truth.columns if after[name] != before[name]]
    return ["\n".join(_mark(name, truth.loc[i, name], after[name]) for name in asked) for i in images]


def _mark(name: str, value: str, wanted: str) -> str:
    return f"{'✓' if value == wanted else '✗'} {name} {value}"


def share_of(values: np.ndarray) -> float:
    """The mean, NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")
