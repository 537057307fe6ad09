"""Backbones by name: where their weights lie, how they are written and loaded, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.device import check_device
from cirkit.paths import atomic_path
from cirkit.tokens import WordTokenizer

WEIGHTS = Path(__file__).resolve().parent / "weights"
PRESETS = ("tiny", "tiny-scenes", "tiny-random")


def save_backbone(backbone: Backbone, folder: str | Path, recipe: dict | None = None) -> None:
    """Write ``model.safetensors``, ``config.json`` and, if given, ``recipe.json`` (how the weights were made)."""
    folder = Path(folder)
    with atomic_path(folder / "model.safetensors") as path:
        save_file({k: v.contiguous().cpu() for k, v in backbone.state_dict().items()}, path)
    for name, content in (("config.json", dataclasses.asdict(backbone.config)), ("recipe.json", recipe)):
        if content is not None:
            with atomic_path(folder / name) as path:
                path.write_text(json.dumps(content, indent=1) + "\n")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        FileNotFoundError: it is not there. ValueError: damaged, or another kind of file.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); copy or make it again") from None


def load_state(module: nn.Module, state: dict[str, Tensor], source: str | Path) -> None:
    """Load a state dict that must fit exactly.

    Raises:
        ValueError: listing missing, unexpected and wrong-shaped keys; nothing is loaded then.
    """
    own = module.state_dict()
    wrong = [f"missing {k}" for k in own if k not in state]
    wrong += [f"unexpected {k}" for k in state if k not in own]
    wrong += [
        f"{k} is {tuple(state[k].shape)}, not {tuple(own[k].shape)}"
        for k in own
        if k in state and own[k].shape != state[k].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ValueError(f"{source} does not fit the model: {'; '.join(wrong[:8])}{more}")
    module.load_state_dict(state)


def load_backbone(name: str = "tiny", device: str | torch.device = "cpu", seed: int = 0) -> Backbone:
    """A backbone by preset name or from a folder that :func:`save_backbone` wrote.

    ``tiny`` and ``tiny-scenes`` ship with the package (stage 1 on garments and on scenes, see their recipe.json);
    ``tiny-random`` is the model ``tiny`` with random weights drawn from ``seed``, for tests of the plumbing.

    Raises:
        ValueError: unknown name or device, a damaged file, or weights that do not fit their config.
        FileNotFoundError: weights that are not there, saying how to get them.
    """
    random = name == "tiny-random"
    folder = WEIGHTS / ("tiny" if random else name) if name in PRESETS else Path(name)
    if name not in PRESETS and not folder.is_dir():
        raise ValueError(f"unknown backbone {name!r}: neither a folder nor one of {', '.join(PRESETS)}")
    described, weights = folder / "config.json", folder / "model.safetensors"
    for needed in (described,) if random else (weights, described):
        if not needed.is_file():
            raise FileNotFoundError(
                f"{needed} is missing; `python -m cirkit.pretrain --world garments` (or"
                " scenes) makes the weights of `tiny` (or `tiny-scenes`) again"
            )
    device = check_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            config = BackboneConfig.from_dict(json.loads(described.read_text(encoding="utf-8")))
            backbone = Backbone(dataclasses.replace(config, name=name) if random else config)
        except Exception as error:  # torch and transformers have many ways to dislike a number
            reason = " ".join(str(error).split())
            raise ValueError(f"{described} does not describe a backbone ({reason})") from error
    if not random:
        load_state(backbone, read_weights(weights), weights)
    return backbone.eval().to(device)


def unknown_words(backbone: Backbone, texts: Iterable[str]) -> list[str]:
    """Distinct words of ``texts`` that the small tokenizer of ``backbone`` spells letter by letter, most used first.

    A preset of an embedded world knows the words of its own world only. A word-piece tokenizer of full size counts as
    knowing all words: the list is empty.
    """
    return backbone.tokenizer.unknown_words(texts) if isinstance(backbone.tokenizer, WordTokenizer) else []
