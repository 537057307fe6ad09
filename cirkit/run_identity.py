"""What makes a run this run: everything that decides its numbers, and the id that hashes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

from cirkit.data.splits import Data
from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods import Method
from cirkit.noise import NoisyTriplets
from cirkit.provenance import code_fingerprint
from cirkit.run_parameters import RunParameters
from cirkit.training import TrainConfig

# where things lie or run, and what stands in the effective values in another form: no part of a run's identity
_PLACES = (
    "device", "data_root", "image_root", "backbone", "exclude_reference", "lr", "method_options", "feature_memory",
)  # fmt: skip


def effective_values(
    parameters: RunParameters, config: TrainConfig, method: Method, data: Data, noisy: NoisyTriplets,
    store: FeatureStore,
) -> dict[str, Any]:  # fmt: skip
    """Every value that a run's numbers depend on, as JSON values: parameters, and digests of data, weights and code."""
    # without noise it does not matter which kind was not applied with which seed
    idle = {*_PLACES, *(() if parameters.noise_rate else ("noise_kind", "noise_seed"))}
    # nor, without a gate, how strict it would be; such a run is the one it was before there were gates
    idle |= set() if parameters.gate else {"gate", "gate_factor"}
    return {
        **{k: v for k, v in dataclasses.asdict(parameters).items() if k not in idle},
        "backbone": method.backbone.config.name,
        "train_config": dataclasses.asdict(config),
        "method_config": dataclasses.asdict(method.config),
        "backbone_weights": method.backbone.fingerprint()[:16],
        "features": store.key,
        "noise": noisy.ledger.fingerprint()[:16],
        "protocols": [triplets.protocol() for triplets in (data.train, *data.splits.values())],
        "queries": [_content(triplets) for triplets in data.splits.values()],
        # texts drawn anew in each epoch, as they are drawn; fixed ones are in the ledger's digest
        "drawn_texts": _digest(repr(data.train.epoch_texts(0, parameters.seed)))
        if data.train.caption_mode == "random"
        else None,
        "attributes": None if data.attributes is None else _digest(data.attributes.to_csv()),
        "code": code_fingerprint(type(method).__module__.rpartition(".")[2]),
    }


def run_id(parameters: RunParameters, data: Data, effective: dict[str, Any]) -> str:
    """``<method>[-gate_<gate>]-<data set>-<noise>-s<seed>-<hash of the effective values>``, safe as a folder name."""
    name = re.sub(r"[^\w.-]+", "_", data.train.name)
    noise = f"{parameters.noise_kind}-{parameters.noise_rate:g}-n{parameters.noise_seed}"
    digest = _digest(json.dumps(effective, sort_keys=True, default=str))[:10]
    method = f"{parameters.method}-gate_{parameters.gate}" if parameters.gate else parameters.method
    return f"{method}-{name}-{noise if parameters.noise_rate else 'clean'}-s{parameters.seed}-{digest}"


def _content(triplets: TripletSet) -> str:
    columns = (triplets.references, triplets.texts, triplets.targets, triplets.categories)
    return _digest(repr((*columns, sorted(triplets.galleries.items()), triplets.subsets, triplets.ground_truths)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
