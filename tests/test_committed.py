"""The committed runs are those that `make committed` makes, and the command hands every line to `make grid`."""

from __future__ import annotations

import itertools
import shlex
import subprocess

import pandas as pd

from cirkit.paths import project_root
from cirkit.records import at_defaults

FOLDER = project_root() / "results" / "reference"
LINES = [line for line in (FOLDER / "grid.txt").read_text().splitlines() if line and not line.startswith("#")]


def runs_of(line: str) -> set[tuple]:
    given = dict(word.split("=", 1) for word in shlex.split(line))
    assert given.keys() <= {"METHODS", "RATES", "KINDS", "SEEDS", "GATE", "DATASET", "LR"}, line
    each = [given["METHODS"].split(), given.get("KINDS", "shuffle").split(), given["RATES"].split()]
    rest = given.get("DATASET", "garments"), given.get("GATE") or "none", float(given.get("LR", 0))
    found = set()
    for method, kind, rate, seed in itertools.product(*each, given["SEEDS"].split()):
        found.add((method, kind if float(rate) else "clean", float(rate), int(seed), *rest))
    return found


def test_every_committed_run_is_in_a_line_and_every_line_was_run():
    table = pd.read_csv(FOLDER / "results.csv", keep_default_na=False)
    runs = table.drop_duplicates(["run_id", "method", "noise_kind", "noise_rate", "seed"])
    runs = runs.assign(own=runs.index.isin(at_defaults(runs).index))
    committed = {
        (
            r.method, r.noise_kind if r.noise_rate else "clean", r.noise_rate, r.seed, r.dataset, r.gate,
            0.0 if r.own else r.lr,
        )
        for r in runs.itertuples()
    }  # fmt: skip
    named = [run for line in LINES for run in runs_of(line)]
    assert len(named) == len(set(named)), "a run stands in two lines"
    assert committed - set(named) == set(), "committed, but in no line of grid.txt"
    assert set(named) - committed == set(), "in grid.txt, but not committed"


def test_make_committed_calls_grid_with_each_line():
    said = subprocess.run(
        ["make", "-n", "committed", "PY=python"], cwd=project_root(), capture_output=True, text=True, check=True
    ).stdout
    for line in LINES:
        assert f"make grid {line}\n" in said
        assert all(f"{name}='" in said for name in (word.split("=")[0] for word in shlex.split(line)))
