"""From ranks to numbers: recall and attributes here, mAP, preference and noise detection in their own files.

Nothing here ever sees a model.

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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cirkit.bootstrap import Interval, bootstrap_interval, paired_bootstrap
from cirkit.data.annotations import DataError, first_ids
from cirkit.detection import detection_quality
from cirkit.satisfaction import average_precision, precision_table, prediction_hits, preference_table

__all__ = [
    "Interval",
    "attribute_accuracy",
    "average_precision",
    "bootstrap_interval",
    "detection_quality",
    "linear_probe",
    "paired_bootstrap",
    "precision_table",
    "prediction_hits",
    "preference_table",
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
        ranks: one row per query with the columns category, better, tied and candidates; with the columns
            subset_better, subset_tied and subset_candidates too, recall within CIRR's subsets is added.
        ks: cut-offs; within subsets they are always 1, 2 and 3.
        n, seed, level: as in `bootstrap_interval`.

    Returns:
        One row per cut-off and category: metric ("R@10", within subsets "Rs@1"), category, value, n, low, high, and
        candidates, the mean number of images a query was ranked among. Category "mean" weighs the categories equally,
        as the published tables do; its interval resamples queries within each category.

    Raises:
        ValueError: no queries, a missing column, impossible counts, or a category called "mean".
    """
    missing = [name for name in ("category", "better", "tied", "candidates") if name not in ranks.columns]
    if missing:
        raise ValueError(f"ranks lack the column {', '.join(missing)}.")
    if not len(ranks):
        raise ValueError("there are no queries to make a recall table of.")
    categories = sorted(ranks["category"].unique())
    if "mean" in categories:
        raise ValueError('a category is called "mean", which is the name of the average over categories.')
    metrics = [("R", "", k) for k in ks]
    if "subset_better" in ranks.columns:
        metrics += [("Rs", "subset_", k) for k in (1, 2, 3)]
    labels = ranks["category"].to_numpy()
    rows = []
    for name, prefix, k in metrics:
        better, tied, candidates = (ranks[prefix + column].to_numpy() for column in ("better", "tied", "candidates"))
        if impossible := int((~(better + tied < candidates)).sum()):
            raise ValueError(f"{impossible} of {len(ranks)} queries rank more images than they have candidates.")
        values = 100 * recall_at(better, tied, k)
        for category in [*categories, "mean"]:
            part = labels == category if category != "mean" else np.full(len(ranks), True)
            interval = bootstrap_interval(values[part], labels[part], n, seed, level)
            row = {"metric": f"{name}@{k}", "category": category, **interval._asdict()}
            rows.append(row | {"candidates": float(candidates[part].mean())})
    return pd.DataFrame(rows, columns=["metric", "category", "value", "n", "low", "high", "candidates"])


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
