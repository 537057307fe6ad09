"""The truth about injected noise: which triplets were corrupted, how, and what they were before."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cirkit.data.triplets import TripletSet

SLOTS = ("reference", "text", "target")
COLUMN = {"reference": "references", "text": "captions", "target": "targets"}


class Step(NamedTuple):
    """One call of `corrupt`, as recorded in the ledger; `slot` is None for kinds that have no choice of it."""

    kind: str
    rate: float
    seed: int
    within_category: bool
    order: str
    slot: str | None = None


@dataclass(frozen=True, eq=False)
class Ledger:
    """What was corrupted. Only evaluation and oracle methods may read it.

    Attributes:
        kind: [n] str, kind of noise that selected the row, "" where none did.
        slot: [n] str, the component selected: "none", "reference", "text" or "target".
        changed: [n] bool, whether that component differs *by value* from the original. A permutation can hand
            a row its own value or an equal one; such a row was selected and is still a right triplet. Texts
            are compared as the model reads them (`TripletSet.texts`; in mode "random", in any caption order).
        original: the triplets before any corruption.
        noisy: the triplets after it.
        steps: the calls of `corrupt` that led here.
    """

    kind: np.ndarray
    slot: np.ndarray
    changed: np.ndarray
    original: TripletSet
    noisy: TripletSet
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for column in (self.kind, self.slot, self.changed):
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def clean(self) -> np.ndarray:
        """[n] bool, rows whose triplet is right: not selected, or selected and unchanged by value."""
        return ~self.changed

    @property
    def nominal_rate(self) -> float:
        """The rate asked for, summed over the steps."""
        return float(sum(Fraction(str(step.rate)) for step in self.steps))

    @property
    def realised_rate(self) -> float:
        """Share of all rows that are really wrong."""
        return float(self.changed.mean()) if len(self) else 0.0

    def to_frame(self) -> pd.DataFrame:
        """One row per triplet: category, kind, slot, changed, each component as it is and as it was."""
        columns: dict[str, Any] = {"category": self.original.categories}
        columns |= {"kind": self.kind, "slot": self.slot, "changed": self.changed}
        for prefix, triplets in (("", self.noisy), ("original_", self.original)):
            columns[f"{prefix}reference"] = triplets.references
            columns[f"{prefix}text"] = triplets.texts
            columns[f"{prefix}target"] = triplets.targets
        return pd.DataFrame(columns).rename_axis("row")

    def fingerprint(self) -> str:
        """16 hexadecimal digits that depend on every row of the ledger and of both triplet sets."""
        rows = [self.kind.tolist(), self.slot.tolist(), self.changed.tolist()]
        for triplets in (self.original, self.noisy):
            rows += [triplets.references, triplets.captions, triplets.targets]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class NoisyTriplets:
    """Corrupted training triplets, and the ledger of what is wrong with them."""

    triplets: TripletSet
    ledger: Ledger


def comparable(triplets: TripletSet, slot: str) -> tuple:
    """[n] what decides whether two rows hold the same value in `slot`."""
    if slot != "text":
        return getattr(triplets, COLUMN[slot])
    if triplets.caption_mode != "random":
        return triplets.texts
    return tuple(tuple(sorted(filter(None, map(str.strip, row)))) for row in triplets.captions)
