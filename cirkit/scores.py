"""Scores of composed queries against target tokens, and what evaluation needs of them: ranks and best hits.

Letters: B queries, G gallery images, N tokens per image, D dimensions, M members of a small set. Matrices are
[query, target].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cirkit.exact_scores import blocks
from cirkit.ranks import (
    Ranks,
    as_tensor,
    check_indices,
    count_better,
    make_ranks,
    ranks_from_similarity,
    ranks_in_subsets,
    refuse_non_finite,
)

__all__ = [
    "Ranks",
    "max_over_tokens",
    "member_scores",
    "rank_and_top_k",
    "rank_members",
    "rank_targets",
    "ranks_from_similarity",
    "ranks_in_subsets",
    "top_k",
]

_OWN = 64  # targets whose tokens are in float64 at a time


def max_over_tokens(queries: Tensor, targets: Tensor) -> Tensor:
    """Score of each query and image: the inner product with the image's best token (as in BLIP-2's ITC loss).

    Differentiable. Half precision is computed and returned in float32, also under autocast.

    Args:
        queries: [B,D].
        targets: [G,N,D].

    Returns:
        [B,G].

    Raises:
        ValueError: other shapes.

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.6, 0.8], [0.8, 0.6]]])
    >>> max_over_tokens(torch.tensor([[0.0, 1.0]]), tokens)
    tensor([[1.0000, 0.8000]])
    """
    _check_shapes(queries, targets)
    dtype = torch.promote_types(torch.promote_types(queries.dtype, targets.dtype), torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        return torch.einsum("bd,gnd->bgn", queries.to(dtype), targets.to(dtype)).amax(dim=2)


def rank_targets(
    queries: Tensor, targets: Tensor, target_index: Any, exclude_index: Any = None, chunk: int = 256
) -> Ranks:
    """Rank each query's target among all target images by `max_over_tokens`, block by block.

    Scores are compared as computed in float64 and rounded to float32 (`cirkit.exact_scores`): a score then does not
    depend on the image's position or on the block it falls into, equal images tie, and permuting the gallery changes
    no result. What differs by less than float32 resolves (6e-8 for cosines) is a tie. Memory is bounded by
    the token scores of `chunk` queries with `chunk` images, on the queries' device (on the CPU if that has no
    float64); the gallery may be on another device or memory-mapped.

    Args:
        queries: [B,D], any floating dtype.
        targets: [G,N,D], any floating dtype.
        target_index: [B] position of each query's target in `targets`.
        exclude_index: [B] position taken out of each query's ranking (its reference), -1 for none.
        chunk: block size, in queries and in images.

    Raises:
        ValueError: other shapes, NaN or infinite scores (with their number), indices out of range, or a query
            whose target is excluded.
    """
    return _scan(queries, targets, target_index, exclude_index, 0, chunk)[0]


def top_k(
    queries: Tensor, targets: Tensor, k: int, exclude_index: Any = None, chunk: int = 256
) -> tuple[Tensor, Tensor]:
    """The k best target images of each query, best first; of tied images the one listed earlier comes first.

    Scores, memory and arguments are as in `rank_targets`.

    Returns:
        scores float32 [B,k] and positions in the gallery, long [B,k], on the CPU.

    Raises:
        ValueError: as `rank_targets`, or k is not between 1 and the number of candidates.
    """
    return _scan(queries, targets, None, exclude_index, k, chunk)[1:]


def rank_and_top_k(
    queries: Tensor, targets: Tensor, target_index: Any, k: int, exclude_index: Any = None, chunk: int = 256
) -> tuple[Ranks, Tensor, Tensor]:
    """What `rank_targets` and `top_k` give, with each score computed once."""
    return _scan(queries, targets, target_index, exclude_index, k, chunk)


@torch.no_grad()
def member_scores(queries: Tensor, targets: Tensor, member_index: Any, chunk: int = 16) -> Tensor:
    """Scores of each query's own small set of images, as exact as in `rank_targets`.

    Args:
        queries: [B,D].
        targets: [G,N,D].
        member_index: [B,M] positions in `targets`, -1 for none where a set has fewer than M members.
        chunk: queries per block.

    Returns:
        float32 [B,M] on the queries' device, -inf where there is no member.

    Raises:
        ValueError: other shapes, positions out of range, NaN or infinite scores.
    """
    _check_shapes(queries, targets)
    queries, members = _float64(queries), as_tensor(member_index)
    if members.ndim != 2 or len(members) != len(queries) or members.is_floating_point():
        raise ValueError(f"member_index must hold integers [{len(queries)}, M], got {list(members.shape)}.")
    if ((members < -1) | (members >= len(targets))).any():
        raise ValueError(f"member_index has positions outside the gallery of {len(targets)} images.")
    members = members.to(queries.device, torch.long)
    scores = torch.empty(members.shape, device=queries.device)
    for start, stop in _blocks(len(queries), chunk):
        tokens = targets[members[start:stop].clamp(min=0).to(targets.device)].to(queries.device, torch.float64)
        scores[start:stop] = torch.einsum("bd,bmnd->bmn", queries[start:stop], tokens).amax(dim=2).float()
    refuse_non_finite((~torch.isfinite(scores)).sum(), scores.numel())
    return scores.masked_fill(members < 0, -torch.inf)


def rank_members(queries: Tensor, targets: Tensor, target_index: Any, member_index: Any) -> Ranks:
    """Rank each query's target within its own small set (CIRR's subset, without the reference).

    Args:
        queries, targets, member_index: as in `member_scores`; members of a set are distinct.
        target_index: [B] position in `targets` of each query's target, one of its members.

    Raises:
        ValueError: as `member_scores`, or a target that is not among the members.
    """
    scores = member_scores(queries, targets, member_index)
    members = as_tensor(member_index).to(scores.device)
    own = members == as_tensor(target_index).to(scores.device)[:, None]
    lacking = torch.nonzero(own.sum(dim=1) != 1)[:, 0].tolist()
    if lacking:
        raise ValueError(f"the set of query {lacking[0]} does not hold its target once; {len(lacking)} do not.")
    others, value = ~own & (members >= 0), scores[own][:, None]
    better, tied = ((scores > value) & others).sum(dim=1), ((scores == value) & others).sum(dim=1)
    return Ranks(better.cpu(), tied.cpu(), (members >= 0).sum(dim=1).cpu())


@torch.no_grad()
def _scan(
    queries: Tensor, targets: Tensor, target_index: Any, exclude_index: Any, k: int, chunk: int
) -> tuple[Ranks | None, Tensor, Tensor]:
    """Ranks of the targets, if there is a `target_index`, and the best k, if k or no `target_index` is given."""
    _check_shapes(queries, targets)
    count, size = len(queries), len(targets)
    queries = _float64(queries)
    device = queries.device
    target, exclude = check_indices(target_index, exclude_index, count, size, device)
    candidates = size - int((exclude >= 0).any())
    if not int(target_index is None) <= k <= candidates:
        raise ValueError(f"k must lie between 1 and the {candidates} candidates, got {k}.")
    own = torch.empty(count, 1, device=device)
    for start, stop in _blocks(count if target_index is not None else 0, min(chunk, _OWN)):
        tokens = targets[target[start:stop].to(targets.device)].to(device, torch.float64)
        own[start:stop, 0] = torch.einsum("bd,bnd->bn", queries[start:stop], tokens).amax(dim=1).float()
    better, tied = torch.zeros_like(target), torch.zeros_like(target)
    best = {start: _Best(stop - start, k, device) for start, stop in _blocks(count, chunk)}
    non_finite = torch.zeros((), dtype=torch.long, device=device)
    for block in blocks(queries, targets, chunk):
        rows, found = block.rows, best[block.rows.start]
        non_finite += block.non_finite
        needed = torch.zeros_like(block.near, dtype=torch.bool)
        if target_index is not None:
            needed |= (block.near - own[rows]).abs() <= block.slack
        if k:
            positions = torch.arange(block.first, block.first + block.near.shape[1], device=device)
            excluded = positions == exclude[rows, None]
            candidates = found.candidates(block.near.masked_fill(excluded, -torch.inf), block.slack)
            needed |= candidates
        scores = block.exact(needed)
        if target_index is not None:
            counts = count_better(scores, own[rows], target[rows], exclude[rows], block.first)
            better[rows] += counts[0]
            tied[rows] += counts[1]
        if k:
            found.add(scores.masked_fill(~candidates | excluded, -torch.inf), positions)
    refuse_non_finite(non_finite, count * size)
    ranks = None if target_index is None else make_ranks(better, tied, exclude, size)
    if not best:
        return ranks, torch.empty(0, k), torch.empty(0, k, dtype=torch.long)
    return ranks, torch.cat([b.values for b in best.values()]).cpu(), torch.cat([b.places for b in best.values()]).cpu()


class _Best:
    """The k best scores [b,k] of some queries so far, and where they stand; earlier ones first among equal ones."""

    def __init__(self, count: int, k: int, device: torch.device):
        self.values = torch.full((count, k), -torch.inf, device=device)
        self.places = torch.full((count, k), -1, dtype=torch.long, device=device)

    def candidates(self, near: Tensor, slack: Tensor) -> Tensor:
        """Which of the scores [b,g], known up to ``slack``, can be among the best k; bool [b,g]."""
        k = self.values.shape[1]
        floor = self.values[:, -1:]
        if near.shape[1] >= k:
            floor = torch.maximum(floor, near.topk(k, dim=1).values[:, -1:] - slack)
        return (near >= floor - slack) & (near > -torch.inf)

    def add(self, scores: Tensor, positions: Tensor) -> None:
        """Take in scores [b,g] of images that stand behind all before; -inf for what is no candidate."""
        rows = torch.nonzero((scores > -torch.inf).any(dim=1))[:, 0]
        values = torch.cat([self.values[rows], scores[rows]], dim=1)
        places = torch.cat([self.places[rows], positions.expand(len(rows), -1)], dim=1)
        # earlier positions stand to the left in every round, so a stable sort keeps ties in gallery order
        values, order = values.sort(dim=1, descending=True, stable=True)
        k = self.values.shape[1]
        self.values[rows], self.places[rows] = values[:, :k], places.gather(1, order[:, :k])


def _blocks(total: int, chunk: int) -> Iterator[tuple[int, int]]:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}.")
    return ((start, min(start + chunk, total)) for start in range(0, total, chunk))


def _float64(queries: Tensor) -> Tensor:
    return queries.to("cpu" if queries.device.type == "mps" else queries.device, torch.float64)


def _check_shapes(queries: Tensor, targets: Tensor) -> None:
    if queries.ndim != 2 or targets.ndim != 3 or queries.shape[1] != targets.shape[2] or 0 in targets.shape:
        shapes = f"{list(queries.shape)} and {list(targets.shape)}"
        raise ValueError(f"need queries [B,D] and targets [G,N,D] with G, N and D at least 1, got {shapes}.")
