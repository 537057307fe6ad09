"""How long, how fast and in which order a run trains: its settings, the batches of an epoch, the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from cirkit.device import PRECISIONS

SCHEDULES = ("one_cycle", "cosine")


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation settings, the same for every method but for the learning rate.

    AdamW with one-cycle learning rate on cosines: from ``lr / div_factor`` to the peak ``lr`` after ``warmup`` of all
    steps, then down to ``lr / div_factor / final_div_factor``; ``betas`` stay as they are. ``betas``, ``eps`` and
    ``weight_decay`` are those of the released code of SPRC, TME and ConeSep. The ``schedule`` ``cosine`` is QuRe's: a
    step down a half cosine after each epoch, from ``lr`` in the first towards ``lr / 100``, without warm-up. ``lr`` and
    ``schedule`` are the only ones that methods differ in (`Method.lr`, `Method.schedule`). The papers fine-tune
    pretrained models at 1e-5. A ``batch_size`` larger than the training set gives one step an epoch, with all of the
    set in it.

    An optimizer step takes the mean gradient of ``accumulation`` batches, one after the other, and the last step of an
    epoch that of the batches that are left. Negatives come from the own batch alone, so that this saves memory but is
    not a larger ``batch_size``. Several processes share each batch instead, and compute what one does (see
    `cirkit.parallel`).

    Raises:
        ValueError: a setting of the wrong type or out of its range.
    """

    epochs: int = 8
    batch_size: int = 128
    lr: float = 3e-3
    schedule: str = "one_cycle"
    warmup: float = 0.15
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-7
    clip_norm: float = 1.0
    mixed_precision: str = "no"
    accumulation: int = 1
    seed: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "accumulation", "seed"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        positive = (
            "epochs", "batch_size", "accumulation", "lr", "clip_norm", "eps", "div_factor", "final_div_factor",
        )  # fmt: skip
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} is none of {', '.join(SCHEDULES)}")
        if self.batch_size == 1:
            raise ValueError("batch_size must be at least 2: most methods take their negatives from the batch")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {self.seed}")
        if not 0 < self.warmup < 1:
            raise ValueError(f"warmup is a share of all steps, between 0 and 1, got {self.warmup}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are two numbers from 0 to below 1, got {self.betas}")
        if self.mixed_precision not in PRECISIONS:
            raise ValueError(f"mixed_precision {self.mixed_precision!r} is none of {', '.join(PRECISIONS)}")


def epoch_order(n: int, batch_size: int, seed: int, epoch: int, rows: np.ndarray | None = None) -> list[np.ndarray]:
    """Row numbers of each batch of an epoch: a seeded permutation cut into full batches.

    A last partial batch is left out, as in the released code, unless it is the only one.

    Args:
        n: size of the training set; it alone decides the number of batches.
        rows: draw from these rows only (int [m]), with as many permutations of them as the batches need; a row then
            stands in several batches of an epoch, but never twice in one.
    """
    steps = max(n // batch_size, 1)
    rng = np.random.default_rng([seed, epoch])
    batches: list[np.ndarray] = []
    while len(batches) < steps:
        order = rng.permutation(n) if rows is None else rng.permutation(rows)
        passes = max(len(order) // batch_size, 1)
        batches += [order[i * batch_size : (i + 1) * batch_size] for i in range(passes)]
    return batches[:steps]


def step_order(order: list[np.ndarray], accumulation: int) -> list[list[np.ndarray]]:
    """The batches of each optimizer step: ``accumulation`` in a row, and in the last step of the epoch what is left."""
    return [order[first : first + accumulation] for first in range(0, len(order), accumulation)]


def learning_rate(optimizer: torch.optim.Optimizer, config: TrainConfig, steps: int) -> LRScheduler:
    """The learning rate over ``config.epochs`` times ``steps`` optimizer steps."""
    if config.schedule == "cosine":
        last = 0.01

        def share(step: int) -> float:
            return last + (1 - last) * (1 + math.cos(math.pi * (step // steps) / config.epochs)) / 2

        return LambdaLR(optimizer, share)
    return OneCycleLR(
        optimizer,
        max_lr=config.lr,
        total_steps=steps * config.epochs,
        pct_start=config.warmup,
        div_factor=config.div_factor,
        final_div_factor=config.final_div_factor,
        anneal_strategy="cos",
        cycle_momentum=False,
    )
