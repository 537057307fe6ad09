"""Can a score tell noisy triplets from clean ones? Judged by the ledger, after the fact."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cirkit.evaluation import detection_quality
from cirkit.noise import NoisyTriplets


def detection(scores: np.ndarray, noisy: NoisyTriplets) -> pd.DataFrame:
    """How well scores (high = clean) find the noisy rows: AUROC and average precision per noise kind."""
    return detection_quality(-np.asarray(scores), ~noisy.ledger.clean, noisy.ledger.kind)


def detection_by_epoch(observed: dict[str, np.ndarray], noisy: NoisyTriplets) -> dict[str, float]:
    """Detection quality of what a method observed of its rows during one epoch, as columns of the history.

    Names are "<AUROC or AP> <score> <noise kind>". "similarity" is s_ii, low where noise is suspected; "loss" the
    InfoNCE of the row, high there. Each is as the row's own step saw it, so the model was a little younger for some
    rows than for others. Nothing for a run without noise, or without clean rows, among the rows seen.

    "flagged" is 1 for rows that the method took for noisy and 0 for others; of it come "precision flagged", the share
    of noisy rows among the flagged (NaN if none is), and "recall flagged", the share of flagged among the noisy.
    """
    columns = {}
    for name, values in observed.items():
        seen = np.isfinite(values)
        truth, kinds = noisy.ledger.changed[seen], noisy.ledger.kind[seen]
        if name == "flagged":
            flags = values[seen] > 0
            hits = float((flags & truth).sum())
            columns["precision flagged"] = hits / flags.sum() if flags.any() else np.nan
            columns["recall flagged"] = hits / truth.sum() if truth.any() else np.nan
            continue
        if truth.all() or not truth.any():
            continue
        table = detection_quality(values[seen] if name == "loss" else -values[seen], truth, kinds, n=1)
        columns |= {f"{r.metric} {name} {r.kind}": r.value for r in table.itertuples() if r.kind != "all"}
    return columns
