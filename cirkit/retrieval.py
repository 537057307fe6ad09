"""From a model and a data set to ranks: encode the queries, encode the galleries, count who is better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.scores import rank_targets, top_k


@torch.inference_mode()
def encode_queries(method: Method, triplets: TripletSet, store: FeatureStore, batch_size: int = 256) -> Tensor:
    """Composed queries [Q,D] of a triplet set, in its order; the model is used in eval mode."""
    method.eval()
    rows = store.rows(triplets.references)
    tokens = method.backbone.tokenize(triplets.texts)
    device = method.backbone.device
    parts = []
    for start in range(0, len(rows), batch_size):
        part = torch.arange(start, min(start + batch_size, len(rows)), device=device)
        parts.append(method.query(store.patches(rows[part.cpu().numpy()], device), tokens.rows(part)))
    return torch.cat(parts)


@torch.inference_mode()
def encode_images(method: Method, ids: Sequence[str], store: FeatureStore, batch_size: int = 256) -> Tensor:
    """Target tokens [G,N,D] of images, in the order of ``ids``; the model is used in eval mode."""
    method.eval()
    rows = store.rows(ids)
    device = method.backbone.device
    starts = range(0, len(rows), batch_size)
    return torch.cat([method.target(store.patches(rows[i : i + batch_size], device)) for i in starts])


def rank_queries(method: Method, triplets: TripletSet, store: FeatureStore) -> pd.DataFrame:
    """Rank every target in its category's gallery.

    Returns one row per query: ``query`` (its row in the set), category, reference, target, ``best`` (the first hit),
    and ``better``, ``tied``, ``candidates`` as :func:`cirkit.scores.rank_targets` counts them. The gallery and the
    masking of the reference follow the set's own protocol.

    Raises:
        DataError: the split has no public targets.
    """
    triplets.require_targets()
    queries = encode_queries(method, triplets, store)
    categories = np.array(triplets.categories)
    frames = []
    for category, gallery in triplets.galleries.items():
        members = np.flatnonzero(categories == category)
        if not len(members):
            continue
        position = {image: i for i, image in enumerate(gallery)}
        images = encode_images(method, gallery, store)
        asked = queries[torch.from_numpy(members).to(queries.device)]
        targets = torch.tensor([position[triplets.targets[i]] for i in members])
        excluded = None
        if triplets.exclude_reference:
            excluded = torch.tensor([position.get(triplets.references[i], -1) for i in members])
        ranks = rank_targets(asked, images, targets, excluded)
        best = top_k(asked, images, 1, excluded)[1][:, 0].tolist()
        frames.append(
            pd.DataFrame(
                {
                    "query": members,
                    "category": category,
                    "reference": [triplets.references[i] for i in members],
                    "target": [triplets.targets[i] for i in members],
                    "best": [gallery[i] for i in best],
                    "better": ranks.better.tolist(),
                    "tied": ranks.tied.tolist(),
                    "candidates": ranks.candidates.tolist(),
                }
            )
        )
    return pd.concat(frames).sort_values("query", ignore_index=True)
