"""One run = one set of parameters, one folder, one ``metrics.json`` that is written last.

``prepare`` checks everything before long work starts; ``Run.fit``, ``Run.evaluate`` and ``Run.record`` are the steps
notebook 07 walks through; ``train_or_load`` is all of them, or nothing when the run is already there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.data.splits import Data, load_data
from cirkit.data.triplets import TripletSet
from cirkit.device import check_device
from cirkit.evaluation import attribute_accuracy, recall_at, recall_table
from cirkit.features import FeatureStore, PixelStore, build_store
from cirkit.gate import gate_quality, open_gate
from cirkit.methods import Method, build_method, method_class, method_config
from cirkit.noise import NoisyTriplets, corrupt
from cirkit.parallel import agree, is_main, main_first, main_only, processes
from cirkit.parallel import start as start_processes
from cirkit.paths import atomic_path, check_writable, resolve, results_dir
from cirkit.presets import WORLD_ONLY, load_backbone, read_weights, unknown_words
from cirkit.provenance import provenance
from cirkit.records import changed_files, file_digest, load_metrics
from cirkit.retrieval import encode_images, encode_queries, rank_queries
from cirkit.run_identity import effective_values, run_id
from cirkit.run_parameters import RunParameters
from cirkit.similarity import own_similarity, similarity_function
from cirkit.train_scores import detection, detection_by_epoch
from cirkit.training import CHECKPOINT, TrainConfig, fit


class Run:
    """A prepared run: its parameters, data, noise, features and method, and the folder its record goes to."""

    def __init__(
        self, parameters: RunParameters, data: Data, noisy: NoisyTriplets, store: FeatureStore, backbone: Backbone
    ):
        self.parameters = parameters
        self.data = data
        self.noisy = noisy
        self.store = store
        self.config = train_config(parameters, backbone)
        # here, where the backbone still is as it was pretrained
        opened = (backbone, noisy.triplets, store, parameters.gate_factor)
        self.gate = open_gate(parameters.gate, *opened) if parameters.gate else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(parameters.seed)
            self.method: Method = build_method(parameters.method, backbone, **parameters.method_options)
        self.effective = effective_values(parameters, self.config, self.method, data, noisy, store)
        self.id = run_id(parameters, data, self.effective)
        self.folder = results_dir() / "runs" / self.id

    @property
    def rows(self) -> np.ndarray | None:
        """Rows of the training set that the gate keeps, int [m]; None without a gate."""
        return None if self.gate is None else self.gate.rows

    @property
    def done(self) -> bool:
        """Whether this run was finished: its record is there and readable, and its files are as they were written."""
        try:
            record = load_metrics(self.folder)
        except ValueError:
            return False
        if record["run_id"] != self.id or "files" not in record:
            return False
        if changed := changed_files(self.folder, record):
            lost = f"{', '.join(changed)} of {self.folder} lost or damaged"
            warnings.warn(f"{lost}; this run is trained again", stacklevel=2)
        return not changed

    def fit(self, progress: bool = True) -> pd.DataFrame:
        """Train, resuming where an interrupted run stopped; the history is kept beside the run."""

        def each_epoch(epoch: int, method: Method, observed: dict[str, np.ndarray]) -> dict[str, float]:
            numbers = detection_by_epoch(observed, self.noisy)
            if (self.config.epochs - 1 - epoch) % max(self.config.epochs // 4, 1):
                return numbers
            ranks = rank_queries(method, self.data.choose, self.store)
            recalls = {k: 100 * recall_at(ranks.better, ranks.tied, k) for k in (1, 10)}
            by_category = {k: pd.Series(v).groupby(ranks.category).mean().mean() for k, v in recalls.items()}
            return numbers | {f"{self.data.choose.split}_R@{k}": float(v) for k, v in by_category.items()}

        self.hold_features()
        history = fit(
            self.method, self.noisy.triplets, self.store, self.config, self.folder, self.noisy.ledger.clean, each_epoch,
            progress, self.rows, self.pixels(progress),
        )  # fmt: skip
        main_only(lambda: self._write_table("history.csv", history))
        return history

    def hold_features(self) -> bool:
        """Keep the features of the training triplets on the GPU, if there is one and they fit; whether they are."""
        device, train = self.method.backbone.device, self.noisy.triplets
        if device.type != "cuda":  # in main memory the pages of the file are kept as long as there is room
            return False
        images = {*train.references, *train.targets}
        return self.store.hold(device, sorted(images), self.parameters.feature_memory)

    @main_first()
    def pixels(self, progress: bool = True) -> PixelStore | None:
        """The training triplets' images as the tower takes them; None if the method has no use for them."""
        if not self.method.needs_pixels:
            return None
        # of both, so that every noise of a data set finds the same store
        ids = {image for part in (self.data.train, self.noisy.triplets) for image in (*part.references, *part.targets)}
        progress = progress and is_main()
        return build_store(self.method.backbone, self.data.images, sorted(ids), progress=progress, pixels=True)

    def evaluate(self) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
        """Tidy metrics with intervals for every evaluated split, and the ranks per query they come from."""
        tables, ranks = [], {}
        for split, triplets in self.data.splits.items():
            ranks[split] = rank_queries(self.method, triplets, self.store)
            table = recall_table(ranks[split])
            if self.data.attributes is not None:
                agreement = attribute_accuracy(self.data.attributes, ranks[split].best, ranks[split].target)
                agreement["metric"] = "top-1 " + agreement.pop("attribute")
                table = pd.concat([table, agreement.assign(category="all")], ignore_index=True)
            tables.append(table.assign(split=split))
        scores, wrong = self.train_similarity(), self.noisy.ledger.changed
        ranks["train"] = pd.DataFrame({"row": np.arange(len(scores)), "similarity": scores, "noisy": wrong})
        if wrong.any():
            found = detection(scores, self.noisy).rename(columns={"kind": "category"})
            tables.append(found.assign(metric=found.metric + " similarity", split="train"))
        if self.gate is not None:
            ranks["train"] = ranks["train"].assign(evidence=self.gate.evidence, kept=self.gate.kept)
            tables.append(gate_quality(self.gate, self.noisy).assign(split="train"))
        return pd.concat(tables, ignore_index=True), ranks

    def train_similarity(self) -> np.ndarray:
        """s_ii of every training triplet as it stands in the noisy set, [n] float32, by the model as it is now."""
        train, parts = self.noisy.triplets, []
        for start in range(0, len(train), 512):
            part = train.select(range(start, min(start + 512, len(train))))
            queries = encode_queries(self.method, part, self.store)
            parts.append(own_similarity(queries, encode_images(self.method, part.targets, self.store)).cpu().numpy())
        return np.concatenate(parts)

    def record(self, metrics: pd.DataFrame, ranks: dict[str, pd.DataFrame]) -> Path:
        """Write ranks, weights and, last of all, ``metrics.json``; returns its path."""
        main_only(lambda: self._write(metrics, ranks))
        return self.folder / "metrics.json"

    def _write_table(self, name: str, table: pd.DataFrame) -> None:
        with atomic_path(self.folder / name) as path:
            table.to_csv(path, index=False)

    def _write(self, metrics: pd.DataFrame, ranks: dict[str, pd.DataFrame]) -> None:
        tables = {"scores_train.csv" if split == "train" else f"ranks_{split}.csv": t for split, t in ranks.items()}
        for name, table in tables.items():
            self._write_table(name, table)
        with atomic_path(self.folder / "model.safetensors") as path:
            save_file({k: v.contiguous().cpu() for k, v in self.method.trained_state().items()}, path)
        ledger = self.noisy.ledger
        content = {
            "run_id": self.id,
            "parameters": dataclasses.asdict(self.parameters),
            "effective": self.effective,
            "noise": {"nominal": ledger.nominal_rate, "realised": ledger.realised_rate},
            "gate": self.gate and {"kept": len(self.gate.rows), "of": len(ledger), "threshold": self.gate.threshold},
            "choose_on": self.data.choose.split,
            "report_on": self.data.report.split,
            "comparable": all(t.comparable for t in (self.data.train, *self.data.splits.values())),
            "model_selection": "last epoch",
            "provenance": provenance() | {"processes": processes()},
            "files": {name: file_digest(self.folder / name) for name in ("history.csv", *tables, "model.safetensors")},
            "metrics": metrics.astype(object).where(metrics.notna(), None).to_dict("records"),
        }
        with atomic_path(self.folder / "metrics.json") as path:
            path.write_text(json.dumps(content, indent=1, default=str) + "\n")
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def load(self) -> dict:
        """The record of a finished run; its trained weights are loaded into ``method``.

        Raises:
            ValueError: the folder's files do not fit this run.
        """
        self.method.load_trained_state(read_weights(self.folder / "model.safetensors"), str(self.folder))
        return load_metrics(self.folder)

    def copy_record(self, target: str | Path) -> Path:
        """Copy the record of this finished run to ``target``, with the parameters it was asked for.

        They can differ from those it was trained with only where they do not matter, as the kind of a noise at rate 0.
        """
        record = load_metrics(self.folder) | {"parameters": dataclasses.asdict(self.parameters)}
        with atomic_path(Path(target)) as path:
            path.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        return Path(target)

    def history(self) -> pd.DataFrame:
        """History of a finished run, one row an epoch."""
        return pd.read_csv(self.folder / "history.csv")


