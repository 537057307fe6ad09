"""The search for hyper-parameters, kept with what it found: every method gets the same number of tries.

``python -m cirkit.search`` runs all candidates on noise rates 0 and 0.5, with a seed that is not reported, and writes
their validation R@1 to <results>/search; several processes may share the work. ``--changes`` runs the ConeSep variants
between ``paper`` and ``adapted``, one change at a time. Runs that are there are loaded. ``--reference`` copies the
tables to results/reference.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from cirkit.methods import method_class
from cirkit.methods.conesep_config import changes
from cirkit.paths import atomic_path, project_root, results_dir
from cirkit.records import load_metrics
from cirkit.runs import train_or_load

SEED, RATES = 100, (0.0, 0.5)
METHODS = ("conesep-released", "conesep-paper", "conesep-adapted", "rcl", "infonce")
LEARNING_RATES = (5e-4, 1e-3, 3e-3)


def candidates() -> list[dict]:
    """Run parameters of the search proper."""
    return [
        {"method": method, "lr": lr, "noise_rate": rate}
        for method in METHODS
        for lr in LEARNING_RATES
        for rate in RATES
    ]


def one_change_each() -> list[dict]:
    """ConeSep from ``paper`` with one switch of ``adapted`` each, and ``adapted`` without it, at rate 0.5."""
    lr = {"paper": method_class("conesep-paper").lr, "adapted": method_class("conesep-adapted").lr}
    runs = [{"start": "paper"}, {"start": "adapted"}]
    for name, (paper, adapted) in changes("paper", "adapted").items():
        runs += [{"start": "paper", name: adapted}, {"start": "adapted", name: paper}]
    return [
        {"method": "conesep-adapted", "noise_rate": 0.5, "lr": lr[options["start"]], "method_options": options}
        for options in runs
    ]


def table(wanted: Iterable[dict], progress: bool = False) -> pd.DataFrame:
    """Validation R@1 and R@10 of every run, trained where it is not there; one row each."""
    rows = []
    for parameters in wanted:
        run = train_or_load(progress, **_seeded(parameters))
        rows.append(_row(parameters, run.folder))
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def _seeded(parameters: dict) -> dict:
    return {"seed": SEED, "noise_seed": SEED + 42, **parameters}


def _row(parameters: dict, folder: Path) -> dict:
    record = load_metrics(folder)
    found = {
        m["metric"]: m["value"]
        for m in record["metrics"]
        if m["split"] == record["choose_on"] and m["category"] == "mean"
    }
    options = json.dumps(parameters.get("method_options", {}), sort_keys=True)
    effective = record["effective"]
    return {
        "method": parameters["method"], "options": options, "lr": effective["train_config"]["lr"],
        "noise_rate": parameters["noise_rate"], "seed": SEED, "R@1": found["R@1"], "R@10": found["R@10"],
        "run_id": record["run_id"], "code": effective["code"], "commit": record["provenance"]["commit"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.search", description=__doc__)
    parser.add_argument("--changes", action="store_true", help="paper to adapted, one change at a time")
    parser.add_argument("--part", default="0/1", help="I/N: take every N-th run only, from the I-th on; writes nothing")
    parser.add_argument("--reference", action="store_true", help="copy the table to results/reference")
    options = parser.parse_args(arguments)
    name = "changes.csv" if options.changes else "search.csv"
    wanted = one_change_each() if options.changes else candidates()
    first, step = (int(part) for part in options.part.split("/"))
    found = table(wanted[first::step])
    if step > 1:
        return
    target = results_dir() / "search" / name
    with atomic_path(target) as path:
        found.to_csv(path, index=False, lineterminator="\n")
    if options.reference:
        shutil.copyfile(target, project_root() / "results" / "reference" / name)


if __name__ == "__main__":
    main()
