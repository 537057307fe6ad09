"""Made-up training triplets and image similarities for the tests of noise."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from cirkit.data.triplets import TripletSet


def make(references, captions, targets, categories=None, split="train", galleries=None, **fields) -> TripletSet:
    """Triplets as given; unless told, a category's gallery is the images of its triplets and one that none uses."""
    categories = categories or ("",) * len(references)
    if galleries is None:
        galleries = {category: [f"unused {category}"] for category in sorted(set(categories))}
        for category, *images in zip(categories, references, targets, strict=True):
            galleries[category] += [i for i in images if i is not None and i not in galleries[category]]
    return TripletSet(
        name="made", split=split, references=tuple(references), captions=tuple(captions),
        targets=tuple(targets), categories=tuple(categories), galleries=galleries, **fields,
    )  # fmt: skip


def distinct(n: int, **fields) -> TripletSet:
    """No value occurs twice; three categories."""
    names = ("dress", "shirt", "toptee")
    return make(
        [f"r{i}" for i in range(n)], [(f"a{i}", f"b{i}") for i in range(n)], [f"t{i}" for i in range(n)],
        [names[i * 3 // n] for i in range(n)], **fields,
    )  # fmt: skip


def repeated(n: int, values: int, seed: int) -> TripletSet:
    """Few distinct values, and references that occur as targets."""
    rng = np.random.default_rng(seed)
    draw = rng.integers(values, size=(3, n))
    return make(
        [f"i{v}" for v in draw[0]],
        [(f"c{v}", "") for v in draw[1]],
        [f"i{v}" if v != draw[0][i] else f"i{v + 1}" for i, v in enumerate(draw[2])],
    )


def slots(triplets: TripletSet):
    return zip(triplets.references, triplets.captions, triplets.targets, strict=True)


def coarse(references: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
    """Whole numbers 0 to 4 that depend on the two names alone, so that many are equal; not to be written to."""
    scores = np.array([[zlib.crc32(f"{a} {b}".encode()) % 5 for b in candidates] for a in references])
    scores = scores.reshape(len(references), len(candidates)).astype(np.float32)
    scores.setflags(write=False)
    return scores
