"""The forward pass of the Q-Former on the modules of transformers' ``Blip2QFormerModel``, and only what is asked of it.

The same numbers as the model's own pass with each supported version of transformers. Of the last layer only the
positions that are wanted are computed; what comes from the image is computed apart, so that passes can share it. Where
several processes run, each computes its share of the rows (`cirkit.parallel`).

Shapes: B batch, S positions (queries first, then text), P patches, H width, heads x d = H.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.blip_2.modeling_blip_2 import Blip2QFormerModel

from cirkit.parallel import gather, share


class KeysValues(NamedTuple):
    """What an attention layer looks at, [B,positions,H] each."""

    keys: Tensor
    values: Tensor


class ImageMemory(NamedTuple):
    """Of each layer that attends to the image, in their order, what it looks at; ``rows`` is B.

    Where several processes run, the layers' tensors are of this process's share of the B rows alone.
    """

    layers: tuple[KeysValues, ...]
    rows: int

    def detached(self) -> ImageMemory:
        """The same for a pass whose gradients end here."""
        return self._replace(layers=tuple(KeysValues(x.keys.detach(), x.values.detach()) for x in self.layers))


def image_memory(
    qformer: Blip2QFormerModel, states: Tensor, before: Callable[[Tensor], Tensor] | None = None
) -> ImageMemory:
    """What every later pass needs of images: keys and values of their states [B,P,Dv].

    Args:
        before: what is done to the states first, to each row alone.
    """
    part = share(states)
    part = part if before is None else before(part)
    layers = (layer for layer in qformer.encoder.layer if layer.has_cross_attention)
    return ImageMemory(tuple(_keys_values(layer.crossattention, part) for layer in layers), len(states))


def run(
    qformer: Blip2QFormerModel,
    embeds: Tensor,
    mask: Tensor,
    query_length: int = 0,
    memory: ImageMemory | None = None,
    wanted: slice = slice(None),
) -> Tensor:
    """Embeddings [B,S,H] -> last hidden states of the ``wanted`` positions.

    Args:
        mask: [B,S], 1 where a position may be attended to.
        query_length: how many positions, from the first, attend to the image and use the query feed-forward layers.
        memory: of the image, :func:`image_memory`; needed where there are query positions.
        wanted: positions whose states are needed in the end, without a step.
    """
    hidden = qformer.dropout(qformer.layernorm(share(embeds)))
    opened = share(mask)[:, None, None, :] > 0
    images = iter(() if memory is None else memory.layers)
    layers = qformer.encoder.layer
    for depth, layer in enumerate(layers):
        first, stop, _ = (wanted if depth == len(layers) - 1 else slice(None)).indices(hidden.shape[1])
        states = _attend(layer.attention, hidden[:, first:stop], _keys_values(layer.attention, hidden), opened)
        count = max(min(stop, query_length) - first, 0)
        parts = []
        if count:
            queries = states[:, :count]
            if layer.has_cross_attention:
                queries = _attend(layer.crossattention, queries, next(images))
            parts.append(layer.feed_forward_chunk_query(queries))
        if count < states.shape[1]:
            parts.append(layer.feed_forward_chunk(states[:, count:]))
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return gather(hidden, len(embeds))


def _keys_values(block: nn.Module, states: Tensor) -> KeysValues:
    return KeysValues(block.attention.key(states), block.attention.value(states))


def _attend(block: nn.Module, hidden: Tensor, others: KeysValues, mask: Tensor | None = None) -> Tensor:
    """One attention block with its residual and LayerNorm; its weights are not dropped out."""
    parts = (block.attention.query(hidden), *others)
    heads = (part.unflatten(-1, (block.attention.num_attention_heads, -1)).transpose(1, 2) for part in parts)
    mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask)
    return block.output(mixed.transpose(1, 2).flatten(2), hidden)
