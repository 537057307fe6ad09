"""Reader of the FashionIQ layout, for FashionIQ itself and for any data written the same way.

    <root>/captions/cap.<category>.<split>.json         [{"candidate": id, "target": id, "captions": [a, b]}]
    <root>/image_splits/split.<category>.<split>.json   [id, ...]: the gallery of that category and split
    <root>/dataset.json                                 optional, {"name": ...}

Categories are read from the file names. FashionIQ's test entries have no "target" (its truth is not public).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from cirkit.data.annotations import DataError, first_ids, image_id, image_ids, kind_of, read_json, stored_name
from cirkit.data.captions import check_caption_mode
from cirkit.data.entries import Entries, Part, targets_outside, union_gallery, used_images
from cirkit.data.triplet_checks import check_gallery_rule
from cirkit.data.triplets import TripletSet

CATEGORIES = {"dress", "shirt", "toptee"}  # of FashionIQ itself
_CAPTION_FILE = re.compile(r"cap\.(?P<category>.+)\.(?P<split>[^.]+)\.json")
_GALLERY_FILE = re.compile(r"split\.(?P<category>.+)\.(?P<split>[^.]+)\.json")
_CIRR_HINT = "; this looks like CIRR, which has its own layout"


def load_fashioniq(
    root: str | Path,
    split: str,
    categories: Sequence[str] | None = None,
    caption_mode: str = "first_and_second",
    gallery_rule: str = "split",
    exclude_reference: bool = False,
    name: str | None = None,
    exclude_leaks: bool = False,
) -> TripletSet:
    """Read one split of a folder in FashionIQ layout.

    Args:
        root: folder with captions/ and image_splits/.
        split: "train", "val" or "test".
        categories: which to read, in this order; None reads all, sorted, and refuses a split in which one has a
            gallery but no captions.
        caption_mode: see `TripletSet`. With "both", rows 2i and 2i+1 are triplet i with either order.
        gallery_rule: "split" ranks the full list of the split file; "union" only the images that occur in a
            query of the category, which gives higher numbers.
        exclude_reference: take the reference out of the ranking. The public code of CLIP4CIR, SPRC, TME and
            QuRe ranks it (False); that of ConeSep, HABIT and INTENT puts it last (True).
        name: recorded data set name; default as `dataset_name`, so that data of one's own are not called fashioniq.
        exclude_leaks: leave out triplets whose reference or target also occurs in triplets on the other side
            of the border between training and evaluation, over all categories of the folder. For "train" the
            other side is every other split, so that evaluation can stay as published; for "val" and "test" it
            is "train".

    Raises:
        DataError: a file is missing or malformed, a mode is unknown, a gallery lists an id twice, or, with
            gallery rule "split", a target is not in its gallery.
    """
    root = Path(root).expanduser()
    check_caption_mode(caption_mode, split)
    check_gallery_rule(gallery_rule)
    files = caption_files(root)
    chosen = _choose_categories(root, files, split, categories)
    parts = {category: read_entries(files[category, split]) for category in chosen}
    galleries = {}
    for category, part in parts.items():
        path = gallery_file(root, category, split)
        gallery = read_gallery(path)
        outside = sorted(targets_outside(part, gallery))
        if outside and gallery_rule == "split":
            raise DataError(
                f"{path} lacks {len(outside):,} targets of {files[category, split].name}"
                f" ({first_ids(outside)}), so their queries have no right answer; add them to the file,"
                " or use gallery_rule='union'."
            )
        if gallery_rule == "union":
            gallery = union_gallery(part, gallery, files[category, split])
        galleries[category] = gallery
    triplets = TripletSet(
        name=name or dataset_name(root),
        split=split,
        references=tuple(chain.from_iterable(part.references for part in parts.values())),
        captions=tuple(chain.from_iterable(part.captions for part in parts.values())),
        targets=tuple(chain.from_iterable(part.targets for part in parts.values())),
        categories=tuple(category for category, part in parts.items() for _ in part.references),
        galleries=galleries,
        caption_mode=caption_mode,
        gallery_rule=gallery_rule,
        exclude_reference=exclude_reference,
    )
    if not len(triplets):
        raise DataError(f"{root} has no {split} triplets of {', '.join(chosen)}: the lists are empty.")
    if exclude_leaks:
        triplets = _without_leaks(triplets, root, files)
    if caption_mode == "both":
        twice = triplets.select([row for row in range(len(triplets)) for _ in range(2)])
        orders = tuple(caps[::-1] if row % 2 else caps for row, caps in enumerate(twice.captions))
        triplets = twice.replace(captions=orders, dropped_queries=2 * triplets.dropped_queries)
    return triplets


def caption_files(root: str | Path) -> dict[tuple[str, str], Path]:
    """(category, split) -> caption file, sorted; `DataError` if there is none."""
    return _find_files(Path(root), "captions", _CAPTION_FILE, "cap.<category>.<split>.json")


def gallery_files(root: str | Path) -> dict[tuple[str, str], Path]:
    """(category, split) -> split file, sorted; `DataError` if there is none."""
    return _find_files(Path(root), "image_splits", _GALLERY_FILE, "split.<category>.<split>.json")


def gallery_file(root: str | Path, category: str, split: str) -> Path:
    """Where the gallery of a category and split is listed."""
    return Path(root) / "image_splits" / f"split.{category}.{split}.json"


def splits(root: str | Path) -> set[str]:
    """Names of the splits that have a caption file."""
    return {split for _, split in caption_files(root)}


def silent_categories(captions: Iterable[Part], galleries: Iterable[Part], split: str) -> list[str]:
    """Categories with a gallery but no captions in a split that has captions of others, sorted."""
    with_captions = {category for category, of in captions if of == split}
    listed = {category for category, of in galleries if of == split}
    return sorted(listed - with_captions) if with_captions else []


def dataset_name(root: str | Path) -> str:
    """The name in <root>/dataset.json; without it "fashioniq" if the categories are FashionIQ's, else the folder's."""
    if name := stored_name(root):
        return name
    known = {category for category, _ in caption_files(root)} <= CATEGORIES
    return "fashioniq" if known else Path(root).expanduser().resolve().name


def read_entries(path: str | Path) -> Entries:
    """Read a caption file; captions stay as they are, blank ones too.

    Raises:
        DataError: the file is not a list of entries with "candidate", "captions" (one or two strings) and, in
            all entries or in none, "target".
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path} holds {kind_of(content)}, not a list of triplets.")
    references, all_captions, targets = [], [], []
    for row, entry in enumerate(content):
        where = f"{path}, entry {row}"
        if not isinstance(entry, dict):
            raise DataError(f"{where} is {kind_of(entry)}, not an object with candidate, target and captions.")
        if "candidate" not in entry:
            hint = _CIRR_HINT if "pairid" in entry or "reference" in entry else ""
            raise DataError(f"{where} has no 'candidate' (keys: {', '.join(entry) or 'none'}){hint}.")
        captions = entry.get("captions")
        if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
            raise DataError(f"{where}: 'captions' is {kind_of(captions)}, not a list of strings.")
        if not 1 <= len(captions) <= 2:
            raise DataError(f"{where} has {len(captions)} captions; this layout has one or two.")
        references.append(image_id(entry["candidate"], f"{where}, candidate"))
        all_captions.append(tuple(captions))
        target = entry.get("target")
        targets.append(None if target is None else image_id(target, f"{where}, target"))
    if None in targets and any(targets):
        raise DataError(f"{path}, entry {targets.index(None)} has no 'target', but other entries have one.")
    return Entries(tuple(references), tuple(all_captions), tuple(targets))


