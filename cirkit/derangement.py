"""Random permutations in which no position receives a value forbidden to it."""

from __future__ import annotations

import random

import numpy as np


def derangement(values: np.ndarray, forbidden: np.ndarray, rng: random.Random) -> np.ndarray | None:
    """A random permutation that gives no position a value forbidden there.

    A random permutation is drawn, the positions it serves badly are emptied, and each value left over is
    placed along a shortest augmenting path found breadth-first (Berge, "Two theorems in graph theory", 1957).
    As every position forbids only a few values, that is usually one exchange with a randomly chosen position.
    If a value has no such path, no permutation exists. The draw is not exactly uniform.

    Args:
        values: [n] int codes; equal codes are equal values.
        forbidden: [n, f] int codes that position i may not receive.
        rng: the generator to draw from.

    Returns:
        source: [n] int, position i receives `values[source[i]]`; None if no permutation qualifies.
    """
    n = len(values)
    if values.shape != (n,) or forbidden.ndim != 2 or len(forbidden) != n:
        raise ValueError(f"need values [n] and forbidden [n, f], got {values.shape} and {forbidden.shape}.")
    shuffled = list(range(n))
    rng.shuffle(shuffled)
    source = np.array(shuffled, dtype=np.int64)
    misplaced = (forbidden == values[source][:, None]).any(axis=1)
    left_over = source[misplaced]
    source[misplaced] = -1
    for item in left_over:
        if not _place(item, source, values, forbidden, rng):
            return None
    return source


def _place(item: int, source: np.ndarray, values: np.ndarray, forbidden: np.ndarray, rng: random.Random) -> bool:
    """Give `item` a position, moving others on along one augmenting path; writes to `source`."""
    # giver[i] is the position whose item would move to i: -1 while i is unreached, n for the item to place.
    # A value reaches all positions that allow it at once, so one holder of each distinct value is enough.
    n = len(values)
    giver = np.full(n, -1)
    queue, seen = [n], {int(values[item])}
    for current in queue:
        value = values[item if current == n else source[current]]
        reached = np.flatnonzero((giver < 0) & (forbidden != value).all(axis=1))
        if not len(reached):
            continue
        giver[reached] = current
        reached = np.roll(reached, rng.randrange(len(reached)))
        empty = reached[source[reached] < 0]
        if len(empty):
            position = empty[0]
            while giver[position] != n:
                source[position] = source[giver[position]]
                position = giver[position]
            source[position] = item
            return True
        _, first = np.unique(values[source[reached]], return_index=True)
        for position in reached[np.sort(first)].tolist():
            if (held := int(values[source[position]])) not in seen:
                seen.add(held)
                queue.append(position)
    return False
