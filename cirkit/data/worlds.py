"""What the embedded worlds share: recipes with a digest, building a folder whole or not at all, and even choice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from cirkit.data.annotations import DataError
from cirkit.paths import atomic_path, cache_dir, temporary_path


def check_counts(name: str, recipe) -> None:
    """Raises DataError unless every field of the dataclass `recipe` is a positive whole number (`seed` may be 0)."""
    for field, value in dataclasses.asdict(recipe).items():
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if field == "seed" else 1):
            raise DataError(f"{name} recipe: {field} is {value!r}, not a positive whole number.")


def digest(recipe) -> str:
    """Ten hex digits that name a recipe, a dataclass, in folder names."""
    text = json.dumps(dataclasses.asdict(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def build_world(
    name: str,
    root: Path | None,
    recipe,
    complete: Callable[[Path], bool],
    write: Callable[[Path], None],
) -> Path:
    """The folder <root>/<name>-<digest of the recipe>, written by `write` unless `complete` finds it whole.

    The world is written beside its place and renamed when whole, so a killed build leaves nothing that counts as
    complete, and of two builders at once either may win: the bytes are the same. `root` is the folder that holds
    worlds, by default ``<cache>/worlds``.
    """
    root = cache_dir() / "worlds" if root is None else Path(root)
    folder = root / f"{name}-{digest(recipe)}"
    if complete(folder):
        return folder
    if folder.exists():  # somebody deleted files in it
        aside = temporary_path(folder)
        with suppress(FileNotFoundError):  # another builder was faster
            os.replace(folder, aside)
        if complete(aside):  # it was so fast that what was moved away is its new world
            with suppress(OSError):
                os.replace(aside, folder)
        shutil.rmtree(aside, ignore_errors=True)
        if complete(folder):
            return folder
    with atomic_path(folder) as temporary:
        write(temporary)
    if not complete(folder):
        raise DataError(f"{folder}: the world could not be completed; remove the folder and build again.")
    return folder


def is_whole(folder: Path, recipe, files: dict[str, int]) -> bool:
    """Whether the last-written file of `folder`, dataset.json, names this recipe, and no file is gone.

    Args:
        files: pattern relative to `folder` -> number of files.
    """
    try:
        same = json.loads((folder / "dataset.json").read_text())["recipe"] == dataclasses.asdict(recipe)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return same and all(sum(1 for _ in folder.glob(pattern)) == n for pattern, n in files.items())


def spread_evenly(pairs: np.ndarray, differs: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """At most `count` of `pairs` [m, 2] whose images differ in one or two attributes, in random order.

    Half of them change one attribute and half two, spread evenly over the attributes (and over the pairs of
    attributes) as far as `pairs` allows: drawn blindly, most would change the attribute with the most values.

    Args:
        differs: bool [m, A], whether a pair differs in an attribute.
    """
    n_columns = differs.shape[1]
    masks, n_changed = differs @ (1 << np.arange(n_columns)), differs.sum(axis=-1)
    found, keys = [pairs[:0]], [np.empty(0)]
    for changed, kinds in ((1, n_columns), (2, n_columns * (n_columns - 1) // 2)):
        for mask in np.unique(masks[n_changed == changed]):
            found.append(rng.permutation(pairs[masks == mask]))
            # The r-th pair of a kind comes at "time" r x kinds: taking the earliest fills all kinds evenly.
            keys.append((np.arange(len(found[-1])) + rng.random(len(found[-1]))) * kinds)
    chosen = np.concatenate(found)[np.argsort(np.concatenate(keys), kind="stable")[:count]]
    return rng.permutation(chosen)
