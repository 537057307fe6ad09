"""Scores of composed queries against target tokens, and what evaluation needs of them: ranks and best hits.

Letters: B queries, G gallery images, N tokens per image, D dimensions. Matrices are [query, target].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Ranks(NamedTuple):
    """Where each query's target stands, without deciding ties.

    Attributes:
        better: long [B], candidates that score higher than the target.
        tied: long [B], other candidates that score exactly as the target.
        candidates: long [B], images ranked for the query, the target among them.
    """

    better: Tensor
    tied: Tensor
    candidates: Tensor


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


def ranks_from_similarity(similarity: Any, target_index: Any, exclude_index: Any = None) -> Ranks:
    """Ranks from a whole similarity matrix, comparing its numbers exactly as they are.

    The last bits of a matrix product can depend on a column's position, so that two equal images may differ
    there by a rounding error; `rank_targets` is free of that.

    Args:
        similarity: [B,G].
        target_index: [B] column of each query's target.
        exclude_index: [B] column taken out of each query's ranking (its reference), -1 for none.

    Raises:
        ValueError: NaN or infinite scores, indices out of range, or a query whose target is excluded.
    """
    similarity = _tensor(similarity)
    if similarity.ndim != 2:
        raise ValueError(f"similarity must be [queries, targets], got shape {tuple(similarity.shape)}.")
    target, exclude = _check_indices(target_index, exclude_index, *similarity.shape, similarity.device)
    _refuse_non_finite((~torch.isfinite(similarity)).sum(), similarity.numel())
    own = similarity.gather(1, target[:, None])
    better, tied = _count(similarity, own, target, exclude, start=0)
    return _ranks(better, tied, exclude, similarity.shape[1])


def ranks_in_subsets(similarity: Any, target_index: Any, subset_index: Any, exclude_index: Any = None) -> Ranks:
    """Ranks among a small candidate set per query, as CIRR's subset recall takes them.

    In CIRR the reference is one of the six members of every set; leaving it out is what makes chance level R@1 = 0.2.

    Args:
        similarity: [B,G].
        target_index, exclude_index: [B] as in `ranks_from_similarity`; an excluded image may be outside the set.
        subset_index: [B,M] columns of each query's members, the target among them.

    Raises:
        ValueError: as `ranks_from_similarity`, or a set that repeats a member or lacks its target.
    """
    similarity, members = _tensor(similarity), _tensor(subset_index)
    target, exclude = _check_indices(target_index, exclude_index, *similarity.shape, similarity.device)
    if members.ndim != 2 or len(members) != len(similarity):
        raise ValueError(f"subset_index must be [{len(similarity)}, M], got shape {tuple(members.shape)}.")
    ordered = members.sort(dim=1).values
    own = members == target[:, None]
    wrong = torch.nonzero((ordered.diff(dim=1) == 0).any(dim=1) | ~own.any(dim=1))[:, 0].tolist()
    if wrong:
        raise ValueError(f"the subset of query {wrong[0]} repeats a member or lacks its target; {len(wrong)} do so.")
    left_out = members == exclude[:, None]
    place = torch.where(left_out.any(dim=1), left_out.int().argmax(dim=1), -1)
    return ranks_from_similarity(similarity.gather(1, members), own.int().argmax(dim=1), place)


@torch.no_grad()
def rank_targets(
    queries: Tensor, targets: Tensor, target_index: Any, exclude_index: Any = None, chunk: int = 512
) -> Ranks:
    """Rank each query's target among all target images by `max_over_tokens`, block by block.

    Scores are computed in float64 and rounded to float32, and compared as such: a score then does not depend
    on the image's position or on the block it falls into, equal images tie, and permuting the gallery changes
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
    _check_shapes(queries, targets)
    count, size = len(queries), len(targets)
    queries = _float64(queries)
    target, exclude = _check_indices(target_index, exclude_index, count, size, queries.device)
    own = torch.empty(count, 1, device=queries.device)
    for start, stop in _blocks(count, chunk):
        tokens = targets[target[start:stop].to(targets.device)].to(queries.device, torch.float64)
        own[start:stop, 0] = torch.einsum("bd,bnd->bn", queries[start:stop], tokens).amax(dim=1).float()
    better, tied = torch.zeros_like(target), torch.zeros_like(target)
    non_finite = torch.zeros((), dtype=torch.long, device=queries.device)
    for rows, first, scores in _score_blocks(queries, targets, chunk):
        non_finite += (~torch.isfinite(scores)).any(dim=2).sum()
        counts = _count(scores.amax(dim=2), own[rows], target[rows], exclude[rows], first)
        better[rows] += counts[0]
        tied[rows] += counts[1]
    _refuse_non_finite(non_finite, count * size)
    return _ranks(better, tied, exclude, size)


