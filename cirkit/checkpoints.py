"""Checkpoints of a run under way: what is kept after each epoch, and what is refused when going on from there."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cirkit.data.triplets import TripletSet
from cirkit.encoding import free_space
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.paths import atomic_path

CHECKPOINT = "resume.pt"
_PARTS = {"identity", "method", "optimizer", "schedule", "scaler", "rng", "history"}


def identity(
    method: Method, triplets: TripletSet, store: FeatureStore, config: object, clean: np.ndarray | None, start: str
) -> dict[str, str]:
    """What decides the numbers of a run before its first step: part -> 16 hex digits.

    ``clean`` is the truth as far as the method is shown it, None for all but oracles; ``start`` names the weights it
    began with.
    """
    columns = (triplets.references, triplets.captions, triplets.targets, triplets.caption_mode)
    parts = {
        "training settings": repr(config),
        "method": f"{type(method).__module__}.{type(method).__qualname__} {method.config}",
        "starting weights": start,
        "triplets": repr(columns),
        "image features": store.key,
        "truth about the noise": "not shown" if clean is None else np.asarray(clean, dtype=bool).tobytes().hex(),
    }
    return {part: hashlib.sha256(text.encode()).hexdigest()[:16] for part, text in parts.items()}


def save(
    path: Path,
    identity: dict[str, str],
    method: Method,
    optimizer: Any,
    schedule: Any,
    scaler: Any,
    history: list[dict],
) -> None:
    """Write the checkpoint as a whole: the state of everything that the next epoch depends on, and the history.

    Raises:
        OSError: it cannot be written, on a full disk for one.
    """
    device = method.backbone.device
    state = {
        "identity": identity,
        "method": method.trained_state(),
        "optimizer": optimizer.state_dict(),
        "schedule": {k: v for k, v in schedule.state_dict().items() if isinstance(v, (int, float, list))},
        "scaler": None if scaler is None else scaler.state_dict(),
        "rng": {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        },
        # numpy's numbers would not load with weights_only
        "history": [{k: v.item() if isinstance(v, np.generic) else v for k, v in row.items()} for row in history],
    }
    with atomic_path(path) as temporary:
        try:
            torch.save(state, temporary)
        except (OSError, RuntimeError) as error:
            first, *_ = str(error).split("\n")
            reason = f"{first}; {free_space(path.parent) / 1e9:.2g} GB free"
            raise OSError(f"{path} cannot be written ({reason}); the checkpoint of the epoch before stays") from None


def resume(
    path: Path, identity: dict[str, str], method: Method, optimizer: Any, schedule: Any, scaler: Any
) -> list[dict]:
    """Put everything back to where the checkpoint was written and return the history; [] if there is none.

    Raises:
        ValueError: the file is damaged, or belongs to a run that differs in any part of ``identity``.
    """
    way_out = "delete it to start this run again"
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch.load does not look at the checksums
                raise ValueError(f"wrong checksum of {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:  # none yet, or another process just finished this run and took it away
        return []
    except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} cannot be resumed from ({reason}); {way_out}") from None
    if not isinstance(state, dict) or set(state) != _PARTS:
        raise ValueError(f"{path} cannot be resumed from (another version of cirkit wrote it); {way_out}")
    other = [part for part, digest in identity.items() if state["identity"].get(part) != digest]
    if other:
        differ = ", ".join(other)
        raise ValueError(f"{path} belongs to another run: different {differ}; use another folder or {way_out}")
    try:
        method.load_trained_state(state["method"], str(path))
        optimizer.load_state_dict(state["optimizer"])
    except ValueError as error:
        raise ValueError(f"{path} cannot be resumed from ({error}); {way_out}") from None
    schedule.load_state_dict(state["schedule"])
    if scaler is not None and state["scaler"]:
        scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["rng"]["cpu"])
    if method.backbone.device.type == "cuda" and state["rng"]["cuda"] is not None:
        torch.cuda.set_rng_state(state["rng"]["cuda"], method.backbone.device)
    return state["history"]
