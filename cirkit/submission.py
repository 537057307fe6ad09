"""Prediction files for test splits without public truth, in the form the servers of CIRR and CIRCO take.

A file that the server would refuse is refused here, before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from cirkit.data.annotations import DataError, first_ids, kind_of, read_json
from cirkit.data.triplets import TripletSet
from cirkit.paths import atomic_path

CIRR_SIZES = {"recall": 50, "recall_subset": 3}
CIRCO_SIZE = 50
SIZE_LIMIT = 5_000_000  # bytes, of the CIRR server


def write_cirr_submission(path: str | Path, triplets: TripletSet, metric: str, ranked: Sequence[Sequence[str]]) -> Path:
    """Write one of CIRR's two files, {"version": "rc2", "metric": metric, pair id: [names]}.

    Args:
        path: file to write.
        triplets: the split, with pair ids.
        metric: "recall", 50 names of the gallery a query, or "recall_subset", 3 names of its subset.
        ranked: one list of names per query, best first, as `cirkit.retrieval.retrieve` gives them.

    Raises:
        DataError: a list has another length, repeats a name, or holds the reference or a name from elsewhere, the
            file is too large, or the metric is unknown.
    """
    if metric not in CIRR_SIZES:
        raise DataError(f"metric {metric!r} is unknown; choose one of {', '.join(CIRR_SIZES)}.")
    galleries = {category: frozenset(ids) for category, ids in triplets.galleries.items()}
    allowed = [galleries[c] for c in triplets.categories] if metric == "recall" else triplets.subsets
    lists = _checked(triplets, ranked, CIRR_SIZES[metric], allowed, reference=False)
    return _write(path, {"version": "rc2", "metric": metric, **lists}, SIZE_LIMIT)


def read_cirr_submission(path: str | Path) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Metric and pair id -> names of a CIRR file; "version" and "metric", which stand beside the ids, are no ids.

    Raises:
        DataError: the file is not of that form.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("version") != "rc2" or content.get("metric") not in CIRR_SIZES:
        raise DataError(f"{path} has no version rc2 and metric {' or '.join(CIRR_SIZES)}.")
    lists = {pair: tuple(names) for pair, names in content.items() if pair not in ("version", "metric")}
    return content["metric"], lists


def write_circo_submission(path: str | Path, triplets: TripletSet, ranked: Sequence[Sequence[str]]) -> Path:
    """Write CIRCO's file, {query id: [50 image ids as integers]}; arguments and errors as `write_cirr_submission`.

    The reference may be in a list, as the server does not take it out.
    """
    galleries = {category: frozenset(ids) for category, ids in triplets.galleries.items()}
    lists = _checked(triplets, ranked, CIRCO_SIZE, [galleries[c] for c in triplets.categories], reference=True)
    names = {image for images in lists.values() for image in images}
    if wrong := sorted(image for image in names if not image.isdecimal()):
        raise DataError(f"CIRCO's server takes numbers of COCO, not {first_ids(wrong)}.")
    return _write(path, {query: [int(image) for image in images] for query, images in lists.items()}, None)


def _checked(
    triplets: TripletSet,
    ranked: Sequence[Sequence[str]],
    size: int,
    allowed: Sequence[Collection[str]] | None,
    reference: bool,
) -> dict[str, list[str]]:
    if triplets.query_ids is None or allowed is None:
        lacking = "query ids" if triplets.query_ids is None else "subsets"
        raise DataError(f"{triplets.name} {triplets.split} has no {lacking}, which a submission file needs.")
    if len(ranked) != len(triplets):
        raise DataError(f"need one list per query, got {len(ranked):,} lists for {len(triplets):,} queries.")
    if triplets.dropped_queries or triplets.dropped_images:
        raise DataError(
            f"{triplets.dropped_queries:,} queries and {triplets.dropped_images:,} images of {triplets.name} were left"
            " out, and the server wants an answer to every query."
        )
    lists = {}
    for query, source, images, known in zip(triplets.query_ids, triplets.references, ranked, allowed, strict=True):
        if isinstance(images, str) or len(images) != size or len(set(images)) < size:
            what = kind_of(images) if isinstance(images, str) else f"{len(set(images))} distinct of {len(images)} names"
            raise DataError(f"query {query} needs {size} distinct names, got {what}.")
        if unknown := [image for image in images if image not in known]:
            raise DataError(f"query {query} names {first_ids(unknown)}, which it cannot be ranked among.")
        if not reference and source in images:
            raise DataError(f"query {query} names its own reference {source}, which is not a candidate.")
        lists[query] = list(images)
    return lists


def _write(path: str | Path, content: dict, limit: int | None) -> Path:
    text = json.dumps(content)
    if limit is not None and len(text.encode()) > limit:
        raise DataError(f"{path} would have {len(text.encode()):,} bytes, and the server takes up to {limit:,}.")
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
