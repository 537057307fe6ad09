"""Scores of ranked lists that were read back from a file, by the same tables as those of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.triplets import TripletSet
from cirkit.evaluation import average_precision, precision_table, prediction_hits, recall_table

CUTS = (5, 10, 25, 50)  # of CIRCO's mAP and recall


def ranks_of_lists(triplets: TripletSet, lists: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Ranks from lists that were read back, as `cirkit.retrieval.rank_queries` has them, for the same tables.

    Args:
        triplets: a split with targets and query ids.
        lists: query id -> image ids, best first; a target that is not in its list counts as the last candidate.

    Returns:
        One row per query: query, category, reference, target, better, tied (always 0), candidates, and, where the split
        has several right answers, "AP@5" to "AP@50".

    Raises:
        DataError: a split without targets or query ids, or a query without a list. ValueError: a repeated id.
    """
    triplets.require_targets()
    ranked = lists_in_order("the set of lists", triplets, lists)
    sizes = np.array([len(triplets.galleries[category]) for category in triplets.categories])
    # the reference is a candidate only where it is ranked, and where the gallery holds it
    sizes -= [
        triplets.exclude_reference and reference in triplets.galleries[category]
        for reference, category in zip(triplets.references, triplets.categories, strict=True)
    ]
    found = prediction_hits(ranked, [{target} for target in triplets.targets])
    columns = {
        "query": range(len(triplets)),
        "category": triplets.categories,
        "reference": triplets.references,
        "target": triplets.targets,
        "better": np.where(found.any(axis=1), found.argmax(axis=1), sizes - 1),
        "tied": 0,
        "candidates": sizes,
    }
    if triplets.ground_truths is not None:
        hits = prediction_hits(ranked, triplets.ground_truths)
        counts = [len(images) for images in triplets.ground_truths]
        columns |= {f"AP@{k}": average_precision(hits, counts, k) for k in CUTS}
    return pd.DataFrame(columns)


def circo_table(triplets: TripletSet, ranks: pd.DataFrame, n: int = 1000, seed: int = 0) -> pd.DataFrame:
    """CIRCO's measures in one table: mAP@5 to 50, recall of the one target at the same places, mAP@10 per aspect.

    Args:
        triplets: a split with several right answers and aspects.
        ranks: of `cirkit.retrieval.rank_queries` or `ranks_of_lists`.
        n, seed: as in `bootstrap_interval`.

    Returns:
        metric, aspect ("all", and those that a query carries), value in percent, n, low, high.
    """
    recall = recall_table(ranks, CUTS, n, seed).query("category == 'mean'").assign(aspect="all")
    precision = precision_table(ranks, triplets.aspects, n, seed)
    return pd.concat([precision, recall[precision.columns]], ignore_index=True)


def lists_in_order(path: str | Path, triplets: TripletSet, lists: Mapping[str, Sequence[str]]) -> list[Sequence[str]]:
    """The lists in the order of the split's queries; `path` names them in errors.

    Raises:
        DataError: the split has no query ids, a query has no list, or a list answers no query of the split.
    """
    if triplets.query_ids is None:
        raise DataError(f"{triplets.name} {triplets.split} has no query ids, which a submission file needs.")
    known = set(triplets.query_ids)
    lacking, strange = [q for q in triplets.query_ids if q not in lists], [q for q in lists if q not in known]
    for queries, what in ((lacking, "lacks"), (strange, "answers")):
        if queries:
            where = "" if what == "lacks" else f", which {triplets.name} {triplets.split} does not ask"
            raise DataError(f"{path} {what} {len(queries):,} queries ({first_ids(queries)}){where}.")
    return [lists[query] for query in triplets.query_ids]