def train_config(p: RunParameters, backbone: Backbone | None = None) -> TrainConfig:
    """The optimisation settings of a run; raises ValueError for those out of range.

    Where no learning rate is named it is the method's own, which was chosen on the small presets trained from nothing;
    the published one on a backbone with the tower of a large pretrained model, on an embedded world that of the data
    set whose layout it has; and a tenth of its own on ``small``, which nobody has searched for yet.
    """
    method = method_class(p.method)
    own, tower = method.lr, BackboneConfig.tower if backbone is None else backbone.config.tower
    if tower == "efficientnet-lite0":
        own /= 10
    elif tower != BackboneConfig.tower:
        own = method.published_lr["cirr" if p.dataset in ("cirr", "scenes") else "fashioniq"]
    shared = {f.name for f in dataclasses.fields(TrainConfig)} & {f.name for f in dataclasses.fields(p)}
    values = {name: getattr(p, name) for name in shared}
    return TrainConfig(**values | {"lr": p.lr or own, "schedule": method.schedule})


def prepare(progress: bool = True, **parameters) -> Run:
    """Check and load all a run needs; nothing is trained yet.

    Raises:
        TypeError: unknown parameter name. ValueError, DataError: one sentence naming what is wrong.
    """
    p = RunParameters(**parameters)
    train_config(p)
    config = method_config(p.method, **p.method_options)
    check_writable(results_dir())
    start_processes(p.device)
    progress = progress and is_main()
    device = check_device(p.device, p.mixed_precision)
    backbone = load_backbone(p.backbone, device)
    method_class(p.method).check_backbone(backbone, config)
    data = main_first()(load_data)(  # one process draws an embedded world, the others find it
        p.dataset,
        resolve(p.data_root) if p.data_root else None,
        resolve(p.image_root) if p.image_root else None,
        p.caption_mode,
        p.gallery_rule,
        p.exclude_reference,
        progress,
    )
    sets = (data.train, *data.splits.values())
    check_words(backbone, sets)
    ids = {image for triplets in sets for image in triplets.image_ids()}
    groups = {group: members for triplets in sets for group, members in triplets.image_groups().items()}
    if p.allow_missing_images:
        report = data.images.check(groups, allow_missing=True, progress=progress)
        gone = report.unusable
        if gone:
            parts = {part: getattr(data, part).without_images(gone) for part in ("train", "choose", "report")}
            data = dataclasses.replace(data, **parts)
            ids -= set(gone)
    elif data.images.missing(sorted(ids)):
        data.images.check(groups, progress=progress)
    # of all kinds only hard noise looks at images, so the others are checked and drawn before any are encoded
    store = cache(main_first()(lambda: build_store(backbone, data.images, sorted(ids), progress=progress)))
    alike = cache(lambda: similarity_function(backbone, store()))
    noisy = corrupt(data.train, p.noise_rate, p.noise_kind, p.noise_seed, similarity=lambda *ids: alike()(*ids))
    return Run(p, data, noisy, store(), backbone)


def check_words(backbone: Backbone, sets: Sequence[TripletSet]) -> None:
    """Raises ValueError if a small preset, which knows the words of its own world alone, is to read other texts."""
    if backbone.config.name not in WORLD_ONLY:
        return
    texts = {text for triplets in sets for text in triplets.texts}
    words = {word for text in texts for word in text.split()}
    unknown = unknown_words(backbone, texts)
    if len(unknown) > 0.2 * len(words):
        raise ValueError(
            f"backbone {backbone.config.name!r} does not know {len(unknown)} words of {sets[0].name} (such as"
            f" {', '.join(unknown[:4])}): 'tiny' reads garments and 'tiny-scenes' scenes, nothing else."
        )


def train_or_load(progress: bool = True, **parameters) -> Run:
    """The finished run for these parameters: loaded if it is there, otherwise trained, evaluated and recorded."""
    run = prepare(progress, **parameters)
    identity, done = int(hashlib.sha256(run.id.encode()).hexdigest()[:12], 16), run.done
    agree("which run this is, and whether it is there already", [identity, done])
    if done:
        run.load()
    else:
        run.fit(progress)
        run.record(*run.evaluate())
    return run
