"""One training loop for all methods, on accelerate: progress, history, checkpoints, resume."""

from __future__ import annotations

import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from tqdm import tqdm

from cirkit.backbone import state_digest
from cirkit.checkpoints import CHECKPOINT, identity, resume, save
from cirkit.data.triplets import TripletSet
from cirkit.device import PRECISIONS, check_device
from cirkit.features import FeatureStore, PixelStore
from cirkit.methods.base import Batch, Method, TrainingView

SCHEDULES = ("one_cycle", "cosine")
FEWEST_STEPS = 20  # below this a run says little, so it warns


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
    seed: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "seed"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "lr", "clip_norm", "eps", "div_factor", "final_div_factor"):
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
    """Row numbers of each step of an epoch: a seeded permutation cut into full batches.

    A last partial batch is left out, as in the released code, unless it is the only one.

    Args:
        n: size of the training set; it alone decides the number of steps.
        rows: draw from these rows only (int [m]), with as many permutations of them as the steps need; a row then
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


def fit(
    method: Method,
    triplets: TripletSet,
    store: FeatureStore,
    config: TrainConfig,
    folder: str | Path | None = None,
    clean: np.ndarray | None = None,
    on_epoch: Callable[[int, Method, dict[str, np.ndarray]], dict] | None = None,
    progress: bool = True,
    rows: np.ndarray | None = None,
    pixels: PixelStore | None = None,
) -> pd.DataFrame:
    """Train ``method`` in place and return its history, one row an epoch.

    Args:
        triplets: the training set as the method sees it, noise included.
        folder: where a checkpoint is kept after each epoch; a run found there is resumed, bit for bit. Without it
            nothing is kept.
        clean: bool [n], the truth about the noise; passed on only to methods that declare ``uses_ledger``.
        on_epoch: called after each epoch with its number, the method, and what the method observed of each row while
            it was trained on (name -> float [n], NaN for rows left out); its numbers join the history.
        rows: int [m], different rows of the training set: batches are drawn from these only, in as many steps; None
            means all. Of the rows that a method chooses itself (`Method.training_rows`) those among them remain.
        pixels: the images of the triplets, for methods that declare ``uses_pixels``.

    Raises:
        ValueError: fewer than two triplets to train on, ``rows`` that are not of this set, an oracle method without
            truth, one that needs pixels without them, a checkpoint that is damaged or of another run, a loss that is
            not finite, or more than one process.
    """
    triplets.require_targets()
    if len(triplets) < 2:
        raise ValueError(f"training needs at least two triplets, got {len(triplets)}")
    if method.uses_ledger and clean is None:
        raise ValueError(f"{type(method).__name__} is an oracle method and needs to be told which triplets are clean")
    truth = np.asarray(clean, dtype=bool) if method.uses_ledger else None
    if truth is not None and truth.shape != (len(triplets),):
        raise ValueError(f"clean must say of each of the {len(triplets)} triplets whether it is, got {truth.shape}")
    chosen = _chosen_rows(method.training_rows(truth), rows, len(triplets))
    if chosen is not None and len(chosen) < 2:
        raise ValueError(f"{type(method).__name__} would train on {len(chosen)} of {len(triplets)} triplets")
    if method.needs_pixels and pixels is None:
        raise ValueError(f"{type(method).__name__} needs the pixels of its images (build_store with pixels=True)")
    references, targets = store.rows(triplets.references), store.rows(triplets.targets)
    pictures = {}
    if method.needs_pixels:
        columns = {"reference_pixels": triplets.references, "target_pixels": triplets.targets}
        pictures = {name: pixels.rows(images) for name, images in columns.items()}
    steps = len(epoch_order(len(triplets), config.batch_size, config.seed, 0))

    if steps * config.epochs < FEWEST_STEPS:
        warnings.warn(
            f"this run has {steps * config.epochs} optimizer steps in all and trains almost nothing;"
            " take more epochs or a smaller batch_size",
            stacklevel=2,
        )
    truth_tensor = None if truth is None else torch.from_numpy(truth)
    chosen_tensor = None if chosen is None else torch.from_numpy(chosen)

    device = check_device(method.backbone.device, config.mixed_precision)
    accelerator = _accelerator(config, device)
    checkpoint = None if folder is None else Path(folder) / CHECKPOINT
    run = {}
    if checkpoint is not None:
        # a cell that is run again after an interrupt brings the method half-trained, but it started as it did
        start = getattr(method, "started_from", None) if checkpoint.is_file() else None
        method.started_from = start or state_digest(method.trained_state())
        run = identity(method, triplets, store, config, truth, method.started_from)
        given = b"all" if rows is None else np.asarray(rows, dtype=np.int64).tobytes()
        run["rows to train on"] = hashlib.sha256(given).hexdigest()[:16]
    optimizer = torch.optim.AdamW(
        method.parameter_groups(config.weight_decay), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
    schedule = _schedule(optimizer, config, steps)
    model, optimizer, schedule = accelerator.prepare(method, optimizer, schedule)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        history: list[dict] = []
        if checkpoint is not None:
            history = resume(checkpoint, run, method, optimizer, schedule, accelerator.scaler)
        first = len(history)
        bar = tqdm(total=steps * config.epochs, initial=steps * first, unit="step", disable=not progress)
        for epoch in range(first, config.epochs):
            began = time.perf_counter()
            bar.set_description(f"epoch {epoch + 1}/{config.epochs}")
            method.eval()
            view = TrainingView(triplets, store, epoch, config.epochs, config.seed, truth_tensor, chosen_tensor)
            record = dict(epoch=epoch + 1, lr=schedule.get_last_lr()[0], **(method.start_epoch(view) or {}))
            tokens = method.backbone.tokenize(triplets.epoch_texts(epoch, config.seed))
            method.train()
            sums: dict[str, list[float]] = {}
            observed: dict[str, np.ndarray] = {}
            for i, rows in enumerate(epoch_order(len(triplets), config.batch_size, config.seed, epoch, chosen)):
                index = torch.from_numpy(rows).to(device)
                batch = Batch(
                    rows=index,
                    references=store.patches(references[rows], device),
                    texts=tokens.rows(index),
                    targets=store.patches(targets[rows], device),
                    **{k: pixels.patches(v[rows], device) for k, v in pictures.items() if method.uses_pixels},
                )
                with accelerator.autocast():
                    loss, terms = method.loss(batch, epoch * steps + i)
                if not math.isfinite(loss.item()):
                    raise ValueError(f"the loss is {loss.item()} in epoch {epoch + 1}, step {i + 1}; terms: {terms}")
                if i == steps // 2:
                    terms = terms | _gradient_norms(method)
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
                for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
                    group["lr"] = rate * method.lr_scale
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                for name, value in {"loss": loss.item(), "gradient_norm": float(norm), **terms}.items():
                    sums.setdefault(name, []).append(value)
                for name, values in method.observed.items():
                    column = observed.setdefault(name, np.full(len(triplets), np.nan, dtype=np.float32))
                    column[rows] = values.float().cpu().numpy()
                bar.update()
            record |= {name: float(np.mean(values)) for name, values in sums.items()}
            record["seconds"] = time.perf_counter() - began
            method.eval()
            if on_epoch is not None:
                record |= on_epoch(epoch, method, observed)
            if note := method.diagnose(record):
                record["note"] = note
                bar.write(f"epoch {epoch + 1}: {note}")
            history.append(record)
            bar.set_postfix(loss=f"{record['loss']:.3f}")
            if checkpoint is not None:
                save(checkpoint, run, method, optimizer, schedule, accelerator.scaler, history)
        bar.close()
    return pd.DataFrame(history)


def _chosen_rows(own: np.ndarray | None, rows: np.ndarray | None, n: int) -> np.ndarray | None:
    """The rows that a method chooses itself among those it is given; None means all, on either side."""
    if rows is None:
        return own
    rows = np.asarray(rows)
    known = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer) and np.isin(rows, np.arange(n)).all()
    if not known or len(np.unique(rows)) != len(rows):
        raise ValueError(f"rows must be different row numbers of {n} triplets, got {rows.dtype} of shape {rows.shape}")
    return rows.astype(np.int64) if own is None else own[np.isin(own, rows)]


def _schedule(optimizer: torch.optim.Optimizer, config: TrainConfig, steps: int) -> LRScheduler:
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


def _gradient_norms(method: Method) -> dict[str, float]:
    """Norm of each term's gradient over all trained parameters, where a loss has several terms."""
    trained = [p for p in method.parameters() if p.requires_grad]
    norms = {}
    for name, term in method.terms.items():
        found = torch.autograd.grad(term, trained, retain_graph=True, allow_unused=True) if term.requires_grad else ()
        squares = [g.float().square().sum() for g in found if g is not None]
        norms[f"gradient {name}"] = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
    return norms


def _accelerator(config: TrainConfig, device: torch.device) -> Accelerator:
    """Accelerate for one process, and for these settings whatever the process used it for before."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ValueError("training runs in one process so far; start it without a launcher, or with one process")
    placed = PartialState._shared_state.get("device", device)
    precision = AcceleratorState._shared_state.get("_mixed_precision", config.mixed_precision)
    if (placed.type, precision) != (device.type, config.mixed_precision):
        AcceleratorState._reset_state(reset_partial_state=True)  # it would refuse any other settings than the first
    # the method already is where it belongs, which accelerate would take to the first GPU
    return Accelerator(mixed_precision=config.mixed_precision, cpu=device.type == "cpu", device_placement=False)
