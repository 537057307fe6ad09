"""The published results as they are printed, and an audit of them.

``published.csv`` holds every figure with where it was read: the two result pictures of ConeSep's public repository
(github.com/Lee-zixu/ConeSep), and summaries of ConeSep (arXiv 2604.20358), QuRe (arXiv 2507.12416) and DQE-CIR. No
source gives seeds or variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import pandas as pd

from cirkit.data.triplets import TripletSet
from cirkit.evaluation import recall_table
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.retrieval import rank_queries

COLUMNS = ["dataset", "split", "noise", "method", "metric", "value", "source"]
_TEN, _FIFTY = ([f"{category} R@{k}" for category in ("Dress", "Shirt", "Toptee")] for k in (10, 50))
# average -> the cells that it is the mean of, by the data set that prints it
AVERAGES = {
    "FashionIQ": {"Average R@10": _TEN, "Average R@50": _FIFTY, "AVG.": _TEN + _FIFTY},
    "CIRR": {"Avg(R@5,Rsub@1)": ["R@5", "Rsub@1"]},
}
HALVES = ("Average R@10", "Average R@50")  # AVG. is their mean, too
# printed to 0.01: the average and the mean of its cells may each be off by half of that
TOLERANCE = 0.01

# from the released code of each; "unknown" where there is none, or where nobody looked
_PROTOCOLS = [
    # method, FashionIQ: reference, how; CIRR: how the reference is removed
    ("ConeSep", "last", "score set to -1e11", "score set to -1e11"),
    ("HABIT", "last", "score set to -1e11", "score set to -1e11"),
    ("INTENT", "last", "score set to -1e11", "score set to -1e11"),
    ("TME", "kept", "ranked like any image", "distance set to 1e11"),
    ("SPRC", "kept", "ranked like any image", "deleted from the ranking"),
    ("QuRe", "kept", "ranked like any image", "deleted from the ranking"),
    ("CLIP4CIR", "kept", "ranked like any image", "deleted from the ranking"),
    ("DQE-CIR", "unknown", "no released code", "no released code"),
    ("SSN", "unknown", "code not looked at", "code not looked at"),
    ("CALA", "unknown", "code not looked at", "code not looked at"),
]
# (method, metric) as printed -> how it follows from other cells: those of method, minus those of another, relative?
_GAINS = {
    ("ConeSep minus HABIT", "AVG. relative gain (%)"): ("AVG.", "ConeSep", "HABIT", True),
    ("QuRe", "Average R@10 gain over SPRC (points)"): ("Average R@10", "QuRe", "SPRC", False),
    ("QuRe", "R@1 gain over SPRC (points)"): ("R@1", "QuRe", "SPRC", False),
    ("QuRe", "R@5 gain over SPRC (points)"): ("R@5", "QuRe", "SPRC", False),
    ("ConeSep w/o Fidelity", "R@10 drop (points)"): (
        "R@10 (ablation column)", "ConeSep (full)", "ConeSep w/o Fidelity", False,
    ),
    ("ConeSep w/o neg-prompt", "R@K drop (points)"): (
        "R@K (ablation column; K and average not defined)", "ConeSep (full)", "ConeSep w/o neg-prompt", False,
    ),
}  # fmt: skip


def load() -> pd.DataFrame:
    """Every published figure, one row each: :data:`COLUMNS`. Recall in percent; ``noise`` is a rate from 0 to 1."""
    with (files("cirkit") / "published.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)[COLUMNS]


def protocols() -> pd.DataFrame:
    """How each method's released code treats the reference image in the ranking; one row a method.

    ``FashionIQ`` is "kept" (the reference competes with the target), "last" (it cannot win) or "unknown"; the two give
    different recalls. In CIRR all remove it, and how they do so changes no number.
    """
    return pd.DataFrame(_PROTOCOLS, columns=["method", "FashionIQ", "how", "CIRR"]).set_index("method")


def under_both_protocols(
    method: Method, triplets: TripletSet, store: FeatureStore, ks: Sequence[int] = (1, 10)
) -> pd.DataFrame:
    """Recall of one trained model with the reference in the ranking ("kept") and out of it ("last").

    Returns:
        :func:`cirkit.evaluation.recall_table` of both, with the column ``reference``.
    """
    tables = []
    for reference, excluded in (("kept", False), ("last", True)):
        ranks = rank_queries(method, triplets.replace(exclude_reference=excluded), store)
        tables.append(recall_table(ranks, ks).assign(reference=reference))
    return pd.concat(tables, ignore_index=True)


def round_half_up(value: float) -> float:
    """To 0.01, halves up, as one rounds by hand; 1e-6 makes up for binary fractions just below a half."""
    return float(np.floor(value * 100 + 0.5 + 1e-6) / 100)


def audit(table: pd.DataFrame, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Averages that are not the mean of their own printed cells.

    An average is only checked against cells of its own source. For FashionIQ's "AVG." these are the six recalls; its
    remark says whether it fits the two printed averages instead.

    Args:
        table: rows as of :func:`load`.
        tolerance: differences up to this are rounding.

    Returns:
        One row an inconsistent cell: where it stands, ``printed``, ``recomputed``, ``place`` and ``place_recomputed``
        among the methods of that column (1 is best; only this cell changed), ``passed_by``, the methods that are above
        it then and were not before, ``leader`` and ``leader_recomputed``, and ``remark``.
    """
    where = ["dataset", "split", "noise", "source"]
    found = []
    for key, part in table.groupby(where, sort=False):
        place = dict(zip(where, key, strict=True))
        wide = part.pivot_table(index="method", columns="metric", values="value", sort=False)
        for metric, cells in AVERAGES.get(place["dataset"], {}).items():
            if not {metric, *cells} <= set(wide):
                continue
            column = wide[metric].dropna()
            for name, mean in wide.loc[column.index, cells].mean(axis=1, skipna=False).dropna().items():
                if abs(column[name] - mean) > tolerance + 1e-9:
                    found.append(
                        {**place, "method": name, "metric": metric, "printed": column[name]}
                        | _consequences(column, name, round_half_up(mean))
                        | {"remark": _remark(wide.loc[name], metric, cells, tolerance)}
                    )
    names = ["dataset", "noise", "method", "metric", "printed", "recomputed", "place", "place_recomputed", "passed_by"]
    rows = pd.DataFrame(found, columns=[*names, "leader", "leader_recomputed", "remark", "split", "source"])
    return rows.sort_values(["dataset", "noise", "method"], kind="stable", ignore_index=True)


