"""A study joined with the committed record: runs of one's own in the place of the same, or beside the others."""

from __future__ import annotations

import pandas as pd

from cirkit.data.annotations import DataError
from cirkit.records import KEYS, up_to_date

_FOUND = ["seed", "difference", "low", "high", "n", "sd", "seeds"]  # of a paired difference; the rest says of what


def joined_runs(own: pd.DataFrame, committed: pd.DataFrame) -> pd.DataFrame:
    """Tidy metrics of both; a setting and seed that both have is taken from ``own``.

    Raises:
        DataError: the committed table is of a version with other columns.
    """
    committed = up_to_date(committed)
    if lacking := sorted(set(own) - set(committed)):
        raise DataError(f"the committed record is of an older version (no {', '.join(lacking)}); nothing is joined.")
    run = [*KEYS, "noise_seed", "seed"]
    again = pd.MultiIndex.from_frame(committed[run]).isin(pd.MultiIndex.from_frame(own[run]))
    return pd.concat([committed[~again], own], ignore_index=True)


def joined_pairs(own: pd.DataFrame, committed: pd.DataFrame) -> pd.DataFrame:
    """Paired differences of both, sorted: a seed from ``own`` where that has it, a mean from where most seeds are."""
    both = pd.concat([own, committed.astype({"seed": str})], ignore_index=True)
    setting = [name for name in both if name not in _FOUND]
    both["most"] = -both.seeds.fillna("").str.split().str.len()
    both = both.sort_values([*setting, "seed", "most"], kind="stable").drop_duplicates([*setting, "seed"])
    return both.drop(columns="most").reset_index(drop=True)
