"""Losses that several methods share: pure functions of a similarity matrix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CLAMP = 1e-7


def row_losses(similarity: Tensor, temperature: float | Tensor, drawn: Tensor | None = None) -> Tensor:
    """InfoNCE of each query on its own: ``-log softmax_j(s_ij / tau)_ii``, the "small loss" of noisy-label methods.

    Args:
        similarity: s [B,B], row = query, column = target, own target on the diagonal.
        temperature: tau, greater than 0.
        drawn: [B,K], each query's similarity with K more negatives of its own, in the same softmax.

    Returns:
        [B], at least float32.

    Raises:
        ValueError: the matrix is not square.
    """
    logits = _logits(similarity, temperature)
    own = torch.arange(len(logits), device=logits.device)
    if drawn is not None:
        logits = torch.cat([logits, drawn.to(logits.dtype) / temperature], dim=1)
    return F.cross_entropy(logits, own, reduction="none")


def infonce(
    similarity: Tensor, temperature: float | Tensor, rows: Tensor | None = None, drawn: Tensor | None = None
) -> Tensor:
    """Cross-entropy of the own target among the batch, query to target: the mean of :func:`row_losses`.

    The objective of CLIP4CIR and of SPRC's L_itc. Arguments and errors as in :func:`robust_contrastive`, ``drawn`` as
    in :func:`row_losses`; a scalar.
    """
    losses = row_losses(similarity, temperature, drawn)
    return losses.mean() if rows is None else _mean_of(losses, rows)


def bradley_terry(positive: Tensor, negative: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """How likely the target is preferred to one negative: mean of ``-log sigmoid((s+ - s-) / tau)`` (QuRe, eq. 3).

    The same as the KL divergence of a two-way softmax to the one-hot (1, 0), which is what the released code computes.

    Args:
        positive: [B] similarity of each query with its target.
        negative: [B] with its negative; or [B,K] with several, which then stand in one softmax with the target.

    Returns:
        Scalar, at least float32.
    """
    if positive.dim() != 1 or negative.dim() > 2 or negative.shape[:1] != positive.shape or not negative[:1].numel():
        raise ValueError(
            f"need [B] targets and [B] or [B,K] negatives, got {tuple(positive.shape)}, {tuple(negative.shape)}"
        )
    dtype = torch.promote_types(positive.dtype, torch.float32)
    gap = (positive[:, None] - negative.reshape(len(positive), -1)).to(dtype) / temperature
    if gap.shape[1] == 1:
        return -F.logsigmoid(gap).mean()
    return F.softplus((-gap).logsumexp(dim=1)).mean()


def robust_contrastive(similarity: Tensor, temperature: float | Tensor, rows: Tensor | None = None) -> Tensor:
    """Robust contrastive loss (RCL): push wrong targets away; the given one is pulled through them alone.

    ``-(1/|R|) sum_{i in R} sum_{j != i} log(1 - p_ij)`` with ``p = softmax_j(s_ij / tau)``, clamped to
    [1e-7, 1 - 1e-7] as in the released code. Its gradient on a row is bounded, so a wrong pair that the model does not
    believe pulls little. TME's RCL; ConeSep's L_robust (one direction, which is what its code computes).

    Args:
        similarity: s [B,B], row = query, column = target, own target on the diagonal.
        temperature: tau, greater than 0.
        rows: bool [B], the queries that count (R); all by default. The columns are always the whole batch.

    Returns:
        Scalar, at least float32; 0, with zero gradient, if no row counts.

    Raises:
        ValueError: the matrix is not square, or ``rows`` has another length.
    """
    per_row = robust_rows(similarity, temperature)
    return _mean_of(per_row, torch.ones_like(per_row, dtype=torch.bool) if rows is None else rows)


def robust_rows(similarity: Tensor, temperature: float | Tensor) -> Tensor:
    """Each query's own part of :func:`robust_contrastive`, [B], at least float32; same arguments and errors."""
    logits = _logits(similarity, temperature)
    wrong = torch.log1p(-logits.softmax(dim=1).clamp(_CLAMP, 1 - _CLAMP))
    return -(wrong.sum(dim=1) - wrong.diagonal())


def _mean_of(losses: Tensor, rows: Tensor) -> Tensor:
    if rows.shape != losses.shape:
        raise ValueError(f"rows must be [{len(losses)}], got {tuple(rows.shape)}")
    return (losses * rows).sum() / rows.sum().clamp(min=1)


def _logits(similarity: Tensor, temperature: float | Tensor) -> Tensor:
    if similarity.dim() != 2 or similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must be [B,B], got {tuple(similarity.shape)}")
    return similarity.to(torch.promote_types(similarity.dtype, torch.float32)) / temperature
