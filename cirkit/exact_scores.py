"""Scores as computed in float64 and rounded to float32, for little more than products in float32 cost.

A product of unit vectors in float32 is off by at most about D * 2^-24. Where that cannot decide a comparison the score
stays as it is; where it can, and there alone, it is computed once more in float64.

Letters: B queries, G gallery images, N tokens per image, D dimensions, b and g of them in one block.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_PAIRS = 64  # pairs that are computed in float64 at a time
_PART = 32  # images whose tokens are in float64 at a time
_FEW = 16  # of a block, one pair in so many; if more are asked for, the whole block is computed in float64
_LARGEST = 1e30  # of norms multiplied, so that nothing in float32 can overflow


class Block:
    """Scores of consecutive queries with consecutive images.

    Attributes:
        rows: of the queries. first: position of the first image in the gallery.
        near: float32 [b,g], each within ``slack`` [b,1] of the exact score.
        non_finite: how many of the pairs have a token whose score is NaN or infinite.
    """

    def __init__(self, rows: slice, first: int, queries: Tensor, tokens: Tensor, slack: Tensor | None):
        """Queries [b,D] in float64 and tokens [g,N,D]; without ``slack`` all is exact from the start."""
        self.rows, self.first = rows, first
        self._queries, self._tokens = queries, tokens
        self.non_finite: Tensor | int = 0
        if slack is None:
            scores = _token_scores(queries, tokens.double()).float()
            self.non_finite = (~torch.isfinite(scores)).any(dim=2).sum()
            self.near, self.slack = scores.amax(dim=2), scores.new_zeros(len(queries), 1)
        else:
            self.near, self.slack = _token_scores(queries.float(), tokens.float()).amax(dim=2), slack

    def exact(self, needed: Tensor) -> Tensor:
        """The scores, float32 [b,g], exact at least where ``needed``, bool [b,g]; ``near`` is spent."""
        if not self.slack.any():
            return self.near
        rows, columns = needed.nonzero(as_tuple=True)
        if _FEW * len(rows) > needed.numel():
            return _token_scores(self._queries, self._tokens.double()).amax(dim=2).float()
        for pair in torch.arange(len(rows), device=rows.device).split(_PAIRS):
            row, column = rows[pair], columns[pair]
            tokens = self._tokens[column].double()
            self.near[row, column] = torch.einsum("pd,pnd->pn", self._queries[row], tokens).amax(dim=1).float()
        return self.near


def blocks(queries: Tensor, targets: Tensor, chunk: int) -> Iterator[Block]:
    """All pairs of queries [B,D], in float64, and targets [G,N,D], which are read once; ``chunk`` of each in a block.

    Memory is bounded by ``chunk`` images and the float32 token scores of ``chunk`` queries with them.
    """
    lengths = queries.norm(dim=1, keepdim=True)
    longest = float(lengths.max()) if len(queries) else 0.0
    trusted = torch.get_float32_matmul_precision() == "highest"  # else products may be in fewer bits
    for first in range(0, len(targets), chunk):
        tokens = targets[first : first + chunk].to(queries.device)
        length = float(torch.stack([part.double().norm(dim=2).max() for part in tokens.split(_PART)]).max())
        # false for NaN as well
        bounded = trusted and length * longest < _LARGEST
        for start in range(0, len(queries), chunk):
            rows = slice(start, min(start + chunk, len(queries)))
            slack = _slack(lengths[rows] * length, queries.shape[1]) if bounded else None
            yield Block(rows, first, queries[rows], tokens, slack)


def _slack(lengths: Tensor, dims: int) -> Tensor:
    """How far a float32 product of vectors of these lengths multiplied can lie from the exact one, rounded.

    Higham, Accuracy and Stability of Numerical Algorithms, 3.1: gamma_D |x|.|y| in any order of summation; and for
    rounding both factors and the result, and for what underflows.
    """
    unit = 2.0**-24
    steps = dims + 4
    return (steps * unit / (1 - steps * unit) * lengths + steps * 1.2e-38).float() * (1 + 2 * unit)


def _token_scores(queries: Tensor, tokens: Tensor) -> Tensor:
    """[b,g,N], in the dtype of both."""
    with torch.autocast(queries.device.type, enabled=False):
        return (queries @ tokens.flatten(0, 1).T).unflatten(1, tokens.shape[:2])
