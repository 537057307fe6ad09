"""Backbones by name: where their weights lie, how they are written and loaded, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file

from cirkit.backbone import Backbone
from cirkit.backbone_config import BackboneConfig
from cirkit.blip import build_backbone, empty_backbone
from cirkit.device import check_device
from cirkit.hub import cached_folder, hub_folder, is_hub_id, online
from cirkit.paths import atomic_path, cache_dir, resolve
from cirkit.pretrained import is_transformers, lavis_file, load_lavis, load_transformers
from cirkit.weight_files import load_state, read_weights

WEIGHTS = Path(__file__).resolve().parent / "weights"
WORLD_ONLY = ("tiny", "tiny-scenes")  # have seen the pictures and words of one embedded world and nothing else
PRESETS = ("tiny", "tiny-scenes", "tiny-random", "small", "blip2-vitg", "blip2-vitl", "blip")


class Published(NamedTuple):
    """Where the weights of a preset come from: a hub id ("" for none), and the files that LAVIS publishes."""

    hub: str = ""
    files: tuple[str, ...] = ()


PUBLISHED = {
    "blip2-vitg": Published("Salesforce/blip2-itm-vit-g", ("blip2_pretrained.pth", "eva_vit_g.pth")),
    "blip2-vitl": Published(files=("blip2_pretrained_vitL.pth", "clip_vit_L.pth")),
    "blip": Published("Salesforce/blip-itm-base-coco"),
}


def weights_dir() -> Path:
    """Folder of published weights, a folder for each preset: ``CIRKIT_WEIGHTS`` or ``<cache>/weights``."""
    return Path(os.environ.get("CIRKIT_WEIGHTS") or cache_dir() / "weights")


def save_backbone(backbone: Backbone, folder: str | Path, recipe: dict | None = None) -> None:
    """Write ``model.safetensors``, ``config.json`` and, if given, ``recipe.json`` (how the weights were made)."""
    folder = Path(folder)
    with atomic_path(folder / "model.safetensors") as path:
        save_file({k: v.contiguous().cpu() for k, v in backbone.state_dict().items()}, path)
    for name, content in (("config.json", backbone.config.to_dict()), ("recipe.json", recipe)):
        if content is not None:
            with atomic_path(folder / name) as path:
                path.write_text(json.dumps(content, indent=1) + "\n")


def load_backbone(name: str | Path = "tiny", device: str | torch.device = "cpu", seed: int = 0) -> Backbone:
    """A backbone by preset name, hub id ("owner/name"), folder or LAVIS file; of hub ids the local cache comes first.

    ``tiny`` and ``tiny-scenes`` ship with the package (stage 1 on garments and on scenes, see their recipe.json);
    ``tiny-random`` is the model ``tiny`` with random weights drawn from ``seed``, for tests of the plumbing.
    ``small`` is made by `python -m cirkit.pretrain_small` from pretrained parts.
    ``blip2-vitg``, ``blip2-vitl`` and ``blip`` are published models: their files lie in a folder of that name in
    :func:`weights_dir`, or in the Hugging Face cache. A folder is one that :func:`save_backbone` wrote, one in the
    format of transformers, or one with the two files of LAVIS; its Q-Former file itself may be named too. A relative
    path begins at the project root.

    Raises:
        ValueError: unknown name or device, a damaged file, or weights that do not fit their config.
        FileNotFoundError: weights that are not there, saying how to get them.
    """
    name, device = str(name), check_device(device)
    if name in ("tiny", "tiny-scenes", "tiny-random"):
        folder = WEIGHTS / ("tiny" if name == "tiny-random" else name)
        backbone = _random(folder, name, seed) if name == "tiny-random" else _load_saved(folder)
    elif name == "small":
        if not (weights_dir() / name / "config.json").is_file():
            raise FileNotFoundError(
                f"the weights of 'small' are not in {weights_dir() / name}: `make small` makes them, in about an hour"
            )
        backbone = _load_saved(weights_dir() / name)
    else:
        backbone = _load_path(_published(name) if name in PUBLISHED else _find(name), name)
    return backbone.eval().place(device)


def _published(name: str) -> Path:
    """The folder with the weights of a published preset."""
    folder, (repo, files) = weights_dir() / name, PUBLISHED[name]
    if (folder / "config.json").is_file() or lavis_file(folder):
        return folder
    if repo and (cached := cached_folder(repo)):
        return cached
    if repo and online():
        return hub_folder(repo)
    ways = [f"the files that LAVIS publishes, {' and '.join(files)}"] if files else []
    ways += [f"what `hf download {repo} --local-dir FOLDER` brings where there is a network"] if repo else []
    absent = (
        f"neither in {folder} nor in the Hugging Face cache, and the hub cannot be reached" if repo else "not there"
    )
    raise FileNotFoundError(
        f"the weights of {name!r} are {absent}: put into {folder} {', or '.join(ways)} (CIRKIT_WEIGHTS names another"
        " folder for the weights of all presets)"
    )


def _find(name: str) -> Path:
    """The folder or file that is meant by anything but the name of a preset."""
    path = resolve(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".pth"):
        return path
    if is_hub_id(name) and not path.parent.is_dir():  # else a folder that is not there was meant
        return hub_folder(name)
    raise ValueError(
        f"unknown backbone {name!r}: neither a folder, a .pth file of LAVIS, a hub id, nor one of {', '.join(PRESETS)}"
    )


def _load_path(path: Path, name: str) -> Backbone:
    """From a folder or file of any format; ``name`` is what the backbone is called, the last part of a path."""
    if name not in PUBLISHED and path == resolve(name):
        name = path.stem if path.is_file() else path.name
    if path.is_file():
        return load_lavis(path, name)
    if is_transformers(path):
        return load_transformers(path, name)
    if not (path / "config.json").is_file() and (checkpoint := lavis_file(path)):
        return load_lavis(checkpoint, name)
    return _load_saved(path)


def _load_saved(folder: Path) -> Backbone:
    """From a folder that :func:`save_backbone` wrote."""
    described, weights = folder / "config.json", folder / "model.safetensors"
    for needed in (weights, described):
        if not needed.is_file():
            raise FileNotFoundError(
                f"{needed} is missing; `python -m cirkit.pretrain --world garments` (or scenes) makes the weights of"
                " `tiny` (or `tiny-scenes`) again"
                if folder.parent == WEIGHTS
                else f"{needed} is missing, and there is no other checkpoint in {folder}: a saved backbone has both"
                " config.json and model.safetensors"
            )
    backbone = _described(described, empty_backbone)
    load_state(backbone, read_weights(weights), weights)
    return backbone


def _random(folder: Path, name: str, seed: int) -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _described(folder / "config.json", lambda config: build_backbone(dataclasses.replace(config, name=name)))


def _described(path: Path, build: Callable[[BackboneConfig], Backbone]) -> Backbone:
    try:
        return build(BackboneConfig.from_dict(json.loads(path.read_text(encoding="utf-8"))))
    except Exception as error:  # torch and transformers have many ways to dislike a number
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not describe a backbone ({reason})") from error


def unknown_words(backbone: Backbone, texts: Iterable[str]) -> list[str]:
    """Distinct words of ``texts`` that the small tokenizer of ``backbone`` spells letter by letter, most used first.

    A preset of an embedded world knows the words of its own world only. BERT's word pieces count as knowing all words:
    the list is empty.
    """
    return backbone.tokenizer.unknown_words(texts) if backbone.config.vocabulary_kind == "words" else []
