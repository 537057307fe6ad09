"""GFQ, geometric fidelity quantification (ConeSep): a noise boundary from random triplets, and who lies below it.

A triplet of Gaussian images and a text of somebody else is wrong for certain. How similar such composed queries and
targets are is where noise is to be expected: the boundary. ConeSep, eq. 2 and 3.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.backbone import Backbone, TokenBatch
from cirkit.scores import max_over_tokens

Fidelity = Literal["released", "literal", "monotone"]
Split = Literal["fraction", "threshold", "boundary"]


@torch.no_grad()
def gaussian_patches(backbone: Backbone, count: int, generator: torch.Generator | None = None) -> Tensor:
    """Patch tokens [count,P,Dv] of images whose normalised pixels are drawn from N(0,1)."""
    size = backbone.config.image_size
    pixels = torch.randn(count, 3, size, size, generator=generator)
    return torch.cat([backbone.patch_tokens(part.to(backbone.device)) for part in pixels.split(128)])


@torch.no_grad()
def gaussian_triplets(
    backbone: Backbone, references: Tensor, targets: Tensor, texts: TokenBatch
) -> tuple[Tensor, Tensor]:
    """Encode random triplets: each Gaussian reference with one of the texts, drawn with replacement.

    Args:
        references, targets: patch tokens [K,P,Dv] of :func:`gaussian_patches`.
        texts: the batch to draw from; drawn with torch's global generator.

    Returns:
        composed [K,D] and target tokens [K,N,D], without gradient.
    """
    drawn = torch.randint(len(texts.ids), (len(references),), device=texts.ids.device)
    return backbone.compose(references, texts.rows(drawn)), backbone.encode_target(targets)


def noise_boundary(composed: Tensor, targets: Tensor, pairs: Literal["all", "matched"] = "all") -> Tensor:
    """The boundary: mean similarity of random triplets (ConeSep, eq. 2).

    Args:
        composed: [K,D] Gaussian references with random texts.
        targets: [K,N,D] tokens of Gaussian targets.
        pairs: ``all`` K x K pairs, as the released code, or the K ``matched`` ones.

    Returns:
        Scalar.
    """
    similarity = max_over_tokens(composed, targets)
    if pairs == "matched":
        if similarity.shape[0] != similarity.shape[1]:
            raise ValueError(f"matched pairs need as many references as targets, got {tuple(similarity.shape)}")
        return similarity.diagonal().mean()
    return similarity.mean()


def separation(similarity: Tensor, boundary: Tensor, temperature: float = 0.07) -> Tensor:
    """How badly a boundary tells right from wrong pairs: the loss of a learned boundary (ours), scalar.

    Logistic loss of ``(s_ij - boundary) / tau``, own pairs above and all others below, the mean over own pairs and the
    mean over others counting alike. Other pairs of a batch are wrong for certain, as Gaussian triplets are.

    Args:
        similarity: s [B,B]; it takes no gradient, only the boundary does. With a batch of one, the own pair alone.
    """
    margins = (similarity.detach().float() - boundary) / temperature
    own = torch.eye(len(margins), dtype=torch.bool, device=margins.device)
    loss = F.softplus(-margins[own]).mean()
    return loss + F.softplus(margins[~own]).mean() if len(margins) > 1 else loss


def fidelity(own: Tensor, boundary: float | Tensor, form: Fidelity = "monotone", guard: bool = True) -> Tensor:
    """How far each triplet lies above the boundary, in one of three forms.

    With ``r = max(s_ii - boundary, 0)`` and ``x = r / max r`` over the batch:

    - ``monotone``: ``x``, in [0,1], larger = cleaner, which is what the paper says of its fidelity.
    - ``released``: ``x^2 (1 - x^2)``, what the released code computes: 0 at and below the boundary, and 0 again for
      the best triplet of the batch.
    - ``literal``: ``r^2 (r - 1)``, the formula as printed (ConeSep, eq. 3): never above 0, and largest (0) at and below
      the boundary, so that it cannot mean larger = cleaner.

    Args:
        own: s_ii [B], each query's similarity with its own target.
        guard: give 0 where no triplet lies above the boundary; without it, ``released`` divides 0 by 0 there (NaN).

    Returns:
        [B], float32 at least.
    """
    above = (own.to(torch.promote_types(own.dtype, torch.float32)) - boundary).clamp(min=0)
    if form == "literal":
        return above.square() * (above - 1)
    best = above.max()
    scaled = above / (best.clamp(min=torch.finfo(above.dtype).tiny) if guard else best)
    if form == "monotone":
        return scaled
    if form == "released":
        return scaled.square() * (1 - scaled.square())
    raise ValueError(f"fidelity must be 'released', 'literal' or 'monotone', got {form!r}")


def noisy_rows(own: Tensor, boundary: float | Tensor, fidelities: Tensor, split: Split, omega: float = 0.5) -> Tensor:
    """Which triplets of a batch count as noisy.

    Args:
        own: s_ii [B]. fidelities: [B], by :func:`fidelity`.
        split: ``fraction`` takes the ``floor(omega * B)`` of lowest fidelity (the released code; ties, which it leaves
            to chance, go by s_ii); ``threshold`` those of fidelity below ``omega`` (the paper); ``boundary`` those
            with s_ii at or below the boundary, whatever ``omega``.
        omega: in [0,1].

    Returns:
        bool [B].
    """
    if split == "boundary":
        return own <= boundary
    if split == "threshold":
        return fidelities < omega
    if split == "fraction":
        count = int(omega * len(own))
        by_margin = own.argsort(stable=True)
        order = by_margin[fidelities[by_margin].argsort(stable=True)]
        return torch.zeros_like(own, dtype=torch.bool).index_fill(0, order[:count], True)
    raise ValueError(f"split must be 'fraction', 'threshold' or 'boundary', got {split!r}")
