"""The feature store at the size of real features: 257 patches of 1,408 numbers in half precision, 724 kB an image.

The tower is one layer of true width; what a whole one takes follows by its FLOPs (`cirkit.sizing`).
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cirkit import sizing
from cirkit.bench.timing import side_by_side
from cirkit.data.images import open_rgb
from cirkit.data.preprocess import Preprocess
from cirkit.encoding import write_store
from cirkit.features import FeatureStore
from cirkit.sizing import VIT_G
from cirkit.towers import build_tower


def measure(images: int = 384, batch: int = 128, rounds: int = 5) -> list[dict[str, object]]:
    """Rows of what, value and unit: writing, reading and holding a store of real patch count, and a layer of ViT-g."""
    shape = (sizing.patches(VIT_G), VIT_G.vision_width)
    some = torch.randn(64, *shape, generator=torch.Generator().manual_seed(0)).half()
    ids, cpu = [f"{i:06}" for i in range(images)], torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "store"

        def write() -> None:
            write_store(target, {"key": "made"}, ids, lambda image: torch.zeros(1), lambda x: some[: len(x)], cpu,
                        "float16", progress=False)  # fmt: skip

        writing = side_by_side({"": write}, 1)[0][""]
        mapped, held = FeatureStore(target), FeatureStore(target)
        held.hold("cpu", share=1.0)
        rows = np.random.default_rng(0).integers(0, images, (rounds, batch))
        turn = iter(range(10**6))

        def read(store: FeatureStore) -> torch.Tensor:
            return store.patches(rows[next(turn) // 2 % rounds], dtype=torch.float16)

        reading, _ = side_by_side({"map": lambda: read(mapped), "held": lambda: read(held)}, rounds)
        assert torch.equal(mapped.patches(rows[0]), held.patches(rows[0]))
        size = mapped.row_bytes
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.jpg"
        noise = np.random.default_rng(0).integers(0, 256, (75, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((400, 600)).save(picture)
        opening = side_by_side({"": lambda: Preprocess()(open_rgb(picture))}, 4 * rounds)[0][""]
    layer = dataclasses.replace(VIT_G, vision_layers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tower = build_tower(layer).eval()
    pixels = torch.randn(2, 3, VIT_G.image_size, VIT_G.image_size)
    with torch.no_grad():
        seconds = side_by_side({"": lambda: tower(pixels)}, 3)[0][""] / len(pixels)
    rate = sizing.tower_flops(layer) / seconds
    return [
        {"what": "an image in the store", "value": size / 1e6, "unit": "MB"},
        {"what": "writing, with checksums and flushed to disk", "value": images * size / writing / 1e9, "unit": "GB/s"},
        {"what": f"reading {batch} images by the memory map", "value": 1e3 * reading["map"], "unit": "ms"},
        {"what": f"gathering {batch} held images", "value": 1e3 * reading["held"], "unit": "ms"},
        {"what": "opening a JPEG of 400 x 600 and preparing it", "value": 1e3 * opening, "unit": "ms"},
        {"what": "one layer of ViT-g, one thread, float32", "value": 1 / seconds, "unit": "images/s"},
        {"what": "the same", "value": rate / 1e9, "unit": "GFLOP/s"},
        {"what": "a whole ViT-g at that rate", "value": sizing.tower_flops(VIT_G) / rate, "unit": "s an image"},
    ]
