"""Graded relevance of what stands on top of a ranking, where recall knows one target only.

In a built world every gallery image has a grade, the share of the requested attributes that it satisfies
(`cirkit.data.truth.relevance`).

Letters: Q queries, G gallery images, k places. Matrices are [query, image].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from cirkit.bootstrap import bootstrap_interval
from cirkit.data.triplets import TripletSet
from cirkit.data.truth import preservation, relevance


def expected_gain(scores: Any, gains: Any, discounts: Any, excluded: Any = None) -> np.ndarray:
    """Discounted gain of each query's first k places, in expectation over the orders of tied images.

    m images of one score that take the places p + 1 ... p + m have each their mean gain there (McSherry & Najork,
    "Computing information retrieval performance measures efficiently in the presence of tied scores", ECIR 2008), so
    a permutation of the gallery changes nothing.

    Args:
        scores: [Q,G] a model's scores, the higher the better.
        gains: [Q,G], not negative.
        discounts: [k] weight of each place, best first; places beyond the gallery hold nothing.
        excluded: int [Q] position taken out of each query's ranking (its reference), -1 for none.

    Returns:
        float [Q], the sum over places of discount times expected gain.

    Raises:
        ValueError: other shapes, a NaN or infinite score, a gain that is negative or not finite.

    >>> expected_gain([[3.0, 1.0, 1.0]], [[0.0, 1.0, 0.0]], [1.0, 1.0])
    array([0.5])
    """
    scores, gains, discounts = (np.array(values, dtype=float) for values in (scores, gains, discounts))
    if scores.ndim != 2 or scores.shape != gains.shape or discounts.ndim != 1 or not discounts.size:
        raise ValueError(f"need scores and gains [Q,G] and discounts [k], got {scores.shape}, {gains.shape},"
                         f" {discounts.shape}.")  # fmt: skip
    if bad := int((~np.isfinite(scores)).sum()):
        raise ValueError(f"{bad:,} of {scores.size:,} scores are NaN or infinite; no ranking is made of them.")
    if bad := int((~((gains >= 0) & np.isfinite(gains))).sum()):
        raise ValueError(f"{bad:,} of {gains.size:,} gains are negative or not finite.")
    _take_out(excluded, (scores, -np.inf), (gains, 0.0))
    order = np.argsort(-scores, axis=1, kind="stable")
    scores, gains = np.take_along_axis(scores, order, axis=1), np.take_along_axis(gains, order, axis=1)
    weights = np.zeros(scores.shape[1])
    weights[: len(discounts)] = discounts[: scores.shape[1]]
    # a group of tied images is a run of equal scores; groups are numbered through all queries, so that none spans two
    starts = np.diff(scores, axis=1, prepend=np.nan) != 0
    group = starts.ravel().cumsum() - 1
    size = np.bincount(group)
    mean_gain = np.bincount(group, gains.ravel()) / size
    weight = np.bincount(group, np.broadcast_to(weights, scores.shape).ravel())
    query = np.repeat(np.arange(len(scores)), starts.sum(axis=1))
    return np.bincount(query, mean_gain * weight, minlength=len(scores))


def ndcg_at(scores: Any, grades: Any, k: int = 10, excluded: Any = None) -> np.ndarray:
    """Normalised discounted cumulative gain of each query's first k images (Järvelin & Kekäläinen, TOIS 2002).

    nDCG@k = sum over the places r up to k of g_r / log2(1 + r), divided by the largest value that sum can take, with
    g_r the grade of the image on place r; ties in expectation, as in `expected_gain`.

    Args:
        scores, grades, excluded: as scores, gains and excluded of `expected_gain`.
        k: at least 1.

    Returns:
        float [Q] in [0, 1]; 1 where the best grades stand on top.

    Raises:
        ValueError: as `expected_gain`, k below 1, or a query none of whose images has a grade above 0.

    >>> ndcg_at([[3.0, 2.0, 1.0]], [[0.5, 1.0, 0.0]], k=2).round(3)
    array([0.86])
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k must be a positive integer, got {k!r}.")
    discounts = 1 / np.log2(np.arange(2, k + 2))
    obtained = expected_gain(scores, grades, discounts, excluded)
    possible = np.array(grades, dtype=float)
    _take_out(excluded, (possible, 0.0))
    best = -np.sort(-possible, axis=1)[:, :k]
    ideal = (best * discounts[: best.shape[1]]).sum(axis=1)
    if lacking := int((ideal == 0).sum()):
        raise ValueError(f"{lacking} of {len(ideal)} queries have no image of a grade above 0.")
    return np.clip(obtained / ideal, 0, 1)


