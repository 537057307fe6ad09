"""Reader of HP-FashionIQ: people judged which of two result sets answers a query better.

    <root>/hpfiq.json    {user: {question set: {"ref_img_paths": [...], "targ_img_paths": [...], "sentences": [...],
                          "retrieved_set1": [{"img_path": [five], "user_score": "4"}], "retrieved_set2": [...],
                          "preferred set": ["1" or "2"]}}}

Paths begin with the placeholder "/-/" for the data folder, "/-/image_data/<category>/<id>.jpg"; only that beginning is
rewritten, as sentences contain hyphens too ("t-shirt"). The images are found by `ImageFolder`. Source: Kwak et al.,
"QuRe" (ICML 2025), whose repository holds the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from cirkit.data.annotations import DataError, first_ids, kind_of, read_json
from cirkit.data.triplets import TripletSet

FILE = "hpfiq.json"
COLUMNS = (
    "user", "question_set", "question", "category", "reference", "target", "caption", "set1", "set2", "preferred",
    "score1", "score2",
)  # fmt: skip
_LISTS = ("ref_img_paths", "targ_img_paths", "sentences", "retrieved_set1", "retrieved_set2", "preferred set")


def load_hp_fashioniq(root: str | Path, categories: Sequence[str] | None = None) -> pd.DataFrame:
    """Read every judged pair of result sets.

    Args:
        root: folder with hpfiq.json, or with HP_FashionIQ/hpfiq.json.
        categories: which to keep; None keeps all (shirt and toptee; there is no dress).

    Returns:
        One row per judgement: user, question_set, question (from 0), category, reference, target (what the query was
        written for; both sets may lack it), caption, set1 and set2 (tuples of image ids, five in the released file),
        preferred (1 or 2), score1 and score2 (the user's 1 to 5 for each set).

    Raises:
        DataError: the file is missing or malformed, a preference is neither 1 nor 2, a score is not 1 to 5, or a
            category has no pair.
    """
    path = _find(root)
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {kind_of(content)}, not an object of users.")
    rows = []
    for user, sets in content.items():
        for name, columns in (sets if isinstance(sets, dict) else {"": sets}).items():
            rows += _rows(path, user, name, columns)
    judged = pd.DataFrame(rows, columns=list(COLUMNS))
    if categories is not None:
        wanted = [categories] if isinstance(categories, str) else list(categories)
        there = sorted(judged["category"].unique())
        if lacking := sorted(set(wanted).difference(there)):
            raise DataError(f"{path}: {', '.join(lacking)}: none in this set; it has {', '.join(there)}.")
        judged = judged[judged["category"].isin(wanted)].reset_index(drop=True)
    return judged


def judged_triplets(judged: pd.DataFrame) -> TripletSet:
    """The queries of judged pairs, in their order, as a `TripletSet`.

    Subsets are the images of both result sets, galleries all images judged in the category. Targets are None: people
    chose between sets, so there is no right answer to rank.
    """
    subsets = [tuple(dict.fromkeys((*a, *b))) for a, b in zip(judged["set1"], judged["set2"], strict=True)]
    galleries: dict[str, set[str]] = {}
    for category, subset in zip(judged["category"], subsets, strict=True):
        galleries.setdefault(category, set()).update(subset)
    return TripletSet(
        name="hp_fashioniq",
        split="test",
        references=tuple(judged["reference"]),
        captions=tuple((caption,) for caption in judged["caption"]),
        targets=(None,) * len(judged),
        categories=tuple(judged["category"]),
        galleries={category: tuple(sorted(images)) for category, images in sorted(galleries.items())},
        subsets=tuple(subsets),
    )


def relative_path(path: str) -> str:
    """A stored path without its placeholder: "/-/image_data/shirt/x.jpg" -> "image_data/shirt/x.jpg"."""
    return path.removeprefix("/-/")


def _find(root: str | Path) -> Path:
    tried = [Path(root).expanduser() / folder / FILE for folder in ("", "HP_FashionIQ")]
    for path in tried:
        if path.is_file():
            return path
    raise DataError(f"{FILE} is missing (looked for {', '.join(map(str, tried))}).")


def _rows(path: Path, user: str, name: str, columns: Any) -> list[tuple]:
    where = f"{path}, {user}, {name}"
    lacking = [key for key in _LISTS if not isinstance(columns, dict) or not isinstance(columns.get(key), list)]
    if lacking:
        raise DataError(f"{where} has no list {lacking[0]!r}.")
    lengths = {key: len(columns[key]) for key in _LISTS}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: the lists need equal lengths, got {lengths}.")
    rows = []
    for question, values in enumerate(zip(*(columns[key] for key in _LISTS), strict=True)):
        reference, target, caption, *sets, preferred = values
        here = f"{where}, question {question}"
        (category, reference), (_, target) = _image(reference, here), _image(target, here)
        if not isinstance(caption, str):
            raise DataError(f"{here}: the sentence is {kind_of(caption)}, not a string.")
        ids, scores = zip(*(_result_set(value, here) for value in sets), strict=True)
        preferred = _whole(preferred, (1, 2), f"{here}, preferred set")
        rows.append((user, name, question, category, reference, target, caption, *ids, preferred, *scores))
    return rows


def _result_set(value: Any, where: str) -> tuple[tuple[str, ...], int]:
    if not isinstance(value, dict) or not isinstance(value.get("img_path"), list) or not value["img_path"]:
        raise DataError(f"{where}: a retrieved set has no list 'img_path'.")
    ids = tuple(_image(path, where)[1] for path in value["img_path"])
    if len(set(ids)) < len(ids):
        raise DataError(f"{where}: a retrieved set shows an image twice ({first_ids(ids)}).")
    return ids, _whole(value.get("user_score"), (1, 2, 3, 4, 5), f"{where}, user_score")


def _image(value: Any, where: str) -> tuple[str, str]:
    """(category, id) of a stored path."""
    parts = PurePosixPath(relative_path(value)).parts if isinstance(value, str) else ()
    if len(parts) < 2:
        raise DataError(f"{where}: {value!r} is no path .../<category>/<id>.jpg.")
    return parts[-2], PurePosixPath(parts[-1]).stem


def _whole(value: Any, allowed: tuple[int, ...], where: str) -> int:
    # stored as strings; a comparison with the integer would be silently false everywhere
    for number in allowed:
        if value is not True and value in (number, str(number)):
            return number
    raise DataError(f"{where} is {value!r}, none of {', '.join(map(str, allowed))}.")
