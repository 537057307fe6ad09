"""Triplets of composed image retrieval, as columns: reference image, text, target image.

Every data set becomes one `TripletSet`. What the published protocols leave open (how two captions are joined,
which images form the gallery, whether the reference is ranked) is a named field, and `TripletSet.protocol()`
carries it into each result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.captions import CAPTION_FORMS, CAPTION_MODES, join_captions
from cirkit.data.triplet_checks import check_triplets

__all__ = ["CAPTION_FORMS", "CAPTION_MODES", "DataError", "Triplet", "TripletSet", "join_captions"]

_ROW_COLUMNS = (
    "references", "captions", "targets", "categories", "subsets", "ground_truths", "query_ids", "aspects",
)  # fmt: skip


class Triplet(NamedTuple):
    """One query: change `reference` as `text` says and find `target` (None where the truth is not public)."""

    reference: str
    text: str
    target: str | None
    category: str


@dataclass(frozen=True)
class TripletSet:
    """Triplets of one data set and split, one tuple per column (n rows), and the galleries to rank.

    Attributes:
        name: data set, e.g. "fashioniq".
        split: "train", "val" or "test".
        references: n image ids.
        captions: n tuples of raw captions, untouched (FashionIQ has two).
        targets: n image ids; None where the truth is not public.
        categories: n category names; "" where the data set has none.
        galleries: category -> image ids to be ranked, in split-file order.
        caption_mode: how captions become the query text. "first_and_second" (default) joins both with
            " and ", "second_and_first" the other way round, "first" and "second" take one alone; "random"
            draws one of these four forms per row and epoch (training only); "both" means that each triplet
            stands in two rows, one per order of its captions.
        gallery_rule: "split" (the split file's full list) or "union" (images that occur in a query).
        exclude_reference: whether the reference is taken out of the ranking.
        subsets: n tuples of ids, where a data set defines a small candidate set per query.
        ground_truths: n tuples of ids, where a query has several right answers, the target among them.
        query_ids: n names of the queries, by which a submission file knows them.
        aspects: n tuples of names of what a text asks for (CIRCO's semantic aspects).
        dropped_queries, dropped_images: what was taken out on request (missing images, leaking queries).
        exclude_leaks: whether queries that share images with training (or training triplets that share images
            with evaluation) were taken out.

    Raises:
        DataError: columns of different length, an unknown mode or rule, an id that is not a string, a row
            whose category has no gallery, a category called "mean" (that is the average over categories), or,
            where the reference is taken out of the ranking and the split is not for training, a query whose
            reference is its target.
    """

    name: str
    split: str
    references: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    targets: tuple[str | None, ...]
    categories: tuple[str, ...]
    galleries: dict[str, tuple[str, ...]]
    caption_mode: str = "first_and_second"
    gallery_rule: str = "split"
    exclude_reference: bool = False
    subsets: tuple[tuple[str, ...], ...] | None = None
    ground_truths: tuple[tuple[str, ...], ...] | None = None
    query_ids: tuple[str, ...] | None = None
    aspects: tuple[tuple[str, ...], ...] | None = None
    dropped_queries: int = 0
    dropped_images: int = 0
    exclude_leaks: bool = False

    def __post_init__(self) -> None:
        for column in self.columns():
            object.__setattr__(self, column, tuple(getattr(self, column)))
        for row, captions in enumerate(self.captions):
            if isinstance(captions, str):
                raise DataError(f"captions[{row}] is the string {captions!r}; a row is a tuple of captions.")
        object.__setattr__(self, "captions", tuple(map(tuple, self.captions)))
        galleries = {category: tuple(ids) for category, ids in self.galleries.items()}
        object.__setattr__(self, "galleries", galleries)
        check_triplets(self)

    def __len__(self) -> int:
        return len(self.references)

    def __getitem__(self, row: int) -> Triplet:
        if not isinstance(row, (int, np.integer)):
            raise TypeError(f"a row is an int, got {type(row).__name__}; use select(rows) for several rows.")
        return Triplet(self.references[row], self.texts[row], self.targets[row], self.categories[row])

    def __iter__(self) -> Iterator[Triplet]:
        return map(Triplet, self.references, self.texts, self.targets, self.categories)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Query texts, joined by `caption_mode` ("random", "both": first and second in the row's order)."""
        mode = self.caption_mode if self.caption_mode in CAPTION_FORMS else CAPTION_FORMS[0]
        return tuple(join_captions(captions, mode) for captions in self.captions)

    @cached_property
    def _text_forms(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(join_captions(row, form) for form in CAPTION_FORMS) for row in self.captions)

    def epoch_texts(self, epoch: int, seed: int) -> tuple[str, ...]:
        """Query texts of one training epoch.

        The same as `texts` for fixed modes; with "random", one of the four `CAPTION_FORMS` per row, drawn
        uniformly by numpy's `default_rng([seed, epoch])`, so that a resumed run sees the same texts.
        """
        if self.caption_mode != "random":
            return self.texts
        draws = np.random.default_rng([seed, epoch]).integers(len(CAPTION_FORMS), size=len(self)).tolist()
        return tuple(forms[draw] for forms, draw in zip(self._text_forms, draws, strict=True))

    @property
    def has_targets(self) -> bool:
        """Whether every triplet names its target."""
        return None not in self.targets

    def require_targets(self) -> None:
        """Raises `DataError` if a target is not known, as metrics and training need them all."""
        if not self.has_targets:
            raise DataError(
                f"{self.name} has no public ground truth for split {self.split!r}"
                f" ({self.targets.count(None):,} of {len(self):,} triplets without a target);"
                " use val, or write a submission file."
            )

    def image_ids(self) -> tuple[str, ...]:
        """Every image of references, targets, galleries, subsets and ground truths, sorted and distinct."""
        return self._image_ids

    @cached_property
    def _image_ids(self) -> tuple[str, ...]:
        return tuple(sorted(set().union(*self.image_groups().values())))

    def image_groups(self) -> dict[str, tuple[str, ...]]:
        """`image_ids` by "<category> <split>", so that missing images can be counted where they belong."""
        groups: dict[str, set[str]] = {category: set(ids) for category, ids in self.galleries.items()}
        for row, category in enumerate(self.categories):
            group = groups[category]
            group.add(self.references[row])
            if self.targets[row] is not None:
                group.add(self.targets[row])
            for lists in (self.subsets, self.ground_truths):
                if lists is not None:
                    group.update(lists[row])
        return {f"{category} {self.split}".strip(): tuple(sorted(ids)) for category, ids in groups.items()}

    def select(self, rows: Any) -> TripletSet:
        """The given rows, in the given order; galleries stay whole.

        Args:
            rows: ints (list, tuple, array), a boolean mask of length n, or a slice.

        Raises:
            IndexError: rows out of range, or neither ints nor a mask of length n.
        """
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            rows = rows.astype(np.int64) if rows.size == 0 and rows.dtype != bool else rows
            if rows.ndim != 1:
                raise IndexError(f"rows must be one-dimensional, got shape {rows.shape}.")
        index = np.arange(len(self))[rows].tolist()
        columns = {name: getattr(self, name) for name in self.columns()}
        return self.replace(**{name: tuple(map(values.__getitem__, index)) for name, values in columns.items()})

    def replace(self, **columns: Any) -> TripletSet:
        """A copy with the given fields replaced; unknown names raise TypeError."""
        return dataclasses.replace(self, **columns)

    def without_images(self, missing_ids: Collection[str]) -> TripletSet:
        """The set without the given images: they leave galleries, subsets and ground truths, and with them go
        the queries whose reference or target they are.

        A smaller gallery makes retrieval easier, so the result says `comparable = False`. A set that needs
        none of the images is returned as it is.

        Raises:
            DataError: no query would be left.
        """
        missing = frozenset(missing_ids).intersection(self.image_ids())
        if not missing:
            return self
        keep = [
            reference not in missing and target not in missing
            for reference, target in zip(self.references, self.targets, strict=True)
        ]
        if len(self) and not any(keep):
            raise DataError(
                f"no query of {self.name} {self.split} is left without the {len(missing):,} missing images"
                f" (first: {first_ids(sorted(missing))})."
            )

        def present(ids: Iterable[str]) -> tuple[str, ...]:
            return tuple(image for image in ids if image not in missing)

        kept = self.select(np.asarray(keep, dtype=bool))
        return kept.replace(
            galleries={category: present(ids) for category, ids in kept.galleries.items()},
            subsets=None if kept.subsets is None else tuple(map(present, kept.subsets)),
            ground_truths=None if kept.ground_truths is None else tuple(map(present, kept.ground_truths)),
            dropped_queries=self.dropped_queries + keep.count(False),
            dropped_images=self.dropped_images + len(missing),
        )

    @property
    def comparable(self) -> bool:
        """False once queries or images were dropped: the numbers are no longer of the published protocol."""
        return self.dropped_queries == 0 and self.dropped_images == 0

    def protocol(self) -> dict[str, object]:
        """What a number must be read with; JSON values, stored with each result."""
        return {
            "dataset": self.name,
            "split": self.split,
            "caption_mode": self.caption_mode,
            "gallery_rule": self.gallery_rule,
            "exclude_reference": self.exclude_reference,
            "exclude_leaks": self.exclude_leaks,
            "gallery_sizes": {category: len(ids) for category, ids in self.galleries.items()},
            "dropped_queries": self.dropped_queries,
            "dropped_images": self.dropped_images,
            "comparable": self.comparable,
        }

    def columns(self) -> list[str]:
        """Names of the columns that the set has."""
        return [name for name in _ROW_COLUMNS if getattr(self, name) is not None]