def ndcg_table(values: pd.DataFrame, n: int = 1000, seed: int = 0, level: float = 0.95) -> pd.DataFrame:
    """Means of per-query values per category and over categories, in percent, as `recall_table` has them.

    Args:
        values: one row per query: category, and columns with "@" in their name, in [0, 1] (`grade_ranking`).
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        metric, category, value, n, low, high; category "mean" weighs the categories equally.

    Raises:
        ValueError: no queries, no category, no such column, or a category called "mean".
    """
    metrics = [name for name in values.columns if "@" in str(name)]
    if "category" not in values.columns or not metrics or not len(values):
        raise ValueError("values need queries, a column 'category' and a column such as 'nDCG@10'.")
    categories, labels = sorted(values["category"].unique()), values["category"].to_numpy()
    if "mean" in categories:
        raise ValueError('a category is called "mean", which is the name of the average over categories.')
    rows = []
    for metric in metrics:
        for category in [*categories, "mean"]:
            part = labels == category if category != "mean" else np.full(len(values), True)
            interval = bootstrap_interval(100 * values[metric].to_numpy()[part], labels[part], n, seed, level)
            rows.append({"metric": metric, "category": category, **interval._asdict()})
    return pd.DataFrame(rows, columns=["metric", "category", "value", "n", "low", "high"])


def grade_ranking(
    truth: pd.DataFrame, triplets: TripletSet, scores: dict[str, Any], ks: Sequence[int] = (1, 5, 10)
) -> pd.DataFrame:
    """nDCG and what recall cannot see, per query, from the scores of a model.

    Args:
        truth: attributes of every image (`cirkit.data.truth.attributes`).
        triplets: the split, with targets; its rule says whether the reference is ranked.
        scores: category -> [q,G] scores of its queries, in the set's order, with its gallery (`score_galleries`).

    Returns:
        One row per query, in the set's order: query, category, and for each k "nDCG@k", by the share of what was asked
        for; "nDCG kept@k", by that share times the share that is kept of the rest, as a model that ignores the
        reference can satisfy what is asked; "satisfied@k", the share of the first k images that satisfy all that was
        asked for; "blind@k", those of them that are not the target, which recall counts as wrong.

    Raises:
        DataError: a split without targets, an image without attributes. ValueError: as `ndcg_at`.
    """
    triplets.require_targets()
    frames = []
    for category, rows, gallery in category_parts(triplets):
        references, targets = ([column[i] for i in rows] for column in (triplets.references, triplets.targets))
        grades = relevance(truth, references, targets, gallery)
        both = grades * preservation(truth, references, targets, gallery)
        place = {image: position for position, image in enumerate(gallery)}
        excluded = np.array([place.get(image, -1) if triplets.exclude_reference else -1 for image in references])
        satisfied = (grades == 1).astype(float)
        blind = satisfied.copy()
        blind[np.arange(len(rows)), [place[image] for image in targets]] = 0
        columns = {"query": rows, "category": category}
        for k in ks:
            for name, gains in (("nDCG", grades), ("nDCG kept", both)):
                columns[f"{name}@{k}"] = ndcg_at(scores[category], gains, k, excluded)
            for name, gains in (("satisfied", satisfied), ("blind", blind)):
                columns[f"{name}@{k}"] = expected_gain(scores[category], gains, np.full(k, 1 / k), excluded)
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames).sort_values("query", ignore_index=True)


def category_parts(triplets: TripletSet) -> list[tuple[str, np.ndarray, tuple[str, ...]]]:
    """(category, rows of its queries, gallery) of each category with queries."""
    categories = np.array(triplets.categories)
    parts = [(name, np.flatnonzero(categories == name), gallery) for name, gallery in triplets.galleries.items()]
    return [part for part in parts if len(part[1])]


def _take_out(excluded: Any, *changes: tuple[np.ndarray, float]) -> None:
    """Write a value into each [Q,G] array at the excluded position of each query."""
    if excluded is None:
        return
    excluded = np.asarray(excluded)
    queries, images = changes[0][0].shape
    if excluded.shape != (queries,) or not np.issubdtype(excluded.dtype, np.integer):
        raise ValueError(f"excluded must hold {queries} integers, got {excluded.shape} of {excluded.dtype}.")
    if ((excluded < -1) | (excluded >= images)).any():
        raise ValueError(f"excluded has positions outside the gallery of {images} images.")
    rows = np.flatnonzero(excluded >= 0)
    for values, value in changes:
        values[rows, excluded[rows]] = value
