"""The kinds of noise, one function each: it gets a `Request` and yields `Edit`s. `noise.corrupt` does the rest.

A kind corrupts `request.count` of the rows in `request.free`, draws from `request.rng` alone, and uses only
images and words that are in the triplets, so that one feature store serves every rate.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cirkit.clauses import clauses, replace_clause
from cirkit.data.triplets import TripletSet
from cirkit.derangement import derangement
from cirkit.ledger import COLUMN, SLOTS, comparable

Similarity = Callable[[Sequence[str], Sequence[str]], np.ndarray]

_OPPOSITE = {"reference": "target", "text": "text", "target": "reference"}
# References in one call of the similarity, and scores in one answer: 32 MB of float32.
_CHUNK_ROWS, _CHUNK_SCORES = 512, 2**23


class Edit(NamedTuple):
    """New values for one slot: `values[j]` goes to row `rows[j]`; `kind` where it is not the one asked for."""

    slot: str
    rows: Sequence[int]
    values: Sequence[Any]
    kind: str | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """What a kind of noise gets to work with: `count` of the `free` rows are to be corrupted."""

    triplets: TripletSet
    free: tuple[int, ...]
    count: int
    rng: random.Random
    kind: str
    order: str
    slot: str | None
    within_category: bool
    similarity: Similarity | None


def _pools(request: Request, rows: Iterable[int]) -> list[list[int]]:
    """`rows` as one list, or, within categories, as one list a category in the order of their names."""
    pools: dict[str, list[int]] = {}
    for row in rows:
        category = request.triplets.categories[row] if request.within_category else ""
        pools.setdefault(category, []).append(row)
    return [pools[category] for category in sorted(pools)]


def _thirds(request: Request) -> Iterable[tuple[str, list[int]]]:
    """Draw the rows and cut them into (slot, rows among which the values of that slot may be exchanged)."""
    rows = request.rng.sample(request.free, request.count)
    cuts = (0, request.count // 3, 2 * request.count // 3, request.count)
    for slot, start, stop in zip(SLOTS, cuts, cuts[1:], strict=False):
        for pool in _pools(request, rows[start:stop]):
            yield slot, pool


def _shuffle(request: Request) -> Iterable[Edit]:
    for slot, rows in _thirds(request):
        source = list(rows)
        request.rng.shuffle(source)
        if request.order == "conesep":
            source.reverse()
        column = getattr(request.triplets, COLUMN[slot])
        yield Edit(slot, rows, [column[row] for row in source])


def _derange(request: Request) -> Iterable[Edit]:
    for slot, rows in _thirds(request):
        yield _exchange(request, slot, rows)


def _exchange(request: Request, slot: str, rows: list[int]) -> Edit:
    """Exchange the values of `slot` among `rows` so that each changes, and no reference becomes its target."""
    own, opposite = comparable(request.triplets, slot), comparable(request.triplets, _OPPOSITE[slot])
    code: dict[Any, int] = {}
    values = np.array([code.setdefault(own[row], len(code)) for row in rows])
    forbidden = np.stack([values, [code.get(opposite[row], -1) for row in rows]], axis=1)
    source = derangement(values, forbidden, request.rng)
    if source is None:
        category = request.triplets.categories[rows[0]]
        scope = f" of category {category!r}" if request.within_category else ""
        instead = ", kind 'shuffle'" if request.kind == "derange" else ""
        raise ValueError(
            f"{request.kind} cannot give each of {len(rows)} selected rows{scope} a different {slot} by exchange"
            f" ({len(code)} distinct among them); use another rate{instead}."
        )
    column = getattr(request.triplets, COLUMN[slot])
    return Edit(slot, rows, [column[rows[j]] for j in source])


def _hard(request: Request) -> Iterable[Edit]:
    if not callable(request.similarity):
        raise ValueError(
            "noise kind 'hard' needs similarity, a function (references, candidates) -> scores [R, C] of images,"
            f" got {request.similarity!r}."
        )
    yield from (_hard_text if request.slot == "text" else _hard_target)(request)


def _hard_target(request: Request) -> Iterable[Edit]:
    triplets = request.triplets
    by_category: dict[str, list[int]] = {}
    for row in request.rng.sample(request.free, request.count):
        by_category.setdefault(triplets.categories[row], []).append(row)
    used = {*triplets.references, *triplets.targets}
    for category, rows in sorted(by_category.items()):
        candidates = sorted(used.intersection(triplets.galleries[category]))
        yield Edit("target", rows, _look_alikes(request, rows, candidates))


def _hard_text(request: Request) -> Iterable[Edit]:
    columns = request.triplets.references, request.triplets.targets
    alike = np.empty(len(request.free))
    for start in range(0, len(alike), _CHUNK_ROWS):
        rows = request.free[start : start + _CHUNK_ROWS]
        pairs = [[column[row] for row in rows] for column in columns]
        alike[start : start + len(rows)] = np.diagonal(_scores(request.similarity, *pairs))
    chosen = np.argsort(-alike, kind="stable")[: request.count].tolist()
    for rows in _pools(request, (request.free[j] for j in chosen)):
        yield _exchange(request, "text", rows)


def _look_alikes(request: Request, rows: Sequence[int], candidates: Sequence[str]) -> list[str]:
    """Per row the candidate most like its reference, its own images left out; the first of equal ones."""
    references, targets = request.triplets.references, request.triplets.targets
    place = {image: j for j, image in enumerate(candidates)}
    if len(place) < 3 and any(place.keys() <= {references[row], targets[row]} for row in rows):
        category = request.triplets.categories[rows[0]]
        raise ValueError(f"hard finds no image of category {category!r} but a triplet's own to make its target.")
    found: list[str] = []
    size = max(1, min(_CHUNK_ROWS, _CHUNK_SCORES // max(1, len(candidates))))
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        own = [[column[row] for row in chunk] for column in (references, targets)]
        scores = _scores(request.similarity, own[0], candidates)
        for images in own:
            columns = np.array([place.get(image, -1) for image in images])
            inside = np.flatnonzero(columns >= 0)
            scores[inside, columns[inside]] = -np.inf
        found += [candidates[j] for j in scores.argmax(axis=1).tolist()]
    return found


def _scores(similarity: Similarity, references: Sequence[str], candidates: Sequence[str]) -> np.ndarray:
    """A copy of similarity(references, candidates), float [R, C]; ValueError if it is anything else."""
    scores = np.array(similarity(references, candidates))
    wanted = (len(references), len(candidates))
    if scores.shape != wanted:
        raise ValueError(f"similarity gave shape {scores.shape} for {wanted[0]} references and {wanted[1]} candidates.")
    scores = scores.astype(np.result_type(scores, np.float32), copy=False)
    bad = scores.size - np.count_nonzero(np.isfinite(scores))
    if bad:
        raise ValueError(f"{bad} of {scores.size} similarities are NaN or infinite (first reference {references[0]}).")
    return scores


def _partial(request: Request) -> Iterable[Edit]:
    triplets = request.triplets
    of_row = [clauses(captions, triplets.caption_mode) for captions in triplets.captions]
    eligible = [row for row in request.free if len(of_row[row]) > 1]
    if len(eligible) < request.count:
        raise ValueError(
            f"partial asks for {request.count} untouched triplets whose text has several clauses, but only"
            f" {len(eligible)} of {len(triplets)} are such."
        )
    chosen = request.rng.sample(eligible, request.count)
    donors: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for row, found in enumerate(of_row):
        pool = donors.setdefault(triplets.categories[row] if request.within_category else "", [])
        pool += [(triplets.captions[row][c.caption][c.start : c.end], c.parts) for c in found]
    for pool in donors.values():
        request.rng.shuffle(pool)
    values = []
    for row in chosen:
        own = frozenset().union(*(clause.parts for clause in of_row[row]))
        pool = donors[triplets.categories[row] if request.within_category else ""]
        start = request.rng.randrange(len(pool))
        walk = (pool[(start + step) % len(pool)] for step in range(len(pool)))
        words = next((words for words, parts in walk if own.isdisjoint(parts)), None)
        if words is None:
            raise ValueError(f"partial finds no clause that differs from all of the text {triplets.texts[row]!r}.")
        values.append(replace_clause(triplets.captions[row], request.rng.choice(of_row[row]), words))
    yield Edit("text", chosen, values)


def _mixed(request: Request) -> Iterable[Edit]:
    third = request.count // 3
    # partial first, as it alone cannot take every row
    for kind, count in (("partial", third), ("hard", third), ("shuffle", request.count - 2 * third)):
        part = dataclasses.replace(request, kind=kind, count=count)
        edits = [edit._replace(kind=kind) for edit in KINDS[kind](part)] if count else []
        taken = {row for edit in edits for row in edit.rows}
        request = dataclasses.replace(request, free=tuple(row for row in request.free if row not in taken))
        yield from edits


KINDS: dict[str, Callable[[Request], Iterable[Edit]]] = {
    "shuffle": _shuffle,
    "derange": _derange,
    "hard": _hard,
    "partial": _partial,
    "mixed": _mixed,
}
# Kinds whose caller may choose the slot; the first is the default.
SLOT_CHOICES: dict[str, tuple[str, ...]] = {"hard": ("target", "text")}