@torch.no_grad()
def top_k(
    queries: Tensor, targets: Tensor, k: int, exclude_index: Any = None, chunk: int = 512
) -> tuple[Tensor, Tensor]:
    """The k best target images of each query, best first; of tied images the one listed earlier comes first.

    Scores, memory and arguments are as in `rank_targets`.

    Returns:
        scores float32 [B,k] and positions in the gallery, long [B,k], on the CPU.

    Raises:
        ValueError: as `rank_targets`, or k is not between 1 and the number of candidates.
    """
    _check_shapes(queries, targets)
    count, size = len(queries), len(targets)
    queries = _float64(queries)
    _, exclude = _check_indices(None, exclude_index, count, size, queries.device)
    candidates = size - int((exclude >= 0).any())
    if not 1 <= k <= candidates:
        raise ValueError(f"k must lie between 1 and the {candidates} candidates, got {k}.")
    values = torch.empty(count, 0, device=queries.device)
    indices = torch.empty(count, 0, dtype=torch.long, device=queries.device)
    best = {start: (values[start:stop], indices[start:stop]) for start, stop in _blocks(count, chunk)}
    non_finite = torch.zeros((), dtype=torch.long, device=queries.device)
    for rows, first, tokens in _score_blocks(queries, targets, chunk):
        non_finite += (~torch.isfinite(tokens)).any(dim=2).sum()
        positions = torch.arange(first, first + tokens.shape[1], device=queries.device)
        scores = tokens.amax(dim=2).masked_fill(positions == exclude[rows, None], -torch.inf)
        values, indices = best[rows.start]
        values = torch.cat([values, scores], dim=1)
        indices = torch.cat([indices, positions.expand(len(scores), -1)], dim=1)
        # earlier positions stand to the left in every round, so a stable sort keeps ties in gallery order
        values, order = values.sort(dim=1, descending=True, stable=True)
        best[rows.start] = values[:, :k], indices.gather(1, order[:, :k])
    _refuse_non_finite(non_finite, count * size)
    if not best:
        return torch.empty(0, k), torch.empty(0, k, dtype=torch.long)
    return tuple(torch.cat(parts).cpu() for parts in zip(*best.values(), strict=True))


def _score_blocks(queries: Tensor, targets: Tensor, chunk: int) -> Iterator[tuple[slice, int, Tensor]]:
    """(rows, first gallery position, scores per token float32 [b,g,N]); each gallery block is read once."""
    for first, last in _blocks(len(targets), chunk):
        tokens = targets[first:last].to(queries.device, torch.float64)
        for start, stop in _blocks(len(queries), chunk):
            scores = queries[start:stop] @ tokens.flatten(0, 1).T
            yield slice(start, stop), first, scores.float().unflatten(1, tokens.shape[:2])


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    values = np.asarray(values)
    return torch.tensor(values if values.size else values.astype(np.int64))


def _blocks(total: int, chunk: int) -> Iterator[tuple[int, int]]:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}.")
    return ((start, min(start + chunk, total)) for start in range(0, total, chunk))


def _float64(queries: Tensor) -> Tensor:
    return queries.to("cpu" if queries.device.type == "mps" else queries.device, torch.float64)


def _count(scores: Tensor, own: Tensor, target: Tensor, exclude: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """How many of the scores [b,g], of gallery positions from `start` on, are above and equal `own` [b,1]."""
    positions = torch.arange(start, start + scores.shape[1], device=scores.device)
    others = (positions != target[:, None]) & (positions != exclude[:, None])
    return ((scores > own) & others).sum(dim=1), ((scores == own) & others).sum(dim=1)


def _ranks(better: Tensor, tied: Tensor, exclude: Tensor, size: int) -> Ranks:
    return Ranks(better.cpu(), tied.cpu(), (size - (exclude >= 0).long()).cpu())


def _check_shapes(queries: Tensor, targets: Tensor) -> None:
    if queries.ndim != 2 or targets.ndim != 3 or queries.shape[1] != targets.shape[2] or 0 in targets.shape:
        shapes = f"{list(queries.shape)} and {list(targets.shape)}"
        raise ValueError(f"need queries [B,D] and targets [G,N,D] with G, N and D at least 1, got {shapes}.")


def _check_indices(
    target_index: Any, exclude_index: Any, count: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both indices as long [B] on `device`; a missing one is all -1."""
    checked = []
    for name, index, lowest in (("target_index", target_index, 0), ("exclude_index", exclude_index, -1)):
        if index is None:
            checked.append(torch.full((count,), -1, device=device))
            continue
        index = _tensor(index)
        if index.shape != (count,) or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"{name} must hold {count} integers, got {list(index.shape)} of {index.dtype}.")
        index = index.to(device, torch.long)
        wrong = torch.nonzero((index < lowest) | (index >= size))[:, 0].tolist()
        if wrong:
            value = int(index[wrong[0]])
            raise ValueError(f"{name} of query {wrong[0]} is {value}, outside the gallery of {size} images.")
        checked.append(index)
    target, exclude = checked
    same = torch.nonzero((target == exclude) & (target >= 0))[:, 0].tolist()
    if same:
        raise ValueError(
            f"query {same[0]} excludes its own target (gallery position {int(target[same[0]])}) as reference,"
            f" and {len(same)} of {count} queries do so."
        )
    return target, exclude


def _refuse_non_finite(bad: Tensor, total: int) -> None:
    if bad:
        raise ValueError(f"{int(bad):,} of {total:,} scores are NaN or infinite; no ranking is made of them.")
