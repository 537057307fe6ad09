"""Writes small folders in FashionIQ layout for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

# category, split -> (entries (candidate, target, captions), gallery); "0123" must survive as it is.
PARTS = {
    ("dress", "train"): (
        [
            ("d1", "d2", ["is red", "has sleeves"]),
            ("d2", "0123", ["", "is long"]),
            ("d3", "d1", ["n/a", "is blue"]),
        ],
        ["d1", "d2", "d3", "0123", "d4"],
    ),
    ("dress", "val"): (
        [("d5", "d6", ["is green", "is shorter"]), ("d7", "d5", ["is dotted", "  "])],
        ["d7", "d6", "d5", "d8", "d9"],
    ),
    ("t.shirt", "train"): ([("s1", "s2", ["is plain", "is white"])], ["s1", "s2", "d9"]),
    ("t.shirt", "val"): (
        [("s3", "s4", ["is loose", "is grey"]), ("s4", "s1", ["", " "])],
        ["s4", "s3", "s1"],
    ),
    ("t.shirt", "test"): ([("s5", None, ["is tight", "is black"])], ["s5", "s6"]),
}
ALL_IDS = sorted({image for _, gallery in PARTS.values() for image in gallery})


def write_annotations(root: Path, parts=PARTS) -> Path:
    """Write captions/ and image_splits/ under `root`, which is returned."""
    for folder in ("captions", "image_splits"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for (category, split), (entries, gallery) in parts.items():
        content = [
            {"candidate": candidate, "captions": captions} | ({} if target is None else {"target": target})
            for candidate, target, captions in entries
        ]
        (root / "captions" / f"cap.{category}.{split}.json").write_text(json.dumps(content))
        (root / "image_splits" / f"split.{category}.{split}.json").write_text(json.dumps(gallery))
    return root


def write_images(root: Path, pattern: str = "images/{image}.png", ids=ALL_IDS, size=(13, 17), kind="PNG") -> Path:
    """Write one noise image per id at `pattern`, as `kind` whatever the extension says; returns `root`."""
    for number, image in enumerate(ids):
        path = root / pattern.format(image=image)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, kind)
    return root
