"""Backbones by name: where their weights lie, how they are written and loaded, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.paths import atomic_path

WEIGHTS = Path(__file__).resolve().parent / "weights"
PRESETS = ("tiny", "tiny-random")


def save_backbone(backbone: Backbone, folder: str | Path, recipe: dict | None = None) -> None:
    """Write ``model.safetensors``, ``config.json`` and, if given, ``recipe.json`` (how the weights were made)."""
    folder = Path(folder)
    with atomic_path(folder / "model.safetensors") as path:
        save_file({k: v.contiguous().cpu() for k, v in backbone.state_dict().items()}, path)
    for name, content in (("config.json", dataclasses.asdict(backbone.config)), ("recipe.json", recipe)):
        if content is not None:
            with atomic_path(folder / name) as path:
                path.write_text(json.dumps(content, indent=1) + "\n")


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

    ``tiny`` ships with the package (stage 1 on garments, see its recipe.json); ``tiny-random`` is the same model
    with random weights drawn from ``seed``, for tests of the plumbing.

    Raises:
        ValueError: unknown name, or weights that do not fit their config.
        FileNotFoundError: weights that are not there, saying how to get them.
    """
    random = name == "tiny-random"
    folder = WEIGHTS / "tiny" if name in PRESETS else Path(name)
    if name not in PRESETS and not folder.is_dir():
        raise ValueError(f"unknown backbone {name!r}: neither a folder nor one of {', '.join(PRESETS)}")
    needed = folder / ("config.json" if random else "model.safetensors")
    if not needed.is_file():
        raise FileNotFoundError(f"{needed} is missing; `make pretrain` makes the weights of `tiny` again")
    config = BackboneConfig.from_dict(json.loads((folder / "config.json").read_text()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(dataclasses.replace(config, name=name) if random else config)
    if not random:
        load_state(backbone, load_file(needed), needed)
    return backbone.eval().to(device)
