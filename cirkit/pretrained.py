"""BLIP-2 and BLIP from the files they are published in: transformers folders, and the two files of LAVIS.

The checkpoint decides: its shapes, or the config beside it, give a :class:`BackboneConfig`, and every tensor must then
have its place. Keys that no retrieval pass uses are left out by name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from torch import Tensor
from transformers.models.blip.configuration_blip import BlipConfig
from transformers.models.blip_2.configuration_blip_2 import Blip2Config

from cirkit.backbone import Backbone
from cirkit.backbone_config import BackboneConfig
from cirkit.blip import empty_backbone
from cirkit.data.preprocess import Preprocess
from cirkit.lavis import qformer_settings, translate_state, translate_tower
from cirkit.tokens import bert_vocabulary
from cirkit.weight_files import load_state, read_folder, read_torch

LAVIS_QFORMERS = ("blip2_pretrained.pth", "blip2_pretrained_vitL.pth", "blip2_finetune_coco.pth")
LAVIS_TOWERS = ("eva_vit_g.pth", "clip_vit_L.pth")
_ARCHITECTURES = {"Blip2ForImageTextRetrieval": "qformer", "BlipForImageTextRetrieval": "blip"}
_RENAMES = (
    ("vision_model.post_layernorm.", "ln_vision."),
    ("vision_proj.", "vision_projection."),
    ("text_proj.", "text_projection."),
)
# heads, temperatures, language models, momentum copies and their queues
_UNUSED = re.compile(r"(itm_head|text_decoder|language_model|language_projection|\w+_m)\.|\w*queue|temp$|logit_scale$")
_PUBLISHED = {
    "image_mean": Preprocess.mean,
    "image_std": Preprocess.std,
    "vocabulary_kind": "bert",
    "initializer_range": 0.02,
}


def is_transformers(folder: Path) -> bool:
    """Whether a folder holds a model in the format of transformers, by its config.json."""
    try:
        return "architectures" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def lavis_file(folder: Path) -> Path | None:
    """The Q-Former file of LAVIS in a folder, by its published name; None without one.

    Raises:
        ValueError: several.
    """
    found = [folder / name for name in LAVIS_QFORMERS if (folder / name).is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} holds {' and '.join(path.name for path in found)}; name one of the files")
    return found[0] if found else None


def load_transformers(folder: Path, name: str) -> Backbone:
    """``Blip2ForImageTextRetrieval`` or ``BlipForImageTextRetrieval`` from its folder, on the CPU.

    Raises:
        FileNotFoundError: weights or vocabulary are missing. ValueError: another architecture, a damaged file, or
            weights that do not fit their config.
    """
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    kind = next((_ARCHITECTURES[a] for a in content["architectures"] or () if a in _ARCHITECTURES), None)
    if kind is None:
        known = " or ".join(_ARCHITECTURES)
        raise ValueError(f"{path} describes {content['architectures']}; a backbone is made from {known}")
    state = {}
    for key, value in read_folder(folder).items():
        for old, new in _RENAMES:
            key = key.replace(old, new) if key.startswith(old) else key
        if not _UNUSED.match(key) and not key.endswith("position_ids"):
            state[key] = value
    rows = _rows(state, "text_encoder." if kind == "blip" else "", folder)
    vocabulary = bert_vocabulary(folder, rows)
    try:
        own = _blip_fields(content) if kind == "blip" else _blip2_fields(content)
    except Exception as error:  # transformers has many ways to dislike a config
        raise ValueError(f"{path} does not describe a {kind} model ({' '.join(str(error).split())})") from error
    return _filled(BackboneConfig(name=name, vocabulary=vocabulary, **_PUBLISHED | own), state, folder)


def load_lavis(path: Path, name: str) -> Backbone:
    """The Q-Former file ``path`` of LAVIS, with its tower from the file beside it, on the CPU.

    Raises:
        FileNotFoundError: tower or vocabulary are missing. ValueError: a damaged file, or one that does not fit.
    """
    whole = translate_state(read_torch(path))
    state = {k: v for k, v in whole.items() if not k.startswith("visual_encoder.")}
    own = {k.removeprefix("visual_encoder."): v for k, v in whole.items() if k not in state}
    vocabulary = bert_vocabulary(path.parent, _rows(state, "", path))
    try:
        fields = qformer_settings(state)
    except LookupError as error:
        raise ValueError(f"{path} is no first-stage BLIP-2 checkpoint of LAVIS: it lacks {error}") from None
    source, (tower, weights) = path, _tower(path, own) if own else ({}, {})
    if not own:
        source, tower, weights = _tower_beside(path, fields["vision_width"])
    fields |= tower
    state |= {f"vision_model.{key}": value for key, value in weights.items()}
    config = BackboneConfig(
        name=name, vocabulary=vocabulary, tower_dtype="float16", vision_norm_eps=1e-5, **_PUBLISHED, **fields
    )
    return _filled(config, state, path if source == path else f"{path} with {source.name}")


def _tower_beside(path: Path, width: int) -> tuple[Path, dict[str, object], dict[str, Tensor]]:
    found = [path.parent / name for name in LAVIS_TOWERS if (path.parent / name).is_file()]
    for beside in found:
        fields, weights = _tower(beside, read_torch(beside))
        if fields["vision_width"] == width or len(found) == 1:
            return beside, fields, weights
    raise FileNotFoundError(
        f"{path} holds no vision tower; put the one that it was trained on, {' or '.join(LAVIS_TOWERS)}, beside it"
    )


def _tower(path: Path, state: dict[str, Tensor]) -> tuple[dict[str, object], dict[str, Tensor]]:
    try:
        return translate_tower(state)
    except LookupError as error:
        raise ValueError(f"{path} does not hold a whole vision tower of LAVIS: it lacks {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} does not hold a vision tower of LAVIS: {error}") from None


def _rows(state: dict[str, Tensor], prefix: str, source: Path) -> int:
    key = f"{prefix}embeddings.word_embeddings.weight"
    if key not in state:
        raise ValueError(f"{source} has no {key}: it cannot read texts without a language model (a second stage?)")
    return len(state[key])


def _filled(config: BackboneConfig, state: dict[str, Tensor], source: object) -> Backbone:
    try:
        backbone = empty_backbone(config)
    except Exception as error:  # torch and transformers have many ways to dislike a number
        raise ValueError(f"{source} does not describe a backbone ({' '.join(str(error).split())})") from error
    load_state(backbone, state, source)
    return backbone


def _shared(vision: object, text: object) -> dict[str, object]:
    """Fields that both models have, from transformers' configs of the tower and of the text side."""
    for part in (vision, text):
        if part.hidden_act != "gelu":
            raise ValueError(f"{type(part).__name__} asks for {part.hidden_act}, where only gelu is known")
    return {
        "width": text.hidden_size,
        "layers": text.num_hidden_layers,
        "heads": text.num_attention_heads,
        "intermediate": text.intermediate_size,
        "layer_norm_eps": text.layer_norm_eps,
        "positions": text.max_position_embeddings,
        "tower": "vit",
        "vision_width": vision.hidden_size,
        "vision_layers": vision.num_hidden_layers,
        "vision_heads": vision.num_attention_heads,
        "vision_intermediate": vision.intermediate_size,
        "tower_norm_eps": vision.layer_norm_eps,
        "vision_norm_eps": vision.layer_norm_eps,
        "patch_size": vision.patch_size,
        "image_size": vision.image_size,
    }


def _blip2_fields(content: dict) -> dict[str, object]:
    described = Blip2Config.from_dict(content)
    return _shared(described.vision_config, described.qformer_config) | {
        "cross_attention_frequency": described.qformer_config.cross_attention_frequency,
        "query_tokens": described.num_query_tokens,
        "embed_dim": described.image_text_hidden_size,
        "tower_dtype": "float16",
    }


def _blip_fields(content: dict) -> dict[str, object]:
    described = BlipConfig.from_dict(content)
    return _shared(described.vision_config, described.text_config) | {
        "kind": "blip",
        "query_tokens": 0,
        "embed_dim": described.image_text_hidden_size,
        "text_length": 35,  # as in LAVIS's BLIP; BLIP-2 has 32
    }
