"""From a model and a data set to ranks and ranked lists: encode the queries, encode the galleries, count and sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirkit.data.triplets import DataError, TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.satisfaction import average_precision, places_with_ties
from cirkit.scores import member_scores, rank_and_top_k, rank_members, rank_targets, top_k

PRECISION_AT = (5, 10, 25, 50)


@torch.inference_mode()
def encode_queries(method: Method, triplets: TripletSet, store: FeatureStore, batch_size: int = 256) -> Tensor:
    """Composed queries [Q,D] of a triplet set, in its order; the model is used in eval mode."""
    method.eval()
    rows = store.rows(triplets.references)
    tokens = method.backbone.tokenize(triplets.texts)
    device = method.backbone.device

    def encode(part: slice) -> Tensor:
        places = torch.arange(part.start, part.stop, device=device)
        return method.query(store.patches(rows[part], device), tokens.rows(places))

    return _in_batches(encode, len(rows), batch_size)


@torch.inference_mode()
def encode_images(method: Method, ids: Sequence[str], store: FeatureStore, batch_size: int = 256) -> Tensor:
    """Target tokens [G,N,D] of images, in the order of ``ids``; the model is used in eval mode."""
    method.eval()
    rows = store.rows(ids)
    device = method.backbone.device
    return _in_batches(lambda part: method.target(store.patches(rows[part], device)), len(rows), batch_size)


def rank_queries(method: Method, triplets: TripletSet, store: FeatureStore) -> pd.DataFrame:
    """Rank every target in its category's gallery.

    Returns one row per query: ``query`` (its row in the set), category, reference, target, ``best`` (the first hit),
    and ``better``, ``tied``, ``candidates`` as :func:`cirkit.scores.rank_targets` counts them. The gallery and the
    masking of the reference follow the set's own protocol.

    Where the set has subsets, ``subset_better``, ``subset_tied`` and ``subset_candidates`` rank the target among its
    subset without the reference. Where it has several right answers, ``AP@5``, ``AP@10``, ``AP@25`` and ``AP@50`` are
    the average precisions of the query (:func:`cirkit.satisfaction.average_precision`); wrong images of equal score
    stand before right ones.

    Raises:
        DataError: the split has no public targets.
    """
    triplets.require_targets()
    frames = []
    for part in _galleries(method, triplets, store):
        targets = part.positions(triplets.targets)
        ranks, _, best = rank_and_top_k(part.queries, part.gallery, targets, 1, part.excluded)
        columns = {
            "query": part.rows,
            "category": part.category,
            "reference": [triplets.references[row] for row in part.rows],
            "target": [triplets.targets[row] for row in part.rows],
            "best": [part.ids[place] for place in best[:, 0].tolist()],
            "better": ranks.better.tolist(),
            "tied": ranks.tied.tolist(),
            "candidates": ranks.candidates.tolist(),
        }
        if triplets.subsets is not None:
            within = rank_members(part.queries, part.images, targets, part.subsets(triplets))
            columns |= {f"subset_{name}": values.tolist() for name, values in within._asdict().items()}
        if triplets.ground_truths is not None:
            columns |= _average_precisions(part, triplets.ground_truths)
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames).sort_values("query", ignore_index=True)


def retrieve(
    method: Method, triplets: TripletSet, store: FeatureStore, k: int = 50, within: str = "gallery"
) -> list[tuple[str, ...]]:
    """The k best images of each query, best first, in the order of the set; needs no targets.

    Args:
        k: at least 1 and at most the number of candidates.
        within: "gallery", by the set's own protocol, or "subset", among the query's subset without its reference.

    Raises:
        DataError: the set has no subsets, or `within` is neither. ValueError: k is out of range.
    """
    if within not in ("gallery", "subset") or (within == "subset" and triplets.subsets is None):
        raise DataError(f"cannot retrieve within {within!r} from {triplets.name}: 'gallery', or 'subset' where it has.")
    ranked: list[tuple[str, ...]] = [()] * len(triplets)
    for part in _galleries(method, triplets, store):
        if within == "gallery":
            places = top_k(part.queries, part.gallery, k, part.excluded)[1]
        else:
            members = part.subsets(triplets)
            smallest = int((members >= 0).sum(dim=1).min())
            if not 1 <= k <= smallest:
                raise ValueError(f"k must lie between 1 and the {smallest} members of the smallest subset, got {k}.")
            scores = member_scores(part.queries, part.images, members).cpu()
            places = members.gather(1, scores.sort(dim=1, descending=True, stable=True).indices[:, :k])
        for row, found in zip(part.rows, places.tolist(), strict=True):
            ranked[row] = tuple(part.ids[place] for place in found)
    return ranked


def score_sets(method: Method, triplets: TripletSet, store: FeatureStore, sets: Sequence[Sequence[str]]) -> np.ndarray:
    """Mean score of each query with the images of its result set, float [Q] (HP-FashionIQ: five images a set).

    Args:
        triplets: `cirkit.data.hp_fashioniq.judged_triplets`.
        sets: Q collections of image ids of one size, e.g. the column set1 of the judged pairs.
    """
    if len(sets) != len(triplets):
        raise ValueError(f"need one result set per query, got {len(sets)} for {len(triplets)}.")
    ids = sorted(set().union(*sets))
    place = {image: position for position, image in enumerate(ids)}
    members = torch.tensor([[place[image] for image in images] for images in sets])
    queries = encode_queries(method, triplets, store)
    return member_scores(queries, encode_images(method, ids, store), members).double().mean(dim=1).cpu().numpy()


class _Part(NamedTuple):
    """The queries of one category and what they are ranked among; ids beyond the gallery occur in subsets only."""

    category: str
    rows: np.ndarray
    queries: Tensor
    images: Tensor
    ids: tuple[str, ...]
    size: int
    place: dict[str, int]
    excluded: Tensor | None

    @property
    def gallery(self) -> Tensor:
        return self.images[: self.size]

    def positions(self, column: Sequence[str]) -> Tensor:
        return torch.tensor([self.place[column[row]] for row in self.rows])

    def subsets(self, triplets: TripletSet) -> Tensor:
        """Positions [q,M] of the members without the reference, filled up with -1."""
        members = [[i for i in triplets.subsets[row] if i != triplets.references[row]] for row in self.rows]
        width = max(map(len, members))
        return torch.tensor([[*map(self.place.get, ids), *[-1] * (width - len(ids))] for ids in members])


def _galleries(method: Method, triplets: TripletSet, store: FeatureStore) -> Iterator[_Part]:
    queries = encode_queries(method, triplets, store)
    categories = np.array(triplets.categories)
    for category, gallery in triplets.galleries.items():
        rows = np.flatnonzero(categories == category)
        if not len(rows):
            continue
        members = () if triplets.subsets is None else (triplets.subsets[row] for row in rows)
        ids = (*gallery, *sorted(set().union(*members).difference(gallery)))
        place = {image: position for position, image in enumerate(ids)}
        excluded = None
        if triplets.exclude_reference:
            found = torch.tensor([place.get(triplets.references[row], -1) for row in rows])
            excluded = found.masked_fill(found >= len(gallery), -1)
        asked = queries[torch.from_numpy(rows).to(queries.device)]
        yield _Part(category, rows, asked, encode_images(method, ids, store), ids, len(gallery), place, excluded)


def _average_precisions(part: _Part, ground_truths: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    truths = [ground_truths[row] for row in part.rows]
    counts = [len(images) for images in truths]
    owner = torch.repeat_interleave(torch.arange(len(truths)), torch.tensor(counts))
    places = torch.tensor([part.place[image] for images in truths for image in images])
    excluded = None if part.excluded is None else part.excluded[owner]
    ranks = rank_targets(part.queries[owner.to(part.queries.device)], part.gallery, places, excluded)
    hits = np.zeros((len(truths), max(PRECISION_AT)), dtype=bool)
    starts = np.cumsum([0, *counts])
    for row, (start, stop) in enumerate(zip(starts, starts[1:], strict=False)):
        found = places_with_ties(ranks.better[start:stop].numpy(), ranks.tied[start:stop].numpy())
        hits[row, found[found <= hits.shape[1]] - 1] = True
    return {f"AP@{k}": average_precision(hits, counts, k) for k in PRECISION_AT}


def _in_batches(encode: Callable[[slice], Tensor], count: int, batch_size: int) -> Tensor:
    """What `encode` gives for slices of `count` rows, written into one tensor, so that no second copy is needed."""
    whole: Tensor | None = None
    for start in range(0, count, batch_size):
        part = slice(start, min(start + batch_size, count))
        encoded = encode(part)
        if whole is None:
            whole = encoded.new_empty((count, *encoded.shape[1:]))
        whole[part] = encoded
    if whole is None:
        raise ValueError("there is nothing to encode.")
    return whole
