"""Evaluation, from composed queries and target tokens to ranks: block by block, and by whole matrices.

The two protocols that a published table rests on, at the size of FashionIQ's largest category and of CIRR's validation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.scores import rank_members, rank_targets


class Case(NamedTuple):
    """Queries [B,D], tokens [G,N,D], targets [B]; for CIRR references [B] and subsets [B,6], these first."""

    queries: Tensor
    tokens: Tensor
    target: Tensor
    reference: Tensor | None = None
    subsets: Tensor | None = None


SIZES = {
    "FashionIQ": {"queries": 2_000, "images": 6_346, "subsets": False},
    "CIRR": {"queries": 4_181, "images": 2_297, "subsets": True},
}


def made(queries: int, images: int, subsets: bool = False, tokens: int = 32, dims: int = 256, seed: int = 0) -> Case:
    """Random unit vectors, the target's tokens drawn a little towards its query, so that ranks are not chance."""
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    asked = F.normalize(torch.randn(queries, dims, generator=generator), dim=1)
    gallery = torch.empty(images, tokens, dims)
    target = torch.randint(images, (queries,), generator=generator)
    for part in gallery.split(256):  # in parts, so that the peak of memory is not the making
        part.normal_(generator=generator)
    gallery[target, 0] += 1.5 * dims**0.5 * asked * torch.rand(queries, 1, generator=generator)
    for part in gallery.split(256):
        part.div_(part.norm(dim=2, keepdim=True))
    if not subsets:
        return Case(asked, gallery, target)
    members = np.array([_others(rng, images, int(place)) for place in target])
    return Case(asked, gallery, target, torch.from_numpy(members[:, 0]), torch.from_numpy(members))


def _others(rng: np.random.Generator, images: int, target: int) -> np.ndarray:
    """A subset of six: the reference first, the target second."""
    others = rng.choice(images - 1, 5, replace=False)
    others += others >= target
    return np.concatenate([others[:1], [target], others[1:]])


def in_blocks(case: Case) -> list[np.ndarray]:
    """Better and tied, of the gallery and of the subset, as `cirkit.retrieval.rank_queries` counts them."""
    found = [rank_targets(case.queries, case.tokens, case.target, case.reference)]
    if case.subsets is not None:
        found.append(rank_members(case.queries, case.tokens, case.target, case.subsets[:, 1:]))
    return [column.numpy() for ranks in found for column in ranks[:2]]


def by_matrices(case: Case) -> list[np.ndarray]:
    """The same from the scores of all tokens at once, [B,G,N], and names in order, as released code finds labels."""
    scores = torch.einsum("bd,gnd->bgn", case.queries, case.tokens).amax(dim=2)
    names = np.array([f"image{place:06}" for place in range(len(case.tokens))])
    ordered = names[(1 - scores).argsort(dim=1).numpy()]
    if case.reference is not None:
        kept = ordered != names[case.reference.numpy()][:, None]
        ordered = ordered[kept].reshape(len(ordered), -1)
    places = [(ordered == names[case.target.numpy()][:, None]).argmax(axis=1)]
    if case.subsets is not None:
        members = names[case.subsets[:, 1:].numpy()]
        inside = (ordered[:, :, None] == members[:, None, :]).any(axis=2)
        within = ordered[inside].reshape(len(ordered), -1)
        places.append((within == names[case.target.numpy()][:, None]).argmax(axis=1))
    return places


def as_lavis(case: Case) -> Tensor:
    """Scores [B,G] by LAVIS's product [B,1,1,D] x [G,D,N], which torch carries out as one small product a pair."""
    product = torch.matmul(case.queries[:, None, None], case.tokens.permute(0, 2, 1))
    return product.squeeze(2).amax(dim=2)


def compare(blocks: list[np.ndarray], places: list[np.ndarray]) -> None:
    """Raises AssertionError if a place does not lie where the counts say, but for what float32 cannot tell apart."""
    for better, tied, place in zip(blocks[::2], blocks[1::2], places, strict=True):
        wrong = (place < better) | (place > better + tied)
        # a whole matrix in float32 orders neighbours by its rounding
        assert wrong.mean() < 0.01 and np.abs(place - better)[wrong].max(initial=0) <= 2, f"{wrong.sum()} ranks differ"
