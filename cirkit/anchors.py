"""NBL, negative boundary learning (ConeSep): what each query's negative anchor is trained to be.

The anchor g_i ("diagonal negative composition") is the composed query once more, with learned negative prompts in
place of the query tokens. It shall be far from its own target, near the others', and at right angles to the query.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

TargetOriented = Literal["softmax", "logits", "balanced"]
QueryOriented = Literal["coordinates", "constants", "batch_means"]
# the constants of the released code: the band that products of coordinates shall lie in
LOWER, UPPER = -0.007, -0.002

# wordings of our own in place of the released code's 25, in words that the small presets of both worlds know: others
# would be spelt letter by letter
NEGATIONS = ("not", "no", "is not", "has no", "not the same")


def target_oriented(similarity: Tensor, temperature: float = 0.07, form: TargetOriented = "logits") -> Tensor:
    """Push each anchor off its own target and onto the others: ``-log sigmoid(T_ij * x_ij)`` (ConeSep, eq. 6).

    ``T`` is -1 on the diagonal and 1 elsewhere. Forms:

    - ``logits``: ``x = s / tau``, summed over targets, mean over anchors.
    - ``softmax``: ``x = softmax_j(s / tau)``, which is what the released code computes; x in [0,1] hardly moves it.
    - ``balanced``: as ``logits``, but the mean over own pairs plus the mean over others, so that B-1 others do not
      outvote the one own target. With a batch of one, the own pair alone.

    Args:
        similarity: [B,B] of anchors (rows) with targets (columns).

    Returns:
        Scalar.
    """
    logits = similarity.to(torch.promote_types(similarity.dtype, torch.float32)) / temperature
    if form == "softmax":
        logits = logits.softmax(dim=1)
    elif form not in ("logits", "balanced"):
        raise ValueError(f"target_oriented must be 'softmax', 'logits' or 'balanced', got {form!r}")
    own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    terms = -F.logsigmoid(logits.where(~own, -logits))
    if form == "balanced":
        return terms[own].mean() + (terms[~own].mean() if len(logits) > 1 else 0.0)
    return terms.sum(dim=1).mean()


def query_oriented(
    composed: Tensor,
    anchors: Tensor,
    targets: Tensor | None = None,
    temperature: float = 0.07,
    form: QueryOriented = "batch_means",
) -> Tensor:
    """Keep each anchor at right angles to its query: a band for their similarity (ConeSep, eq. 7).

    ``mean_i [max(s_i - high, 0) + max(low - s_i, 0)] / tau`` with ``s_i = <c_i, g_i>``. Forms:

    - ``batch_means``: low and high are the batch's mean similarity of wrong and of right (query, target) pairs.
    - ``constants``: low = -0.007, high = -0.002.
    - ``coordinates``: what the released code computes: the same band for every product of coordinates c_id g_jd of
      every pair (i, j), none of which is a similarity.

    Args:
        composed: c [B,D]. anchors: g [B,D].
        targets: s [B,B] of composed queries with targets, for ``batch_means``; no gradient goes through the band.

    Returns:
        Scalar.
    """
    low, high = LOWER, UPPER
    if form == "coordinates":
        dtype = torch.promote_types(torch.promote_types(composed.dtype, anchors.dtype), torch.float32)
        total = _OutsideBand.apply(composed.to(dtype), anchors.to(dtype), low, high)
        return total / (len(anchors) * composed.numel()) / temperature
    if form == "batch_means":
        low, high = similarity_band(targets)
    elif form != "constants":
        raise ValueError(f"query_oriented must be 'coordinates', 'constants' or 'batch_means', got {form!r}")
    values = (composed * anchors).sum(dim=1)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return ((values - high).clamp(min=0) + (low - values).clamp(min=0)).mean() / temperature


class _OutsideBand(torch.autograd.Function):
    """Sum over all i, j, d of how far c_id g_jd lies outside [low, high].

    The B x B x D products are looked at a few queries at a time and not kept: the gradient needs only on which side of
    the band each lies, and is summed up at once.
    """

    @staticmethod
    def forward(ctx, composed: Tensor, anchors: Tensor, low: float, high: float) -> Tensor:
        total = composed.new_zeros(())
        to_composed, to_anchors = torch.empty_like(composed), torch.zeros_like(anchors)
        for start in range(0, len(composed), 16):
            part = composed[start : start + 16, None]
            products = part * anchors
            side, below = (products > high).to(part.dtype), (products < low).to(part.dtype)
            total += low * below.sum() - high * side.sum()
            side -= below
            to_composed[start : start + 16] = (side * anchors).sum(dim=1)
            to_anchors += (side * part).sum(dim=0)
        ctx.save_for_backward(to_composed, to_anchors)
        return total + (to_composed * composed).sum()

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_composed, to_anchors = ctx.saved_tensors
        return upstream * to_composed, upstream * to_anchors, None, None


@torch.no_grad()
def similarity_band(similarity: Tensor) -> tuple[Tensor, Tensor]:
    """[alpha_1, alpha_2]: mean similarity of wrong and of right pairs of s [B,B], in rising order.

    With a batch of one, which has no wrong pair, both are the right pair's.
    """
    right = similarity.diagonal().float().mean()
    others = similarity.numel() - len(similarity)
    wrong = (similarity.float().sum() - similarity.diagonal().float().sum()) / others if others else right
    return torch.minimum(wrong, right), torch.maximum(wrong, right)
