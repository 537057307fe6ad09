"""Mutual knowledge (HABIT): how much two sets of token features tell about each other, and soft labels made of it.

Plug-in mutual information of a joint histogram, in nats, for many pairs at once: a histogram is a product of one-hot
matrices, so nothing is looped over. Without gradient throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FLOOR = 1e-10


def binned(values: Tensor, bins: int) -> Tensor:
    """Equal-width bins between each row's own minimum and maximum, as one-hot float32 [..., n, bins] of [..., n].

    A value on an edge belongs to the bin above it, the maximum to the last one.
    """
    values = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    low, high = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    inner = low + (high - low) * torch.arange(1, bins, device=values.device) / bins
    places = torch.searchsorted(inner, values.contiguous(), right=True)
    return (places[..., None] == torch.arange(bins, device=values.device)).float()


@torch.no_grad()
def histogram_information(first: Tensor, second: Tensor) -> Tensor:
    """Mutual information of pairs that are binned already: one-hot [..., n, bins] each, which broadcast -> [...].

    ``sum_xy p_xy log((p_xy + 1e-10) / (p_x p_y + 1e-10))`` with the joint frequencies ``p``.
    """
    with torch.autocast(first.device.type, enabled=False):
        joint = first.transpose(-1, -2) @ second / first.shape[-2]  # counts are whole numbers, exact in float32
    independent = joint.sum(dim=-1, keepdim=True) * joint.sum(dim=-2, keepdim=True)
    return (joint * ((joint + _FLOOR) / (independent + _FLOOR)).log()).sum(dim=(-1, -2))


def mutual_information(first: Tensor, second: Tensor, bins: int = 10) -> Tensor:
    """Mutual information of n paired numbers, in nats: [..., n] and [..., n], which broadcast -> [...].

    >>> round(mutual_information(torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([5.0, 5.0, 3.0, 3.0]), 2).item(), 4)
    0.6931

    Raises:
        ValueError: the last dimensions differ.
    """
    if first.shape[-1] != second.shape[-1]:
        raise ValueError(f"need as many numbers on both sides, got {first.shape[-1]} and {second.shape[-1]}")
    return histogram_information(binned(first, bins), binned(second, bins))


@torch.no_grad()
def transition_rates(fused: Tensor, targets: Tensor, anchor: int | Tensor, bins: int = 10) -> Tensor:
    """How far each pair's mutual knowledge is from that of an anchor ``k``, the pair that is believed most.

    With ``M(x,y)`` between the fused tokens of x and the target tokens of y, all their features in one row:
    ``r = |M(k,k) - M(i,i)|``, ``r_t = |M(k,k) - M(k,i)|``, ``r_v = |M(k,k) - M(i,k)|``, each divided by ``M(k,k)``.

    Args:
        fused, targets: [B,N,D]. anchor: k, a row of the batch.

    Returns:
        [B,3]: r, r_t, r_v.
    """
    if fused.shape != targets.shape or fused.dim() != 3:
        raise ValueError(f"need tokens [B,N,D] on both sides, got {tuple(fused.shape)} and {tuple(targets.shape)}")
    queries, images = (binned(tokens.flatten(1), bins) for tokens in (fused, targets))
    own = histogram_information(queries, images)
    best = own[anchor]
    of_anchor = histogram_information(queries[anchor], images)
    with_anchor = histogram_information(queries, images[anchor])
    rates = (best - torch.stack([own, of_anchor, with_anchor], dim=1)).abs()
    return rates / best.clamp(min=_FLOOR)


def soft_labels(rates: Tensor) -> Tensor:
    """``1 / (1 + r + |r_t - r_v|)``, 1 for the anchor itself: [B,3] of :func:`transition_rates` -> [B], in (0,1]."""
    own, of_anchor, with_anchor = rates.unbind(dim=1)
    return 1 / (1 + own + (of_anchor - with_anchor).abs())
