"""The backbone of the golden data: the Q-Former whose weights are in ``lavis_qformer``."""

from __future__ import annotations

from torch import Tensor

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.lavis import translate_state
from cirkit.presets import load_state


def golden_config(lavis: dict[str, Tensor], query_tokens: int) -> BackboneConfig:
    """Its config, with as many query tokens as the golden case at hand has."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    return BackboneConfig(
        name="golden",
        vocabulary=special + tuple(f"w{i}" for i in range(int(lavis["config_vocab"]) - len(special))),
        width=int(lavis["config_hidden"]),
        layers=int(lavis["config_layers"]),
        heads=int(lavis["config_heads"]),
        intermediate=int(lavis["config_intermediate"]),
        cross_attention_frequency=int(lavis["config_cross_attention_freq"]),
        query_tokens=query_tokens,
        embed_dim=int(lavis["config_embed_dim"]),
        text_length=int(lavis["config_max_position"]),
        layer_norm_eps=float(lavis["config_layer_norm_eps"]),
        vision_width=int(lavis["config_encoder_width"]),
        vision_layers=0,
    )


def golden_backbone(lavis: dict[str, Tensor], case: dict[str, Tensor], name: str) -> Backbone:
    """That Q-Former with the query tokens and the LayerNorm of an end-to-end case, which begins behind the tower."""
    backbone = Backbone(golden_config(lavis, case["query_tokens"].shape[1]))
    state = translate_state({k.removeprefix("state."): v for k, v in lavis.items() if k.startswith("state.")})
    state |= {k: v for k, v in backbone.state_dict().items() if k.startswith("vision_model.")}
    state |= {"ln_vision.weight": case["ln_vision_weight"], "ln_vision.bias": case["ln_vision_bias"]}
    load_state(backbone, state | {"query_tokens": case["query_tokens"]}, name)
    return backbone
