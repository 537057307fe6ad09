"""Reader of the CIRR layout (release rc2), for CIRR itself and for any data written the same way.

    <root>/captions/cap.rc2.<split>.json         [{"pairid", "reference", "target_hard", "caption", "img_set"}]
    <root>/image_splits/split.rc2.<split>.json   {id: path of the image}: the gallery of that split
    <root>/dataset.json                          optional, {"name": ...}

Both folders may also lie in <root>/cirr, CIRR, cirr_dataset or data/cirr. The subset of a query, "img_set", is read by
its members' names; the ranks stored beside them count differently and are not used, nor is "target_soft". Entries of
test1 have no "target_hard" (its truth is not public).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from cirkit.data.annotations import (
    DataError,
    first_ids,
    image_id,
    image_ids,
    kind_of,
    query_id,
    read_entry_list,
    read_json,
    stored_name,
)
from cirkit.data.captions import check_caption_mode
from cirkit.data.entries import Entries, union_gallery
from cirkit.data.listed_images import ListedImages
from cirkit.data.triplet_checks import check_gallery_rule
from cirkit.data.triplets import TripletSet

FOLDERS = ("", "cirr", "CIRR", "cirr_dataset", "data/cirr")
_CAPTION_FILE = re.compile(r"cap\.rc2\.(?P<split>[^.]+)\.json")


class Queries(NamedTuple):
    """One caption file as columns of equal length."""

    references: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    targets: tuple[str | None, ...]
    query_ids: tuple[str, ...]
    subsets: tuple[tuple[str, ...], ...]


def load_cirr(
    root: str | Path,
    split: str,
    caption_mode: str = "first_and_second",
    gallery_rule: str = "split",
    exclude_reference: bool = True,
    name: str | None = None,
) -> TripletSet:
    """Read one split of a folder in CIRR layout; there is one category, "", and one gallery.

    Args:
        root: folder with captions/ and image_splits/, or one above them.
        split: "train", "val" or "test1".
        caption_mode: recorded; a query has one caption, so all modes but "both", which is refused, give the same.
        gallery_rule: "split" ranks the full list of the split file; "union" only the images that are reference or
            target of a query, which gives higher numbers.
        exclude_reference: take the reference out of the ranking, as all public code for CIRR does. Out of the subset
            it is always taken.
        name: recorded data set name; default is the name in dataset.json, else "cirr".

    Raises:
        DataError: a file is missing or malformed, a mode is unknown, a subset lacks its reference or its target, or,
            with gallery rule "split", an image of a query is not in the gallery.
    """
    check_caption_mode(caption_mode, split)
    check_gallery_rule(gallery_rule)
    if caption_mode == "both":
        raise DataError("caption_mode 'both' needs two captions a query, and CIRR has one; use 'first_and_second'.")
    files = caption_files(root)
    if split not in files:
        raise DataError(f"{cirr_folder(root)} has no caption file for split {split!r} (it has {', '.join(files)}).")
    queries, gallery = read_queries(files[split]), tuple(read_paths(gallery_file(root, split)))
    if not queries.references:
        raise DataError(f"{files[split]} has no queries.")
    if gallery_rule == "union":
        gallery = union_gallery(Entries(*queries[:3]), gallery, files[split])
    elif outside := outside_gallery(queries, gallery):
        raise DataError(
            f"{gallery_file(root, split)} lacks {len(outside):,} images of {files[split].name} ({first_ids(outside)})."
        )
    return TripletSet(
        **queries._asdict(),
        name=name or dataset_name(root),
        split=split,
        categories=("",) * len(queries.references),
        galleries={"": gallery},
        caption_mode=caption_mode,
        gallery_rule=gallery_rule,
        exclude_reference=exclude_reference,
    )


def cirr_images(root: str | Path, image_root: str | Path | None = None) -> ListedImages:
    """The images of a folder in CIRR layout, by the paths in its split files, else by name.

    Args:
        root: as in `load_cirr`.
        image_root: folder that holds train/, dev/ and test1/ (or img_raw/ or images/ with them); default `root`.

    Raises:
        DataError: a folder does not exist, or a split file is damaged.
    """
    folder = cirr_folder(root) / "image_splits"
    paths: dict[str, str] = {}
    for path in sorted(folder.glob("split.rc2.*.json")):
        paths |= read_paths(path)
    return ListedImages(image_root or root, paths, ("img_raw", "images", "cirr", "cirr/img_raw"))


def cirr_folder(root: str | Path) -> Path:
    """The folder that holds captions/ and image_splits/; `DataError` lists the places tried."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise DataError(f"the data folder {root} does not exist.")
    tried = [root / folder for folder in FOLDERS]
    for folder in tried:
        if any(folder.glob("captions/cap.rc2.*.json")):
            return folder
    raise DataError(
        f"no captions/cap.rc2.<split>.json in {', '.join(map(str, tried))}; the annotations of CIRR are on the branch"
        " cirr_dataset of its repository."
    )


