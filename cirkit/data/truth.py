"""The truth about a built world, and the graded relevance that follows from it.

Recall knows one right image a query. Here the attributes of every image are known, so each gallery image can
be graded: how much of what was asked for does it satisfy (`relevance`), how much of the rest does it keep
(`preservation`)? The target scores 1 in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.triplets import TripletSet


def attributes(root: Path) -> pd.DataFrame:
    """The attributes of every image of the world in folder `root`, one column each; index id, all str.

    Raises:
        DataError: no attributes.csv there.
    """
    path = Path(root) / "attributes.csv"
    if not path.is_file():
        raise DataError(f"{path} does not exist: {root} is not a world with known attributes.")
    return pd.read_csv(path, dtype=str, keep_default_na=False).set_index("id")


def relevance(
    truth: pd.DataFrame, reference_ids: Sequence[str], target_ids: Sequence[str], gallery_ids: Sequence[str]
) -> np.ndarray:
    """Share of the requested attributes that each gallery image satisfies.

    Requested are the columns of `truth` (as `attributes` returns it) in which target and reference differ.

    Returns:
        float [Q, G] in [0, 1] for Q queries and G gallery images.

    Raises:
        DataError: an id without truth, unequal numbers of references and targets, or an empty request.
    """
    reference, target, gallery = (_codes(truth, ids) for ids in (reference_ids, target_ids, gallery_ids))
    requested = _requested(reference, target)
    empty = np.flatnonzero(~requested.any(axis=1))
    if len(empty):
        pairs = first_ids([f"{reference_ids[i]} to {target_ids[i]}" for i in empty])
        raise DataError(f"{len(empty)} queries request nothing, as reference and target agree: {pairs}.")
    return _share(requested, target, gallery)


def preservation(
    truth: pd.DataFrame, reference_ids: Sequence[str], target_ids: Sequence[str], gallery_ids: Sequence[str]
) -> np.ndarray:
    """Share of the attributes nobody asked to change that each gallery image keeps: float [Q, G] in [0, 1].

    Kept means equal to the reference; category is one of the columns. Raises DataError as `relevance`, except
    that a query without a request is allowed.
    """
    reference, target, gallery = (_codes(truth, ids) for ids in (reference_ids, target_ids, gallery_ids))
    kept = ~_requested(reference, target)
    return _share(kept, target, gallery)


def attribute_chance(truth: pd.DataFrame, triplets: TripletSet) -> dict[str, float]:
    """In percent, how often an image drawn blindly from the gallery has the target's attribute: chance level of
    :func:`cirkit.evaluation.attribute_accuracy`, with "all" for the whole vector."""
    shares = []
    for category, gallery in triplets.galleries.items():
        images = truth.loc[list(gallery)].to_numpy()
        own = [t for t, c in zip(triplets.targets, triplets.categories, strict=True) if c == category]
        same = [images == row for row in truth.loc[own].to_numpy()]
        shares += [np.append(s.mean(axis=0), s.all(axis=1).mean()) for s in same]
    return dict(zip([*truth.columns, "all"], (100 * np.mean(shares, axis=0)).tolist(), strict=True))


def _codes(truth: pd.DataFrame, ids: Sequence[str]) -> np.ndarray:
    rows = truth.index.get_indexer(list(ids))
    if (rows < 0).any():
        unknown = [i for i, row in zip(ids, rows, strict=True) if row < 0]
        raise DataError(f"{len(unknown)} ids have no attributes: {first_ids(unknown)}.")
    return np.stack([pd.factorize(truth[name])[0] for name in truth.columns], axis=1)[rows]


def _requested(reference: np.ndarray, target: np.ndarray) -> np.ndarray:
    if reference.shape != target.shape:
        raise DataError(f"{len(reference)} references but {len(target)} targets.")
    return reference != target


def _share(wanted: np.ndarray, target: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """Share [Q, G] of the `wanted` [Q, A] columns in which gallery [G, A] equals target [Q, A]; 1 if none."""
    agreed = np.zeros((len(target), len(gallery)))
    for a in range(target.shape[1]):  # one attribute at a time keeps memory at [Q, G]
        agreed += wanted[:, a, None] & (target[:, a, None] == gallery[None, :, a])
    n_wanted = wanted.sum(axis=1, keepdims=True)
    return np.where(n_wanted > 0, agreed / np.maximum(n_wanted, 1), 1.0)
