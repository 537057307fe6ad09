"""What a world `scenes` is made of: its recipe, and the look-alike groups of attribute vectors in every split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cirkit.data.annotations import DataError
from cirkit.data.scene_drawing import ATTRIBUTES, HELD_OUT
from cirkit.data.worlds import check_counts, digest

SPLITS = ("train", "val", "test1")
NAMES = tuple(ATTRIBUTES)
GROUP = 6


@dataclass(frozen=True)
class ScenesRecipe:
    """Everything the world's bytes depend on."""

    size: int = 48  # side of a picture in pixels
    train_groups: int = 400  # look-alike groups of six images
    eval_groups: int = 150  # val and test1 each
    train_triplets: int = 3600
    eval_triplets: int = 800  # val and test1 each
    circo_images: int = 900
    circo_val: int = 220  # queries
    circo_test: int = 400
    seed: int = 0
    version: int = 1  # raised whenever drawing or wording changes

    def __post_init__(self) -> None:
        check_counts("scenes", self)
        vectors = int(np.prod([len(v) for v in ATTRIBUTES.values()]))
        if (needed := GROUP * (self.train_groups + 2 * self.eval_groups)) > vectors // 8:
            raise DataError(f"scenes recipe: {needed} images are more than an eighth of the {vectors} vectors.")
        held_out = int(np.prod([len(HELD_OUT.get(name, values)) for name, values in ATTRIBUTES.items()]))
        if self.circo_images > held_out // 8:
            raise DataError(f"scenes recipe: circo_images is {self.circo_images}, the most is {held_out // 8}.")

    @property
    def digest(self) -> str:
        """Ten hex digits that name the recipe in folder names."""
        return digest(self)

    def groups(self, split: str) -> int:
        return self.train_groups if split == "train" else self.eval_groups

    def triplets(self, split: str) -> int:
        return self.train_triplets if split == "train" else self.eval_triplets


DEFAULT_RECIPE = ScenesRecipe()


def look_alikes(base: np.ndarray, counts: list[int], n: int, rng: np.random.Generator) -> np.ndarray:
    """`base` [8] and n - 1 other distinct vectors that differ from it in one or two of three attributes, int [n, 8]."""
    free = rng.permutation(len(base))[:3]
    group = [base]
    seen = {tuple(base)}
    while len(group) < n:
        other = base.copy()
        for a in rng.permutation(free)[: rng.integers(1, 3)]:
            other[a] = (other[a] + rng.integers(1, counts[a])) % counts[a]
        if tuple(other) not in seen:
            seen.add(tuple(other))
            group.append(other)
    return np.stack(group)


def group_pairs(group: np.ndarray) -> list[tuple[int, int]]:
    """(reference, target) in a group [6, 8] that differ in one or two attributes, if no other member has the values
    that the target has there."""
    pairs = []
    for r in range(len(group)):
        for t in range(len(group)):
            changed = group[r] != group[t]
            if 1 <= changed.sum() <= 2 and (group[:, changed] == group[t, changed]).all(axis=1).sum() == 1:
                pairs.append((r, t))
    return pairs


def split_groups(recipe: ScenesRecipe) -> dict[str, np.ndarray]:
    """Look-alike groups of every split, int [groups, 6, 8]; all vectors of all splits are distinct."""
    counts = [len(values) for values in ATTRIBUTES.values()]
    seen: set[tuple] = set()
    found = {}
    for split in ("val", "test1", "train"):  # evaluation first: it does not change with the size of training
        rng = np.random.default_rng([recipe.seed, 0, SPLITS.index(split)])
        groups: list[np.ndarray] = []
        while len(groups) < recipe.groups(split):
            group = look_alikes(rng.integers(counts), counts, GROUP, rng)
            vectors = set(map(tuple, group))
            if len(group_pairs(group)) < 8 or vectors & seen:
                continue
            seen |= vectors
            groups.append(rng.permutation(group))
        found[split] = np.stack(groups)
    return found
