"""How well a score finds noisy triplets, judged against the ledger of what was changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score

from cirkit.bootstrap import check_resampling, resample_blocks


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
