"""What is left out, one thing at a time: rows of the three methods' ablations, and curves over their numbers.

Each row is one set of run parameters with a label, in a group whose first row is the method as it is. ConeSep is taken
apart from what its released code computes, in which all of its parts are at work; `conesep-paper` collapses here before
anything is left out, and `conesep-adapted` has left out most of it already (for its changes, see the table ``changes``
of :mod:`cirkit.search`), so that its group holds what it might have in addition.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cirkit.bootstrap import paired_bootstrap
from cirkit.methods import method_class
from cirkit.paths import results_dir
from cirkit.tables import query_hits

RATES, SEEDS = (0.2, 0.5), (0, 1)
LABELS = ("group", "row")  # what a run is called in the tables; no parameters of it


class Row(NamedTuple):
    """``options`` are changes to the group's first row; ``published`` is the paper's own row, by its name in
    :mod:`cirkit.published`."""

    label: str
    options: dict
    published: str = ""


class Group(NamedTuple):
    """Rows of one method. ``base`` are options that all rows have, ``lr`` the learning rate they were chosen for, and
    ``kinds`` the noise they are trained on; kinds other than shuffle at the larger rate alone."""

    method: str
    lr: float
    rows: tuple[Row, ...]
    base: dict = {}
    kinds: tuple[str, ...] = ("shuffle",)


# the paper's rows, then rows of our own
RELEASED = Group(
    "conesep-adapted",
    method_class("conesep-released").lr,
    (
        Row("full", {}, "ConeSep (full)"),
        # the released code would divide by nothing in a batch in which all lie above the boundary
        Row("w/o fidelity", {"split": "boundary", "guards": True}, "ConeSep w/o Fidelity"),
        Row("w/o boundary", {"boundary_from": "zero"}, "ConeSep w/o boundary"),
        Row("w/o negative prompt", {"anchor_prompts": "shared"}, "ConeSep w/o neg-prompt"),
        Row("w/o target-oriented", {"nu": 0.0}, "ConeSep w/o neg-tar"),
        Row("w/o unlearning", {"kappa": 0.0}, "ConeSep w/o Unlearn"),
        Row("w/o rank: none at all", {"rank_loss": "none"}, "ConeSep w/o rank"),
        Row("w/o rank: InfoNCE for it", {"rank_loss": "infonce"}, "ConeSep w/o rank"),
        Row("ours: w/o query-oriented", {"zeta": 0.0}),
        Row("ours: w/o anchors", {"zeta": 0.0, "nu": 0.0, "kappa": 0.0}),
        Row("ours: monotone fidelity", {"fidelity": "monotone"}),
        Row("ours: the paper's mask", {"mask": "own_anchor"}),
        Row("ours: text not negated", {"negate_text": False}),
    ),
    {"start": "released"},
)
ADAPTED = Group(
    "conesep-adapted",
    method_class("conesep-adapted").lr,
    (
        Row("as it is", {}),
        Row("boundary at every step", {"boundary_every": 1}),
        Row("running boundary", {"boundary_from": "running"}),
        Row("learned boundary", {"boundary_from": "learned"}),
        Row("no boundary", {"boundary_from": "zero"}),
        Row("with unlearning", {"kappa": 0.5}),
        Row("with unlearning, some believed in part", {"kappa": 0.5, "partial": 0.2}),
    ),
    kinds=("shuffle", "partial"),
)
QURE = Group(
    "qure",
    method_class("qure").lr,
    (
        Row("two drops", {}),
        Row("one drop", {"variant": "adapted", "zone": "one_drop"}),
        Row("top 50 below the target", {"variant": "adapted", "zone": "top_k"}),
        Row("random", {"variant": "adapted", "zone": "random"}),
        # in 8 epochs, n_def 6 defines before each epoch but the first
        Row("n_def 4: defined three times", {"definitions": 4}),
        Row("n_def 2: defined once", {"definitions": 2}),
        Row("n_def 1: never defined", {"definitions": 1}),
    ),
)
DQE = Group(
    "dqe",
    method_class("dqe").lr,
    (
        Row("full", {}),
        Row("weights off", {"weights": "off"}),
        Row("w/o auxiliary losses", {"lambda_attribute": 0.0}),
        Row("w/o ranking term", {"lambda_rank": 0.0}),
        Row("four negatives", {"count": 4}),
        Row("whole corpus", {"negatives": "corpus"}),
        Row("zone [.35, .65]", {"alpha": 0.35, "beta": 0.65}),
        Row("zone [.05, .95]", {"alpha": 0.05, "beta": 0.95}),
    ),
)
GROUPS = {"conesep, released": RELEASED, "conesep, adapted": ADAPTED, "qure": QURE, "dqe": DQE}
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
    """Run parameters of all rows, with their labels; those of one seed and noise stand together."""
    return [
        _run(group, row, seed, kind, rate)
        for seed in SEEDS
        for rate in reversed(RATES)
        for group, content in GROUPS.items()
        for kind in content.kinds
        if kind == "shuffle" or rate == max(RATES)
        for row in content.rows
    ]


def curves() -> list[dict]:
    """Run parameters of the curves over ConeSep's numbers; the point of the method itself is a row of the ablations."""
    return [
        _run("conesep, released", Row(f"{name} {value:g}", {name: value}), SEEDS[0], "shuffle", rate)
        for rate in reversed(RATES)
        for name, values in CURVES.items()
        for value in values
    ]


def _run(group: str, row: Row, seed: int, kind: str, rate: float) -> dict:
    content = GROUPS[group]
    return {
        "group": group, "row": row.label, "method": content.method, "lr": content.lr, "noise_kind": kind,
        "noise_rate": rate, "seed": seed, "method_options": content.base | row.options,
    }  # fmt: skip


def against_full(found: pd.DataFrame, k: int = 1, runs: Path | None = None) -> pd.DataFrame:
    """What each row loses or wins against its method as it is, on the same queries, noise and seeds.

    Args:
        found: the table ``ablations`` of :mod:`cirkit.search`; the first row of each group is the method as it is.
        k: of R@k.
        runs: folder of the runs, ``<results>/runs`` by default.

    Returns:
        One line for each group, noise and row: R@k, its difference to the method as it is, mean over the seeds
        that both have, with a 95 % interval over queries (``low``, ``high``), the standard deviation ``sd`` over seeds
        and their number. Runs whose ranks are not there are left out.
    """
    runs = results_dir() / "runs" if runs is None else runs
    out = []
    for (group, kind, rate), part in found.groupby(["group", "noise_kind", "noise_rate"], sort=False):
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
                "group": group, "row": label, "noise_kind": kind, "noise_rate": rate,
                f"R@{k}": float(np.mean([own.groupby(level=0).mean().mean() for own in ours])),
                "difference": interval.value, "low": interval.low, "high": interval.high,
                "sd": float(np.std(gaps, ddof=1)) if len(gaps) > 1 else np.nan, "seeds": len(seeds),
            })  # fmt: skip
    return pd.DataFrame(out)
