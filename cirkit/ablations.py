"""What is left out, one thing at a time: rows of the three methods' ablations, and curves over their numbers.

Each row is one set of run parameters with a label. ConeSep is taken apart from what its released code computes, in
which all of its parts are at work; `conesep-paper` collapses here before anything is left out, and `conesep-adapted`
has left out most of it already (for its changes, see the table ``changes`` of :mod:`cirkit.search`).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cirkit.bootstrap import paired_bootstrap
from cirkit.paths import results_dir
from cirkit.tables import query_hits

RATES, SEEDS = (0.2, 0.5), (0, 1)


class Row(NamedTuple):
    """``published``: the paper's own row, by its name in :mod:`cirkit.published`."""

    method: str
    label: str
    options: dict
    published: str = ""


RELEASED = {"start": "released"}
# the paper's rows, then rows of our own
CONESEP = (
    Row("conesep-adapted", "full", RELEASED, "ConeSep (full)"),
    Row("conesep-adapted", "w/o fidelity", RELEASED | {"split": "boundary"}, "ConeSep w/o Fidelity"),
    Row("conesep-adapted", "w/o boundary", RELEASED | {"boundary_from": "zero"}, "ConeSep w/o boundary"),
    Row("conesep-adapted", "w/o negative prompt", RELEASED | {"anchor_prompts": "shared"}, "ConeSep w/o neg-prompt"),
    Row("conesep-adapted", "w/o target-oriented", RELEASED | {"nu": 0.0}, "ConeSep w/o neg-tar"),
    Row("conesep-adapted", "w/o unlearning", RELEASED | {"kappa": 0.0}, "ConeSep w/o Unlearn"),
    Row("conesep-adapted", "w/o rank: none at all", RELEASED | {"rank_loss": "none"}, "ConeSep w/o rank"),
    Row("conesep-adapted", "w/o rank: InfoNCE for it", RELEASED | {"rank_loss": "infonce"}, "ConeSep w/o rank"),
    Row("conesep-adapted", "ours: w/o query-oriented", RELEASED | {"zeta": 0.0}),
    Row("conesep-adapted", "ours: w/o anchors", RELEASED | {"zeta": 0.0, "nu": 0.0, "kappa": 0.0}),
    Row("conesep-adapted", "ours: monotone fidelity", RELEASED | {"fidelity": "monotone"}),
    Row("conesep-adapted", "ours: the paper's mask", RELEASED | {"mask": "own_anchor"}),
    Row("conesep-adapted", "ours: text not negated", RELEASED | {"negate_text": False}),
)
QURE = (
    Row("qure", "two drops", {}),
    Row("qure", "one drop", {"variant": "adapted", "zone": "one_drop"}),
    Row("qure", "top 50 below the target", {"variant": "adapted", "zone": "top_k"}),
    Row("qure", "random", {"variant": "adapted", "zone": "random"}),
    # in 8 epochs, n_def 6 defines before each epoch but the first
    Row("qure", "n_def 4: defined three times", {"definitions": 4}),
    Row("qure", "n_def 2: defined once", {"definitions": 2}),
    Row("qure", "n_def 1: never defined", {"definitions": 1}),
)
DQE = (
    Row("dqe", "full", {}),
    Row("dqe", "weights off", {"weights": "off"}),
    Row("dqe", "w/o auxiliary losses", {"lambda_attribute": 0.0}),
    Row("dqe", "w/o ranking term", {"lambda_rank": 0.0}),
    Row("dqe", "four negatives", {"count": 4}),
    Row("dqe", "whole corpus", {"negatives": "corpus"}),
    Row("dqe", "zone [.35, .65]", {"alpha": 0.35, "beta": 0.65}),
    Row("dqe", "zone [.05, .95]", {"alpha": 0.05, "beta": 0.95}),
)
# numbers of ConeSep and the values beside its own; warmup is the paper's N, draws its K (0: as many as the batch)
CURVES = {
    "omega": (0.1, 0.3, 0.7, 0.9),
    "kappa": (0.1, 0.25, 1.0, 2.0),
    "zeta": (0.1, 0.4, 1.6),
    "nu": (0.1, 0.25, 1.0),
    "gamma": (0.0, 0.4, 1.0),
    "draws": (1, 4, 16),
    "warmup": (0, 1, 4),
}


def ablations() -> list[dict]:
    """Run parameters of all rows at both rates; those of one rate and seed stand together."""
    return [
        {"method": row.method, "noise_rate": rate, "seed": seed, "method_options": row.options, "label": row.label}
        for seed in SEEDS
        for rate in RATES
        for row in (*CONESEP, *QURE, *DQE)
    ]


def curves() -> list[dict]:
    """Run parameters of the curves over ConeSep's numbers; the point of the method itself is a row of the ablations."""
    return [
        {"method": "conesep-adapted", "noise_rate": rate, "seed": SEEDS[0], "method_options": RELEASED | {name: value},
         "label": f"{name} {value:g}"}
        for rate in RATES
        for name, values in CURVES.items()
        for value in values
    ]  # fmt: skip


def against_full(found: pd.DataFrame, k: int = 1, runs: Path | None = None) -> pd.DataFrame:
    """What each row loses or wins against its method as it is, on the same queries, noise and seeds.

    Args:
        found: the table ``ablations`` of :mod:`cirkit.search`; the first row of each method is the method as it is.
        k: of R@k.
        runs: folder of the runs, ``<results>/runs`` by default.

    Returns:
        One line for each method, row and noise rate: R@k, its difference to the method as it is, mean over the seeds
        that both have, with a 95 % interval over queries (``low``, ``high``), the standard deviation ``sd`` over seeds
        and their number. Runs whose ranks are not there are left out.
    """
    runs = results_dir() / "runs" if runs is None else runs
    out = []
    for (method, rate), part in found.groupby(["method", "noise_rate"], sort=False):
        hits: dict[tuple[str, int], pd.Series] = {}
        for row in part.itertuples():
            own = query_hits(runs / row.run_id / "ranks_test.csv", k)
            if len(own):
                hits[row.row, row.seed] = own
        full = part.row.iloc[0]
        for label in dict.fromkeys(part.row):
            seeds = [seed for (name, seed) in hits if name == label and (full, seed) in hits]
            if not seeds:
                continue
            ours, theirs = ([hits[name, seed] for seed in seeds] for name in (label, full))
            gaps = [
                (a.groupby(level=0).mean() - b.groupby(level=0).mean()).mean()
                for a, b in zip(ours, theirs, strict=True)
            ]
            interval = paired_bootstrap(np.mean(ours, axis=0), np.mean(theirs, axis=0), ours[0].index)
            out.append({
                "method": method, "row": label, "noise_rate": rate,
                f"R@{k}": float(np.mean([own.groupby(level=0).mean().mean() for own in ours])),
                "difference": interval.value, "low": interval.low, "high": interval.high,
                "sd": float(np.std(gaps, ddof=1)) if len(gaps) > 1 else np.nan, "seeds": len(seeds),
            })  # fmt: skip
    return pd.DataFrame(out)
