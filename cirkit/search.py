"""The search for learning rates, kept with what it found: the same rates for every method.

``python -m cirkit.search`` trains all candidates on noise rates 0 and 0.5, with a seed that is not reported, and writes
their validation R@1 to <results>/search. (The switches of conesep-adapted were found before, in more tries on the same
split and seed: results/reference/exploration.csv.) Other tables: ``changes``, ConeSep from ``paper`` to ``adapted`` one
change at a time; ``regime``, with and without unlearning on a model that already composes; ``budgets``, longer
trainings of the pair objectives; ``ablations`` and ``curves`` (:mod:`cirkit.ablations`), which choose nothing and are
therefore reported on test, with seeds of the tables. Methods that add a drawn negative to another take the rate of that
one, and ``qure-released`` that of ``qure``. Runs that are there are loaded, so several processes may share the work
(``--part``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from cirkit.ablations import LABELS, ablations, against_full, curves
from cirkit.data.garments import GarmentsRecipe, build_garments
from cirkit.methods import method_class
from cirkit.methods.conesep_config import changes
from cirkit.paths import atomic_path, project_root, results_dir
from cirkit.presets import save_backbone
from cirkit.records import load_metrics
from cirkit.runs import train_or_load

SEED, RATES = 100, (0.0, 0.5)
METHODS = (
    "conesep-released", "conesep-paper", "conesep-adapted", "qure", "dqe", "sprc", "tme", "habit", "intent", "clip4cir",
    "rcl", "infonce",
)  # fmt: skip
LEARNING_RATES = (1e-4, 5e-4, 1e-3, 3e-3)

_POOL = {"draws", "boundary_every", "pool"}
# what these decide does nothing in adapted, where anchors are not used
_ANCHORS = {"target_oriented", "marginals"}


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
    lr = {variant: method_class(f"conesep-{variant}").lr for variant in ("paper", "adapted")}
    apart = changes("paper", "adapted")
    groups = [sorted(_POOL), *([name] for name in apart if name not in _POOL)]
    runs = [{"start": "paper"}, {"start": "adapted"}]
    for group in groups:
        runs.append({"start": "paper"} | {name: apart[name][1] for name in group})
        if not set(group) & _ANCHORS:
            runs.append({"start": "adapted"} | {name: apart[name][0] for name in group})
    return [
        {"method": "conesep-adapted", "noise_rate": 0.5, "lr": lr[options["start"]], "method_options": options}
        for options in runs
    ]


def pretrained_regime() -> list[dict]:
    """The papers' regime in small: a model that already composes, trained on at a small rate, with and without kappa.

    It was trained by InfoNCE on clean triplets of another drawing of the garments world.
    """
    folder = results_dir() / "search" / "tiny-composing"
    if not (folder / "config.json").is_file():
        world = build_garments(recipe=GarmentsRecipe(seed=1))
        run = train_or_load(method="infonce", dataset="fashioniq", data_root=str(world), seed=SEED)
        backbone = run.method.backbone
        backbone.config = dataclasses.replace(backbone.config, name="tiny-composing")
        save_backbone(backbone, folder)
    prompts = {"start": "paper", "anchors_train": "prompts"}
    methods = [
        ("infonce", {}),
        ("rcl", {}),
        ("conesep-paper", {}),
        ("conesep-paper", {"kappa": 0.0}),
        ("conesep-adapted", prompts),
        ("conesep-adapted", prompts | {"kappa": 0.0}),
        ("conesep-released", {}),
        ("conesep-released", {"kappa": 0.0}),
    ]
    return [
        {"method": method, "noise_rate": 0.5, "lr": 1e-4, "backbone": str(folder), "method_options": options}
        for method, options in methods
    ]


def longer_budgets() -> list[dict]:
    """More gradient steps for the pair objectives, which learn from one negative at a time, and for InfoNCE beside."""
    return [
        {"method": method, "noise_rate": 0.0, "epochs": epochs}
        for method in ("infonce", "qure", "dqe")
        for epochs in (8, 16, 32)
    ]


def table(wanted: Iterable[dict], split: str = "choose_on", progress: bool = False) -> pd.DataFrame:
    """R@1 and R@10 of every run, trained where it is not there; one row each.

    Args:
        wanted: run parameters; the labels among them are columns of the table. A run's noise is drawn with its seed
            + 42.
        split: ``choose_on``, validation, or ``report_on``, test.
    """
    rows = []
    for parameters in wanted:
        given = {"seed": SEED} | {name: value for name, value in parameters.items() if name not in LABELS}
        run = train_or_load(progress, **{"noise_seed": given["seed"] + 42} | given)
        rows.append(_row(given | parameters, run.folder, split))
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def _row(parameters: dict, folder: Path, split: str) -> dict:
    record = load_metrics(folder)
    found = {
        m["metric"]: m["value"] for m in record["metrics"] if m["split"] == record[split] and m["category"] == "mean"
    }
    options = json.dumps(parameters.get("method_options", {}), sort_keys=True)
    effective = record["effective"]
    settings = effective["train_config"]
    labels = {name: parameters[name] for name in LABELS if name in parameters}
    return {
        **labels, "method": parameters["method"], "options": options,
        "lr": settings["lr"], "epochs": settings["epochs"],
        **({"noise_kind": parameters["noise_kind"]} if labels else {}), "noise_rate": parameters["noise_rate"],
        "seed": parameters["seed"], "R@1": found["R@1"], "R@10": found["R@10"],
        "run_id": record["run_id"], "code": effective["code"], "commit": record["provenance"]["commit"],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.search", description=__doc__)
    parser.add_argument("table", nargs="?", default="search", choices=TABLES, help="which table to make")
    parser.add_argument("--part", default="0/1", help="I/N: train every N-th run from the I-th on, and write no table")
    parser.add_argument("--reference", action="store_true", help="copy the table to results/reference")
    options = parser.parse_args(arguments)
    first, step = (int(part) for part in options.part.split("/"))
    split = "report_on" if options.table in REPORTED else "choose_on"
    found = table(TABLES[options.table]()[first::step], split)
    if step > 1:
        return
    tables = {options.table: found}
    if options.table == "ablations":
        tables["ablations_paired"] = against_full(found)
    for name, frame in tables.items():
        target = results_dir() / "search" / f"{name}.csv"
        with atomic_path(target) as path:
            frame.to_csv(path, index=False, lineterminator="\n")
        if options.reference:
            shutil.copyfile(target, project_root() / "results" / "reference" / target.name)


TABLES = {
    "search": candidates, "changes": one_change_each, "regime": pretrained_regime, "budgets": longer_budgets,
    "ablations": ablations, "curves": curves,
}  # fmt: skip
REPORTED = ("ablations", "curves")

if __name__ == "__main__":
    main()
