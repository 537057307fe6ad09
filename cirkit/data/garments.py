"""The embedded world `garments`: drawn pictures and texts in the FashionIQ layout, and the truth about them.

Three categories, five attributes (1,728 attribute vectors a category). A category's vectors are dealt out to
train, val and test, so that none of val or test is ever seen in training; in the val and test galleries
every image has its own vector, so that exactly one image is the reference with just the requested change.

On disk: ``captions/``, ``image_splits/`` and ``images/`` as in FashionIQ (the test captions carry their
targets), ``attributes.csv`` (a row an image), ``changes.csv`` (a row a changed attribute), ``dataset.json``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from tqdm import tqdm

from cirkit.data.annotations import DataError
from cirkit.data.garment_drawing import ATTRIBUTES, draw_garment
from cirkit.data.garment_texts import change_captions, description, vocabulary
from cirkit.data.truth import attributes, preservation, relevance
from cirkit.data.worlds import build_world, check_counts, digest, is_whole, spread_evenly

__all__ = ["ATTRIBUTES", "CATEGORIES", "DEFAULT_RECIPE", "SPLITS", "GarmentsRecipe", "attributes"]
__all__ += ["build_garments", "is_complete", "preservation", "relevance", "split_vectors", "stage1_images"]
__all__ += ["vocabulary"]

CATEGORIES = ("dress", "shirt", "toptee")
SPLITS = ("train", "val", "test")
COLUMNS = ("category", *ATTRIBUTES)
CHANGE_COLUMNS = ["split", "category", "row", "reference", "target", "attribute", "old", "new"]
# First number of every random stream after the seed: no two uses share a stream.
_VECTORS, _IDS, _IMAGES, _TRIPLETS, _STAGE1 = range(5)


def all_vectors() -> np.ndarray:
    """Every attribute vector as value indices, int [1728, 5]; columns in the order of `ATTRIBUTES`."""
    counts = [len(values) for values in ATTRIBUTES.values()]
    return np.indices(counts).reshape(len(counts), -1).T


@dataclass(frozen=True)
class GarmentsRecipe:
    """Everything the world's bytes depend on; counts are per category."""

    size: int = 48  # side of a picture in pixels
    train_images: int = 1000
    images_per_vector: int = 2  # training images that share one attribute vector
    gallery_images: int = 600  # val and test each, all attribute vectors distinct
    train_triplets: int = 1200
    eval_triplets: int = 400  # val and test each
    seed: int = 0
    version: int = 1  # raised whenever drawing or wording changes

    def __post_init__(self) -> None:
        check_counts("garments", self)
        vectors = len(all_vectors())
        needed = 2 * self.gallery_images + self.train_vectors
        if needed > vectors:
            raise DataError(f"garments recipe: {needed} attribute vectors a category exceed the {vectors}.")

    @property
    def train_vectors(self) -> int:
        return -(-self.train_images // self.images_per_vector)

    @property
    def digest(self) -> str:
        """Ten hex digits that name the recipe in folder names."""
        return digest(self)

    def images(self, split: str) -> int:
        return self.train_images if split == "train" else self.gallery_images

    def triplets(self, split: str) -> int:
        return self.train_triplets if split == "train" else self.eval_triplets


DEFAULT_RECIPE = GarmentsRecipe()


def named(vector: Sequence[int]) -> dict[str, str]:
    """Value indices [5] -> {attribute: value}."""
    return {name: values[i] for (name, values), i in zip(ATTRIBUTES.items(), vector, strict=True)}


def split_vectors(recipe: GarmentsRecipe, category: str) -> dict[str, np.ndarray]:
    """Disjoint attribute vectors of a category: int [n, 5] for train, val, test and "spare" (in none)."""
    rng = np.random.default_rng([recipe.seed, _VECTORS, CATEGORIES.index(category)])
    shuffled = rng.permutation(all_vectors())
    ends = np.cumsum([recipe.gallery_images, recipe.gallery_images, recipe.train_vectors])
    val, test, train, spare = np.split(shuffled, ends)
    return {"train": train, "val": val, "test": test, "spare": spare}


def image_table(recipe: GarmentsRecipe) -> pd.DataFrame:
    """One row per image: id, split, category, number within both, and the attributes' values."""
    rows = []
    for c in CATEGORIES:
        vectors = split_vectors(recipe, c)
        for split in SPLITS:
            n = recipe.images(split)
            frame = pd.DataFrame({"split": split, "category": c, "number": np.arange(n)})
            picked = vectors[split][np.arange(n) % len(vectors[split])]
            for column, (name, values) in enumerate(ATTRIBUTES.items()):
                frame[name] = np.array(values, dtype=object)[picked[:, column]]
            rows.append(frame)
    table = pd.concat(rows, ignore_index=True)
    numbers = np.random.default_rng([recipe.seed, _IDS]).permutation(len(table))
    table.insert(0, "id", [f"GD{n:08d}" for n in numbers])
    return table


def choose_pairs(codes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct (reference, target) rows whose codes differ in one or two columns, int [count, 2].

    They are spread over the attributes as `spread_evenly` says. Raises DataError if there are too few pairs.
    """
    differs = (codes[:, None, :] != codes[None, :, :]).reshape(-1, codes.shape[1])
    pairs = np.indices((len(codes), len(codes))).reshape(2, -1).T
    chosen = spread_evenly(pairs, differs, count, rng)
    if len(chosen) < count:
        raise DataError(f"garments recipe: {count} triplets a category are wanted, {len(chosen)} pairs exist.")
    return chosen


def split_triplets(
    recipe: GarmentsRecipe, images: pd.DataFrame, split: str, category: str
) -> tuple[list[dict], pd.DataFrame]:
    """FashionIQ entries of one caption file, and one row per changed attribute (the truth about them)."""
    rng = np.random.default_rng([recipe.seed, _TRIPLETS, SPLITS.index(split), CATEGORIES.index(category)])
    ids, values = images["id"].to_numpy(), images[list(ATTRIBUTES)].to_numpy()
    codes = np.stack([pd.factorize(images[name])[0] for name in ATTRIBUTES], axis=1)
    entries, truth = [], []
    for row, (reference, target) in enumerate(choose_pairs(codes, recipe.triplets(split), rng)):
        columns = zip(ATTRIBUTES, values[reference], values[target], strict=True)
        changes = [(name, old, new) for name, old, new in columns if old != new]
        captions = change_captions(category, changes, rng)
        entries.append({"target": ids[target], "candidate": ids[reference], "captions": captions})
        truth += [(split, category, row, ids[reference], ids[target], *change) for change in changes]
    return entries, pd.DataFrame(truth, columns=CHANGE_COLUMNS)


def is_complete(folder: Path, recipe: GarmentsRecipe) -> bool:
    """True if `folder` holds the world of `recipe`: the last-written file says so and no picture is gone."""
    n_images = sum(recipe.images(split) for split in SPLITS) * len(CATEGORIES)
    return is_whole(folder, recipe, {"images/*": n_images})


def build_garments(root: Path | None = None, recipe: GarmentsRecipe = DEFAULT_RECIPE, progress: bool = True) -> Path:
    """Write the world to <root>/garments-<digest of the recipe> and return that folder.

    A no-op of milliseconds if it is there; see `build_world` for what happens to killed and simultaneous builds.

    Args:
        root: folder that holds worlds; default ``<cache>/worlds``.
        recipe: what to build.
        progress: show a progress bar on stderr.
    """
    return build_world(
        "garments",
        root,
        recipe,
        complete=lambda folder: is_complete(folder, recipe),
        write=lambda folder: write_world(folder, recipe, progress),
    )


def write_world(folder: Path, recipe: GarmentsRecipe, progress: bool) -> None:
    for name in ("captions", "image_splits", "images"):
        (folder / name).mkdir(parents=True)
    table = image_table(recipe)
    truth = []
    for (split, category), images in table.groupby(["split", "category"], sort=False):
        entries, changes = split_triplets(recipe, images, split, category)
        truth.append(changes)
        (folder / "captions" / f"cap.{category}.{split}.json").write_text(json.dumps(entries, indent=4))
        gallery = json.dumps(list(images["id"]), indent=4)
        (folder / "image_splits" / f"split.{category}.{split}.json").write_text(gallery)
    table[["id", *COLUMNS]].to_csv(folder / "attributes.csv", index=False, lineterminator="\n")
    pd.concat(truth).to_csv(folder / "changes.csv", index=False, lineterminator="\n")
    bar = {"disable": not progress, "unit": "image", "mininterval": 0.5}
    for row in tqdm(table.itertuples(index=False), "draw garments", len(table), **bar):
        stream = [recipe.seed, _IMAGES, SPLITS.index(row.split), CATEGORIES.index(row.category), row.number]
        values = {name: getattr(row, name) for name in COLUMNS}
        pixels = draw_garment(**values, rng=np.random.default_rng(stream), size=recipe.size)
        Image.fromarray(pixels).save(folder / "images" / f"{row.id}.png")
    content = {"name": "garments", "recipe": dataclasses.asdict(recipe)}
    (folder / "dataset.json").write_text(json.dumps(content, indent=4))


def stage1_images(
    recipe: GarmentsRecipe = DEFAULT_RECIPE, n: int = 8400, progress: bool = True
) -> tuple[np.ndarray, list[str], pd.DataFrame]:
    """Captioned images to pretrain on: not part of the world, and of no attribute vector of val or test.

    Image i depends on the recipe's seed and i alone, so a larger `n` only adds images.

    Returns:
        uint8 pixels [n, size, size, 3]; n captions, each naming every attribute; the truth, one row an image.
    """
    if n < 1:
        raise DataError(f"stage-1 images: n is {n}, not positive.")
    splits = [split_vectors(recipe, category) for category in CATEGORIES]
    pools = [np.concatenate([vectors["train"], vectors["spare"]]) for vectors in splits]
    pixels = np.empty((n, recipe.size, recipe.size, 3), dtype=np.uint8)
    captions, truth = [], []
    for i in tqdm(range(n), "draw stage-1 images", disable=not progress, unit="image", mininterval=0.5):
        rng = np.random.default_rng([recipe.seed, _STAGE1, i])
        category, pool = CATEGORIES[i % len(CATEGORIES)], pools[i % len(CATEGORIES)]
        values = named(pool[rng.integers(len(pool))])
        pixels[i] = draw_garment(category, **values, rng=rng, size=recipe.size)
        captions.append(description(category, values, rng))
        truth.append({"category": category, **values})
    return pixels, captions, pd.DataFrame(truth, columns=list(COLUMNS))
