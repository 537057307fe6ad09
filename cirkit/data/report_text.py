"""The data report as an object and as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirkit.data.annotations import first_ids
from cirkit.data.fashioniq import CATEGORIES

# Counted in the nine split files of github.com/XiaoxiaoGuo/fashion-iq.
FASHIONIQ_LISTINGS = 77_683
FASHIONIQ_IMAGES = 74_381
# Counted in the files of github.com/Cuberick-Orion/CIRR, branch cirr_dataset: queries and gallery.
CIRR_SIZES = {"val": (4_181, 2_297), "test1": (4_148, 2_315)}


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
        subsets: per split of a set with small candidate sets: queries, and the smallest and largest number of
            members; the reference is always one of them, and so is a known target.
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
    subsets: pd.DataFrame
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
        }
        if len(self.subsets):
            sections["Subsets (members with the reference, which is left out when they are ranked)"] = [
                _table(self.subsets)
            ]
        sections["Verdict"] = [f"- {problem}" for problem in self.problems] or ["The data can be used."]
        blocks = ("\n".join([title, "-" * len(title), *lines]) for title, lines in sections.items())
        return "\n\n".join(blocks) + "\n"

    def _listing_text(self) -> str:
        text = f"The split files list {self.listings:,} ids, {self.distinct:,} of them distinct"
        if repeats := self.listings - self.distinct:
            names = self.overlaps.loc[self.overlaps["ids"] > 0, ["category", "other_category"]].to_numpy()
            between = sorted({f"within {a or self.name}" if a == b else f"between {a} and {b}" for a, b in names})
            text += f"; the {repeats:,} repeats are all {', '.join(between)}"
        if self.name == "fashioniq" and set(self.counts["category"]) == CATEGORIES:
            if (self.listings, self.distinct) == (FASHIONIQ_LISTINGS, FASHIONIQ_IMAGES):
                text += f". {FASHIONIQ_IMAGES:,} image files are the full FashionIQ"
            else:
                text += f". The full FashionIQ lists {FASHIONIQ_LISTINGS:,} ids, {FASHIONIQ_IMAGES:,} distinct"
        if self.name == "cirr":
            for row in self.counts.itertuples():
                full = CIRR_SIZES.get(row.split)
                if full and (row.triplets, row.gallery) != full:
                    text += f". The full CIRR {row.split} has {full[0]:,} queries and {full[1]:,} images"
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
                    f"blank in {f'{category} {split}'.strip()}: "
                    + first_ids((f"entry {row.entry} ({row.slot})" for row in part.itertuples()), 20)
                    for (category, split), part in rows.groupby(["category", "split"], sort=False)
                ]
            else:
                said = rows["caption"].str.strip().str.lower().value_counts()
                lines.append("placeholders: " + first_ids((f"{text!r} {n:,}" for text, n in said.items()), 20))
        queries = self.captions.loc[self.captions["whole_query"], ["category", "split", "entry"]]
        return [*lines, f"queries with no other text: {len(queries.drop_duplicates()):,}"]


def _tally(rows: pd.DataFrame) -> pd.DataFrame:
    groups = rows.groupby(["kind", "category", "split"], sort=False)
    return groups["entry"].nunique().rename("entries").reset_index().sort_values("kind", kind="stable")


def _table(frame: pd.DataFrame) -> str:
    if frame.empty:
        return "none"
    formats = {name: "{:,}".format for name in frame.select_dtypes("number")}
    return frame.to_string(index=False, formatters=formats)
