"""One run = one set of parameters, one folder, one ``metrics.json`` that is written last.

``prepare`` checks everything before long work starts; ``Run.fit``, ``Run.evaluate`` and ``Run.record`` are the steps
notebook 07 walks through; ``train_or_load`` is all of them, or nothing when the run is already there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file

from cirkit.backbone import Backbone
from cirkit.data.splits import DATASETS, Data, load_data
from cirkit.data.triplets import TripletSet
from cirkit.evaluation import attribute_accuracy, detection_quality, recall_at, recall_table
from cirkit.features import FeatureStore, build_store
from cirkit.methods import Method, build_method
from cirkit.noise import NoisyTriplets, corrupt
from cirkit.paths import atomic_path, resolve, results_dir
from cirkit.presets import PRESETS, load_backbone
from cirkit.provenance import code_fingerprint, provenance
from cirkit.retrieval import rank_queries
from cirkit.training import CHECKPOINT, TrainConfig, fit

# where things lie or run, and what stands in the effective values in another form: no part of a run's identity
_PLACES = ("device", "data_root", "image_root", "backbone", "method_options")


@dataclass(frozen=True)
class RunParameters:
    """The parameters of a run: those of notebook 07 in lower case.

    ``dataset`` is ``garments`` (rendered here) or ``fashioniq`` (any folder in that layout, given by ``data_root``;
    ``image_root`` if the images lie elsewhere). ``noise_seed`` draws the noise, ``seed`` everything else.
    ``method_options`` are the typed options of the method. ``device`` is ``auto`` or a torch device.
    """

    method: str = "infonce"
    backbone: str = "tiny"
    dataset: str = "garments"
    data_root: str = ""
    image_root: str = ""
    device: str = "auto"
    noise_kind: str = "shuffle"
    noise_rate: float = 0.0
    noise_seed: int = 42
    seed: int = 0
    epochs: int = TrainConfig.epochs
    batch_size: int = TrainConfig.batch_size
    lr: float = TrainConfig.lr
    mixed_precision: str = TrainConfig.mixed_precision
    caption_mode: str = "first_and_second"
    gallery_rule: str = "split"
    exclude_reference: bool = False
    allow_missing_images: bool = False
    method_options: dict = field(default_factory=dict)

    def __post_init__(self):
        for f in dataclasses.fields(self):
            expected = type(f.default if f.default is not dataclasses.MISSING else f.default_factory())
            value = getattr(self, f.name)
            if expected is float and type(value) is int:
                object.__setattr__(self, f.name, float(value))
            elif type(value) is not expected:
                raise ValueError(f"{f.name} must be {expected.__name__}, got {value!r}")
        if self.dataset not in DATASETS:
            raise ValueError(f"unknown dataset {self.dataset!r}; known: {', '.join(DATASETS)}")
        if self.dataset == "fashioniq" and not self.data_root:
            raise ValueError("dataset 'fashioniq' needs data_root, the folder with captions/ and image_splits/")


class Run:
    """A prepared run: its parameters, data, noise, features and method, and the folder its record goes to."""

    def __init__(
        self, parameters: RunParameters, data: Data, noisy: NoisyTriplets, store: FeatureStore, backbone: Backbone
    ):
        self.parameters = parameters
        self.data = data
        self.noisy = noisy
        self.store = store
        self.config = TrainConfig(
            epochs=parameters.epochs, batch_size=parameters.batch_size, lr=parameters.lr,
            mixed_precision=parameters.mixed_precision, seed=parameters.seed,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(parameters.seed)
            self.method: Method = build_method(parameters.method, backbone, **parameters.method_options)
        # without noise it does not matter which kind was not applied with which seed
        idle = _PLACES if parameters.noise_rate else {*_PLACES, "noise_kind", "noise_seed"}
        self.effective = {
            **{k: v for k, v in dataclasses.asdict(parameters).items() if k not in idle},
            "backbone": backbone.config.name,
            "train_config": dataclasses.asdict(self.config),
            "method_config": dataclasses.asdict(self.method.config),
            "backbone_weights": backbone.fingerprint()[:16],
            "features": store.key,
            "noise": noisy.ledger.fingerprint()[:16],
            "protocols": [triplets.protocol() for triplets in (data.train, *data.splits.values())],
            "queries": [_content(triplets) for triplets in data.splits.values()],
            "code": code_fingerprint(type(self.method).__module__.rpartition(".")[2]),
        }
        text = json.dumps(self.effective, sort_keys=True, default=str)
        name = re.sub(r"[^\w.-]+", "_", data.train.name)
        noise = f"{parameters.noise_kind}-{parameters.noise_rate:g}-n{parameters.noise_seed}"
        self.id = (
            f"{parameters.method}-{name}-{noise if parameters.noise_rate else 'clean'}"
            f"-s{parameters.seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        )
        self.folder = results_dir() / "runs" / self.id

    @property
    def done(self) -> bool:
        """Whether the record of this run is complete."""
        return (self.folder / "metrics.json").is_file()

    def fit(self, progress: bool = True) -> pd.DataFrame:
        """Train, resuming where an interrupted run stopped; the history is kept beside the run."""
        clean = self.noisy.ledger.clean

        def each_epoch(epoch: int, method: Method) -> dict[str, float]:
            if (self.config.epochs - 1 - epoch) % max(self.config.epochs // 4, 1):
                return {}
            ranks = rank_queries(method, self.data.choose, self.store)
            recalls = {k: 100 * recall_at(ranks.better, ranks.tied, k) for k in (1, 10)}
            by_category = {k: pd.Series(v).groupby(ranks.category).mean().mean() for k, v in recalls.items()}
            return {f"{self.data.choose.split}_R@{k}": float(v) for k, v in by_category.items()}

        history = fit(
            self.method, self.noisy.triplets, self.store, self.config, self.folder, clean, each_epoch, progress
        )
        with atomic_path(self.folder / "history.csv") as path:
            history.to_csv(path, index=False)
        return history

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
        return pd.concat(tables, ignore_index=True), ranks

    def record(self, metrics: pd.DataFrame, ranks: dict[str, pd.DataFrame]) -> Path:
        """Write ranks, weights and, last of all, ``metrics.json``; returns its path."""
        for split, table in ranks.items():
            with atomic_path(self.folder / f"ranks_{split}.csv") as path:
                table.to_csv(path, index=False)
        with atomic_path(self.folder / "model.safetensors") as path:
            save_file({k: v.contiguous().cpu() for k, v in self.method.trained_state().items()}, path)
        ledger = self.noisy.ledger
        content = {
            "run_id": self.id,
            "parameters": dataclasses.asdict(self.parameters),
            "effective": self.effective,
            "noise": {"nominal": ledger.nominal_rate, "realised": ledger.realised_rate},
            "choose_on": self.data.choose.split,
            "report_on": self.data.report.split,
            "comparable": all(t.dropped_images == 0 for t in (self.data.train, *self.data.splits.values())),
            "model_selection": "last epoch",
            "provenance": provenance(),
            "metrics": metrics.astype(object).where(metrics.notna(), None).to_dict("records"),
        }
        with atomic_path(self.folder / "metrics.json") as path:
            path.write_text(json.dumps(content, indent=1, default=str) + "\n")
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return self.folder / "metrics.json"

    def load(self) -> dict:
        """The record of a finished run; its trained weights are loaded into ``method``.

        Raises:
            ValueError: the folder's files do not fit this run.
        """
        self.method.load_trained_state(load_file(self.folder / "model.safetensors"), str(self.folder))
        return load_metrics(self.folder)

    def history(self) -> pd.DataFrame:
        """History of a finished run, one row an epoch."""
        return pd.read_csv(self.folder / "history.csv")


def _content(triplets: TripletSet) -> str:
    columns = (triplets.references, triplets.texts, triplets.targets, sorted(triplets.galleries.items()))
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]


def prepare(progress: bool = True, **parameters) -> Run:
    """Check and load all a run needs; nothing is trained yet.

    Raises:
        TypeError: unknown parameter name. ValueError, DataError: one sentence naming what is wrong.
    """
    p = RunParameters(**parameters)
    device = p.device if p.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    backbone = load_backbone(p.backbone if p.backbone in PRESETS else str(resolve(p.backbone)), device)
    data = load_data(
        p.dataset,
        resolve(p.data_root) if p.data_root else None,
        resolve(p.image_root) if p.image_root else None,
        p.caption_mode,
        p.gallery_rule,
        p.exclude_reference,
        progress,
    )
    sets = (data.train, *data.splits.values())
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
    noisy = corrupt(data.train, p.noise_rate, p.noise_kind, p.noise_seed)
    store = build_store(backbone, data.images, sorted(ids), progress=progress)
    return Run(p, data, noisy, store, backbone)


def train_or_load(progress: bool = True, **parameters) -> Run:
    """The finished run for these parameters: loaded if it is there, otherwise trained, evaluated and recorded."""
    run = prepare(progress, **parameters)
    if run.done:
        run.load()
    else:
        run.fit(progress)
        run.record(*run.evaluate())
    return run


def load_metrics(folder: str | Path) -> dict:
    """``metrics.json`` of a run folder, or a copy of one.

    Raises:
        ValueError: missing or unreadable, naming the file.
    """
    path = Path(folder)
    path = path / "metrics.json" if path.is_dir() else path
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a finished run's record: {error}") from None


def tidy(records: Sequence[str | Path]) -> pd.DataFrame:
    """Metrics of finished runs (their folders or records) as one table; every row carries what it was made with."""
    frames = []
    for record in records:
        run = load_metrics(record)
        frame = pd.DataFrame(run["metrics"])
        p, origin = run["parameters"], run["provenance"]
        for name in ("method", "backbone", "noise_kind", "noise_rate", "noise_seed", "seed", "caption_mode",
                     "gallery_rule", "exclude_reference", "epochs"):  # fmt: skip
            frame[name] = p[name]
        frame["dataset"] = run["effective"]["protocols"][0]["dataset"]
        frame["variant"] = run["effective"]["method_config"]["variant"]
        frame["realised_rate"] = run["noise"]["realised"]
        frame["reported"] = frame.split == run["report_on"]
        frame["comparable"] = run["comparable"]
        frame["run_id"] = run["run_id"]
        frame["code"] = run["effective"]["code"]
        frame["commit"] = origin["commit"]
        frame["versions"] = json.dumps(origin["versions"])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def attribute_chance(truth: pd.DataFrame, triplets: TripletSet) -> dict[str, float]:
    """In percent, how often an image drawn blindly from the gallery has the target's attribute: chance level of
    :func:`cirkit.evaluation.attribute_accuracy`, with "all" for the whole vector."""
    shares = []
    for category, gallery in triplets.galleries.items():
        images = truth.loc[list(gallery)].to_numpy()
        own = [t for t, c in zip(triplets.targets, triplets.categories, strict=True) if c == category]
        same = [images == row for row in truth.loc[own].to_numpy()]
        shares += [np.append(s.mean(axis=0), s.all(axis=1).mean()) for s in same]
    return dict(zip([*truth.columns, "all"], (100 * np.mean(shares, axis=0)).tolist(), strict=True))


def detection(scores: np.ndarray, noisy: NoisyTriplets) -> pd.DataFrame:
    """How well scores (high = clean) find the noisy rows: AUROC and average precision per noise kind."""
    return detection_quality(-np.asarray(scores), ~noisy.ledger.clean, noisy.ledger.kind)
