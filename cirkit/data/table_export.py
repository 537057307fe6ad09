"""A table written in the layout of FashionIQ, which every tool of the study takes, and a world written as a table."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cirkit.data.annotations import DataError
from cirkit.data.images import EXTENSIONS, ImageFolder
from cirkit.data.table import Table
from cirkit.data.triplets import TripletSet
from cirkit.paths import atomic_path

HELD_OUT = 10  # one reference in so many is for validation where the table does not say which


def held_out(table: Table) -> np.ndarray:
    """Rows for validation, bool [n]: those of split val; of a row without split, whatever its reference's name says.

    All rows of a reference go to one side, whichever other rows there are.
    """

    def drawn(image: str) -> bool:
        return int(hashlib.sha256(image.encode()).hexdigest()[:8], 16) % HELD_OUT == 0

    pairs = zip(table.splits, table.references, strict=True)
    return np.array([split == "val" if split else drawn(reference) for split, reference in pairs])


def write_fashioniq(table: Table, parent: str | Path, rows: Sequence[bool] | None = None) -> Path:
    """Write a table in the layout of FashionIQ to <parent>/<name>-<digest of the content> and return that folder.

    Images are hard links where the file system permits, otherwise copies. The gallery of a category are all images of
    the table's rows of it, for train and val alike.

    Args:
        rows: bool [n], the rows to write, such as those that are not flagged; None for all. Galleries stay whole.

    Raises:
        DataError: two images or categories would get one name, or train or val would have no row.
    """
    keep = np.ones(len(table), dtype=bool) if rows is None else np.asarray(rows, dtype=bool)
    names = {image: image.replace("/", "__") for image in table.image_ids()}
    if len(set(names.values())) < len(names):
        raise DataError(f"{table.path}: two images get one name when folders become '__'; rename one of them.")
    files = _annotations(table, keep, names)
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:10]
    folder = Path(parent) / f"{table.name}-{digest}"
    if folder.is_dir():
        return folder
    with atomic_path(folder) as temporary:
        for name, content in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(content, encoding="utf-8")
        (temporary / "images").mkdir()
        for image, name in names.items():
            source = table.images.path(image)
            suffix = source.suffix if source.suffix.lower() in EXTENSIONS else ".png"  # it decides nothing
            _link(source, temporary / "images" / f"{name}{suffix}")
    return folder


def _annotations(table: Table, keep: np.ndarray, names: dict[str, str]) -> dict[str, str]:
    """File name -> content of the annotations in FashionIQ's layout."""
    val, categories = held_out(table), np.array(table.categories)
    for split, chosen in (("train", keep & ~val), ("val", keep & val)):
        if not chosen.any():
            own = int((val if split == "val" else ~val).sum())
            gone = f"all {own} rows for {split} are left out" if own else f"no row is for {split}"
            raise DataError(f"{table.path}: {gone}; name rows in a column split (train, val).")
    galleries = table.triplets().galleries
    labels = {category: re.sub(r"[^\w-]+", "_", category) for category in galleries}
    if len(set(labels.values())) < len(labels):
        raise DataError(f"{table.path}: two categories get one name when only letters, digits, - and _ are kept.")
    files = {"dataset.json": json.dumps({"name": table.world or table.name})}
    for category, gallery in galleries.items():
        for split, side in (("train", ~val), ("val", val)):
            entries = []
            for i in np.flatnonzero(keep & side & (categories == category)):
                pair = {"candidate": names[table.references[i]], "target": names[table.targets[i]]}
                entries.append(pair | {"captions": [table.texts[i]]})
            files[f"captions/cap.{labels[category]}.{split}.json"] = json.dumps(entries, indent=1)
            images = json.dumps([names[image] for image in gallery], indent=1)
            files[f"image_splits/split.{labels[category]}.{split}.json"] = images
    return files


def write_world_table(triplets: TripletSet, images: ImageFolder, folder: str | Path, world: str) -> Path:
    """Write triplets of an embedded world as somebody's own data: images/, triplets.csv; returns the CSV file.

    dataset.json beside it names the world, by which its own backbones are let in.
    """
    folder = Path(folder)
    if not folder.is_dir():
        with atomic_path(folder) as temporary:
            (temporary / "images").mkdir(parents=True)
            for image in sorted({*triplets.references, *triplets.targets}):
                source = images.path(image)
                _link(source, temporary / "images" / source.name)
            with (temporary / "triplets.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(("reference", "text", "target", "category"))
                for triplet in triplets:
                    writer.writerow((triplet.reference, triplet.text, triplet.target, triplet.category))
            (temporary / "dataset.json").write_text(json.dumps({"name": world}))
    return folder / "triplets.csv"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, target)
