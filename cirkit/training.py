"""One training loop for all methods, on accelerate: progress, history, checkpoints, resume."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from cirkit.backbone import TokenBatch, state_digest
from cirkit.checkpoints import CHECKPOINT, identity, resume, save
from cirkit.data.triplets import TripletSet
from cirkit.device import check_device
from cirkit.features import FeatureStore, PixelStore
from cirkit.methods.base import Batch, Method, TrainingView
from cirkit.parallel import agree, is_main, launched, main_only, processes
from cirkit.schedule import SCHEDULES, TrainConfig, epoch_order, step_order
from cirkit.stepping import Stepper, agree_on_loss, gradient_norms

__all__ = ["CHECKPOINT", "SCHEDULES", "TrainConfig", "epoch_order", "fit"]

FEWEST_STEPS = 20  # below this a run says little, so it warns


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
            nothing is kept. It may be resumed with another number of processes, then with equal numbers up to rounding.
        clean: bool [n], the truth about the noise; passed on only to methods that declare ``uses_ledger``.
        on_epoch: called after each epoch with its number, the method, and what the method observed of each row while
            it was trained on (name -> float [n], NaN for rows left out); its numbers join the history.
        rows: int [m], different rows of the training set: batches are drawn from these only, in as many steps; None
            means all. Of the rows that a method chooses itself (`Method.training_rows`) those among them remain.
        pixels: the images of the triplets, for methods that declare ``uses_pixels``.

    Raises:
        ValueError: fewer than two triplets to train on, ``rows`` that are not of this set, an oracle method without
            truth, one that needs pixels without them, a checkpoint that is damaged or of another run, a loss that is
            not finite, or several processes that have not met (`cirkit.parallel.start`).
        ReplicaError: the replicas of several processes no longer agree, or the main process failed.
    """
    triplets.require_targets()
    if launched() > 1 and processes() == 1:
        raise ValueError(
            f"{launched()} processes were launched and have not met: call cirkit.parallel.start() before anything else"
        )
    truth = _truth(method, clean, len(triplets))
    chosen = _chosen_rows(method.training_rows(truth), rows, len(triplets))
    count = len(triplets) if chosen is None else len(chosen)
    if count < 2:
        raise ValueError(f"{type(method).__name__} would train on {count} of {len(triplets)} triplets")
    data = _Data(method, triplets, store, pixels)
    batches = len(epoch_order(len(triplets), config.batch_size, config.seed, 0))
    steps = math.ceil(batches / config.accumulation)
    progress = progress and is_main()
    if steps * config.epochs < FEWEST_STEPS and is_main():
        warnings.warn(
            f"this run has {steps * config.epochs} optimizer steps in all and trains almost nothing;"
            " take more epochs or a smaller batch_size",
            stacklevel=2,
        )
    truth_tensor = None if truth is None else torch.from_numpy(truth)
    chosen_tensor = None if chosen is None else torch.from_numpy(chosen)

    device = check_device(method.backbone.device, config.mixed_precision)
    checkpoint = None if folder is None else Path(folder) / CHECKPOINT
    run = {}
    if checkpoint is not None:
        # a cell that is run again after an interrupt brings the method half-trained, but it started as it did
        start = getattr(method, "started_from", None) if checkpoint.is_file() else None
        method.started_from = start or state_digest(method.trained_state())
        run = identity(method, triplets, store, config, truth, method.started_from)
        given = b"all" if rows is None else np.asarray(rows, dtype=np.int64).tobytes()
        run["rows to train on"] = hashlib.sha256(given).hexdigest()[:16]
    stepper = Stepper(method, config, steps, device)
    state = (method, stepper.optimizer, stepper.schedule, stepper.scaler)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        history: list[dict] = []
        if checkpoint is not None:
            history = resume(checkpoint, run, *state)
        first = len(history)
        _agree_on_state(f"where to start from in {checkpoint}" if first else "the method to train", method, first)
        bar = tqdm(total=steps * config.epochs, initial=steps * first, unit="step", disable=not progress)
        for epoch in range(first, config.epochs):
            began = time.perf_counter()
            bar.set_description(f"epoch {epoch + 1}/{config.epochs}")
            method.eval()
            view = TrainingView(triplets, store, epoch, config.epochs, config.seed, truth_tensor, chosen_tensor)
            record = dict(epoch=epoch + 1, lr=stepper.lr, **(method.start_epoch(view) or {}))
            data.tokens = method.backbone.tokenize(triplets.epoch_texts(epoch, config.seed))
            method.train()
            sums: dict[str, list[float]] = {}
            observed: dict[str, np.ndarray] = {}
            order = epoch_order(len(triplets), config.batch_size, config.seed, epoch, chosen)
            for step, group in enumerate(step_order(order, config.accumulation)):
                for i, rows in enumerate(group, start=step * config.accumulation):
                    with stepper.accelerator.autocast():
                        loss, terms = method.loss(data.batch(rows), epoch * steps + step)
                    value = loss.item()
                    agree_on_loss(value)
                    if not math.isfinite(value):
                        raise ValueError(f"the loss is {value} in epoch {epoch + 1}, step {step + 1}; terms: {terms}")
                    if i == batches // 2:
                        terms = terms | gradient_norms(method)
                    stepper.backward(loss, len(group))
                    numbers = {"loss": value}
                    if rows is group[-1]:
                        norm = stepper.step()
                        numbers |= {"overflow": 1.0} if norm is None else {"gradient_norm": norm}
                    for name, number in (numbers | terms).items():
                        sums.setdefault(name, []).append(number)
                    for name, values in method.observed.items():
                        column = observed.setdefault(name, np.full(len(triplets), np.nan, dtype=np.float32))
                        column[rows] = values.float().cpu().numpy()
                bar.update()
            record |= {name: float(np.mean(values)) for name, values in sums.items()}
            if "overflow" in record:
                record["overflow"] = len(sums["overflow"]) / steps
            record["seconds"] = time.perf_counter() - began
            method.eval()
            if on_epoch is not None:
                record |= on_epoch(epoch, method, observed)
            if note := method.diagnose(record):
                record["note"] = note
                if is_main():
                    bar.write(f"epoch {epoch + 1}: {note}")
            history.append(record)
            bar.set_postfix(loss=f"{record['loss']:.3f}")
            _agree_on_state(f"the weights after epoch {epoch + 1}", method, epoch)
            if checkpoint is not None:
                main_only(lambda: save(checkpoint, run, *state, history))
        bar.close()
    return pd.DataFrame(history)


