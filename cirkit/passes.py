"""Q-Former passes without an image that give a query: the second pass and the prompt pass, both of SPRC and TME.

Shapes: B batch, N query or prompt tokens, L text tokens, H Q-Former width, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.backbone import Backbone, TokenBatch


def second_pass(backbone: Backbone, hidden: Tensor, texts: Sequence[str] | TokenBatch) -> Tensor:
    """Composed queries [B,D], unit norm: an earlier pass' query states and the text, read at [CLS].

    In SPRC the states are those of the fused pass of reference and text, in TME those of the reference alone.

    Args:
        hidden: query states [B,N,H], which take the place of the query tokens.

    Raises:
        ValueError: the states are not [B,N,H], or not as many as the texts.
    """
    if hidden.dim() != 3:
        raise ValueError(f"hidden must be [B,N,H], got {tuple(hidden.shape)}")
    count = hidden.shape[1]
    states = backbone.hidden_states(texts=texts, queries=hidden, wanted=slice(count, count + 1))
    if len(states) != len(hidden):
        raise ValueError(f"there are {len(hidden)} rows of hidden states for {len(states)} texts")
    return F.normalize(backbone.text_projection(states[:, 0]), dim=-1)


def prompt_pass(backbone: Backbone, prompts: Tensor, texts: Sequence[str] | TokenBatch) -> Tensor:
    """Text queries [B,D], unit norm: a text-only pass with learned tokens inserted behind [CLS], read at [CLS].

    Prompts count as words, so every word behind them stands N positions further back. A backbone with fewer than N+L
    positions gives all that are too many its last one; that of BLIP-2 has 512.

    Args:
        prompts: learned tokens [N,H] or [1,N,H], the same for every text.
    """
    tokens = texts if isinstance(texts, TokenBatch) else backbone.tokenize(texts)
    words = backbone.embeddings.word_embeddings(tokens.ids)
    prompts = prompts.expand(len(words), -1, -1)
    embeds = torch.cat([words[:, :1], prompts, words[:, 1:]], dim=1)
    mask = torch.cat([tokens.mask.new_ones(prompts.shape[:2]), tokens.mask], dim=1)
    positions = backbone.embeddings.position_embeddings
    places = torch.arange(embeds.shape[1], device=embeds.device).clamp(max=positions.num_embeddings - 1)
    states = backbone.run_qformer(embeds + positions(places), mask.to(embeds.dtype), query_length=0, wanted=slice(1))
    return F.normalize(backbone.text_projection(states[:, 0]), dim=-1)
