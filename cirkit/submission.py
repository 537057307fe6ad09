"""Prediction files for test splits without public truth, in the form the servers of CIRR and CIRCO take.

A file that the server would refuse is refused here, before it is written. A file that lies there already, whoever made
it, is checked by `check_cirr_submission` and `check_circo_submission`, and from the command line by

    python -m cirkit.submission FILE DATA_ROOT [--split SPLIT]

which tells the two servers' files apart by their content; its exit code is 0 if the server would take the file. On a
split whose right answers are public it prints the scores too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cirkit.data.annotations import DataError, first_ids, kind_of, read_json
from cirkit.data.circo import has_image_info, load_circo, read_queries
from cirkit.data.cirr import load_cirr
from cirkit.data.triplets import TripletSet
from cirkit.evaluation import recall_table
from cirkit.list_scores import circo_table, lists_in_order, ranks_of_lists
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
    return _write(path, {"version": "rc2", "metric": metric, **_cirr_lists(triplets, metric, ranked)}, SIZE_LIMIT)


def check_cirr_submission(path: str | Path, triplets: TripletSet) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Refuse a file that CIRR's server would refuse; returns what `read_cirr_submission` does.

    Args:
        path: any file.
        triplets: the split that it answers, with pair ids, and subsets for "recall_subset".

    Raises:
        DataError: the file is too large or of another form, pair ids are missing or not of the split, or a list is one
            that `write_cirr_submission` would not write.
    """
    if (size := Path(path).stat().st_size if Path(path).is_file() else 0) > SIZE_LIMIT:
        raise DataError(f"{path} has {size:,} bytes, and the server takes up to {SIZE_LIMIT:,}.")
    metric, lists = read_cirr_submission(path)
    _cirr_lists(triplets, metric, lists_in_order(path, triplets, lists))
    return metric, lists


def read_cirr_submission(path: str | Path) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Metric and pair id -> names of a CIRR file; "version" and "metric", which stand beside the ids, are no ids.

    Raises:
        DataError: the file is not of that form.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("version") != "rc2" or content.get("metric") not in [*CIRR_SIZES]:
        raise DataError(f"{path} has no version rc2 and metric {' or '.join(CIRR_SIZES)}.")
    metric = content["metric"]
    lists = {pair: names for pair, names in content.items() if pair not in ("version", "metric")}
    return metric, {pair: _entries(path, pair, names, str) for pair, names in lists.items()}


def write_circo_submission(path: str | Path, triplets: TripletSet, ranked: Sequence[Sequence[str]]) -> Path:
    """Write CIRCO's file, {query id: [50 image ids as integers]}; arguments and errors as `write_cirr_submission`.

    The reference may be in a list, as the server does not take it out.
    """
    lists = _circo_lists(triplets, ranked)
    names = {image for images in lists.values() for image in images}
    if wrong := sorted(image for image in names if not image.isdecimal()):
        raise DataError(f"CIRCO's server takes numbers of COCO, not {first_ids(wrong)}.")
    return _write(path, {query: [int(image) for image in images] for query, images in lists.items()}, None)


def check_circo_submission(path: str | Path, triplets: TripletSet) -> dict[str, tuple[str, ...]]:
    """Refuse a file that CIRCO's server would refuse; returns what `read_circo_submission` does.

    Args, Raises: as `check_cirr_submission`, for `write_circo_submission`; there is no limit of size.
    """
    lists = read_circo_submission(path)
    _circo_lists(triplets, lists_in_order(path, triplets, lists))
    return lists


