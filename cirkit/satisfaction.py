"""What recall of one target misses: queries with several right answers, and people's choice between result sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cirkit.bootstrap import bootstrap_interval


def prediction_hits(predictions: Sequence[Sequence[Any]], truths: Sequence[Collection[Any]]) -> np.ndarray:
    """Which entries of ranked lists are right answers.

    Args:
        predictions: B lists of ids, best first, as long as they are; missing entries count as wrong.
        truths: B collections of right ids.

    Returns:
        bool [B,K], K the longest list.

    Raises:
        ValueError: lengths differ, or a list names an id twice.

    >>> prediction_hits([["a", "b"], ["c"]], [{"b", "x"}, {"c"}]).astype(int)
    array([[0, 1],
           [1, 0]])
    """
    if len(predictions) != len(truths):
        raise ValueError(f"need one list of right answers per prediction, got {len(predictions)} and {len(truths)}.")
    hits = np.zeros((len(predictions), max(map(len, predictions), default=0)), dtype=bool)
    for row, (predicted, right) in enumerate(zip(predictions, truths, strict=True)):
        if len(set(predicted)) < len(predicted):
            raise ValueError(f"the predictions of query {row} name an image twice.")
        right = set(right)
        hits[row, : len(predicted)] = [image in right for image in predicted]
    return hits


def average_precision(hits: Any, truths: Any, k: int) -> np.ndarray:
    """Average precision at k per query, as CIRCO defines it.

    AP@k = 1 / min(G, k) * sum over the ranks r up to k that hold a right answer of (right answers up to r) / r,
    with G right answers in all (Baldrati et al., "Zero-shot composed image retrieval with textual inversion",
    ICCV 2023).

    Args:
        hits: bool [B,K], whether each rank holds a right answer; ranks beyond K count as wrong.
        truths: [B] number of right answers of each query, at least 1.
        k: at least 1.

    Returns:
        float [B] in [0, 1].

    Raises:
        ValueError: k below 1, other shapes, or more hits than right answers.

    >>> average_precision([[True, False, True]], [2], 5)
    array([0.83333333])
    """
    hits, truths = np.asarray(hits, dtype=bool), np.asarray(truths)
    if k < 1 or hits.ndim != 2 or truths.shape != hits.shape[:1]:
        raise ValueError(f"need k at least 1, hits [B,K] and truths [B], got {k}, {hits.shape} and {truths.shape}.")
    if wrong := int(((truths < 1) | (hits.sum(axis=1) > truths)).sum()):
        raise ValueError(f"{wrong} of {len(truths)} queries have no right answer, or more hits than right answers.")
    hits = hits[:, :k]
    precision = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(axis=1) / np.minimum(truths, k)


def places_with_ties(better: Any, tied: Any) -> np.ndarray:
    """Places, from 1, of one query's right answers, each tie resolved against the query.

    A right answer stands behind every wrong image of its score, so that ties never help and the order of the gallery
    does not matter.

    Args:
        better, tied: [G], per right answer, candidates that score higher and other candidates that score the same;
            the query's other right answers are among them.

    Returns:
        int [G], rising.

    >>> places_with_ties([0, 0, 5], [3, 3, 0])
    array([3, 4, 6])
    """
    better, tied = np.asarray(better), np.asarray(tied)
    order = np.argsort(better, kind="stable")
    better, tied = better[order], tied[order]
    above = (better[:, None] > better).sum(axis=1)
    same = (better[:, None] == better).sum(axis=1) - 1
    return better + tied - above - same + np.arange(1, len(better) + 1)


def precision_table(
    ranks: pd.DataFrame,
    aspects: Sequence[Collection[str]] | None = None,
    n: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """Mean average precision, over all queries and per semantic aspect, in percent.

    Args:
        ranks: one row per query with columns "AP@<k>" in [0, 1] (`cirkit.retrieval.rank_queries`).
        aspects: B collections of aspect names; per aspect mAP@10 is averaged over the queries that carry it.
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        metric ("mAP@5"), aspect ("all" first), value, n, low, high.

    Raises:
        ValueError: no queries, no such column, or another number of aspects.
    """
    columns = [name for name in ranks.columns if str(name).startswith("AP@")]
    if not columns or not len(ranks):
        raise ValueError("ranks need queries and a column 'AP@<k>'.")
    parts = [(name, "all", np.full(len(ranks), True)) for name in columns]
    if aspects is not None:
        if len(aspects) != len(ranks):
            raise ValueError(f"need one collection of aspects per query, got {len(aspects)} for {len(ranks)}.")
        for aspect in sorted(set().union(*aspects)):
            parts.append(("AP@10", aspect, np.array([aspect in carried for carried in aspects])))
    rows = []
    for name, aspect, members in parts:
        interval = bootstrap_interval(100 * ranks[name].to_numpy()[members], None, n, seed, level)
        rows.append({"metric": f"m{name}", "aspect": aspect, **interval._asdict()})
    return pd.DataFrame(rows, columns=["metric", "aspect", "value", "n", "low", "high"])


def preference_table(
    score1: Any, score2: Any, preferred: Any, n: int = 1000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """How often people prefer the result set that a model scores higher (HP-FashionIQ), in [0, 1].

    Args:
        score1, score2: [n] the model's score of each set, e.g. the mean over its images.
        preferred: [n] integers 1 or 2, the set a person prefers.
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        Rows "ratio", "agreement" and "set 1" with value, n, ties, low, high. "ratio" is the released measure: of the
        pairs whose set 1 scores higher, the share in which people prefer set 1; it changes if the sets swap names.
        "agreement" is two-sided: the share of pairs without a tie in which both choose the same set. "set 1" is the
        share of all pairs in which people prefer set 1, what a constant answer reaches. n counts the pairs behind a
        value, ties the pairs of equal score; without any pair the value is NaN.

    Raises:
        ValueError: other shapes, NaN or infinite scores, or a preference that is not the integer 1 or 2.
    """
    score1, score2, preferred = np.asarray(score1, dtype=float), np.asarray(score2, dtype=float), np.asarray(preferred)
    if score1.ndim != 1 or not score1.shape == score2.shape == preferred.shape:
        raise ValueError(f"need scores [n] and preferred [n], got {score1.shape}, {score2.shape}, {preferred.shape}.")
    if not np.issubdtype(preferred.dtype, np.integer) or not np.isin(preferred, (1, 2)).all():
        raise ValueError(f"preferred must hold the integers 1 and 2, got {preferred.dtype} {np.unique(preferred)[:5]}.")
    if bad := int((~np.isfinite(score1 + score2)).sum()):
        raise ValueError(f"{bad} of {len(score1)} pairs have a score that is NaN or infinite.")
    first = preferred == 1
    measures = {
        "ratio": first[score1 > score2],
        "agreement": (first == (score1 > score2))[score1 != score2],
        "set 1": first,
    }
    rows = []
    for metric, values in measures.items():
        row = {"metric": metric, "value": np.nan, "n": 0, "low": np.nan, "high": np.nan}
        if len(values):
            row |= bootstrap_interval(values.astype(float), None, n, seed, level)._asdict()
        rows.append(row | {"ties": int((score1 == score2).sum())})
    return pd.DataFrame(rows, columns=["metric", "value", "n", "ties", "low", "high"])
