"""Whole score matrices of a model, for measures that look at more than the target and the top."""

from __future__ import annotations

import numpy as np
import torch

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.graded import category_parts
from cirkit.methods.base import Method
from cirkit.retrieval import encode_images, encode_queries
from cirkit.scores import max_over_tokens


@torch.inference_mode()
def score_galleries(
    method: Method, triplets: TripletSet, store: FeatureStore, chunk: int = 128
) -> dict[str, np.ndarray]:
    """Scores of each category's queries, in the set's order, with its whole gallery: category -> float32 [q,G].

    Computed in float64 and rounded, as `cirkit.scores.rank_targets` does, so that equal images tie. For galleries of
    some thousand images: the matrix is held whole, in memory.
    """
    queries = encode_queries(method, triplets, store)
    scores = {}
    for category, rows, gallery in category_parts(triplets):
        images = encode_images(method, gallery, store).double()
        asked = queries[torch.from_numpy(rows).to(queries.device)].double()
        parts = [max_over_tokens(part, images).float().cpu() for part in asked.split(chunk)]
        scores[category] = torch.cat(parts).numpy()
    return scores
