"""From ranks to numbers: recall, intervals, noise detection, attributes. Nothing here ever sees a model.

Every table row carries n, the number of queries (or triplets) behind it, and a percentile bootstrap interval
over them. Such an interval has no width where all values are equal: a single query, or a recall of exactly 0
or 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cirkit.bootstrap import (
    Interval,
    bootstrap_interval,
    check_resampling,
    paired_bootstrap,
    resample_blocks,
)
from cirkit.data.annotations import DataError, first_ids

__all__ = [
    "Interval",
    "attribute_accuracy",
    "bootstrap_interval",
    "detection_quality",
    "linear_probe",
    "paired_bootstrap",
    "recall_at",
    "recall_table",
]


def recall_at(better: Any, tied: Any, k: int) -> np.ndarray:
    """Per-query recall at k, in expectation over the orders of tied candidates.

    With `better` candidates above the target and `tied` ones equal to it, the target takes each of the places
    better + 1 ... better + tied + 1 with equal probability; the value is the probability of a place up to k,
    clip((k - better) / (tied + 1), 0, 1). A model that scores everything alike gets k / candidates, not 1.

    Args:
        better: [B] candidates that score higher than the target.
        tied: [B] other candidates that score as the target.
        k: at least 1.

    Returns:
        float [B] in [0, 1].

    Raises:
        ValueError: k is not a positive integer, or counts are negative, NaN or of different shape.

    >>> recall_at([0, 4, 9], [0, 1, 0], 5)
    array([1. , 0.5, 0. ])
    """
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k must be a positive integer, got {k!r}.")
    better, tied = np.asarray(better, dtype=float), np.asarray(tied, dtype=float)
    if better.ndim != 1 or better.shape != tied.shape:
        raise ValueError(f"better and tied must both be [B], got shapes {better.shape} and {tied.shape}.")
    wrong = int((~((better >= 0) & (tied >= 0) & np.isfinite(better + tied))).sum())
    if wrong:
        raise ValueError(f"{wrong} of {len(better)} queries have negative or NaN counts in better or tied.")
    return np.clip((k - better) / (tied + 1), 0, 1)


def recall_table(
    ranks: pd.DataFrame, ks: Sequence[int] = (1, 5, 10, 50), n: int = 1000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """Recall per category and its macro average, in percent.

    Args:
        ranks: one row per query with the columns category, better, tied and candidates.
        ks: cut-offs.
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        One row per cut-off and category: metric ("R@10"), category, value, n, low, high, and candidates, the
        mean number of images a query was ranked among. Category "mean" weighs the categories equally, as the
        published tables do; its interval resamples queries within each category.

    Raises:
        ValueError: no queries, a missing column, impossible counts, or a category called "mean".
    """
    missing = [name for name in ("category", "better", "tied", "candidates") if name not in ranks.columns]
    if missing:
        raise ValueError(f"ranks lack the column {', '.join(missing)}.")
    if not len(ranks):
        raise ValueError("there are no queries to make a recall table of.")
    impossible = int((~(ranks["better"] + ranks["tied"] < ranks["candidates"])).sum())
    if impossible:
        raise ValueError(f"{impossible} of {len(ranks)} queries rank more images than they have candidates.")
    categories = sorted(ranks["category"].unique())
    if "mean" in categories:
        raise ValueError('a category is called "mean", which is the name of the average over categories.')
    labels, candidates = ranks["category"].to_numpy(), ranks["candidates"].to_numpy()
    rows = []
    for k in ks:
        values = 100 * recall_at(ranks["better"], ranks["tied"], k)
        for category in [*categories, "mean"]:
            part = labels == category if category != "mean" else np.full(len(ranks), True)
            interval = bootstrap_interval(values[part], labels[part], n, seed, level)
            row = {"metric": f"R@{k}", "category": category, **interval._asdict()}
            rows.append(row | {"candidates": float(candidates[part].mean())})
    return pd.DataFrame(rows, columns=["metric", "category", "value", "n", "low", "high", "candidates"])


def detection_quality(
    score: Any, is_noisy: Any, kind: Any = None, n: int = 1000, seed: int = 0, level: float = 0.95
) -> pd.DataFrame:
    """How well a score separates noisy from clean triplets: AUROC and average precision (AP), in [0, 1].

    Args:
        score: [n] higher means more probably noisy.
        is_noisy: [n] bool, the truth (`Ledger.changed`).
        kind: [n] str (`Ledger.kind` or `Ledger.slot`). Each kind of noise is then also judged alone, against
            all clean rows; rows that were selected but not changed count as clean.
        n, seed, level: as in `bootstrap_interval`; noisy and clean rows are resampled separately.

    Returns:
        One row per metric and kind: metric, kind ("all" first), value, n, n_noisy, low, high. Where only one
        class is present the metric does not exist: value, low and high are NaN. An AP is to be read against
        its chance level n_noisy / n.

    Raises:
        ValueError: shapes that differ, NaN or infinite scores (with their number), or noisy rows without a
        kind.
    """
    score, noisy = np.asarray(score, dtype=float), np.asarray(is_noisy)
    if score.ndim != 1 or noisy.shape != score.shape or noisy.dtype != bool:
        raise ValueError(
            f"need score [n] and is_noisy [n] of bool, got {score.shape} and {noisy.shape} of {noisy.dtype}."
        )
    bad = int((~np.isfinite(score)).sum())
    if bad:
        raise ValueError(f"{bad} of {len(score)} noise scores are NaN or infinite.")
    check_resampling(n, level)
    subsets = {"all": np.ones(len(score), dtype=bool)}
    if kind is not None:
        kind = np.asarray(kind)
        if kind.shape != score.shape:
            raise ValueError(f"need one kind per score, got shapes {kind.shape} and {score.shape}.")
        nameless = int((noisy & np.isin(kind, ["", "none"])).sum())
        if nameless:
            raise ValueError(f"{nameless} of {int(noisy.sum())} noisy rows have no kind.")
        subsets |= {name: ~noisy | (kind == name) for name in sorted(set(kind.tolist()) - {"", "none"})}
    rows = []
    for name, members in subsets.items():
        size, positives = int(members.sum()), int(noisy[members].sum())
        value, ends = np.full(2, np.nan), np.full((2, 2), np.nan)
        if 0 < positives < size:
            truth, scores = noisy[members], score[members]
            value = np.array([roc_auc_score(truth, scores), average_precision_score(truth, scores)])
            ends = np.quantile(_resampled_detection(scores, truth, n, seed), [(1 - level) / 2, (1 + level) / 2], axis=0)
        for column, metric in enumerate(("AUROC", "AP")):
            row = {"metric": metric, "kind": name, "value": value[column], "n": size, "n_noisy": positives}
            rows.append(row | {"low": ends[0, column], "high": ends[1, column]})
    return pd.DataFrame(rows)


def attribute_accuracy(
    attributes: pd.DataFrame,
    predicted: Sequence[str],
    target: Sequence[str],
    n: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> pd.DataFrame:
    """Per attribute, the share of queries whose first hit agrees with the target, in percent.

    Args:
        attributes: one row per image id (the index), one column per attribute.
        predicted: [B] ids of the first hits.
        target: [B] ids of the targets.
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        One row per attribute and a last one, "all", for queries that agree in every attribute: attribute,
        value, n, low, high.

    Raises:
        DataError: an id without attributes.
        ValueError: no queries, lengths that differ, or ids repeated in `attributes`.
    """
    predicted, target = list(predicted), list(target)
    repeated = int(attributes.index.duplicated().sum())
    if len(predicted) != len(target) or not target or repeated:
        raise ValueError(
            "need B first hits and B targets, B at least 1, and attributes of distinct ids;"
            f" got {len(predicted)} hits, {len(target)} targets and {repeated} repeated ids."
        )
    unknown = sorted({*predicted, *target}.difference(attributes.index))
    if unknown:
        raise DataError(f"{len(unknown)} images have no attributes: {first_ids(unknown)}.")
    agree = attributes.loc[predicted].to_numpy() == attributes.loc[target].to_numpy()
    columns = dict(zip(attributes.columns, agree.T, strict=True)) | {"all": agree.all(axis=1)}
    rows = []
    for name, hits in columns.items():
        interval = bootstrap_interval(100.0 * hits, None, n, seed, level)
        rows.append({"attribute": name, **interval._asdict()})
    return pd.DataFrame(rows, columns=["attribute", "value", "n", "low", "high"])


def linear_probe(train_features: Any, train_labels: Any, features: Any, labels: Any) -> float:
    """Accuracy in [0, 1], on held-out rows, of a logistic regression on standardised features.

    Args:
        train_features, features: [n,D] and [m,D].
        train_labels, labels: [n] and [m], any labels.
    """
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(np.asarray(train_features), np.asarray(train_labels))
    return float(probe.score(np.asarray(features), np.asarray(labels)))


def _resampled_detection(score: np.ndarray, noisy: np.ndarray, n: int, seed: int) -> np.ndarray:
    """[n,2] AUROC and AP of bootstrap resamples, each drawn as how often it holds each row."""
    order = np.argsort(-score, kind="stable")
    score, noisy = score[order], noisy[order]
    ends = np.flatnonzero(np.append(score[1:] != score[:-1], True))
    rng = np.random.default_rng(seed)
    results = np.empty((n, 2))
    for block in resample_blocks(n):
        size = block.stop - block.start
        hits = []
        for rows in (np.flatnonzero(noisy), np.flatnonzero(~noisy)):
            drawn = rows[rng.integers(len(rows), size=(size, len(rows)))]
            drawn += len(score) * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * len(score)).reshape(size, -1)
            hits.append(np.cumsum(counts, axis=1)[:, ends])
        results[block] = _auroc_and_ap(*hits)
    return results


def _auroc_and_ap(true: np.ndarray, false: np.ndarray) -> np.ndarray:
    """[R,2] from true and false positives [R,T] at T falling thresholds, the last of which flags all."""
    gained = np.diff(true, axis=1, prepend=0)
    area = (np.diff(false, axis=1, prepend=0) * (true - gained / 2)).sum(axis=1)
    precision = true / np.maximum(true + false, 1)
    auroc = area / (true[:, -1] * false[:, -1])
    return np.stack([auroc, (gained * precision).sum(axis=1) / true[:, -1]], axis=1)
