"""The data report: what a folder in FashionIQ layout holds, what is wrong with it, and what may mislead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.fashioniq import (
    Entries,
    caption_files,
    dataset_name,
    gallery_file,
    gallery_files,
    read_entries,
    read_gallery,
    targets_outside,
    used_images,
)
from cirkit.data.findings import (
    Part,
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

# Counted in the nine split files of github.com/XiaoxiaoGuo/fashion-iq.
FASHIONIQ_CATEGORIES = {"dress", "shirt", "toptee"}
FASHIONIQ_LISTINGS = 77_683
FASHIONIQ_IMAGES = 74_381


@dataclass(frozen=True)
class DataReport:
    """Findings as tidy tables; `problems` make the data unusable, all else is for the reader to know.

    Attributes:
        root, name: the folder and the name of its data set.
        images_root: where images were looked for; None if they were not.
        counts: per category and split: triplets, with_target, gallery (ids in the split file), union (images
            that occur in a query, as far as targets are known), reference_outside and target_outside (images
            of queries that the gallery lacks).
        listings, distinct: entries of all split files, and distinct ids among them.
        overlaps: per two lists that share any: category, split, other_category, other_split, the number of
            shared ids, and of (reference, target) pairs in the triplets of both.
        seen: per category and split other than train: query_images, those seen_in_training (in a training
            triplet of any category), queries, affected_queries (reference or target seen).
        captions: blank and placeholder captions: category, split, entry (from 0), slot, kind, caption,
            reference, whole_query (the query has no better text).
        duplicates: kind, category, split, entry, reference, target; each row the later occurrence. Kinds:
            "repeated query" (reference and captions), "repeated pair" (reference and target), "pair in two
            categories", "reference is target".
        images: per category and split: expected, missing, broken; empty if no image was found.
        gaps: image, state ("missing" or "broken") and reason; one row per id.
        problems: one sentence each.
    """

    root: Path
    name: str
    images_root: Path | None
    counts: pd.DataFrame
    listings: int
    distinct: int
    overlaps: pd.DataFrame
    seen: pd.DataFrame
    captions: pd.DataFrame
    duplicates: pd.DataFrame
    images: pd.DataFrame
    gaps: pd.DataFrame
    problems: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether training and evaluation can start."""
        return not self.problems

    @property
    def leaks(self) -> pd.DataFrame:
        """The rows of `overlaps` with training on one side only."""
        table = self.overlaps
        return table[(table["split"] == "train") != (table["other_split"] == "train")]

    def to_text(self) -> str:
        """The report as plain text."""
        sections = {
            f"Data report of {self.name} in {self.root}": [_table(self.counts)],
            "Images": [self._listing_text(), *self._image_text()],
            "Blank and placeholder captions (kept; blank parts are left out when captions are joined)": (
                self._caption_text()
            ),
            "Leaks between training and evaluation (kept; exclude_leaks=True leaves them out)": [
                "Lists and pairs in common:",
                _table(self.leaks),
                "Query images that occur in training triplets:",
                _table(self.seen),
            ],
            "Repeats among triplets": [_table(_tally(self.duplicates))],
            "Verdict": [f"- {problem}" for problem in self.problems] or ["The data can be used."],
        }
        blocks = ("\n".join([title, "-" * len(title), *lines]) for title, lines in sections.items())
        return "\n\n".join(blocks) + "\n"

    def _listing_text(self) -> str:
        text = f"The split files list {self.listings:,} ids, {self.distinct:,} of them distinct"
        if repeats := self.listings - self.distinct:
            names = self.overlaps.loc[self.overlaps["ids"] > 0, ["category", "other_category"]].to_numpy()
            between = sorted({f"within {a}" if a == b else f"between {a} and {b}" for a, b in names})
            text += f"; the {repeats:,} repeats are all {', '.join(between)}"
        if self.name == "fashioniq" and set(self.counts["category"]) == FASHIONIQ_CATEGORIES:
            if (self.listings, self.distinct) == (FASHIONIQ_LISTINGS, FASHIONIQ_IMAGES):
                text += f". {FASHIONIQ_IMAGES:,} image files are the full FashionIQ"
            else:
                text += f". The full FashionIQ lists {FASHIONIQ_LISTINGS:,} ids, {FASHIONIQ_IMAGES:,} distinct"
        return text + "."

    def _image_text(self) -> list[str]:
        if self.images_root is None:
            return ["Image files were not looked for."]
        if self.images.empty:
            return [f"No images at hand: {self.distinct:,} files expected under {self.images_root}."]
        lines = [f"Image files under {self.images_root}:", _table(self.images)]
        for state in ("missing", "broken"):
            ids = self.gaps.loc[self.gaps["state"] == state, "image"]
            if len(ids):
                lines.append(f"{len(ids):,} {state}: {first_ids(ids, 10)}")
        return lines

    def _caption_text(self) -> list[str]:
        lines = [_table(_tally(self.captions))]
        for kind, rows in self.captions.groupby("kind"):
            if kind == "blank":
                lines += [
                    f"blank in {category} {split}: "
                    + first_ids((f"entry {row.entry} ({row.slot})" for row in part.itertuples()), 20)
                    for (category, split), part in rows.groupby(["category", "split"], sort=False)
                ]
            else:
                said = rows["caption"].str.strip().str.lower().value_counts()
                lines.append("placeholders: " + first_ids((f"{text!r} {n:,}" for text, n in said.items()), 20))
        queries = self.captions.loc[self.captions["whole_query"], ["category", "split", "entry"]]
        return [*lines, f"queries with no other text: {len(queries.drop_duplicates()):,}"]