def read_circo_submission(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Query id -> image ids of a CIRCO file; the file holds integers, the ids are strings as everywhere.

    Raises:
        DataError: the file is not of that form.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {kind_of(content)}, not an object of query ids.")
    if strange := [key for key in content if not key.isdecimal()]:
        raise DataError(f"{path} has {first_ids(strange)} among its query ids, which are numbers in CIRCO.")
    lists = {query: tuple(map(str, _entries(path, query, images, int))) for query, images in content.items()}
    for query, images in lists.items():
        if wrong := [image for image in images if not image.isdecimal() or len(image) > 12]:
            raise DataError(f"query {query} of {path} names {first_ids(wrong)}, which are no numbers of COCO's images.")
    return lists


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a file; returns the exit code: 0 if the server would take it, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.submission", description=__doc__.partition("\n")[0])
    parser.add_argument("file", metavar="FILE", help="the prediction file")
    parser.add_argument("root", metavar="DATA_ROOT", help="folder with the annotations of CIRR or CIRCO")
    parser.add_argument("--split", help="the split that it answers (default: test1 of CIRR, test of CIRCO)")
    options = parser.parse_args(arguments)
    try:
        print(_report(options.file, options.root, options.split))
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _report(path: str, root: str, split: str | None) -> str:
    """What `main` prints of a good file."""
    content = read_json(path)
    if isinstance(content, dict) and {"version", "metric"} & content.keys():
        triplets = load_cirr(root, split or "test1")
        metric, lists = check_cirr_submission(path, triplets)
        lines = [f"CIRR {triplets.split}, {metric}: {len(lists):,} queries of {CIRR_SIZES[metric]} names; good."]
        if metric == "recall" and triplets.has_targets:
            lines.append(recall_table(ranks_of_lists(triplets, lists)).to_string(index=False))
        return "\n".join(lines)
    triplets = _circo(root, split or "test", read_circo_submission(path))
    lists = check_circo_submission(path, triplets)
    lines = [f"CIRCO {triplets.split}: {len(lists):,} queries of {CIRCO_SIZE} images; good."]
    if not has_image_info(root):
        lines.append("Not checked: that the images are in the gallery, as COCO's list of images is not there.")
    if triplets.ground_truths is not None:
        lines.append(circo_table(triplets, ranks_of_lists(triplets, lists)).round(2).to_string(index=False))
    return "\n".join(lines)


def _circo(root: str, split: str, lists: Mapping[str, Sequence[str]]) -> TripletSet:
    """The split; without COCO's list of images the gallery is whatever is named."""
    if has_image_info(root):
        return load_circo(root, split)
    queries = read_queries(Path(root).expanduser() / "annotations" / f"{split}.json")
    public = None not in queries.targets
    return TripletSet(
        name="circo",
        split=split,
        references=queries.references,
        captions=tuple((text,) for text in queries.texts),
        targets=queries.targets,
        categories=("",) * len(queries.references),
        galleries={"": tuple(sorted({*queries.references}.union(*queries.ground_truths, *lists.values())))},
        ground_truths=queries.ground_truths if public else None,
        query_ids=queries.query_ids,
        aspects=queries.aspects if public else None,
    )


def _cirr_lists(triplets: TripletSet, metric: str, ranked: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    galleries = {category: frozenset(ids) for category, ids in triplets.galleries.items()}
    allowed = [galleries[c] for c in triplets.categories] if metric == "recall" else triplets.subsets
    return _checked(triplets, ranked, CIRR_SIZES[metric], allowed, reference=False)


def _circo_lists(triplets: TripletSet, ranked: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    galleries = {category: frozenset(ids) for category, ids in triplets.galleries.items()}
    return _checked(triplets, ranked, CIRCO_SIZE, [galleries[c] for c in triplets.categories], reference=True)


def _entries(path: str | Path, query: str, images: Any, kind: type) -> tuple:
    """One list of a file, all of whose entries are of one kind; a truth value is no integer."""
    if not isinstance(images, list):
        raise DataError(f"{path}, query {query} holds {kind_of(images)}, not a list of images.")
    if wrong := [image for image in images if type(image) is not kind]:
        wanted = "integers" if kind is int else "strings"
        raise DataError(f"{path}, query {query} names {wrong[0]!r}, and the server takes {wanted}.")
    return tuple(images)


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


if __name__ == "__main__":
    sys.exit(main())
