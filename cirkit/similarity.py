"""Similarities that look past the ranking: image to image, and each query to its own target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.backbone import Backbone
from cirkit.features import FeatureStore
from cirkit.scores import max_over_tokens


def image_similarity(references: Tensor, targets: Tensor) -> Tensor:
    """s(ref, tar): the reference without any text as the query.

    The reference's target tokens are averaged to one unit vector, which is then scored as a composed query is.

    Args:
        references: target tokens [R,N,D] of the reference images; targets: [G,N,D].

    Returns:
        [R,G].
    """
    return max_over_tokens(F.normalize(references.float().mean(dim=1), dim=-1), targets)


def similarity_function(
    backbone: Backbone, store: FeatureStore, batch_size: int = 256
) -> Callable[[Sequence[str], Sequence[str]], np.ndarray]:
    """``similarity(references, candidates) -> float32 [R,C]`` of images by id, for noise of kind "hard".

    Every image of the store is encoded once, at the first call; the tokens are kept in half precision.
    """
    tokens: list[Tensor] = []

    @torch.inference_mode()
    def similarity(references: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
        if not tokens:
            rows = np.arange(len(store))
            parts = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
            encoded = [backbone.encode_target(store.patches(part, backbone.device)).half() for part in parts]
            tokens.append(torch.cat(encoded))
        ours, theirs = (tokens[0][torch.from_numpy(store.rows(ids))] for ids in (references, candidates))
        # the last bits differ between machines; rounded, near-equal images are ties, which go by id
        return image_similarity(ours, theirs).cpu().numpy().round(4)

    return similarity


def own_similarity(queries: Tensor, targets: Tensor) -> Tensor:
    """s_ii without the matrix: each query [B,D] and its own target's tokens [B,N,D] -> [B], always float32."""
    with torch.autocast(queries.device.type, enabled=False):
        return torch.einsum("bd,bnd->bn", queries.float(), targets.float()).amax(dim=1)


def drawn_similarity(queries: Tensor, drawn: Tensor) -> Tensor:
    """Each query [B,D] and its own K images, tokens [B * K,N,D] with a query's own in a row -> [B,K], float32."""
    if len(drawn) % max(len(queries), 1):
        raise ValueError(f"{len(drawn)} drawn images are not as many for each of {len(queries)} queries")
    own = drawn.unflatten(0, (len(queries), -1))
    with torch.autocast(queries.device.type, enabled=False):
        return torch.einsum("bd,bknd->bkn", queries.float(), own.float()).amax(dim=2)
