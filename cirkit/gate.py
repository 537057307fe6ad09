"""A gate in front of any method: it trains on the rows whose evidence stands out from a null, and on no others.

How it decides what is noise: by evidence of the pretrained model (`cirkit.evidence`) no larger than what the rows that
speak against themselves would reach by chance, had chance two sides. No label, no noise rate, no training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cirkit.backbone import Backbone
from cirkit.bootstrap import bootstrap_interval
from cirkit.data.triplets import TripletSet
from cirkit.evidence import evidence_scores
from cirkit.features import FeatureStore
from cirkit.noise import NoisyTriplets
from cirkit.train_scores import detection

FACTOR = 1.48  # 1 / 0.6745: the median |x| of a normal null times this is its standard deviation


def mirrored_null(evidence: np.ndarray, factor: float = FACTOR) -> float:
    """The threshold ``factor * median(|evidence| of the rows with negative evidence)``.

    Rows without a true change have evidence that falls to either side of 0 by chance; few right rows fall below it. So
    the negative side shows how wide that null is, and its mirror image how far it reaches among the positive rows. With
    1.48 the threshold is the null's standard deviation if it is normal: about one in six of its rows then passes.

    Without any negative row there is no sign of a null and the threshold is 0. Where all rows are right, the few
    negative ones are taken for a null all the same, so that a gate has its cost on clean data too.

    Args:
        evidence: [n], high = clean; 0 means that nothing speaks for the row.
        factor: how many medians; 0 keeps every row with positive evidence.

    Raises:
        ValueError: no rows, NaN or infinite evidence (with their number), or a factor that is negative or not finite.
    """
    evidence = np.asarray(evidence, dtype=np.float64)
    if evidence.ndim != 1 or not len(evidence):
        raise ValueError(f"need evidence [n] of at least one row, got shape {evidence.shape}")
    if bad := int((~np.isfinite(evidence)).sum()):
        raise ValueError(f"the evidence of {bad} of {len(evidence)} rows is NaN or infinite")
    if not 0 <= factor < math.inf:
        raise ValueError(f"the gate's factor must be 0 or more, got {factor}")
    negative = -evidence[evidence < 0]
    return float(factor * np.median(negative)) if len(negative) else 0.0


def kept_rows(evidence: np.ndarray, factor: float = FACTOR) -> np.ndarray:
    """Rows that pass, bool [n]: evidence greater than :func:`mirrored_null`.

    Equal evidence is equal treatment: a row at the threshold itself does not pass, nor does one at 0, where reference
    and target are one image. If all rows are negative none passes, if all are positive all do.
    """
    return np.asarray(evidence, dtype=np.float64) > mirrored_null(evidence, factor)


@dataclass(frozen=True, eq=False)
class Gate:
    """What a gate made of a training set.

    Attributes:
        name: one of :data:`cirkit.evidence.EVIDENCE`.
        evidence: float32 [n], high = clean.
        threshold: rows above it are kept.
        kept: bool [n].
    """

    name: str
    evidence: np.ndarray
    threshold: float
    kept: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """Row numbers of what is kept, int [m], rising."""
        return np.flatnonzero(self.kept)


def open_gate(name: str, backbone: Backbone, triplets: TripletSet, store: FeatureStore, factor: float = FACTOR) -> Gate:
    """The gate of this name on a training set, by a backbone that was not trained on it yet.

    Raises:
        ValueError: as :func:`cirkit.evidence.evidence_scores`, or fewer than two rows are kept.
    """
    evidence = evidence_scores(backbone, triplets, store, (name,))[name]
    kept = kept_rows(evidence, factor)
    if kept.sum() < 2:
        raise ValueError(
            f"the gate {name!r} with factor {factor:g} keeps {kept.sum()} of {len(kept)} triplets: to this backbone the"
            " texts say nothing about them; train without a gate"
        )
    return Gate(name, evidence, mirrored_null(evidence, factor), kept)


def gate_quality(gate: Gate, noisy: NoisyTriplets) -> pd.DataFrame:
    """How much the gate keeps, and how well it tells clean rows from noisy ones, judged by the ledger.

    One row per metric and category, columns as of :func:`cirkit.train_scores.detection` with ``category`` for its kind:

    - "kept gate": share of rows kept; category "all", and "clean" for the clean rows alone (what the gate costs).
    - "AUROC evidence", "AP evidence": "all" and each kind of noise. Like the rest only where there is noise.
    - "precision gate": share of noisy rows among those dropped; "recall gate": share of those dropped among the noisy
      rows. A kind of noise is judged alone, against all clean rows. Precision is NaN where nothing is dropped.
    """
    noise, kinds, dropped = noisy.ledger.changed, noisy.ledger.kind, ~gate.kept
    shares = [("kept gate", "all", gate.kept, np.ones_like(noise)), ("kept gate", "clean", gate.kept, ~noise)]
    tables = []
    if noise.any():
        found = detection(gate.evidence, noisy).rename(columns={"kind": "category"})
        tables.append(found.assign(metric=found.metric + " evidence"))
        for kind in dict.fromkeys(found.category):
            among = np.ones_like(noise) if kind == "all" else ~noise | (kinds == kind)
            shares.append(("precision gate", kind, noise, among & dropped))
            shares.append(("recall gate", kind, dropped, among & noise))
    rows = []
    for metric, category, share, among in shares:
        row = {"metric": metric, "category": category, "value": np.nan, "low": np.nan, "high": np.nan}
        if among.any():
            interval = bootstrap_interval(share[among])
            row |= {"value": interval.value, "low": interval.low, "high": interval.high}
        rows.append(row | {"n": int(among.sum()), "n_noisy": int((noise & among).sum())})
    return pd.concat([pd.DataFrame(rows), *tables], ignore_index=True)
