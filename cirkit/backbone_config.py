"""What a backbone is made of, as plain values: stored as JSON beside its weights.

Letters of shapes as in `cirkit.backbone`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class BackboneConfig:
    """Everything needed to rebuild a backbone around its weights. Stored as plain JSON beside them."""

    name: str
    vocabulary: tuple[str, ...]
    width: int = 96  # H
    layers: int = 4
    heads: int = 4
    intermediate: int = 192
    cross_attention_frequency: int = 2
    query_tokens: int = 4  # N
    embed_dim: int = 256  # D
    text_length: int = 32  # longest text in tokens, [CLS] and [SEP] included
    initializer_range: float = 0.1  # about 1/sqrt(H); 0.02 is meant for H = 768
    layer_norm_eps: float = 1e-12
    tower: str = "convolutional"
    vision_width: int = 96  # Dv
    vision_layers: int = 2
    image_size: int = 48
    pad_ratio: float = 1.25
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.25, 0.25, 0.25)
    # what the backbones of this study's own worlds leave as it is; written down only where it differs
    kind: str = "qformer"  # or "blip", see `cirkit.blip`
    vocabulary_kind: str = "words"  # "words" of one small world, or the word pieces of "bert"
    positions: int = 0  # rows of the table of text positions; 0 means max(text_length, 32)
    vision_norm_eps: float = 1e-5  # of ln_vision
    vision_heads: int = 4
    vision_intermediate: int = 0  # width of the tower's feed-forward layers, for towers that do not fix it
    tower_norm_eps: float = 1e-5
    patch_size: int = 8  # pixels a side
    tower_dtype: str = "float32"  # of the frozen tower on a GPU; on the CPU it is float32
    train_words: bool = True  # False leaves word embeddings as they were pretrained

    @classmethod
    def from_dict(cls, values: dict) -> BackboneConfig:
        """Config from JSON; unknown names are refused (ValueError)."""
        unknown = sorted(set(values) - {f.name for f in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown backbone settings: {', '.join(unknown)}")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def to_dict(self) -> dict:
        """The config as JSON holds it; the fields from ``kind`` on only where they differ from their default."""
        fields = dataclasses.fields(self)
        later = fields[[f.name for f in fields].index("kind") :]
        idle = {f.name for f in later if getattr(self, f.name) == f.default}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in idle}
