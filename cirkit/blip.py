"""The backbone on BLIP, which has no query tokens: one target token, and a text encoder that looks at the image.

Shapes: B batch, P patches, Dv vision width, L text tokens, H text width, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.blip.configuration_blip import BlipTextConfig
from transformers.models.blip.modeling_blip_text import BlipTextModel

from cirkit.backbone import Backbone, TokenBatch
from cirkit.backbone_config import BackboneConfig


class BlipBackbone(Backbone):
    """Frozen vision tower, text encoder with cross-attention in every layer, and the two projections.

    Sub-modules follow transformers' ``BlipForImageTextRetrieval``; an image is its projected class token, and a
    composed query the projected first position of the text encoder, [ENC] in place of [CLS], as BLIP encodes a text
    that looks at an image.
    """

    has_query_tokens = False

    def _build_encoder(self, config: BackboneConfig) -> None:
        described = BlipTextConfig(
            vocab_size=len(config.vocabulary),
            hidden_size=config.width,
            encoder_hidden_size=config.vision_width,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.positions or max(config.text_length, 32),
            layer_norm_eps=config.layer_norm_eps,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=config.initializer_range,
            attn_implementation="eager",  # the only one of this model; the mask is made for it
        )
        self.text_encoder = BlipTextModel(described, add_pooling_layer=False)
        self.vision_projection = nn.Linear(config.vision_width, config.embed_dim)
        self.text_projection = nn.Linear(config.width, config.embed_dim)
        words = {piece: i for i, piece in enumerate(config.vocabulary)}
        self._first = words.get("[ENC]", words["[CLS]"])

    def image_memory(self, patches: Tensor) -> Tensor:
        """Patch tokens [B,P,Dv]: the passes of this backbone share nothing else."""
        return patches

    def encode_target(self, patches: Tensor) -> Tensor:
        """Patch tokens [B,P,Dv] -> the one target token [B,1,D], unit norm."""
        first = self._seen(patches[:, :1])
        return F.normalize(self.vision_projection(first), dim=-1)

    def compose(
        self,
        patches: Tensor,
        texts: Sequence[str] | TokenBatch,
        prompts: Tensor | None = None,
        pool: Literal["text", "mean"] = "text",
    ) -> Tensor:
        """Reference patches [B,P,Dv] and modification texts -> composed query [B,D], unit norm.

        Raises:
            ValueError: prompts, or another ``pool`` than ``text``: both need query tokens.
        """
        if prompts is not None or pool != "text":
            self._refuse()
        tokens = texts if isinstance(texts, TokenBatch) else self.tokenize(texts)
        if len(tokens.ids) != len(patches):
            sizes = sorted((len(tokens.ids), len(patches)))
            raise ValueError(f"patches and texts disagree on the batch size: {sizes}")
        ids = torch.cat([torch.full_like(tokens.ids[:, :1], self._first), tokens.ids[:, 1:]], dim=1)
        states = self.text_encoder(ids, attention_mask=tokens.mask, encoder_hidden_states=self._seen(patches))
        return F.normalize(self.text_projection(states.last_hidden_state[:, 0]), dim=-1)

    def encode_text(self, texts: Sequence[str] | TokenBatch) -> Tensor:
        """Texts -> [B,D], unit norm, from the text-only pass at [CLS]."""
        tokens = texts if isinstance(texts, TokenBatch) else self.tokenize(texts)
        states = self.text_encoder(tokens.ids, attention_mask=tokens.mask).last_hidden_state
        return F.normalize(self.text_projection(states[:, 0]), dim=-1)

    def _seen(self, patches: Tensor) -> Tensor:
        return self.ln_vision(patches.to(self.ln_vision.weight.dtype))

    def _refuse(self) -> NoReturn:
        raise ValueError(f"backbone {self.config.name!r} is a BLIP: it has no query tokens and no Q-Former to prompt")

    @property
    def query_tokens(self) -> NoReturn:
        self._refuse()

    def hidden_states(self, *arguments: object, **options: object) -> NoReturn:
        """Raises ValueError: there is no Q-Former."""
        self._refuse()

    def run_qformer(self, *arguments: object, **options: object) -> NoReturn:
        """Raises ValueError: there is no Q-Former."""
        self._refuse()


KINDS = {"qformer": Backbone, "blip": BlipBackbone}


def build_backbone(config: BackboneConfig) -> Backbone:
    """The backbone that a config describes, with random weights.

    Raises:
        ValueError: an unknown kind, or numbers that no model can have.
    """
    if config.kind not in KINDS:
        raise ValueError(f"unknown kind of backbone {config.kind!r}; known: {', '.join(KINDS)}")
    return KINDS[config.kind](config)


def empty_backbone(config: BackboneConfig) -> Backbone:
    """The same without weights: memory that is to be filled, at no time spent on random numbers."""
    with torch.device("meta"):
        backbone = build_backbone(config)
    backbone.to_empty(device="cpu")
    for module in backbone.modules():
        for name in module._non_persistent_buffers_set:  # what no state dict will fill
            buffer = getattr(module, name)
            if name != "position_ids":
                raise RuntimeError(f"{type(module).__name__}.{name} would stay unfilled")
            buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))
    return backbone
