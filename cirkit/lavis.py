"""Names of salesforce-lavis checkpoints, translated to the transformers classes the backbone is built on.

The only module that knows about LAVIS. Nothing here imports it.
"""

from __future__ import annotations

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
_UNUSED = ("cls.", "itm_head.", "temp", "embeddings.position_ids")


def translate_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LAVIS ``Blip2Qformer`` keys -> keys of :class:`cirkit.backbone.Backbone`; shapes stay as they are.

    Left out are the language-model head, the matching head and the temperature, which no retrieval pass uses.
    """
    translated = {}
    for key, value in state.items():
        for old, new in _RENAMES:
            key = key.replace(old, new)
        if not key.startswith(_UNUSED):
            translated[key] = value
    return translated
