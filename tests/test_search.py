"""The search: the same number of tries for every method, on validation, with a seed that no table reports."""

from __future__ import annotations

import dataclasses
import json
import types
from collections import Counter

import pandas as pd
import pytest

from cirkit import ablations, search
from cirkit.methods import REGISTRY, method_config
from cirkit.methods.conesep_config import changes
from cirkit.runs import RunParameters, train_config


def stand_in(monkeypatch, folder) -> list[dict]:
    """Runs that are not trained; their recall is the number of runs before them."""
    asked = []

    def train_or_load(progress, **parameters):
        RunParameters(**parameters)
        place = folder / str(len(asked))
        place.mkdir()
        cells = [
            {"metric": metric, "value": len(asked), "split": split, "category": category}
            for metric in ("R@1", "R@10")
            for split, category in (("val", "mean"), ("test", "mean"), ("val", "dress"))
        ]
        for cell in cells:
            cell["value"] += 100 * (cell["split"] == "test") + 200 * (cell["category"] == "dress")
        config = {"lr": parameters.get("lr", 1e-3), "epochs": 8}
        record = {
            "run_id": f"run{len(asked)}",
            "metrics": cells,
            "choose_on": "val",
            "report_on": "test",
            "provenance": {"commit": "c"},
            "effective": {"code": "x", "train_config": config},
        }
        (place / "metrics.json").write_text(json.dumps(record))
        asked.append(parameters)
        return types.SimpleNamespace(folder=place)

    monkeypatch.setattr(search, "train_or_load", train_or_load)
    return asked


# they take the rate of the method that they are the released form of
RELEASED_TWINS = {"qure-released", "tme-released", "habit-released", "intent-released"}


def test_every_method_gets_the_same_tries_at_the_same_rates():
    tries = search.candidates()
    assert len(set(Counter(c["method"] for c in tries).values())) == 1
    per_method = {m: {(c["lr"], c["noise_rate"]) for c in tries if c["method"] == m} for m in search.METHODS}
    assert all(found == per_method["infonce"] for found in per_method.values())
    added = {name for name in REGISTRY if "+" in name or name.startswith("oracle")}
    assert set(per_method) == set(REGISTRY) - added - {name for name in REGISTRY if name in RELEASED_TWINS}


def test_one_change_each_goes_through_all_that_differs():
    options = [run["method_options"] for run in search.one_change_each()]
    for start, other in (("paper", 1), ("adapted", 0)):
        single = {name: value for o in options if o["start"] == start for name, value in o.items() if name != "start"}
        assert single == {name: pair[other] for name, pair in changes("paper", "adapted").items() if name in single}
        assert {"start": start} in options
    for chosen in options:
        method_config("conesep-adapted", **chosen)


def test_validation_counts_and_the_seed_is_not_reported(monkeypatch, tmp_path):
    asked = stand_in(monkeypatch, tmp_path)
    found = search.table(search.candidates()[:3])
    assert found["R@1"].tolist() == [0, 1, 2] and (found.seed == 100).all()
    assert all(a["seed"] == 100 and a["noise_seed"] == 142 for a in asked)


@pytest.mark.parametrize("name", ["search", "changes"])
def test_parts_share_the_work_and_the_whole_is_written(monkeypatch, tmp_path, name):
    asked = stand_in(monkeypatch, tmp_path)
    wanted = search.TABLES[name]()
    for part in range(2):
        search.main([name, "--part", f"{part}/2"])
    key = lambda p: json.dumps(p, sort_keys=True)  # noqa: E731
    assert sorted(key({k: a[k] for k in w}) for a, w in zip(asked, wanted[0::2] + wanted[1::2], strict=True)) == sorted(
        map(key, wanted)
    )
    target = search.results_dir() / "search" / f"{name}.csv"
    assert not target.exists()
    search.main([name])
    assert len(pd.read_csv(target)) == len(wanted)


@pytest.mark.parametrize("name", search.REPORTED)
def test_ablations_are_reported_on_test_with_seeds_of_the_tables_and_their_labels(monkeypatch, tmp_path, name):
    asked = stand_in(monkeypatch, tmp_path)
    wanted = search.TABLES[name]()[:3]
    found = search.table(wanted, "report_on")
    assert found["R@1"].tolist() == [100, 101, 102] and found.row.tolist() == [run["row"] for run in wanted]
    assert (found.group == "conesep, released").all() and (found.noise_kind == "shuffle").all()
    assert found.seed.tolist() == [run["seed"] for run in wanted] and (found.seed < 5).all()
    assert all(a["noise_seed"] == a["seed"] + 42 and not set(a) & {"row", "group"} for a in asked)


def test_every_ablation_is_a_setting_of_its_own_that_its_method_takes():
    rows = ablations.ablations()
    assert len({json.dumps(row, sort_keys=True) for row in rows}) == len(rows)
    seen = {}
    for run in [*rows, *ablations.curves()]:
        config = method_config(run["method"], **run["method_options"])
        if (run["seed"], run["noise_rate"], run["noise_kind"]) == (0, 0.5, "shuffle"):
            assert config not in seen.setdefault(run["group"], []), run["row"]
            seen[run["group"]].append(config)
    assert seen.keys() == ablations.GROUPS.keys()


def test_the_group_of_the_released_code_begins_with_the_released_method_at_its_learning_rate():
    first = ablations.ablations()[0]
    config = dataclasses.asdict(method_config("conesep-released"))
    assert dataclasses.asdict(method_config(first["method"], **first["method_options"])) == config | {
        "variant": "adapted"
    }
    rates = {run["lr"] for run in [*ablations.ablations(), *ablations.curves()] if run["group"] == first["group"]}
    assert rates == {train_config(RunParameters(method="conesep-released")).lr}


def test_differences_to_the_full_method_are_those_of_the_same_queries(tmp_path):
    def ranks(run, better):
        (tmp_path / run).mkdir()
        frame = pd.DataFrame({"category": ["a", "a", "a", "b"], "better": better, "tied": 0})
        frame.to_csv(tmp_path / run / "ranks_test.csv", index=False)

    ranks("full0", [0, 0, 1, 0]), ranks("full1", [0, 1, 1, 0])
    ranks("less0", [0, 1, 1, 1]), ranks("less1", [0, 1, 1, 0])
    rows = [("full", 0, "full0"), ("full", 1, "full1"), ("less", 0, "less0"), ("less", 1, "less1"), ("lost", 0, "gone")]
    found = pd.DataFrame(
        [
            {"group": "m", "row": row, "noise_kind": "shuffle", "noise_rate": 0.5, "seed": seed, "run_id": run}
            for row, seed, run in rows
        ]
    )
    full, less = ablations.against_full(found, runs=tmp_path).itertuples()
    assert (full.row, full.difference, full.seeds) == ("full", 0, 2)
    # recall of the two categories: 2/3 and 1, then 1/3 and 1; without it 1/3 and 0, then 1/3 and 1
    by_seed = [100 * ((1 / 3 + 0) / 2 - (2 / 3 + 1) / 2), 0.0]
    assert less.difference == pytest.approx(sum(by_seed) / 2) and less.low <= less.difference <= less.high
    assert less.sd == pytest.approx(abs(by_seed[0]) / 2**0.5) and less.seeds == 2
