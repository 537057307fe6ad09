"""A training step of ConeSep: with stored features, and with the frozen tower in every step.

Both sides are this package's vectorised code in one dtype, and compute the same loss. One reads patch tokens from the
store, keeps its Gaussian images encoded, and computes keys and values of an image once for all passes that attend to
it. The other encodes references, targets and Gaussian images by the tower in every step; that its pixels are decoded
already is to its advantage.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cirkit.backbone import Backbone, BackboneConfig, TokenBatch
from cirkit.bench.timing import side_by_side
from cirkit.encoding import write_store
from cirkit.features import FeatureStore
from cirkit.methods.base import Batch, Method
from cirkit.methods.conesep import ConeSep, ConeSepConfig
from cirkit.presets import load_backbone
from cirkit.qformer import ImageMemory
from cirkit.step_cost import arithmetic

WORDS = ("is", "blue", "longer", "with", "stripes", "and", "no", "sleeves")


@dataclass(frozen=True)
class Size:
    """A backbone to measure on, and the batch."""

    name: str
    backbone: str | BackboneConfig
    batch: int


def scaled_config() -> BackboneConfig:
    """Random weights in which the tower outweighs a Q-Former pass about as ViT-g does (41 times), small enough to time.

    12 layers of width 192 on 64 patches and a class token, a Q-Former of 4 layers of width 96 with 8 query tokens.
    """
    vocabulary = load_backbone("tiny-random").config.vocabulary
    return BackboneConfig(
        "scaled", vocabulary, width=96, layers=4, intermediate=384, query_tokens=8, tower="vit", vision_width=192,
        vision_layers=12, vision_heads=6, vision_intermediate=768, image_size=64, patch_size=8,
    )  # fmt: skip


def sizes() -> list[Size]:
    """The preset of the study, and a tower that dominates."""
    return [Size("tiny", "tiny-random", 128), Size("scaled", scaled_config(), 32)]


def build(size: Size) -> Backbone:
    """The backbone of a size, with random weights, always the same."""
    if isinstance(size.backbone, str):
        return load_backbone(size.backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Backbone(size.backbone).eval()


class Unshared(ConeSep):
    """Every pass makes its own keys and values, and the Gaussian images are encoded in each step."""

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        self._pool = None  # drawn from the same seed, so to the same images
        self._references = batch.references
        return super().loss(batch, step)

    def anchors(self, references: Tensor | ImageMemory, texts: TokenBatch) -> Tensor:
        return super().anchors(self._references, texts)


VARIANTS = {
    "released": {"start": "released", "pool": True},  # but for Gaussian images that are drawn once
    "adapted": {},
}


class Redrawn(ConeSep):
    """Stored features alone: the Gaussian images are encoded in each step."""

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        self._pool = None
        return super().loss(batch, step)


class Trainer:
    """Optimizer steps of a method on made texts and images, patch tokens of a store or pixels [n,3,S,S]."""

    def __init__(self, method: Method, images: FeatureStore | Tensor, batch: int):
        self.method, self.images, self.batch = method.train(), images, batch
        self.texts = [" ".join(np.roll(WORDS, -i)[: 3 + i % 5]) for i in range(batch)]
        self.optimizer = torch.optim.AdamW(method.parameter_groups(0.05), lr=1e-6, fused=True)
        self.count = 0

    def steps(self, count: int) -> list[float]:
        """Losses of the next optimizer steps."""
        return [self._step() for _ in range(count)]

    def _step(self) -> float:
        method, total = self.method, len(self.images)
        rows = np.random.default_rng(self.count).permutation(total)[: 2 * self.batch]
        references, targets = (self._patches(part) for part in (rows[: self.batch], rows[self.batch :]))
        tokens = method.backbone.tokenize(self.texts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.count)  # both sides draw the same texts
            loss, _ = method.loss(Batch(torch.arange(self.batch), references, tokens, targets), self.count)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in method.parameters() if p.requires_grad], 1.0)
        self.optimizer.step()
        self.count += 1
        return loss.item()

    def _patches(self, rows: np.ndarray) -> Tensor:
        if isinstance(self.images, FeatureStore):
            return self.images.patches(rows)
        return self.method.backbone.patch_tokens(self.images[torch.from_numpy(rows)])


def made_images(backbone: Backbone, count: int, folder: Path) -> tuple[Tensor, FeatureStore]:
    """Random pixels [count,3,S,S] and the store of their patch tokens."""
    size = backbone.config.image_size
    pixels = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))
    ids = [f"{i:06}" for i in range(count)]
    write_store(folder / "store", {"key": "made"}, ids, lambda image: pixels[int(image)], backbone.patch_tokens,
                torch.device("cpu"), "float32", progress=False)  # fmt: skip
    return pixels, FeatureStore(folder / "store")


def measure(size: Size, rounds: int = 5) -> list[dict[str, object]]:
    """One row for each variant, in and after the warm-up: seconds and FLOPs of a step each way, and ratios."""
    table = []
    with tempfile.TemporaryDirectory() as folder:
        pixels, store = made_images(build(size), 3 * size.batch, Path(folder))
        for variant, after in itertools.product(VARIANTS, (False, True)):
            options = VARIANTS[variant]
            config = ConeSepConfig(**({"draws": size.batch} if variant == "released" else {}), **options)
            # the boundary is estimated once in so many steps, which together are what a step costs
            period = config.boundary_every if after else 1
            kinds = {"stored": (ConeSep, store), "every step": (Unshared, pixels)}
            if after:
                kinds["no pool"] = (Redrawn, store)
            ways = {name: Trainer(kind(build(size), config), images, size.batch)
                    for name, (kind, images) in kinds.items()}  # fmt: skip
            for way in ways.values():
                way.method.epoch = config.warmup if after else 0
                way.steps(period)  # the pool is encoded once
            works = {name: partial(way.steps, period) for name, way in ways.items()}
            flops = {name: arithmetic(work) / period for name, work in works.items()}
            seconds, losses = side_by_side(works, rounds)
            for found in losses.values():
                np.testing.assert_allclose(found, losses["every step"], rtol=1e-3)
            row = {"backbone": size.name, "batch": size.batch, "variant": variant, "after warm-up": after}
            row |= {f"{name}, ms": 1e3 * seconds[name] / period for name in ways}
            row |= {f"{name}, GFLOP": flops[name] / 1e9 for name in ways}
            row["times faster"] = seconds["every step"] / seconds["stored"]
            row["without the pool"] = seconds["every step"] / seconds["no pool"] if after else None
            table.append(row)
    return table
