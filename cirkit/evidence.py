"""Evidence of a triplet before training: does the pretrained model see what the text says, from reference to target?

How it decides what is noise: by how little the target answers to the text (or to the composed query) beyond what the
reference already does. The backbone is as stage 1 left it; nothing is trained and the ledger is never read.

Ours, of no paper (design notes, section 3): once training has begun, every score of similarity fails on hard noise,
where the target is a look-alike of the reference, since the model learns to return the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.backbone import Backbone
from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.noise import NoisyTriplets
from cirkit.retrieval import encode_images, encode_queries
from cirkit.similarity import own_similarity
from cirkit.train_scores import detection

EVIDENCE = ("text", "change", "composed")


def margin_evidence(queries: Tensor, references: Tensor, targets: Tensor) -> Tensor:
    """s(q, target) - s(q, reference), each the best token's inner product; 0 where both are one image.

    With q the text this is the evidence ``text``, with q the composed query the evidence ``composed``.

    Args:
        queries: [B,D], unit norm; references, targets: tokens [B,N,D], unit norm.

    Returns:
        float32 [B] in [-2, 2].
    """
    return own_similarity(queries, targets) - own_similarity(queries, references)


def change_evidence(texts: Tensor, references: Tensor, targets: Tensor) -> Tensor:
    """Cosine of the text with the change of the image: ``cos(t, mean_n target_n - mean_n reference_n)``.

    Unlike the margin it does not grow with how much changes, only with how well the direction fits; 0 where nothing
    changes, as that points nowhere.

    Args:
        texts: [B,D], unit norm; references, targets: tokens [B,N,D], unit norm.

    Returns:
        float32 [B] in [-1, 1].
    """
    with torch.autocast(texts.device.type, enabled=False):
        change = targets.float().mean(dim=1) - references.float().mean(dim=1)
        return (F.normalize(texts.float(), dim=-1) * F.normalize(change, dim=-1)).sum(dim=1)


@torch.inference_mode()
def evidence_scores(
    backbone: Backbone,
    triplets: TripletSet,
    store: FeatureStore,
    names: Sequence[str] = EVIDENCE,
    batch_size: int = 256,
) -> dict[str, np.ndarray]:
    """Evidence of every triplet, name -> float32 [n], high = clean; the backbone is used in eval mode as it stands.

    Every image and every text is encoded once, however many triplets hold it. Texts drawn anew in each epoch are
    judged by their first form (`TripletSet.texts`).

    Args:
        names: any of :data:`EVIDENCE`; what none of them needs is not encoded.
        batch_size: images, texts and triplets that are worked on at once.

    Raises:
        ValueError: an unknown name, or no triplets. DataError: triplets without targets.
    """
    if unknown := [name for name in names if name not in EVIDENCE]:
        raise ValueError(f"unknown evidence {', '.join(map(repr, unknown))}; known: {', '.join(EVIDENCE)}")
    triplets.require_targets()
    stage1 = Method(backbone, Method.Config())
    images = sorted({*triplets.references, *triplets.targets})
    tokens = encode_images(stage1, images, store, batch_size)
    references, targets = (_places(column, images) for column in (triplets.references, triplets.targets))
    composed = encode_queries(stage1, triplets, store, batch_size) if "composed" in names else None
    if set(names) - {"composed"}:
        distinct = sorted(set(triplets.texts))
        parts = [distinct[start : start + batch_size] for start in range(0, len(distinct), batch_size)]
        texts, place = torch.cat([backbone.encode_text(part) for part in parts]), _places(triplets.texts, distinct)
    scores = {name: np.empty(len(triplets), dtype=np.float32) for name in names}
    for start in range(0, len(triplets), batch_size):
        part = slice(start, start + batch_size)
        pair = (tokens[references[part]], tokens[targets[part]])
        for name, column in scores.items():
            queries = composed[part] if name == "composed" else texts[place[part]]
            formula = change_evidence if name == "change" else margin_evidence
            column[part] = formula(queries, *pair).cpu().numpy()
    return scores


def evidence_quality(
    backbone: Backbone, noisy: NoisyTriplets, store: FeatureStore, names: Sequence[str] = EVIDENCE
) -> pd.DataFrame:
    """How well each evidence tells clean rows from noisy ones before any training, per kind of noise.

    The only place here that reads the ledger, for this judgement. Columns: evidence, then those of
    :func:`cirkit.train_scores.detection` (metric AUROC or AP, kind, value, n, n_noisy, low, high).
    """
    scores = evidence_scores(backbone, noisy.triplets, store, names)
    return pd.concat([detection(scores[name], noisy).assign(evidence=name) for name in names], ignore_index=True)[
        ["evidence", "metric", "kind", "value", "n", "n_noisy", "low", "high"]
    ]


def _places(values: Sequence[str], among: Sequence[str]) -> Tensor:
    place = {value: position for position, value in enumerate(among)}
    return torch.tensor([place[value] for value in values])