def is_cirr(root: str | Path) -> bool:
    """Whether there are caption files of CIRR in one of the places where `cirr_folder` looks."""
    return any(any((Path(root).expanduser() / folder).glob("captions/cap.rc2.*.json")) for folder in FOLDERS)


def dataset_name(root: str | Path) -> str:
    """The name in dataset.json, beside the annotations or above them, else "cirr"."""
    return stored_name(Path(root).expanduser()) or stored_name(cirr_folder(root)) or "cirr"


def caption_files(root: str | Path) -> dict[str, Path]:
    """Split -> caption file, sorted; `DataError` if there is none."""
    paths = sorted((cirr_folder(root) / "captions").iterdir())
    return {match["split"]: path for path in paths if (match := _CAPTION_FILE.fullmatch(path.name))}


def gallery_file(root: str | Path, split: str) -> Path:
    """Where the gallery of a split is listed."""
    return cirr_folder(root) / "image_splits" / f"split.rc2.{split}.json"


def gallery_splits(root: str | Path) -> set[str]:
    """Names of the splits that have a split file."""
    return {path.name.split(".")[2] for path in (cirr_folder(root) / "image_splits").glob("split.rc2.*.json")}


def read_queries(path: str | Path) -> Queries:
    """Read a caption file; captions stay as they are, blank ones too.

    Raises:
        DataError: the file is no list of entries with "pairid", "reference", "caption", "img_set" and, in all entries
            or in none, "target_hard"; a pair id stands twice; or a subset repeats a member or lacks the reference or
            the target.
    """
    columns: dict[str, tuple] = {}
    targets = []
    for row, entry in enumerate(read_entry_list(path, ("pairid", "reference", "caption", "img_set"))):
        where = f"{path}, entry {row}"
        reference = image_id(entry["reference"], f"{where}, reference")
        target = entry.get("target_hard")
        targets.append(None if target is None else image_id(target, f"{where}, target_hard"))
        if not isinstance(entry["caption"], str):
            raise DataError(f"{where}: 'caption' is {kind_of(entry['caption'])}, not a string.")
        subset = entry["img_set"]
        members = image_ids(subset.get("members") if isinstance(subset, dict) else subset, f"{where}, img_set.members")
        if lacking := [image for image in (reference, targets[-1]) if image not in (None, *members)]:
            raise DataError(f"{where}: img_set.members lacks {first_ids(lacking)}, an image of the query itself.")
        pair = query_id(entry, "pairid", where, columns)
        columns[pair] = (reference, (entry["caption"],), targets[-1], pair, members)
    if None in targets and any(targets):
        raise DataError(f"{path}, entry {targets.index(None)} has no 'target_hard', but other entries have one.")
    return Queries(*zip(*columns.values(), strict=True)) if columns else Queries((), (), (), (), ())


def read_paths(path: str | Path) -> dict[str, str]:
    """Read a split file: image id -> path, in file order; `DataError` if it is no object of strings."""
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(value, str) and value for value in content.values()):
        raise DataError(f"{path} is not an object of image id and path.")
    return content


def outside_gallery(queries: Queries, gallery: tuple[str, ...]) -> list[str]:
    """References, targets and members of subsets that the gallery lacks, sorted."""
    used = {*queries.references, *queries.targets}.union(*queries.subsets)
    return sorted(used.difference(gallery, [None]))