def read_gallery(path: str | Path) -> tuple[str, ...]:
    """Read a split file: image ids in file order.

    Raises:
        DataError: the file is not a list of ids, or an id stands in it twice (it would be ranked twice).
    """
    content = read_json(path)
    if isinstance(content, dict):
        raise DataError(f"{path} holds an object, not a list of image ids{_CIRR_HINT}.")
    return image_ids(content, str(path))


def _without_leaks(triplets: TripletSet, root: Path, files: dict[tuple[str, str], Path]) -> TripletSet:
    training = triplets.split == "train"
    other = [path for (_, split), path in files.items() if (split == "train") != training]
    if not other:
        side = "val or test" if training else "train"
        raise DataError(f"exclude_leaks needs the {side} caption files, and {root / 'captions'} has none.")
    seen: set[str] = set().union(*(used_images(read_entries(path)) for path in other))
    keep = [
        row
        for row, (reference, target) in enumerate(zip(triplets.references, triplets.targets, strict=True))
        if reference not in seen and target not in seen
    ]
    kept = triplets.select(keep)
    return kept.replace(dropped_queries=len(triplets) - len(kept), exclude_leaks=True)


def _find_files(root: Path, folder: str, pattern: re.Pattern[str], form: str) -> dict[tuple[str, str], Path]:
    if not root.is_dir():
        raise DataError(f"the data folder {root} does not exist.")
    if not (root / folder).is_dir():
        raise DataError(f"{root} has no folder {folder}/, where the annotation files {form} belong.")
    found = {}
    for path in sorted((root / folder).iterdir()):
        if match := pattern.fullmatch(path.name):
            found[match["category"], match["split"]] = path
    if not found:
        raise DataError(f"{root / folder} has no file {form}.")
    return dict(sorted(found.items()))


def _choose_categories(
    root: Path, files: dict[tuple[str, str], Path], split: str, categories: Sequence[str] | None
) -> list[str]:
    available = [category for category, file_split in files if file_split == split]
    if not available:
        there = ", ".join(sorted({file_split for _, file_split in files}))
        raise DataError(f"{root / 'captions'} has no caption file for split {split!r} (it has {there}).")
    if categories is None:
        if silent := silent_categories(files, gallery_files(root), split):
            raise DataError(
                f"{root} has a gallery but no caption file for {first_ids(silent)} in split {split!r}, so the mean over"
                f" categories would lack it; add the file, or name the categories to read ({', '.join(available)})."
            )
        return available
    wanted = list(dict.fromkeys([categories] if isinstance(categories, str) else categories))
    unknown = [category for category in wanted if category not in available]
    if unknown or not wanted:
        raise DataError(
            f"no caption file for categories {unknown} of split {split!r} in {root / 'captions'};"
            f" it has {', '.join(available)}."
        )
    return wanted