class _Data:
    """What batches are made of; ``tokens`` are those of the epoch's texts."""

    tokens: TokenBatch

    def __init__(self, method: Method, triplets: TripletSet, store: FeatureStore, pixels: PixelStore | None):
        if method.needs_pixels and pixels is None:
            raise ValueError(f"{type(method).__name__} needs the pixels of its images (build_store with pixels=True)")
        self.method, self.store, self.pixels = method, store, pixels
        self.references, self.targets = store.rows(triplets.references), store.rows(triplets.targets)
        self.pictures = {}
        if method.needs_pixels:
            columns = {"reference_pixels": triplets.references, "target_pixels": triplets.targets}
            self.pictures = {name: pixels.rows(images) for name, images in columns.items()}

    def batch(self, rows: np.ndarray) -> Batch:
        device = self.method.backbone.device
        index = torch.from_numpy(rows).to(device)
        return Batch(
            rows=index,
            references=self.store.patches(self.references[rows], device),
            texts=self.tokens.rows(index),
            targets=self.store.patches(self.targets[rows], device),
            **{k: self.pixels.patches(v[rows], device) for k, v in self.pictures.items() if self.method.uses_pixels},
        )


def _truth(method: Method, clean: np.ndarray | None, n: int) -> np.ndarray | None:
    """What the method is told of the noise, bool [n]; None for all but oracles."""
    if n < 2:
        raise ValueError(f"training needs at least two triplets, got {n}")
    if not method.uses_ledger:
        return None
    if clean is None:
        raise ValueError(f"{type(method).__name__} is an oracle method and needs to be told which triplets are clean")
    truth = np.asarray(clean, dtype=bool)
    if truth.shape != (n,):
        raise ValueError(f"clean must say of each of the {n} triplets whether it is, got {truth.shape}")
    return truth


def _agree_on_state(what: str, method: Method, number: int) -> None:
    """Raises ReplicaError unless all processes hold the same weights, and are equally far."""
    if processes() > 1:
        agree(what, [number, int(state_digest(method.trained_state())[:12], 16)])


def _chosen_rows(own: np.ndarray | None, rows: np.ndarray | None, n: int) -> np.ndarray | None:
    """The rows that a method chooses itself among those it is given; None means all, on either side."""
    if rows is None:
        return own
    rows = np.asarray(rows)
    known = rows.ndim == 1 and np.issubdtype(rows.dtype, np.integer) and np.isin(rows, np.arange(n)).all()
    if not known or len(np.unique(rows)) != len(rows):
        raise ValueError(f"rows must be different row numbers of {n} triplets, got {rows.dtype} of shape {rows.shape}")
    return rows.astype(np.int64) if own is None else own[np.isin(own, rows)]
