"""What the columns and rules of a `TripletSet` must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.captions import check_caption_mode

if TYPE_CHECKING:
    from cirkit.data.triplets import TripletSet

GALLERY_RULES = ("split", "union")


def check_triplets(triplets: TripletSet) -> None:
    """Raises `DataError` for what the docstring of `TripletSet` forbids."""
    check_caption_mode(triplets.caption_mode, triplets.split)
    check_gallery_rule(triplets.gallery_rule)
    lengths = {column: len(getattr(triplets, column)) for column in triplets.columns()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns of a TripletSet need equal lengths, got {lengths}.")
    for column, optional in (("references", False), ("targets", True)):
        for row, value in enumerate(getattr(triplets, column)):
            if not isinstance(value, str) and not (optional and value is None):
                raise DataError(f"{column}[{row}] is {value!r}; image ids are strings.")
    without_gallery = sorted(set(triplets.categories) - set(triplets.galleries))
    if without_gallery:
        raise DataError(f"{triplets.name} {triplets.split} has no gallery for {first_ids(without_gallery)}.")
    if "mean" in triplets.galleries:
        raise DataError(
            f'{triplets.name} {triplets.split} has a category called "mean", which is the name of the average.'
        )
    if triplets.exclude_reference and triplets.split != "train":
        same = [a for a, b in zip(triplets.references, triplets.targets, strict=True) if a == b]
        if same:
            raise DataError(
                f"{len(same):,} queries of {triplets.name} {triplets.split} have their reference as target"
                f" ({first_ids(same)}), which exclude_reference takes out of the ranking; remove them,"
                " or use exclude_reference=False."
            )


def check_gallery_rule(rule: str) -> None:
    """Raises `DataError` for an unknown gallery rule."""
    if rule not in GALLERY_RULES:
        raise DataError(f"gallery_rule {rule!r} is unknown; choose one of {', '.join(GALLERY_RULES)}.")
