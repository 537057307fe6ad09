"""Ranks of targets, without deciding ties: counted in a similarity matrix, whole or one block of it.

Letters: B queries, G gallery images. Matrices are [query, target].
"""

from __future__ import annotations

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


def ranks_from_similarity(similarity: Any, target_index: Any, exclude_index: Any = None) -> Ranks:
    """Ranks from a whole similarity matrix, comparing its numbers exactly as they are.

    The last bits of a matrix product can depend on a column's position, so that two equal images may differ
    there by a rounding error; `cirkit.scores.rank_targets` is free of that.

    Args:
        similarity: [B,G].
        target_index: [B] column of each query's target.
        exclude_index: [B] column taken out of each query's ranking (its reference), -1 for none.

    Raises:
        ValueError: NaN or infinite scores, indices out of range, or a query whose target is excluded.
    """
    similarity = as_tensor(similarity)
    if similarity.ndim != 2:
        raise ValueError(f"similarity must be [queries, targets], got shape {tuple(similarity.shape)}.")
    target, exclude = check_indices(target_index, exclude_index, *similarity.shape, similarity.device)
    refuse_non_finite((~torch.isfinite(similarity)).sum(), similarity.numel())
    own = similarity.gather(1, target[:, None])
    better, tied = count_better(similarity, own, target, exclude, start=0)
    return make_ranks(better, tied, exclude, similarity.shape[1])


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
    similarity, members = as_tensor(similarity), as_tensor(subset_index)
    target, exclude = check_indices(target_index, exclude_index, *similarity.shape, similarity.device)
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


def as_tensor(values: Any) -> Tensor:
    """A tensor of numbers that may also come as an array or a list."""
    if isinstance(values, Tensor):
        return values
    values = np.asarray(values)
    return torch.tensor(values if values.size else values.astype(np.int64))


def count_better(scores: Tensor, own: Tensor, target: Tensor, exclude: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """How many of the scores [b,g], of gallery positions from `start` on, are above and equal `own` [b,1]."""
    positions = torch.arange(start, start + scores.shape[1], device=scores.device)
    others = (positions != target[:, None]) & (positions != exclude[:, None])
    return ((scores > own) & others).sum(dim=1), ((scores == own) & others).sum(dim=1)


def make_ranks(better: Tensor, tied: Tensor, exclude: Tensor, size: int) -> Ranks:
    """Ranks on the CPU of [B] counts in a gallery of `size` images, of which each query may exclude one."""
    return Ranks(better.cpu(), tied.cpu(), (size - (exclude >= 0).long()).cpu())


def check_indices(
    target_index: Any, exclude_index: Any, count: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both indices as long [B] on `device`; a missing one is all -1."""
    checked = []
    for name, index, lowest in (("target_index", target_index, 0), ("exclude_index", exclude_index, -1)):
        if index is None:
            checked.append(torch.full((count,), -1, device=device))
            continue
        index = as_tensor(index)
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


def refuse_non_finite(bad: Tensor, total: int) -> None:
    """Raises `ValueError` if any of the `total` scores were NaN or infinite."""
    if bad:
        raise ValueError(f"{int(bad):,} of {total:,} scores are NaN or infinite; no ranking is made of them.")
