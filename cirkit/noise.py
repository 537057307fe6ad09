"""Noisy triplet correspondence: training triplets corrupted on purpose, with a ledger of what was done.

The protocol of the compared papers draws `floor(rate * N)` training triplets, cuts them into three disjoint
thirds and permutes the references within the first, the texts within the second and the targets within the
third, so that a triplet has at most one wrong component (ConeSep, HABIT, INTENT and TME alike; on CIRR, TME
hands out the shuffled values in another order). No kind of noise brings in new images, so that one feature
store serves every rate.
"""

from __future__ import annotations

import operator
import random
from fractions import Fraction
from numbers import Real

import numpy as np

from cirkit.data.triplets import TripletSet
from cirkit.ledger import COLUMN, SLOTS, Ledger, NoisyTriplets, Step, comparable
from cirkit.noise_kinds import KINDS, SLOT_CHOICES, Edit, Request, Similarity

__all__ = ["KINDS", "ORDERS", "SLOTS", "Edit", "Ledger", "NoisyTriplets", "Request", "Step"]
__all__ += ["corrupt", "selected_count"]

ORDERS = ("conesep", "tme")


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
    similarity: Similarity | None = None,
    within_category: bool = False,
    order: str = "conesep",
    slot: str | None = None,
) -> NoisyTriplets:
    """Corrupt `floor(rate * N)` of N training triplets (`selected_count` states the rounding).

    A pure function: the input stays as it is, no global random state is read or written, and equal arguments
    give equal bytes.

    Args:
        triplets: a training split; or triplets corrupted before, and then only rows that no earlier call
            selected are touched, while `rate` still refers to all N rows.
        rate: share of rows to select, in [0, 1].
        kind: one of `KINDS`.

            - "shuffle", the papers' protocol. Of the m rows drawn, the first floor(m/3) exchange references,
              those up to floor(2m/3) texts (all captions of a row move together), the rest targets; each part
              is permuted, and a row can get its own value back.
            - "derange": the same rows and parts as "shuffle" with that seed, but every selected component
              really changes, by value, and where an image was exchanged the reference is never the target.
            - "hard": reference and target look alike while the text does not hold, see `slot`.
            - "partial": one clause of the text (`cirkit.clauses` says what one is) is replaced by a clause of
              another row's text that has no part in common with it. Only rows whose text has several clauses
              are drawn, so that some of it always still holds.
            - "mixed": a third "partial", a third "hard" with wrong targets, the rest "shuffle", on different rows; the
              ledger says which.
        seed: non-negative seed of Python's `random.Random`; "shuffle" repeats the released code with it.
        similarity: needed by "hard" and "mixed", a function of R reference and C candidate ids that gives finite
            image-to-image scores [R, C], higher for more alike; called with at most 512 references at once. Not
            read by other kinds.
        within_category: exchange values only between rows of one category; the papers exchange across them.
            No effect on "hard" targets, which always come from the row's category.
        order: "conesep" hands out the shuffled values from the end of the list (ConeSep, HABIT and INTENT on
            both data sets, TME on FashionIQ), "tme" from its front (TME on CIRR). Read by "shuffle" alone.
        slot: for "hard". "target" (default): of the rows drawn, the target becomes the image most like the
            reference among the images that occur in the triplets and are in the gallery of the row's
            category, but for the reference and the right target; of equal scores the first id wins.
            "text": nothing is drawn; the untouched rows whose reference and target are most alike (of equal
            scores the first row) exchange their texts, so that each gets a different one, by value.

    Raises:
        ValueError: an argument out of range, a split other than "train", fewer untouched or suitable rows than
            asked for, no exchange exists that changes every selected value, or similarities that are missing,
            of the wrong shape or not finite.
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
    choices = SLOT_CHOICES.get(kind, (None,))
    slot = choices[0] if slot is None else slot
    if slot not in choices:
        known = " or ".join(map(repr, SLOT_CHOICES.get(kind, ()))) or "none to choose"
        raise ValueError(f"unknown slot {slot!r} of noise kind {kind!r}; it has {known}.")
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

    step = Step(kind, float(Fraction(str(rate))), operator.index(seed), bool(within_category), order, slot)
    rng = random.Random(step.seed)
    request = Request(before, free, count, rng, kind, order, slot, step.within_category, similarity)
    columns = {name: list(getattr(before, COLUMN[name])) for name in SLOTS}
    touched: dict[str, list[int]] = {name: [] for name in SLOTS}
    edits = list(KINDS[kind](request)) if count else []
    edited = [row for edit in edits for row in edit.rows]
    if not len(edited) == count == len(set(edited).intersection(free)):
        raise ValueError(f"noise kind {kind!r} must edit {count} different untouched rows, once each.")
    for edit in edits:
        touched[edit.slot] += edit.rows
        for row, value in zip(edit.rows, edit.values, strict=True):
            columns[edit.slot][row], kinds[row], slots[row] = value, edit.kind or kind, edit.slot
    after = before.replace(**{COLUMN[name]: tuple(column) for name, column in columns.items()})
    for name, rows in touched.items():
        old, new = comparable(before, name), comparable(after, name)
        changed[rows] = [old[row] != new[row] for row in rows]

    original = ledger.original if ledger else before
    steps = (*ledger.steps, step) if ledger else (step,)
    kind_column, slot_column = np.array(kinds, dtype=np.str_), np.array(slots, dtype=np.str_)
    return NoisyTriplets(after, Ledger(kind_column, slot_column, changed, original, after, steps))