def _consequences(column: pd.Series, name: str, mean: float) -> dict[str, object]:
    after = column.copy()
    after[name] = mean
    above = [set(values.index[values > values[name]]) for values in (column, after)]
    return {
        "recomputed": mean,
        "place": len(above[0]) + 1,
        "place_recomputed": len(above[1]) + 1,
        "passed_by": ", ".join(after.index[after.index.isin(above[1] - above[0])]),
        "leader": column.idxmax(),
        "leader_recomputed": after.idxmax(),
    }


def _remark(row: pd.Series, metric: str, cells: Sequence[str], tolerance: float) -> str:
    """Which of a row's averages fit each other."""
    if not {"AVG.", *HALVES} <= set(row.index) or row[["AVG.", *HALVES]].isna().any():
        return ""
    if metric == "AVG.":
        fits = abs(row["AVG."] - row[list(HALVES)].mean()) <= tolerance + 1e-9
        return "follows the printed averages" if fits else ""
    for what, halves in (
        ("AVG. fits the cells", row[list(HALVES)].drop(metric).tolist() + [row[cells].mean()]),
        ("AVG. follows it", row[list(HALVES)].tolist()),
    ):
        if abs(row["AVG."] - np.mean(halves)) <= tolerance + 1e-9:
            return what
    return ""


def recomputed(table: pd.DataFrame, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """The table with every average that :func:`audit` finds wrong replaced; the column ``corrected`` marks these."""
    keys = ["dataset", "split", "noise", "method", "metric", "source"]
    merged = table.merge(audit(table, tolerance)[[*keys, "recomputed"]], on=keys, how="left")
    corrected = merged["recomputed"].notna()
    value = merged["recomputed"].where(corrected, merged["value"])
    return merged.drop(columns="recomputed").assign(value=value, corrected=corrected)


def leaders(table: pd.DataFrame) -> pd.DataFrame:
    """The best value of each column of a published table and who has it, several where they tie."""
    rows = []
    for key, part in table.groupby(["dataset", "split", "noise", "metric", "source"], sort=False):
        if part.method.nunique() > 1:
            best = part[part.value == part.value.max()]
            rows.append([*key, part.value.max(), ", ".join(dict.fromkeys(best.method))])
    return pd.DataFrame(rows, columns=["dataset", "split", "noise", "metric", "source", "value", "methods"])


def repeated(table: pd.DataFrame) -> pd.DataFrame:
    """Cells that more than one source gives: ``low`` and ``high`` of their values, which should be equal, and sources.

    SPRC differs between ConeSep's table (ViT-g) and QuRe's (ViT-L), since they are different models.
    """
    keys = ["dataset", "split", "noise", "method", "metric"]
    found = table.groupby(keys, sort=False).agg(
        low=("value", "min"), high=("value", "max"), sources=("source", _several), n=("source", "nunique")
    )
    return found[found.n > 1].drop(columns="n").reset_index()


def _several(sources: pd.Series) -> str:
    return "; ".join(dict.fromkeys(sources))


def stated_gains(table: pd.DataFrame, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Gains and drops that the sources state in words, beside what their own cells give.

    Returns:
        dataset, noise, what, ``printed``, ``recomputed``, ``points`` (the same as a difference), ``consistent``.
    """
    rows = []
    for (method, name), (metric, one, other, relative) in _GAINS.items():
        for stated in table[(table.method == method) & (table.metric == name)].itertuples():
            cells = table[(table.dataset == stated.dataset) & (table.noise == stated.noise) & (table.metric == metric)]
            # the source of the statement may leave cells out that another source has
            own = cells[cells.source == stated.source]
            cells = own if {one, other} <= set(own.method) else cells.drop_duplicates(["method"])
            a, b = (cells.loc[cells.method == m, "value"].iloc[0] for m in (one, other))
            value = 100 * (a / b - 1) if relative else a - b
            rows.append({
                "dataset": stated.dataset, "noise": stated.noise, "what": f"{one} minus {other}, {metric}",
                "unit": "relative, %" if relative else "points", "printed": stated.value,
                "recomputed": round_half_up(value), "points": round_half_up(a - b),
                "consistent": abs(value - stated.value) <= tolerance + 1e-9,
            })  # fmt: skip
    return pd.DataFrame(rows)
