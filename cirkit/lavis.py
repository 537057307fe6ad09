"""Names of salesforce-lavis checkpoints, translated to the transformers classes the backbone is built on.

LAVIS publishes the Q-Former and its frozen tower in two files. What its own code computes from them decides here; for
one, how many layers of a tower it uses. Nothing imports it: only `cirkit.parity` runs it, to compare.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

_RENAMES = (
    ("Qformer.", ""),
    ("bert.embeddings.LayerNorm.", "qformer.layernorm."),
    ("bert.embeddings.", "embeddings."),
    ("bert.encoder.", "qformer.encoder."),
    (".crossattention.self.", ".crossattention.attention."),
    (".attention.self.", ".attention.attention."),
    ("text_proj.", "text_projection."),
    ("vision_proj.", "vision_projection."),
)
_UNUSED = ("cls.", "itm_head.", "temp", "embeddings.position_ids", "opt_", "t5_", "llm_")
_EVA = (
    ("cls_token", "embeddings.class_embedding"),
    ("pos_embed", "embeddings.position_embedding"),
    ("patch_embed.proj.", "embeddings.patch_embedding."),
    ("blocks.", "encoder.layers."),
    (".attn.qkv.", ".self_attn.qkv."),
    (".attn.proj.", ".self_attn.projection."),
    (".norm1.", ".layer_norm1."),
    (".norm2.", ".layer_norm2."),
)
_CLIP = (
    ("class_embedding", "embeddings.class_embedding"),
    ("positional_embedding", "embeddings.position_embedding.weight"),
    ("conv1.", "embeddings.patch_embedding."),
    ("ln_pre.", "first_norm."),
    ("transformer.resblocks.", "encoder.layers."),
    (".attn.out_proj.", ".self_attn.out_proj."),
    (".ln_1.", ".layer_norm1."),
    (".ln_2.", ".layer_norm2."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
)
# of the whole models, behind the layers that are used
_HEADS = ("norm.", "fc_norm.", "head.", "mask_token", "ln_post.", "ln_final.", "proj")
# Published width -> layers that LAVIS 1.0.2 computes: of the 40 of ViT-g all but the last; of CLIP's 24 the paper
# speaks of 23, while the code builds one fewer than the 22 it asks for (salesforce/LAVIS issues 216 and 609).
EVA_LAYERS = {1408: 39}
CLIP_LAYERS = {1024: 21}


def translate_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LAVIS ``Blip2Qformer`` keys -> keys of :class:`cirkit.backbone.Backbone`; shapes stay as they are.

    Left out are the language models and their heads, the matching head and the temperature, which no retrieval pass
    uses. Keys of the tower keep the prefix ``visual_encoder.``.
    """
    translated = {}
    for key, value in state.items():
        if not key.startswith("visual_encoder."):
            for old, new in _RENAMES:
                key = key.replace(old, new)
        if not key.startswith(_UNUSED):
            translated[key] = value
    return translated


def qformer_settings(state: dict[str, Tensor]) -> dict[str, object]:
    """Config fields of the Q-Former from the shapes of a translated state; a head has 64 dimensions, as BERT's.

    Raises:
        LookupError: of a key that is not there.
    """
    words, positions = (state[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position"))
    layer, crossing = "qformer.encoder.layer.", ".crossattention.attention.key.weight"
    layers = _count(state, layer)
    seeing = [i for i in range(layers) if f"{layer}{i}{crossing}" in state]
    return {
        "width": words.shape[1],
        "layers": layers,
        "heads": max(words.shape[1] // 64, 1),
        "intermediate": state[f"{layer}0.intermediate.dense.weight"].shape[0],
        "cross_attention_frequency": seeing[1] - seeing[0] if len(seeing) > 1 else layers,
        "query_tokens": state["query_tokens"].shape[1],
        "embed_dim": state["vision_projection.weight"].shape[0],
        "positions": positions.shape[0],
        "vision_width": state[f"{layer}0{crossing}"].shape[1],
    }


def translate_tower(state: dict[str, Tensor]) -> tuple[dict[str, object], dict[str, Tensor]]:
    """The state of LAVIS's ViT-g (EVA-CLIP) or ViT-L (CLIP) -> config fields, and a state for `cirkit.towers`.

    Layers that LAVIS does not compute are left out, and so are the heads behind them. Where a width is not a published
    one, all layers there are count.

    Raises:
        LookupError: of a key that is not there. ValueError: neither of the two, or fewer layers than LAVIS computes.
    """
    if "cls_token" in state:
        renames, used, blocks, head = _EVA, EVA_LAYERS, "blocks.", 88
        width, positions, kernel = state["cls_token"].shape[-1], state["pos_embed"][0], "patch_embed.proj.weight"
        fixed = {"tower": "vit", "tower_norm_eps": 1e-6, "vision_intermediate": state["blocks.0.mlp.fc1.bias"].shape[0]}
    elif "class_embedding" in state:
        renames, used, blocks, head = _CLIP, CLIP_LAYERS, "transformer.resblocks.", 64
        width, positions, kernel = state["class_embedding"].shape[-1], state["positional_embedding"], "conv1.weight"
        intermediate = state["transformer.resblocks.0.mlp.c_fc.bias"].shape[0]
        fixed = {"tower": "clip-vit", "tower_norm_eps": 1e-5, "vision_intermediate": intermediate}
    else:
        raise ValueError("neither the ViT-g of EVA-CLIP nor the ViT-L of CLIP")
    found = _count(state, blocks)
    layers = used.get(width, found)
    if found < layers:
        raise ValueError(f"{found} layers where LAVIS computes {layers}")
    translated = {}
    for key, value in state.items():
        number = re.match(re.escape(blocks) + r"(\d+)\.", key)
        if key.startswith(_HEADS) or (number and int(number[1]) >= layers):
            continue
        for old, new in renames:
            key = key.replace(old, new)
        translated[key] = value
    _split_attention(translated)
    patch = state[kernel].shape[-1]
    return fixed | {
        "vision_width": width,
        "vision_layers": layers,
        "vision_heads": max(width // head, 1),
        "patch_size": patch,
        "image_size": patch * math.isqrt(len(positions) - 1),
    }, translated


def _split_attention(state: dict[str, Tensor]) -> None:
    """EVA's biases of query and value, with zeros between, become one; CLIP's one matrix of three becomes three."""
    for key in list(state):
        place, _, name = key.rpartition(".attn.")
        if name == "q_bias":
            query, value = state.pop(key), state.pop(f"{place}.attn.v_bias")
            state[f"{place}.self_attn.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        elif name in ("in_proj_weight", "in_proj_bias"):
            parts = zip("qkv", state.pop(key).chunk(3), strict=True)
            state |= {f"{place}.self_attn.{part}_proj.{name[8:]}": value for part, value in parts}


def _count(state: dict[str, Tensor], prefix: str) -> int:
    return len({key[len(prefix) :].partition(".")[0] for key in state if key.startswith(prefix)})
