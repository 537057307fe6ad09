"""A study joined with the committed record: runs of one's own in the place of the same, or beside the others."""

from __future__ import annotations

import pandas as pd

from cirkit.records import KEYS, up_to_date

_FOUND = ["seed", "difference", "low", "high", "n", "sd", "seeds"]  # of a paired difference; the rest says of what


def combine(reference: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Two tidy tables as one, with the column ``origin``: a reader's ``own`` rows, and those of the reference where the
    reader has no run of that setting and seed."""
    keys = [*KEYS, "noise_seed", "seed"]
    reference, own = up_to_date(reference), up_to_date(own)
    if not len(own):
        return reference.assign(origin="reference")
    known = pd.MultiIndex.from_frame(own[keys].drop_duplicates())
    rest = reference[~pd.MultiIndex.from_frame(reference[keys]).isin(known)]
    return pd.concat([own.assign(origin="own"), rest.assign(origin="reference")], ignore_index=True)


def joined_pairs(own: pd.DataFrame, committed: pd.DataFrame) -> pd.DataFrame:
    """Paired differences of both, sorted: a seed from ``own`` where that has it, a mean from where most seeds are."""
    both = pd.concat([own, committed.astype({"seed": str})], ignore_index=True)
    setting = [name for name in both if name not in _FOUND]
    both["most"] = -both.seeds.fillna("").str.split().str.len()
    both = both.sort_values([*setting, "seed", "most"], kind="stable").drop_duplicates([*setting, "seed"])
    return both.drop(columns="most").reset_index(drop=True)
