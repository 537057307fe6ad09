"""The embedded world `scenes`: coloured shapes with relations, in the layouts of CIRR and CIRCO, and the truth.

A scene has a figure and one to three equal companions before a background: eight attributes (`ATTRIBUTES`, 153,600
attribute vectors). Images come in look-alike groups of six that agree in all but three attributes, and so differ from
each other in one to three. No attribute vector occurs twice, within a split or in two splits. So in a whole gallery
exactly one image, the target, is the reference with just the requested change; and of the six exactly one, the target,
satisfies the text. (In the whole gallery many images satisfy the text alone: it says nothing about what stays.)

The CIRCO-style part is rendered with figures, companions and backgrounds that occur in no image of the CIRR-style part
(`HELD_OUT`), so a model trained on CIRR-style triplets has never had a query with them. Stage 1, which stands in for
pretraining on the images of the web, does see them in captioned images, though none of the attribute vectors that
are used here outside training.

On disk: ``captions/``, ``image_splits/`` and ``train/``, ``dev/``, ``test1/`` as in CIRR (test1 carries its targets),
``circo/`` as CIRCO, both of its splits with their truth; ``attributes.csv`` in both, ``changes.csv`` (a row a changed
attribute), ``dataset.json``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from tqdm import tqdm

from cirkit.data.annotations import DataError
from cirkit.data.scene_circo import circo_queries, circo_table
from cirkit.data.scene_drawing import ALL_VALUES, ATTRIBUTES, HELD_OUT, draw_scene
from cirkit.data.scene_groups import (
    DEFAULT_RECIPE,
    GROUP,
    NAMES,
    SPLITS,
    ScenesRecipe,
    group_pairs,
    look_alikes,
    split_groups,
)
from cirkit.data.scene_texts import change_caption, description, vocabulary
from cirkit.data.truth import attributes, preservation, relevance
from cirkit.data.worlds import build_world, is_whole, spread_evenly

__all__ = ["ATTRIBUTES", "DEFAULT_RECIPE", "GROUP", "HELD_OUT", "SPLITS", "STAGE1_GROUP", "ScenesRecipe"]
__all__ += ["attributes", "build_scenes", "is_complete", "preservation", "relevance", "stage1_images", "vocabulary"]

PREFIX = {"train": "train", "val": "dev", "test1": "test1"}  # of ids and of folders, as in CIRR
STAGE1_GROUP = 8  # stage-1 images in a row that agree in all but three attributes
CHANGE_COLUMNS = ["split", "pairid", "reference", "target", "attribute", "old", "new"]
# First number of every random stream after the seed: no two uses share a stream; 0 is that of the groups.
_IDS, _IMAGES, _TRIPLETS, _STAGE1, _CIRCO, _QUERIES = range(1, 7)


def named(vector: np.ndarray) -> dict[str, str]:
    """Indices into `ALL_VALUES` [8] -> {attribute: value}."""
    return {name: values[i] for (name, values), i in zip(ALL_VALUES.items(), vector, strict=True)}


def image_table(recipe: ScenesRecipe) -> pd.DataFrame:
    """One row per image of the CIRR-style part: id, path, split, group, number in the split, and its attributes."""
    tables = []
    for split, groups in split_groups(recipe).items():
        vectors = groups.reshape(-1, len(NAMES))
        numbers = np.random.default_rng([recipe.seed, _IDS, SPLITS.index(split)]).permutation(len(vectors))
        ids = [f"{PREFIX[split]}-{n // 4}-{n // 2 % 2}-img{n % 2}" for n in numbers]
        table = pd.DataFrame({"id": ids, "split": split, "number": np.arange(len(vectors))})
        table["group"] = table["number"] // GROUP
        folder = [f"train/{n // 4 % 10}" if split == "train" else PREFIX[split] for n in numbers]
        table["path"] = [f"./{f}/{i}.png" for f, i in zip(folder, ids, strict=True)]
        for column, (name, values) in enumerate(ATTRIBUTES.items()):
            table[name] = np.array(values, dtype=object)[vectors[:, column]]
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def split_triplets(recipe: ScenesRecipe, images: pd.DataFrame, split: str) -> tuple[list[dict], pd.DataFrame]:
    """CIRR entries of one split, and one row per changed attribute (the truth about them)."""
    rng = np.random.default_rng([recipe.seed, _TRIPLETS, SPLITS.index(split)])
    ids, scenes = images["id"].to_numpy(), images[list(NAMES)].to_dict("records")
    codes = np.stack([pd.factorize(images[name])[0] for name in NAMES], axis=1)
    groups = range(0, len(images), GROUP)
    pairs = np.array([(g + r, g + t) for g in groups for r, t in group_pairs(codes[g : g + GROUP])]).reshape(-1, 2)
    wanted = recipe.triplets(split)
    chosen = spread_evenly(pairs, codes[pairs[:, 0]] != codes[pairs[:, 1]], wanted, rng)
    if len(chosen) < wanted:
        raise DataError(f"scenes recipe: {wanted} {split} triplets are wanted, {len(chosen)} pairs exist.")
    entries, truth = [], []
    first = sum(recipe.triplets(s) for s in SPLITS[: SPLITS.index(split)])
    for pair, (reference, target) in enumerate(chosen, first):
        old, new = scenes[reference], scenes[target]
        changes = [(name, new[name]) for name in NAMES if old[name] != new[name]]
        start = reference - reference % GROUP
        members = rng.permutation(GROUP)
        entries.append(
            {
                "pairid": pair,
                "reference": ids[reference],
                "target_hard": ids[target],
                "target_soft": {ids[target]: 1.0},
                "caption": change_caption(old, changes, rng),
                "img_set": {
                    "id": int(start // GROUP),
                    "members": [ids[start + m] for m in members],
                    # as in CIRR, no places in `members`
                    "reference_rank": int(reference - start),
                    "target_rank": int(target - start),
                },
            }
        )
        truth += [(split, pair, ids[reference], ids[target], name, old[name], value) for name, value in changes]
    return entries, pd.DataFrame(truth, columns=CHANGE_COLUMNS)


def circo_images(recipe: ScenesRecipe) -> pd.DataFrame:
    """One row per image of the CIRCO-style part, see `circo_table`."""
    return circo_table(recipe.circo_images, np.random.default_rng([recipe.seed, _CIRCO]))


def is_complete(folder: Path, recipe: ScenesRecipe) -> bool:
    """True if `folder` holds the world of `recipe`: the last-written file says so and no picture is gone."""
    files = {f"{PREFIX[s]}/{'*/' * (s == 'train')}*.png": GROUP * recipe.groups(s) for s in SPLITS}
    return is_whole(folder, recipe, files | {"circo/COCO2017_unlabeled/unlabeled2017/*.png": recipe.circo_images})


def build_scenes(root: Path | None = None, recipe: ScenesRecipe = DEFAULT_RECIPE, progress: bool = True) -> Path:
    """Write the world to <root>/scenes-<digest of the recipe> and return that folder; the CIRCO part is its circo/.

    A no-op of milliseconds if it is there; see `build_world` for what happens to killed and simultaneous builds.

    Args:
        root: folder that holds worlds; default ``<cache>/worlds``.
        recipe: what to build.
        progress: show a progress bar on stderr.
    """
    return build_world(
        "scenes",
        root,
        recipe,
        complete=lambda folder: is_complete(folder, recipe),
        write=lambda folder: write_world(folder, recipe, progress),
    )


def write_world(folder: Path, recipe: ScenesRecipe, progress: bool) -> None:
    cirr, circo = image_table(recipe), circo_images(recipe)
    circo["path"] = [f"circo/COCO2017_unlabeled/unlabeled2017/{int(i):012d}.png" for i in circo["id"]]
    for parent in sorted({str(Path(path).parent) for table in (cirr, circo) for path in table["path"]}):
        (folder / parent).mkdir(parents=True)
    truth = []
    for split, images in cirr.groupby("split", sort=False):
        entries, changes = split_triplets(recipe, images, split)
        truth.append(changes)
        _write_json(folder / "captions" / f"cap.rc2.{split}.json", entries)
        gallery = dict(zip(images["id"], images["path"], strict=True))
        _write_json(folder / "image_splits" / f"split.rc2.{split}.json", gallery)
    pd.concat(truth).to_csv(folder / "changes.csv", index=False, lineterminator="\n")
    for number, (split, n) in enumerate((("val", recipe.circo_val), ("test", recipe.circo_test))):
        queries = circo_queries(circo, n, np.random.default_rng([recipe.seed, _QUERIES, number]))
        if len(queries) < n:
            raise DataError(
                f"scenes recipe: {n} {split} queries of circo/ are wanted, {len(queries)} were found among"
                f" circo_images {recipe.circo_images}."
            )
        _write_json(folder / "circo" / "annotations" / f"{split}.json", queries)
    listed = [
        {"file_name": Path(path).name, "height": recipe.size, "width": recipe.size, "id": int(i)}
        for i, path in zip(circo["id"], circo["path"], strict=True)
    ]
    info = folder / "circo" / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    _write_json(info, {"images": listed})
    for table, place in ((cirr, folder), (circo, folder / "circo")):
        table[["id", *NAMES]].to_csv(place / "attributes.csv", index=False, lineterminator="\n")
    rows = [*_drawn(cirr), *_drawn(circo)]
    for stream, path, values in tqdm(rows, "draw scenes", disable=not progress, unit="image", mininterval=0.5):
        rng = np.random.default_rng([recipe.seed, _IMAGES, *stream])
        Image.fromarray(draw_scene(**values, rng=rng, pixels=recipe.size)).save(folder / path)
    _write_json(folder / "circo" / "dataset.json", {"name": "scenes-circo"})
    _write_json(folder / "dataset.json", {"name": "scenes", "recipe": dataclasses.asdict(recipe)})


def stage1_images(
    recipe: ScenesRecipe = DEFAULT_RECIPE, n: int = 8400, progress: bool = True
) -> tuple[np.ndarray, list[str], pd.DataFrame]:
    """Captioned images to pretrain on: not part of the world, and of no attribute vector of val, test1 or CIRCO part.

    All values occur, those held out of the CIRR-style part too, in any combination. `STAGE1_GROUP` images in a row look
    alike as in the world, for batches of hard negatives. Image i depends on the recipe's seed and i alone, so a larger
    `n` only adds images.

    Returns:
        uint8 pixels [n, size, size, 3]; n captions, each naming every attribute; the truth, one row an image.
    """
    if n < 1:
        raise DataError(f"stage-1 images: n is {n}, not positive.")
    groups = split_groups(recipe)
    taken = {tuple(v) for s in ("val", "test1") for v in groups[s].reshape(-1, len(NAMES))}
    circo = circo_images(recipe)[list(NAMES)]
    taken |= {tuple(ALL_VALUES[c].index(v) for c, v in row.items()) for row in circo.to_dict("records")}
    counts = [len(values) for values in ALL_VALUES.values()]
    pixels = np.empty((n, recipe.size, recipe.size, 3), dtype=np.uint8)
    captions, truth = [], []
    for i in tqdm(range(n), "draw stage-1 images", disable=not progress, unit="image", mininterval=0.5):
        if i % STAGE1_GROUP == 0:
            rng = np.random.default_rng([recipe.seed, _STAGE1, i])
            group = look_alikes(rng.integers(counts), counts, STAGE1_GROUP, rng)
            while taken & set(map(tuple, group)):
                group = look_alikes(rng.integers(counts), counts, STAGE1_GROUP, rng)
            group = rng.permutation(group)
        rng = np.random.default_rng([recipe.seed, _STAGE1, i, 1])
        values = named(group[i % STAGE1_GROUP])
        pixels[i] = draw_scene(**values, rng=rng, pixels=recipe.size)
        captions.append(description(values, rng))
        truth.append(values)
    return pixels, captions, pd.DataFrame(truth, columns=list(NAMES))


def _drawn(table: pd.DataFrame) -> Iterator[tuple[list[int], str, dict[str, str]]]:
    """(random stream, path, attributes) of every image of a table."""
    for row in table.to_dict("records"):
        stream = SPLITS.index(row["split"]) if "split" in row else len(SPLITS)
        yield [stream, row["number"]], row["path"], {name: row[name] for name in NAMES}


def _write_json(path: Path, content: list | dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