def data_report(
    root: str | Path,
    images: str | Path | None = None,
    annotations_only: bool = False,
    decode: bool = True,
    progress: bool = True,
) -> DataReport:
    """Look through a folder in FashionIQ layout; what is wrong is collected, not raised.

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
    entries, galleries = _read(root, problems)
    try:
        name = dataset_name(root)
    except DataError as error:
        name = "unnamed data"
        problems.append(str(error))
    for part in in_order(entries.keys() & galleries.keys()):
        if outside := sorted(targets_outside(entries[part], galleries[part])):
            problems.append(
                f"{gallery_file(root, *part)} lacks {len(outside):,} targets of the {' '.join(part)} queries"
                f" ({first_ids(outside)})."
            )
    expected = {part: set(galleries.get(part, ())) for part in in_order(entries.keys() | galleries.keys())}
    for part, columns in entries.items():
        expected[part] |= used_images(columns)
    images_root = None if annotations_only else Path(images or root).expanduser()
    image_table, gaps = _check_images(images_root, expected, decode, progress, problems)
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
        images=image_table,
        gaps=gaps,
        problems=tuple(problems),
    )


def _read(root: Path, problems: list[str]) -> tuple[dict[Part, Entries], dict[Part, tuple[str, ...]]]:
    entries, galleries = {}, {}
    lists = {}
    for part, path in caption_files(root).items():
        lists[part] = gallery_file(root, *part)
        try:
            entries[part] = read_entries(path)
        except DataError as error:
            problems.append(str(error))
    try:
        lists.update(gallery_files(root))
    except DataError as error:
        problems.append(str(error))
        return entries, galleries
    for part, path in lists.items():
        try:
            galleries[part] = read_gallery(path)
        except DataError as error:
            problems.append(str(error))
    return entries, galleries


def _check_images(
    root: Path | None, expected: dict[Part, set[str]], decode: bool, progress: bool, problems: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables `images` and `gaps`."""
    wanted: set[str] = set().union(*expected.values())
    missing: set[str] = set()
    reasons: dict[str, str] = {}
    if root is not None:
        try:
            folder = ImageFolder(root)
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


def _tally(rows: pd.DataFrame) -> pd.DataFrame:
    groups = rows.groupby(["kind", "category", "split"], sort=False)
    return groups["entry"].nunique().rename("entries").reset_index().sort_values("kind", kind="stable")


def _table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "none"
    formats = {name: "{:,}".format for name in frame.select_dtypes("number")}
    return frame.to_string(index=False, formatters=formats)
