"""Where the query tokens of the Q-Former look: on patches of the reference, and on words of the text.

The classes compute attention in one fused step that hands out no weights, so queries and keys are caught on the way and
``softmax(Q K^T / sqrt(d))`` is computed from them once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cirkit.backbone import Backbone, TokenBatch


class Attention(NamedTuple):
    """Means over the heads: ``patches`` [cross-attending layers,B,N,P] and ``words`` [layers,B,N,L], padding 0.

    Each row of ``patches`` sums to 1; a row of ``words`` to what the query tokens leave for the text.
    """

    patches: Tensor
    words: Tensor


@torch.no_grad()
def attention(
    backbone: Backbone, references: Tensor, texts: Sequence[str] | TokenBatch, prompts: Tensor | None = None
) -> Attention:
    """Attention of the query tokens in the pass that composes references [B,P,Dv] and texts.

    Args:
        prompts: learned tokens [N,H] or [B,N,H] in place of the query tokens.
    """
    queries = backbone.query_tokens if prompts is None else prompts
    tokens = texts if isinstance(texts, TokenBatch) else backbone.tokenize(texts)
    layers = backbone.qformer.encoder.layer
    own = [_Caught(layer.attention.attention) for layer in layers]
    cross = [_Caught(layer.crossattention.attention) for layer in layers if layer.has_cross_attention]
    backbone.hidden_states(references, tokens, queries)
    heads, count = backbone.qformer.config.num_attention_heads, queries.shape[-2]
    mask = torch.cat([tokens.mask.new_ones(len(tokens.mask), count), tokens.mask], dim=1)
    words = torch.stack([caught.weights(heads, mask)[:, :count, count:] for caught in own])
    return Attention(torch.stack([caught.weights(heads) for caught in cross]), words)


class _Caught:
    """What the query and key projections of one attention layer give in the next pass."""

    def __init__(self, layer: nn.Module):
        self.seen: dict[str, Tensor] = {}
        self.hooks = [getattr(layer, name).register_forward_hook(self._keep(name)) for name in ("query", "key")]

    def _keep(self, name: str):
        def keep(_module: nn.Module, _inputs: tuple, output: Tensor) -> None:
            self.seen[name] = output

        return keep

    def weights(self, heads: int, mask: Tensor | None = None) -> Tensor:
        """[B, positions, positions attended to], mean over the heads; masked ones get 0."""
        for hook in self.hooks:
            hook.remove()
        query, key = (self.seen[name].float().unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("query", "key"))
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
        return scores.softmax(dim=-1).mean(dim=1)
