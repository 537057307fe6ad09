"""Annotations of one category and split as columns, and which images they use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cirkit.data.annotations import DataError

Part = tuple[str, str]  # category, split


class Entries(NamedTuple):
    """One caption file as columns of equal length."""

    references: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    targets: tuple[str | None, ...]


def targets_outside(entries: Entries, gallery: Iterable[str]) -> set[str]:
    """Targets that the gallery lacks."""
    return set(entries.targets) - {None} - set(gallery)


def union_gallery(entries: Entries, gallery: Iterable[str], path: str | Path) -> tuple[str, ...]:
    """Images that are reference or target of a query: in gallery order, then any it lacks, sorted.

    Raises:
        DataError: the targets are not public, so the union would lack the right answers.
    """
    if None in entries.targets:
        raise DataError(f"{path} has no targets, so gallery_rule 'union' would lack the right answers; use 'split'.")
    used = set(entries.references).union(entries.targets)
    listed = tuple(image for image in gallery if image in used)
    return listed + tuple(sorted(used.difference(listed)))


def used_images(entries: Entries) -> set[str]:
    """Images that occur in a triplet."""
    return set(entries.references).union(entries.targets) - {None}
