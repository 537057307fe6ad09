"""Tensors from files: safetensors, whole or in shards, and PyTorch's own, never more than tensors; what must fit."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_WHOLE = ("model.safetensors", "pytorch_model.bin")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        FileNotFoundError: it is not there. ValueError: damaged, or another kind of file.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}); copy or make it again") from None


def read_torch(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .pth or .bin file, memory-mapped where its format allows; {"model": state} is looked into.

    Raises:
        FileNotFoundError: it is not there. ValueError: damaged, or it holds more than tensors and plain values.
    """
    path = Path(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise ValueError(f"{path} is damaged or holds more than weights ({reason}); copy or save it again") from None
    state = content.get("model", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict, but {type(state).__name__}")
    return dict(state)


def weight_files(folder: Path) -> list[Path] | None:
    """The files of a transformers folder that hold its weights; None if one of them is not there.

    Raises:
        ValueError: an index of shards that cannot be read.
    """
    for name in _WHOLE:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"{index} is damaged ({type(error).__name__}: {error}); copy it again") from None
            paths = [folder / shard for shard in names]
            return paths if all(path.is_file() for path in paths) else None
    return None


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of a transformers folder, of all its shards together.

    Raises:
        FileNotFoundError: no weights, or a shard is missing. ValueError: a damaged file.
    """
    files = weight_files(folder)
    if files is None:
        raise FileNotFoundError(f"{folder} lacks weights: {' or '.join(_WHOLE)}, or a shard that their index names")
    state: dict[str, Tensor] = {}
    for path in files:
        state |= read_weights(path) if path.suffix == ".safetensors" else read_torch(path)
    return state


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
