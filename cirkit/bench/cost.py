"""What a training step costs on a preset, counted, beside what `cirkit.sizing` predicts from its shapes."""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from pathlib import Path

import torch

from cirkit import sizing
from cirkit.bench.step import Size, Trainer, build, made_images
from cirkit.bench.timing import side_by_side
from cirkit.methods import build_method
from cirkit.step_cost import arithmetic, kept_for_backward

# step of `cirkit.sizing.steps` -> method, and whether its warm-up is over
METHODS = {
    "infonce": ("infonce", False),
    "conesep-released, warm-up": ("conesep-released", False),
    "conesep-released": ("conesep-released", True),
    "conesep-adapted": ("conesep-adapted", True),
}


def measure(preset: str, batch: int = 128, rounds: int = 3) -> list[dict[str, object]]:
    """One row for each step: FLOPs, bytes kept for the backward pass and by the optimizer, time; found, predicted.

    Args:
        preset: a backbone's name; weights do not matter, only shapes.
    """
    size, table = Size(preset, preset, batch), []
    config = build(size).config
    rate = product_rate()
    with tempfile.TemporaryDirectory() as folder:
        _, store = made_images(build(size), 3 * batch, Path(folder))
        for name, (kind, after) in METHODS.items():
            method = build_method(kind, build(size))
            way = Trainer(method, store, batch)
            step = sizing.steps(batch)[name]
            if kind.startswith("conesep"):
                method.epoch = method.config.warmup if after else 0
                longest = max(map(len, method._negations)) if method.config.negate_text else 0
                step = dataclasses.replace(step, negation=longest)
            way.steps(step.every)
            text = method.backbone.tokenize(way.texts).ids.shape[1]
            # on the CPU torch does not count fused attention
            predicted = sizing.step_flops(config, step, batch, text, attention=False)
            if kind == "conesep-released":  # its Gaussian images are new in each step
                predicted += batch * 2 * step.gaussian * sizing.tower_flops(config, attention=False)
            work = partial(way.steps, step.every)
            flops = arithmetic(work) / step.every
            seconds = side_by_side({"": work}, rounds)[0][""] / step.every
            table.append({
                "backbone": preset, "step": name, "batch": batch, "text tokens": text, "negation tokens": step.negation,
                "GFLOP": flops / 1e9, "predicted GFLOP": predicted / 1e9,
                "activations, MB": kept_for_backward(method, partial(way.steps, 1)) / 1e6,
                "predicted activations, MB": sizing.activation_bytes(config, step, batch, text) / 1e6,
                "state, MB": 16 * sum(p.numel() for p in method.parameters() if p.requires_grad) / 1e6,
                "predicted state, MB": 16 * sizing.parameters(config)[1] / 1e6,
                "ms": 1e3 * seconds, "predicted ms": 1e3 * predicted / rate, "GFLOP/s of a product": rate / 1e9,
            })  # fmt: skip
    return table


def product_rate(size: int = 1024, times: int = 5) -> float:
    """FLOPs a second of a square float32 product on this machine, the best that a step could reach."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / side_by_side({"": lambda: a @ b}, times)[0][""]
