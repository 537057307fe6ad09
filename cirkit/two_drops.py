"""The zone of QuRe (ICML 2025, arXiv 2507.12416): what lies between the two steepest drops below the target.

A ranking's scores fall from place to place. Before the first steep drop stand images about as relevant as the target,
perhaps right answers without a label; behind the second one those that are too easy. Hard negatives stand in between.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirkit.mining import Zone, first_largest

_ROUNDS = 8  # of the walk before the rows that are left are sorted


def two_drops(
    ordered: Tensor,
    own: Tensor,
    threshold: int = 1,
    strict: bool = True,
    keep_steepest: bool = False,
    place: Tensor | None = None,
) -> Zone:
    """Places from behind the upper drop to the lower drop, inclusive: [min(k1, k2) + 1, max(k1, k2)].

    A drop k leads from place k to k + 1, both of them below the target. By default the two steepest count, by the
    paper's formula. With ``threshold`` h the released code walks down the drops from the steepest, and takes the first
    two *neighbours of that order* that lie more than h places apart, so that it may discard the steepest of all. Of
    equal drops the upper one comes first.

    Where no pair is found (too few images below the target, no pair far enough apart, nothing but the target's ties
    between them) the zone falls back to all images that score strictly less than the target, and where there are none
    to the whole corpus. The released code fails there, or goes on with the places of the query before.

    Args:
        ordered: [B,G] descending, -inf at the end for what is no candidate. own: [B] the target's score.
        threshold: h of the released code (there 1); 0 accepts any two.
        strict: below the target is what scores less (paper); otherwise what stands behind it (released).
        keep_steepest: keep the steepest drop, and search its partner more than h places away.
        place: [B] of the target, for ``strict=False``; else it counts as the first of the images that score as it.

    Returns:
        Zone; ``fallback`` is 1 for all lower scores, 2 for the whole corpus.
    """
    rising = -ordered
    less, end = _bounds(rising, own)
    if not strict and place is None:
        place = torch.searchsorted(rising, -own[:, None])[:, 0]
    after = less if strict else place + 1
    drops = rising.diff(dim=1)
    _blank(drops, after, end)
    a, b, found = _partner(drops, threshold) if keep_steepest else _walk(drops, threshold)
    first, last = torch.minimum(a, b) + 1, torch.maximum(a, b) + 1
    found &= last > less  # otherwise only the target's ties, which may be the target alone
    fallback = torch.where(found, 0, torch.where(less < end, 1, 2))
    first = torch.where(found, first, torch.where(fallback == 1, less, 0))
    return Zone(first, torch.where(found, last, end), fallback)


def one_drop(ordered: Tensor, own: Tensor) -> Zone:
    """All places behind the steepest drop below the target: with one drop, easy negatives stay in (an ablation).

    Arguments, and the fallback where there is no drop or nothing behind it, as in :func:`two_drops`.
    """
    below = lower_scores(ordered, own)
    drops = (-ordered).diff(dim=1)
    if not drops.shape[1]:
        return below
    _blank(drops, below.first, below.last)
    place, there = _take_steepest(drops, torch.arange(len(drops), device=drops.device))
    there &= below.fallback == 0
    fallback = torch.where(there, 0, below.fallback.clamp(min=1))
    return Zone(torch.where(there, place + 1, below.first), below.last, fallback)


def top_k_below(ordered: Tensor, own: Tensor, k: int) -> Zone:
    """The k best images that score less than the target: the hardest negatives, right answers among them (an ablation).

    Raises:
        ValueError: k is less than 1.
    """
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    first, last, fallback = lower_scores(ordered, own)
    return Zone(first, torch.where(fallback == 0, torch.minimum(first + k, last), last), fallback)


def lower_scores(ordered: Tensor, own: Tensor) -> Zone:
    """All images that score less than the target; where there are none the whole corpus, with ``fallback`` 2."""
    first, end = _bounds(-ordered, own)
    fallback = torch.where(first < end, 0, 2)
    return Zone(torch.where(fallback == 0, first, 0), end, fallback)


def _bounds(rising: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Where lower scores than the target's begin, and where candidates end, by negated scores [B,G]: [B] each."""
    less = torch.searchsorted(rising, -own[:, None], right=True)[:, 0]
    return less, torch.searchsorted(rising, torch.full_like(own[:, None], torch.inf))[:, 0]


def _blank(drops: Tensor, after: Tensor, end: Tensor) -> None:
    """Make the drops negative that do not lie between places ``after`` and ``end`` - 1, in place."""
    if drops.device.type == "cpu":
        values = drops.numpy()
        for row, start, stop in zip(values, after.tolist(), end.tolist(), strict=True):
            row[:start] = row[max(stop - 1, 0) :] = -1.0
        return
    places = torch.arange(drops.shape[1], device=drops.device)
    drops.masked_fill_((places < after[:, None]) | (places >= end[:, None] - 1), -1.0)


def _walk(drops: Tensor, threshold: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first two neighbours in the order of steepness that lie more than ``threshold`` apart, and whether there are
    any: [B] each. Spends ``drops`` [B,G-1], which are negative where they do not count."""
    upper = torch.zeros(len(drops), dtype=torch.long, device=drops.device)
    lower, found = upper.clone(), torch.zeros_like(upper, dtype=torch.bool)
    if drops.shape[1] < 2:
        return upper, lower, found
    rows = torch.arange(len(drops), device=drops.device)
    before, _ = _take_steepest(drops, rows)
    for _ in range(_ROUNDS):
        place, there = _take_steepest(drops, rows)
        fits = there & ((place - before).abs() > threshold)
        upper[rows[fits]], lower[rows[fits]], found[rows[fits]] = before[fits], place[fits], True
        going_on = there & ~fits
        rows, before = rows[going_on], place[going_on]
        if not len(rows):
            return upper, lower, found
    steepness, order = drops[rows].sort(dim=1, descending=True, stable=True)
    order = torch.cat([before[:, None], order], dim=1)
    fits = ((order[:, 1:] - order[:, :-1]).abs() > threshold) & (steepness >= 0)
    at = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
    upper[rows], lower[rows] = order.gather(1, at)[:, 0], order.gather(1, at + 1)[:, 0]
    found[rows] = fits.any(dim=1)
    return upper, lower, found


def _partner(drops: Tensor, threshold: int) -> tuple[Tensor, Tensor, Tensor]:
    """The steepest drop, the steepest more than ``threshold`` away from it, and whether there is one."""
    if not drops.shape[1]:
        none = torch.zeros(len(drops), dtype=torch.long, device=drops.device)
        return none, none, none.bool()
    rows = torch.arange(len(drops), device=drops.device)
    steepest, _ = _take_steepest(drops, rows)
    near = (torch.arange(drops.shape[1], device=drops.device) - steepest[:, None]).abs() <= threshold
    partner, there = _take_steepest(drops.masked_fill_(near, -1.0), rows)
    return steepest, partner, there


def _take_steepest(drops: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Place of the steepest drop of these rows, upper ones first, and whether it counts; it is then taken out."""
    chosen = drops if len(rows) == len(drops) else drops[rows]
    place = first_largest(chosen)
    there = chosen.gather(1, place[:, None])[:, 0] >= 0
    drops[rows, place] = -2.0
    return place, there
