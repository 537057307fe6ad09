"""The data report: what a folder in FashionIQ or CIRR layout holds, what is wrong with it, and what may mislead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

import cirkit.data.cirr as cirr
import cirkit.data.fashioniq as fashioniq
from cirkit.data.annotations import DataError, first_ids
from cirkit.data.entries import Entries, Part, targets_outside, used_images
from cirkit.data.findings import (
    caption_table,
    count_table,
    duplicate_table,
    in_order,
    listing_frame,
    overlap_table,
    query_frame,
    seen_table,
)
from cirkit.data.images import ImageFolder
from cirkit.data.report_text import DataReport


def data_report(
    root: str | Path,
    images: str | Path | None = None,
    annotations_only: bool = False,
    decode: bool = True,
    progress: bool = True,
) -> DataReport:
    """Look through a folder in FashionIQ or CIRR layout; what is wrong is collected, not raised.

    Args:
        root: folder with captions/ and image_splits/.
        images: folder that holds the image folders; default `root`.
        annotations_only: do not look for images.
        decode: decode each image, which finds truncated ones; otherwise only missing ones are found.
        progress: show a bar while images are decoded.

    Raises:
        DataError: there is no such folder, or no caption file in it.
    """
    root = Path(root).expanduser()
    problems: list[str] = []
    layout = cirr if cirr.is_cirr(root) else fashioniq
    read = _read_cirr if layout is cirr else _read_fashioniq
    entries, galleries, subsets = read(root, problems)
    try:
        name = layout.dataset_name(root)
    except DataError as error:
        name = "unnamed data"
        problems.append(str(error))
    expected = {part: set(galleries.get(part, ())) for part in in_order(entries.keys() | galleries.keys())}
    for part, columns in entries.items():
        expected[part] |= used_images(columns)
    images_root = None if annotations_only else Path(images or root).expanduser()
    open_images = (lambda folder: cirr.cirr_images(root, folder)) if layout is cirr else ImageFolder
    image_table, gaps = _check_images(open_images, images_root, expected, decode, progress, problems)
    queries, listings = query_frame(entries), listing_frame(galleries)
    return DataReport(
        root=root,
        name=name,
        images_root=images_root,
        counts=count_table(entries, galleries),
        listings=len(listings),
        distinct=listings["image"].nunique(),
        overlaps=overlap_table(listings, queries),
        seen=seen_table(queries),
        captions=caption_table(queries),
        duplicates=duplicate_table(queries),
        subsets=subsets,
        images=image_table,
        gaps=gaps,
        problems=tuple(problems),
    )


Annotations = tuple[dict[Part, Entries], dict[Part, tuple[str, ...]], pd.DataFrame]


def _read_fashioniq(root: Path, problems: list[str]) -> Annotations:
    entries, galleries = {}, {}
    files, lists = fashioniq.caption_files(root), {}
    for part, path in files.items():
        lists[part] = fashioniq.gallery_file(root, *part)
        try:
            entries[part] = fashioniq.read_entries(path)
        except DataError as error:
            problems.append(str(error))
    try:
        lists.update(fashioniq.gallery_files(root))
    except DataError as error:
        problems.append(str(error))
        lists = {}
    for part, path in lists.items():
        try:
            galleries[part] = fashioniq.read_gallery(path)
        except DataError as error:
            problems.append(str(error))
    for split in sorted({split for _, split in lists}):
        if silent := fashioniq.silent_categories(files, lists, split):
            problems.append(f"{root} has a gallery but no caption file for {first_ids(silent)} in split {split!r}.")
    for part in in_order(entries.keys() & galleries.keys()):
        if outside := sorted(targets_outside(entries[part], galleries[part])):
            problems.append(
                f"{fashioniq.gallery_file(root, *part)} lacks {len(outside):,} targets of the {' '.join(part)} queries"
                f" ({first_ids(outside)})."
            )
    return entries, galleries, _subset_table([])


def _read_cirr(root: Path, problems: list[str]) -> Annotations:
    entries, galleries, subsets = {}, {}, []
    files = cirr.caption_files(root)
    for split in sorted(files.keys() | cirr.gallery_splits(root)):
        try:
            galleries["", split] = tuple(cirr.read_paths(cirr.gallery_file(root, split)))
            if split in files:
                queries = cirr.read_queries(files[split])
                entries["", split] = Entries(*queries[:3])
                sizes = [len(members) for members in queries.subsets]
                subsets.append((split, len(sizes), min(sizes, default=0), max(sizes, default=0)))
                if outside := cirr.outside_gallery(queries, galleries["", split]):
                    problems.append(
                        f"{cirr.gallery_file(root, split)} lacks {len(outside):,} images of the {split} queries"
                        f" ({first_ids(outside)})."
                    )
        except DataError as error:
            problems.append(str(error))
    return entries, galleries, _subset_table(subsets)


def _subset_table(rows: list[tuple[str, int, int, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["split", "queries", "smallest", "largest"])


def _check_images(
    open_images: Callable[[Path], ImageFolder],
    root: Path | None,
    expected: dict[Part, set[str]],
    decode: bool,
    progress: bool,
    problems: list[str],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `images` and `gaps`."""
    wanted: set[str] = set().union(*expected.values())
    missing: set[str] = set()
    reasons: dict[str, str] = {}
    if root is not None:
        try:
            folder = open_images(root)
        except DataError as error:
            missing = wanted
            problems.append(str(error))
        else:
            missing = set(folder.missing(wanted))
            none = "no images at hand: " if missing == wanted else ""
            if missing:
                problems.append(f"{none}{len(missing):,} of {len(wanted):,} images are missing; {folder.tried()}.")
            if decode and missing != wanted:
                reasons = folder.check(wanted - missing, allow_missing=True, progress=progress).reasons
            if reasons:
                problems.append(f"{len(reasons):,} of {len(wanted):,} images under {root} are broken.")
    parts = expected.items() if wanted - missing and root is not None else ()
    table = pd.DataFrame(
        [(*part, len(ids), len(ids & missing), len(ids & reasons.keys())) for part, ids in parts],
        columns=["category", "split", "expected", "missing", "broken"],
    )
    gaps = [(image, "missing", "no file") for image in sorted(missing)]
    gaps += [(image, "broken", reason) for image, reason in sorted(reasons.items())]
    return table, pd.DataFrame(gaps, columns=["image", "state", "reason"])
