"""Writes small folders in the layouts of CIRR, CIRCO and HP-FashionIQ for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

FOLDERS = {"train": "train/34", "val": "dev", "test1": "test1"}
# split -> (galleries: one distractor, x, beside the members), rows (pair id, reference, target, caption)
MEMBERS = {split: tuple(f"{split}-{i}" for i in range(6)) for split in FOLDERS}
QUERIES = {
    "train": [(1, 0, 1, "add a dog"), (2, 1, 2, "remove the dog"), (3, 5, 0, "show two")],
    "val": [(11, 0, 1, "is red"), (12, 3, 2, " ")],
    "test1": [(21, 4, None, "is closer"), (22, 5, None, "is farther")],
}


def cirr_entry(split: str, pair: int, reference: int, target: int | None, caption: str) -> dict:
    members = MEMBERS[split]
    # the ranks are wrong on purpose: members count by name only
    subset = {"id": 1, "members": list(members), "reference_rank": 0, "target_rank": 0}
    entry = {"pairid": pair, "reference": members[reference], "caption": caption, "img_set": subset}
    return entry if target is None else entry | {"target_hard": members[target], "target_soft": {members[target]: 1.0}}


def write_cirr(root: Path, splits=tuple(FOLDERS), folder: str = "") -> Path:
    """Write captions/ and image_splits/ under `root`/`folder`; returns `root`."""
    for split in splits:
        entries = [cirr_entry(split, *query) for query in QUERIES[split]]
        paths = {name: f"./{FOLDERS[split]}/{name}.png" for name in (f"{split}-x", *MEMBERS[split])}
        write_json(root / folder / "captions" / f"cap.rc2.{split}.json", entries)
        write_json(root / folder / "image_splits" / f"split.rc2.{split}.json", paths)
    return root


def write_circo(root: Path, info: bool = True) -> Path:
    """Three val and two test queries among images 1 to 9 of COCO; returns `root`."""
    val = [
        (0, 1, 2, [2, 3], ["addition", "negation"]),
        (1, 4, 5, [6, 5, 7], ["addition"]),
        (2, 3, 1, [1], ["viewpoint"]),
    ]
    entry = {"relative_caption": "has two", "shared_concept": "a dog"}
    truth = [
        entry | {"id": i, "reference_img_id": r, "target_img_id": t, "gt_img_ids": truths, "semantic_aspects": aspects}
        for i, r, t, truths, aspects in val
    ]
    write_json(root / "annotations" / "val.json", truth)
    write_json(root / "annotations" / "test.json", [entry | {"id": i, "reference_img_id": 8 + i} for i in range(2)])
    if info:
        images = [{"id": i, "file_name": f"{i:012d}.jpg", "license": 4} for i in range(9, 0, -1)]
        write_json(
            root / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json",
            {"images": images},
        )
    return root


def hp_questions(n: int = 2, category: str = "shirt") -> dict:
    """One question set: preferences "1" and "2" in turn, scores "5" and "3", two images a set."""
    path = f"/-/image_data/{category}/{{}}.jpg"
    return {
        "ref_img_paths": [path.format(f"r-{i}") for i in range(n)],
        "targ_img_paths": [path.format(f"t{i}") for i in range(n)],
        "sentences": ["is a t-shirt and has - on it"] * n,
        "retrieved_set1": [{"img_path": [path.format("a"), path.format("b")], "user_score": "5"}] * n,
        "retrieved_set2": [{"img_path": [path.format("b"), path.format("c")], "user_score": "3"}] * n,
        "preferred set": ["12"[i % 2] for i in range(n)],
    }


def write_hp(root: Path, content: dict | None = None) -> Path:
    """Write hpfiq.json with two users, shirt and toptee; returns `root`."""
    default = {"user_1": {"question_set_1": hp_questions(3)}, "user_2": {"question_set_1": hp_questions(2, "toptee")}}
    write_json(root / "hpfiq.json", default if content is None else content)
    return root


def write_json(path: Path, content) -> Path:
    """Write a JSON file and its folders; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_picture(path: Path, shade: int) -> Path:
    """Write a grey PNG and its folders; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((3, 4, 3), shade, dtype=np.uint8)).save(path, "PNG")
    return path
