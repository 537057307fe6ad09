"""A simulated judge who prefers one of two result sets, as people did for HP-FashionIQ (Kwak et al., ICML 2025).

A pair's sets come from the truth of a built world and never from the model that is judged, so that all models meet the
same pairs. What a model prefers, the set with the higher mean score (`cirkit.retrieval.score_sets`), is then compared
with what the judge prefers by `cirkit.evaluation.preference_table`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from cirkit.data.annotations import DataError
from cirkit.data.triplets import TripletSet
from cirkit.data.truth import preservation, relevance
from cirkit.graded import category_parts

SET_SIZE = 5  # images in a judged set, as in HP-FashionIQ


def draw_pairs(
    truth: pd.DataFrame, triplets: TripletSet, per_query: int = 1, kept: float = 0.75, size: int = SET_SIZE,
    seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Pairs of result sets for a simulated judge, drawn from the world alone: the same pairs for every method.

    A query's pool holds the images of its gallery, without its reference, that keep at least the share `kept` of what
    nobody asked to change; where these are too few for two sets, those that keep as much as the last that is needed.
    Each place of a set first draws one of the grades that the pool holds, all being as likely,
    then an image of that grade: blind draws would hardly ever satisfy what was asked for. No image stands in both sets.

    Args:
        truth: attributes of every image.
        triplets: the split, with targets.
        per_query: pairs of each query.
        size: images in a set.
        seed: with a query's row it fixes its pairs; other queries do not matter.

    Returns:
        One row per pair: query (row in the set), category, set1 and set2 (tuples of ids), grade1, grade2, kept1 and
        kept2, the means over each set of relevance and of preservation.

    Raises:
        DataError: a split without targets, an image without attributes, or a gallery too small for two sets.
    """
    triplets.require_targets()
    rows = []
    for category, members, gallery in category_parts(triplets):
        references, targets = ([column[i] for i in members] for column in (triplets.references, triplets.targets))
        grades = relevance(truth, references, targets, gallery)
        keeps = preservation(truth, references, targets, gallery)
        for at, query in enumerate(members):
            others = np.array([image != references[at] for image in gallery])
            if others.sum() < 2 * size:
                raise DataError(f"{category or triplets.name}: a gallery of {len(gallery)} is too small for two sets.")
            needed = np.sort(keeps[at, others])[-2 * size]
            pool = np.flatnonzero(others & (keeps[at] >= min(kept, needed)))
            rng = np.random.default_rng([seed, query])
            for _ in range(per_query):
                drawn = _by_grade(pool, grades[at], 2 * size, rng).reshape(2, size)
                row = {"query": int(query), "category": category}
                for name, images in zip("12", drawn, strict=True):
                    row[f"set{name}"] = tuple(gallery[i] for i in images)
                    # thirds do not add up exactly; equal sets shall be equal
                    row[f"grade{name}"] = round(float(grades[at, images].mean()), 9)
                    row[f"kept{name}"] = round(float(keeps[at, images].mean()), 9)
                rows.append(row)
    columns = ["query", "category", "set1", "set2", "grade1", "grade2", "kept1", "kept2"]
    return pd.DataFrame(rows, columns=columns).sort_values("query", kind="stable", ignore_index=True)


def judge(pairs: pd.DataFrame, temperature: float = 0.0, seed: int = 0) -> np.ndarray:
    """The set of each pair that a simulated judge prefers: int [n], 1, 2, or 0 for a tie.

    The judge takes the set that satisfies more of what was asked for (grade); of equal ones, the set that keeps more
    of the rest (kept); sets equal in both are a tie, which no temperature decides. With d the difference that decides,
    set 1 minus set 2, a noisy judge prefers set 1 with probability sigmoid(d / temperature) (Bradley & Terry, 1952).

    Args:
        pairs: columns grade1, grade2, kept1, kept2 (`draw_pairs`).
        temperature: 0, no noise, or above, in units of the grade.
        seed: draws the noise.

    Raises:
        ValueError: the temperature is negative, NaN or infinite.
    """
    if not 0 <= temperature < np.inf:
        raise ValueError(f"temperature must be 0 or above and finite, got {temperature!r}.")
    difference = decisive_difference(pairs)
    first = difference > 0
    if temperature > 0:
        with np.errstate(over="ignore"):  # a difference of many temperatures is certain
            first = np.random.default_rng(seed).random(len(pairs)) < 1 / (1 + np.exp(-difference / temperature))
    return np.where(difference == 0, 0, np.where(first, 1, 2))


def decisive_difference(pairs: pd.DataFrame) -> np.ndarray:
    """What decides each pair, set 1 minus set 2: the difference in grade, or, where that is 0, in what is kept; [n]."""
    grade, kept = (np.round((pairs[f"{name}1"] - pairs[f"{name}2"]).to_numpy(), 9) for name in ("grade", "kept"))
    return np.where(grade != 0, grade, kept)


def agreements(score1: Any, score2: Any, preferred: Any) -> np.ndarray:
    """Per pair, 1 where a model scores the preferred set higher, 0 where the other, 0.5 where both the same; [n].

    For paired comparisons of two models (`paired_bootstrap`). Averaged over pairs without a tie this is the two-sided
    agreement of `preference_table`.

    Raises:
        ValueError: shapes differ, NaN or infinite scores, or a preference that is neither 1 nor 2.
    """
    score1, score2, preferred = np.asarray(score1, dtype=float), np.asarray(score2, dtype=float), np.asarray(preferred)
    if not score1.shape == score2.shape == preferred.shape or not np.isin(preferred, (1, 2)).all():
        raise ValueError("need scores [n] of both sets and preferences [n] of 1 or 2; leave ties of the judge out.")
    if bad := int((~np.isfinite(score1 + score2)).sum()):
        raise ValueError(f"{bad} of {len(score1)} pairs have a score that is NaN or infinite.")
    return (1 + np.sign(score1 - score2) * np.where(preferred == 1, 1, -1)) / 2


def _by_grade(pool: np.ndarray, grades: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` distinct images of the pool, in random order; each draws a grade that is left, then an image of it."""
    strata = [list(rng.permutation(pool[grades[pool] == grade])) for grade in np.unique(grades[pool])]
    drawn = []
    for _ in range(count):
        strata = [stratum for stratum in strata if stratum]
        drawn.append(strata[rng.integers(len(strata))].pop())
    # the best grades run out first, and must not all be in the first set
    return rng.permutation(drawn)
