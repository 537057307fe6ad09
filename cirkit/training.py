"""One training loop for all methods, on accelerate: progress, history, checkpoints, resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from tqdm import tqdm

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Batch, Method, TrainingView
from cirkit.paths import atomic_path

CHECKPOINT = "resume.pt"


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation settings, the same for every method of a table unless the table says otherwise.

    AdamW with one-cycle learning rate (peak ``lr`` after ``warmup`` of all steps). ``betas``, ``eps`` and
    ``weight_decay`` are those of the released code of SPRC, TME and ConeSep. ``lr`` was chosen for the preset ``tiny``
    on validation with a seed that is not reported: of 2e-3, 3e-3 and 4e-3 it was best without noise, and all were
    alike at shuffle 0.5. The papers fine-tune pretrained models at 1e-5.
    """

    epochs: int = 8
    batch_size: int = 128
    lr: float = 3e-3
    warmup: float = 0.15
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-7
    clip_norm: float = 1.0
    mixed_precision: str = "no"
    seed: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "lr", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")


def epoch_order(n: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Row numbers of each step of an epoch: a seeded permutation cut into full batches.

    A last partial batch is left out, as in the released code, unless it is the only one.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n)
    steps = max(n // batch_size, 1)
    return [order[i * batch_size : (i + 1) * batch_size] for i in range(steps)]


def fit(
    method: Method,
    triplets: TripletSet,
    store: FeatureStore,
    config: TrainConfig,
    folder: str | Path | None = None,
    clean: np.ndarray | None = None,
    on_epoch: Callable[[int, Method], dict] | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Train ``method`` in place and return its history, one row an epoch.

    Args:
        triplets: the training set as the method sees it, noise included.
        folder: where a checkpoint is kept after each epoch; a run found there is resumed, bit for bit.
        clean: bool [n], the truth about the noise; passed on only to methods that declare ``uses_ledger``.
        on_epoch: called after each epoch with its number and the method; its numbers join the history.

    Raises:
        ValueError: a batch size that the set cannot fill, an oracle method without truth, a loss that is not finite.
    """
    triplets.require_targets()
    if len(triplets) < 2:
        raise ValueError(f"training needs at least two triplets, got {len(triplets)}")
    if method.uses_ledger and clean is None:
        raise ValueError(f"{type(method).__name__} is an oracle method and needs to be told which triplets are clean")
    truth = torch.from_numpy(np.asarray(clean)) if method.uses_ledger else None
    references, targets = store.rows(triplets.references), store.rows(triplets.targets)
    steps = len(epoch_order(len(triplets), config.batch_size, config.seed, 0))

    device = method.backbone.device
    accelerator = Accelerator(mixed_precision=config.mixed_precision, cpu=device.type == "cpu")
    optimizer = torch.optim.AdamW(
        method.parameter_groups(config.weight_decay), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=config.lr, total_steps=steps * config.epochs, pct_start=config.warmup, div_factor=25.0
    )
    model, optimizer, schedule = accelerator.prepare(method, optimizer, schedule)
    checkpoint = None if folder is None else Path(folder) / CHECKPOINT

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        history: list[dict] = []
        if checkpoint is not None and checkpoint.is_file():
            history = _resume(checkpoint, method, optimizer, schedule)
        first = len(history)
        bar = tqdm(total=steps * config.epochs, initial=steps * first, unit="step", disable=not progress)
        for epoch in range(first, config.epochs):
            began = time.perf_counter()
            bar.set_description(f"epoch {epoch + 1}/{config.epochs}")
            method.eval()
            view = TrainingView(triplets, store, epoch, config.epochs, config.seed, truth)
            record = dict(epoch=epoch + 1, lr=schedule.get_last_lr()[0], **(method.start_epoch(view) or {}))
            tokens = method.backbone.tokenize(triplets.epoch_texts(epoch, config.seed))
            method.train()
            sums: dict[str, list[float]] = {}
            for i, rows in enumerate(epoch_order(len(triplets), config.batch_size, config.seed, epoch)):
                index = torch.from_numpy(rows).to(device)
                batch = Batch(
                    rows=index,
                    references=store.patches(references[rows], device),
                    texts=tokens.rows(index),
                    targets=store.patches(targets[rows], device),
                )
                with accelerator.autocast():
                    loss, terms = method.loss(batch, epoch * steps + i)
                if not math.isfinite(loss.item()):
                    raise ValueError(f"the loss is {loss.item()} in epoch {epoch + 1}, step {i + 1}; terms: {terms}")
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), config.clip_norm)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                for name, value in {"loss": loss.item(), "gradient_norm": float(norm), **terms}.items():
                    sums.setdefault(name, []).append(value)
                bar.update()
            record |= {name: float(np.mean(values)) for name, values in sums.items()}
            record["seconds"] = time.perf_counter() - began
            method.eval()
            if on_epoch is not None:
                record |= on_epoch(epoch, method)
            history.append(record)
            bar.set_postfix(loss=f"{record['loss']:.3f}")
            if checkpoint is not None:
                _save(checkpoint, method, optimizer, schedule, history)
        bar.close()
    return pd.DataFrame(history)


def _save(path: Path, method: Method, optimizer, schedule, history: list[dict]) -> None:
    state = {
        "method": method.trained_state(),
        "optimizer": optimizer.state_dict(),
        "schedule": {k: v for k, v in schedule.state_dict().items() if isinstance(v, (int, float, list))},
        "rng": torch.get_rng_state(),
        "history": history,
    }
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def _resume(path: Path, method: Method, optimizer, schedule) -> list[dict]:
    try:
        state = torch.load(path, map_location=method.backbone.device, weights_only=True)
        method.load_trained_state(state["method"], str(path))
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"].cpu())
    except Exception as error:
        raise ValueError(f"{path} cannot be resumed from ({error}); delete it to start this run again") from None
    return state["history"]
