"""Noisy triplet correspondence: training triplets corrupted on purpose, with a ledger of what was done.

The protocol of the compared papers draws `floor(rate * N)` training triplets, cuts them into three disjoint
thirds and permutes the references within the first, the texts within the second and the targets within the
third, so that a triplet has at most one wrong component (ConeSep, HABIT, INTENT and TME alike; on CIRR, TME
hands out the shuffled values in another order). No kind of noise brings in new images, so that one feature
store serves every rate.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cirkit.data.triplets import TripletSet
from cirkit.derangement import derangement

SLOTS = ("reference", "text", "target")
ORDERS = ("conesep", "tme")

_COLUMN = {"reference": "references", "text": "captions", "target": "targets"}
_OPPOSITE = {"reference": "target", "text": "text", "target": "reference"}


class Step(NamedTuple):
    """One call of `corrupt`, as recorded in the ledger."""

    kind: str
    rate: float
    seed: int
    within_category: bool
    order: str


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


class Edit(NamedTuple):
    """New values for one slot: `values[j]` goes to row `rows[j]`."""

    slot: str
    rows: Sequence[int]
    values: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Request:
    """What a kind of noise gets to work with: `count` of the `free` rows are to be corrupted."""

    triplets: TripletSet
    free: tuple[int, ...]
    count: int
    rng: random.Random
    order: str
    within_category: bool
    similarity: Any


def _values(triplets: TripletSet, slot: str) -> tuple:
    """[n] what decides whether two rows hold the same value in `slot`."""
    if slot != "text":
        return getattr(triplets, _COLUMN[slot])
    if triplets.caption_mode != "random":
        return triplets.texts
    return tuple(tuple(sorted(filter(None, map(str.strip, row)))) for row in triplets.captions)


def _thirds(request: Request) -> Iterable[tuple[str, list[int]]]:
    """Draw the rows and cut them into (slot, rows among which the values of that slot may be exchanged)."""
    rows = request.rng.sample(request.free, request.count)
    cuts = (0, request.count // 3, 2 * request.count // 3, request.count)
    for slot, start, stop in zip(SLOTS, cuts, cuts[1:], strict=False):
        pools: dict[str, list[int]] = {}
        for row in rows[start:stop]:
            category = request.triplets.categories[row] if request.within_category else ""
            pools.setdefault(category, []).append(row)
        for category in sorted(pools):
            yield slot, pools[category]


def _shuffle(request: Request) -> Iterable[Edit]:
    for slot, rows in _thirds(request):
        source = list(rows)
        request.rng.shuffle(source)
        if request.order == "conesep":
            source.reverse()
        column = getattr(request.triplets, _COLUMN[slot])
        yield Edit(slot, rows, [column[row] for row in source])


def _derange(request: Request) -> Iterable[Edit]:
    for slot, rows in _thirds(request):
        own, opposite = _values(request.triplets, slot), _values(request.triplets, _OPPOSITE[slot])
        code: dict[Any, int] = {}
        values = np.array([code.setdefault(own[row], len(code)) for row in rows])
        forbidden = np.stack([values, [code.get(opposite[row], -1) for row in rows]], axis=1)
        source = derangement(values, forbidden, request.rng)
        if source is None:
            category = request.triplets.categories[rows[0]]
            scope = f" of category {category!r}" if request.within_category else ""
            raise ValueError(
                f"derange cannot give each of {len(rows)} selected rows{scope} a different {slot} by exchange"
                f" ({len(code)} distinct among them); use kind 'shuffle' or another rate."
            )
        column = getattr(request.triplets, _COLUMN[slot])
        yield Edit(slot, rows, [column[rows[j]] for j in source])


KINDS: dict[str, Callable[[Request], Iterable[Edit]]] = {"shuffle": _shuffle, "derange": _derange}


def selected_count(rate: float, n: int) -> int:
    """`floor(rate * n)`, with the rate taken as the decimal number it is written as: 0.29 of 100 is 29.

    In binary floating point 0.29 * 100 is 28.999..., which truncates to 28. At the papers' rates (0.2, 0.5,
    0.8) and data set sizes both ways agree.

    Raises:
        ValueError: rate is not a number in [0, 1].
    """
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= rate <= 1:
        raise ValueError(f"the noise rate must be a number in [0, 1], got {rate!r}.")
    return int(Fraction(str(rate)) * n)


def corrupt(
    triplets: TripletSet | NoisyTriplets,
    rate: float,
    kind: str = "shuffle",
    seed: int = 0,
    similarity: Any = None,
    within_category: bool = False,
    order: str = "conesep",
) -> NoisyTriplets:
    """Corrupt `floor(rate * N)` of N training triplets (`selected_count` states the rounding).

    A pure function: the input stays as it is, no global random state is read or written, and equal arguments
    give equal bytes. Of the m rows drawn, the first floor(m/3) get another reference, those up to floor(2m/3)
    another text (all captions of a row move together), the rest another target; a remainder goes to the later
    parts.

    Args:
        triplets: a training split; or triplets corrupted before, and then only rows that no earlier call
            selected are touched, while `rate` still refers to all N rows.
        rate: share of rows to select, in [0, 1].
        kind: "shuffle", the papers' protocol: each part is permuted, and a row can get its own value back;
            "derange": the same rows and parts as "shuffle" with that seed, but every selected component
            really changes, by value, and where an image was exchanged the reference is never the target.
        seed: non-negative seed of Python's `random.Random`; "shuffle" repeats the released code with it.
        similarity: not read by these kinds.
        within_category: exchange values only between rows of one category; the papers exchange across them.
        order: "conesep" hands out the shuffled values from the end of the list (ConeSep, HABIT and INTENT on
            both data sets, TME on FashionIQ), "tme" from its front (TME on CIRR). No effect on "derange".

    Raises:
        ValueError: an argument out of range, a split other than "train", fewer untouched rows than asked for,
            or no exchange exists that changes every selected value.
        DataError: triplets without targets.
    """
    ledger = triplets.ledger if isinstance(triplets, NoisyTriplets) else None
    before = triplets.triplets if isinstance(triplets, NoisyTriplets) else triplets
    n = len(before)
    count = selected_count(rate, n)
    if kind not in KINDS:
        raise ValueError(f"unknown noise kind {kind!r}; known kinds: {', '.join(sorted(KINDS))}.")
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; known orders: {', '.join(ORDERS)}.")
    # random.Random drops the sign of a seed: -1 and 1 would silently be one experiment
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0:
        raise ValueError(f"the noise seed must be a non-negative integer, got {seed!r}.")
    if before.split != "train":
        raise ValueError(f"only the train split is corrupted, not split {before.split!r} of {before.name}.")
    before.require_targets()

    kinds = ledger.kind.tolist() if ledger else [""] * n
    slots = ledger.slot.tolist() if ledger else ["none"] * n
    changed = ledger.changed.copy() if ledger else np.zeros(n, dtype=bool)
    free = tuple(row for row in range(n) if not kinds[row])
    if count > len(free):
        raise ValueError(f"rate {rate} asks for {count} triplets, but only {len(free)} of {n} are untouched.")

    step = Step(kind, float(Fraction(str(rate))), operator.index(seed), bool(within_category), order)
    request = Request(before, free, count, random.Random(step.seed), order, step.within_category, similarity)
    columns = {slot: list(getattr(before, _COLUMN[slot])) for slot in SLOTS}
    touched: dict[str, list[int]] = {slot: [] for slot in SLOTS}
    for edit in KINDS[kind](request):
        touched[edit.slot] += edit.rows
        for row, value in zip(edit.rows, edit.values, strict=True):
            columns[edit.slot][row], kinds[row], slots[row] = value, kind, edit.slot
    after = before.replace(**{_COLUMN[slot]: tuple(column) for slot, column in columns.items()})
    for slot, rows in touched.items():
        old, new = _values(before, slot), _values(after, slot)
        changed[rows] = [old[row] != new[row] for row in rows]

    original = ledger.original if ledger else before
    steps = (*ledger.steps, step) if ledger else (step,)
    kind_column, slot_column = np.array(kinds, dtype=np.str_), np.array(slots, dtype=np.str_)
    return NoisyTriplets(after, Ledger(kind_column, slot_column, changed, original, after, steps))
