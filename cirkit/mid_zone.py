"""DQE-CIR's mid zone: negatives neither too near the target nor too far below it (target-relative negative sampling).

There is no released code, and the summary of the paper says neither how a difference of cosines comes to lie between 0
and 1 nor what happens where nothing lies in the zone. Both readings of the scale are here; see :func:`scaled_delta`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from cirkit.mining import Chooser, Zone

Scale = Literal["minmax", "quantile"]
_STEP = 0.1


def delta(ordered: Tensor, own: Tensor) -> Tensor:
    """Target-relative difference ``s_target - s_j``, [B,G]; inf for what is no candidate.

    Args:
        ordered: [B,G] scores, -inf for what is no candidate. own: [B] score of each query's target.
    """
    if ordered.dim() != 2 or own.shape != ordered.shape[:1]:
        raise ValueError(f"need scores [B,G] and own [B], got {tuple(ordered.shape)} and {tuple(own.shape)}")
    return own[:, None] - ordered


def scaled_delta(ordered: Tensor, own: Tensor, scale: Scale = "minmax") -> Tensor:
    """The difference brought to [0, 1], ascending along each row [B,G]; inf for what is no candidate.

    ``minmax``: ``delta / max_j delta_j``, so 0 is the target's own score and 1 the worst candidate's; negative for
    what scores above the target. ``quantile``: the place among the m candidates below the target, ``(k + 1/2) / m`` for
    k = 0 .. m-1, so that [0.2, 0.8] is 60 % of them; -inf for all others, the target among them.

    Args:
        ordered: [B,G] scores in descending order, -inf at the end. own: [B], each target's score, not -inf.
    """
    gap = delta(ordered, own)
    candidate = gap < torch.inf
    if scale == "minmax":
        largest = gap.masked_fill(~candidate, -torch.inf).amax(dim=1, keepdim=True)
        return gap / torch.where(largest > 0, largest, 1.0)
    if scale != "quantile":
        raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    below = candidate & (gap > 0)
    place = below.cumsum(dim=1) - 0.5
    ranks = (place / below.sum(dim=1, keepdim=True).clamp(min=1)).masked_fill(~below, -torch.inf)
    return ranks.masked_fill(~candidate, torch.inf)


def mid_zone(ordered: Tensor, own: Tensor, alpha: float = 0.2, beta: float = 0.8, scale: Scale = "minmax") -> Zone:
    """Places with ``alpha <= scaled delta <= beta``.

    With ``minmax`` and alpha 0 what ties with the target belongs to the zone; the target itself is never drawn
    (:func:`cirkit.mining.draw`). A zone without another image than the target is widened by 0.1 on both sides, to
    images strictly below the target, as often as needed; where nothing lies below the target it is the whole corpus.
    ``fallback`` counts these steps.

    Args:
        ordered: [B,G] scores in descending order, -inf for what is no candidate. own: [B], each target's score.
        alpha, beta: 0 <= alpha < beta <= 1.
    """
    _check_band(alpha, beta)
    scaled = scaled_delta(ordered, own, scale).contiguous()
    first, last = _between(scaled, alpha, beta)
    at_target = (ordered == own[:, None]).sum(dim=1)
    others = last - first - ((first < last) & (at_target > 0) & (scale == "minmax" and alpha == 0)).long()
    fallback = torch.zeros_like(first)
    above = (ordered >= own[:, None]).sum(dim=1)
    steps = math.ceil(round(max(alpha, 1 - beta) / _STEP, 6))
    for step in range(1, steps + 1):
        rows = torch.nonzero(others < 1)[:, 0]
        if not len(rows):
            return Zone(first, last, fallback)
        widened = max(alpha - step * _STEP, 0.0), min(beta + step * _STEP, 1.0)
        first[rows], last[rows] = _between(scaled[rows], *widened)
        first[rows] = torch.minimum(torch.maximum(first[rows], above[rows]), last[rows])
        others[rows], fallback[rows] = last[rows] - first[rows], step
    rows = torch.nonzero(others < 1)[:, 0]
    first[rows], last[rows], fallback[rows] = 0, (ordered[rows] > -torch.inf).sum(dim=1), steps + 1
    return Zone(first, last, fallback)


def chooser(alpha: float, beta: float, scale: Scale) -> Chooser:
    """:func:`mid_zone` with these settings, for :func:`cirkit.mining.mine`."""
    _check_band(alpha, beta)
    return partial(mid_zone, alpha=alpha, beta=beta, scale=scale)


def _check_band(alpha: float, beta: float) -> None:
    if not 0 <= alpha < beta <= 1:
        raise ValueError(f"the zone needs 0 <= alpha < beta <= 1, got alpha {alpha} and beta {beta}")


def _between(scaled: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Where ``alpha <= scaled <= beta`` begins and ends in ascending rows: long [B] each."""
    low, high = (scaled.new_full((len(scaled), 1), edge) for edge in (alpha, beta))
    first = torch.searchsorted(scaled, low)[:, 0]
    return first, torch.searchsorted(scaled, high, right=True)[:, 0].clamp(min=first)
