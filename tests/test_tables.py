"""Tables from records: means over seeds, obtained beside expected, one README block."""

from __future__ import annotations

import json
import shutil

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from cirkit import publish as publishing
from cirkit.data.annotations import DataError
from cirkit.joined import combine
from cirkit.plots import recall_by_rate, recall_panels, save
from cirkit.publish import BEGIN, END, publish, write_index, write_tables
from cirkit.records import tidy, up_to_date
from cirkit.run_parameters import RunParameters
from cirkit.tables import (
    at_a_glance,
    attribute_table,
    collect,
    compare,
    detection_table,
    every_seed,
    paired,
    summarise,
)

matplotlib.use("agg")


def record(folder, seed: int, rate: float, value: float, code: str = "a", run_id: str = "", **changes) -> None:
    """One run's record with made-up numbers: R@1 on val is 1 lower than on test."""
    cells = [
        {
            "metric": "R@1",
            "category": c,
            "value": v,
            "n": 12,
            "low": v - 2,
            "high": v + 2,
            "candidates": 6.0,
            "split": s,
        }
        for s, shift in (("val", -1.0), ("test", 0.0))
        for c, v in (("dress", value + shift + 3), ("mean", value + shift))
    ]
    if rate:
        for metric, quality in (("AUROC similarity", 0.9), ("AP similarity", 0.8)):
            for category in ("all", "shuffle"):
                cells.append({"metric": metric, "category": category, "value": quality + seed / 100, "split": "train",
                              "n": 40, "n_noisy": 20, "low": 0.1, "high": 1.0})  # fmt: skip
    run_id = run_id or f"r{seed}-{rate}"
    config = {"variant": "paper"} | changes.pop("config", {})
    parameters = {**vars(RunParameters()), "noise_rate": rate, "seed": seed} | changes
    content = {
        "run_id": run_id, "parameters": parameters,
        "effective": {"protocols": [{"dataset": "garments", "exclude_reference": False}], "method_config": config,
                      "code": code, "backbone": "tiny", "train_config": {"lr": parameters["lr"]}},
        "noise": {"nominal": rate, "realised": rate - 0.01}, "choose_on": "val", "report_on": "test",
        "comparable": True, "provenance": {"commit": "c0", "dirty": False, "versions": {"torch": "2"}},
        "metrics": cells,
    }  # fmt: skip
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    name = "-".join([run_id, *map(str, changes.values())])
    (folder / "runs" / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    for seed, value in ((0, 80.0), (1, 84.0)):
        record(folder, seed, 0.0, value)
        record(folder, seed, 0.5, value - 30)
    return folder


def test_summary_is_the_mean_over_seeds_of_the_reported_split(study):
    summary = summarise(collect(study)).set_index("noise_rate")
    assert summary.loc[0.0, "R@1"] == "82.0 ±2.8 [80.0, 84.0]" and summary.loc[0.5, "R@1"] == "52.0 ±2.8 [50.0, 54.0]"
    assert summary.loc[0.0, "seeds"] == "0 1" and summary.loc[0.0, "n"] == 12


def test_difference_pairs_the_same_run_of_both_tables(study):
    table = collect(study)
    expected = table.assign(value=table.value + 1.5)
    expected = expected[~((expected.seed == 1) & (expected.noise_rate == 0.5))]
    difference = compare(table, expected)
    assert len(difference) == 3 and (difference.difference + 1.5).abs().max() < 1e-9


def test_a_reference_from_before_an_option_is_still_compared_and_counts_as_known(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, method="qure")
    table = collect(tmp_path)
    older = json.loads(table.options.iloc[0])
    assert older.pop("zone") == "two_drops"
    reference = table.assign(options=json.dumps(older, sort_keys=True), value=table.value + 1)
    assert up_to_date(reference).options.tolist() == table.options.tolist()
    assert len(compare(table, reference)) == len(compare(table, table)) == 1
    assert (combine(reference, table).origin == "own").all()
    changed = reference.assign(options=json.dumps(older | {"zone": "random"}))
    assert len(compare(table, changed)) == 0


def test_study_without_runs_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="no record of a finished run"):
        collect(tmp_path)


def test_tables_are_written_and_mixed_code_is_pointed_out(study, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(publishing, "project_root", lambda: tmp_path)
    write_tables(study)
    assert len(pd.read_csv(study / "results.csv")) == 24
    assert "82.0 ±2.8 [80.0, 84.0]" in (study / "summary.md").read_text()
    assert "different versions of the code" not in capsys.readouterr().out
    record(study, 2, 0.0, 60.0, code="c", method="rcl")
    write_tables(study)
    assert "different versions of the code" not in capsys.readouterr().out  # another method is other code
    record(study, 2, 0.0, 70.0, code="b")
    write_tables(study)
    assert "different versions of the code" in capsys.readouterr().out


def test_at_a_glance_a_method_has_one_row_and_one_more_behind_a_gate(tmp_path):
    for seed, value in ((0, 80.0), (1, 84.0)):
        record(tmp_path, seed, 0.0, value, run_id=f"a{seed}", lr=3e-3)
    record(tmp_path, 0, 0.5, 40.0, run_id="b", noise_kind="hard", lr=3e-3)
    record(tmp_path, 0, 0.5, 70.0, run_id="c", noise_kind="hard", lr=3e-3, gate="text")
    record(tmp_path, 0, 0.5, 10.0, run_id="d", noise_kind="shuffle", lr=1e-4)  # another rate than usual
    record(tmp_path, 0, 0.5, 33.0, run_id="e", noise_kind="shuffle", method="rcl")
    found = at_a_glance(tidy(sorted((tmp_path / "runs").glob("*.json"))), "garments")
    assert found.to_dict("records") == [
        {"method": "infonce", "clean": "82.0 ±2.8 (2)", "shuffle 0.5": "–", "hard 0.5": "40.0"},
        {"method": "rcl", "clean": "–", "shuffle 0.5": "33.0", "hard 0.5": "–"},
        {"method": "infonce, gate text", "clean": "–", "shuffle 0.5": "–", "hard 0.5": "70.0"},
    ]


def test_panels_show_each_method_once_with_hollow_points_behind_a_gate(tmp_path):
    for rate, value in ((0.0, 80.0), (0.5, 40.0)):
        record(tmp_path, 0, rate, value, run_id=f"a{rate}", lr=3e-3)
    record(tmp_path, 0, 0.5, 20.0, run_id="b", noise_kind="hard", lr=3e-3)
    record(tmp_path, 0, 0.5, 70.0, run_id="c", noise_kind="hard", lr=3e-3, gate="text")
    record(tmp_path, 0, 0.5, 33.0, run_id="e", method="rcl")
    figure = recall_panels(collect(tmp_path).query("reported"))
    first, second = [axis for axis in figure.axes if axis.axison]
    assert [axis.get_title() for axis in (first, second)] == ["infonce", "rcl"]
    points = {c.lines[0].get_ydata()[-1]: c.lines[0].get_markerfacecolor() for c in first.containers}
    assert set(points) == {40.0, 20.0, 70.0} and points[70.0] == "white" != points[20.0]
    assert list(second.lines[0].get_ydata()) == [80.0, 40.0]  # InfoNCE, in grey
    assert {t.get_text() for t in figure.legends[0].get_texts()} >= {"shuffle", "hard", "behind a gate"}


def test_publishing_fills_the_readme_block_and_nothing_else(study, monkeypatch, tmp_path):
    monkeypatch.setattr(publishing, "project_root", lambda: tmp_path)
    (tmp_path / "README.md").write_text(f"# head\n{BEGIN}\nold\n{END}\ntail\n")
    (study / "notebooks").mkdir()
    kept = {"00_task.ipynb", "07_training-r0-0.5-seed0.ipynb"}
    for name in kept | {"07_training-r0-0.5-seed1.ipynb", "07_training-gone-seed0.ipynb"}:
        (study / "notebooks" / name).write_text("{}")
    shutil.copy(study / "runs" / "r0-0.5.json", study / "runs" / "r0-0.5-seed0.json")
    for name in ("00_world", "07_history_infonce-garments-clean-s0", "07_history_infonce-garments-clean-s1",
                 "07_history_rcl-garments-clean-s0"):  # fmt: skip
        save(Figure(), name, "see", folder=study / "figures")
    publish(study, write_tables(study))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# head\n") and text.endswith("tail\n") and "old" not in text and "82.0 ±2.8 (2)" in text
    assert {path.name for path in (tmp_path / "results" / "reference" / "notebooks").iterdir()} == kept
    shown = {"00_world", "07_history_infonce-garments-clean-s0", "07_recall_by_rate"}
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == shown
    write_tables(study)
    assert (pd.read_csv(study / "difference.csv").difference == 0).all()


def test_runs_of_other_lengths_are_not_averaged_into_the_tables_at_a_glance(tmp_path):
    for seed in (0, 1):
        record(tmp_path, seed, 0.5, 50.0, run_id=f"long{seed}")
    record(tmp_path, 2, 0.5, 10.0, run_id="short", epochs=1)
    assert at_a_glance(collect(tmp_path), "garments")["shuffle 0.5"].tolist() == ["50.0 ±0.0 (2)"]


def test_publishing_says_in_a_sentence_what_is_wrong(tmp_path, capsys):
    assert publishing.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"cirkit: {tmp_path / 'runs'} holds no record")
    record(tmp_path, 0, 0.5, 50.0, run_id="one")
    record(tmp_path, 0, 0.5, 60.0, run_id="two")
    assert publishing.main([str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(str(tmp_path / "runs" / f"{name}.json") in told for name in ("one", "two")) and told.count("\n") == 1


def test_adding_a_study_keeps_what_it_does_not_have(monkeypatch, tmp_path):
    monkeypatch.setattr(publishing, "project_root", lambda: tmp_path)
    monkeypatch.setattr("cirkit.tables.results_dir", lambda: tmp_path / "results")
    reference = tmp_path / "results" / "reference"
    (tmp_path / "README.md").write_text(f"{BEGIN}\n{END}")

    def run(study, method, seed, hits):
        name = f"{method}-{seed}"
        record(study, seed, 0.5, 100 * hits / 6, run_id=name, method=method, config={"variant": "x"})
        (tmp_path / "results" / "runs" / name).mkdir(parents=True, exist_ok=True)
        for split in ("val", "test"):
            ranks = pd.DataFrame({"category": "dress", "better": [0] * hits + [1] * (6 - hits), "tied": 0})
            ranks.to_csv(tmp_path / "results" / "runs" / name / f"ranks_{split}.csv", index=False)

    first, second = tmp_path / "first", tmp_path / "second"
    for method, hits in (("infonce", 1), ("qure", 3), ("sprc", 5)):
        for seed in (0, 1):
            run(first, method, seed, hits)
    publish(first, write_tables(first))
    (reference / "notebooks").mkdir()
    (reference / "notebooks" / "kept.ipynb").touch()
    shutil.rmtree(tmp_path / "results" / "runs")  # whoever goes on has the committed record alone
    for method, seed, hits in (("infonce", 1, 1), ("qure", 1, 5), ("infonce", 2, 1), ("qure", 2, 5)):
        run(second, method, seed, hits)
    publish(second, write_tables(second, add=True), add=True)
    table = pd.read_csv(reference / "results.csv")
    mean = table[(table.metric == "R@1") & (table.category == "mean") & (table.split == "test")]
    assert mean.groupby(["method", "seed"]).value.apply(lambda v: [round(6 * x / 100) for x in v]).to_dict() == {
        ("infonce", 0): [1], ("infonce", 1): [1], ("infonce", 2): [1], ("qure", 0): [3], ("qure", 1): [5],
        ("qure", 2): [5], ("sprc", 0): [5], ("sprc", 1): [5],
    }  # fmt: skip
    pairs = pd.read_csv(reference / "paired.csv", dtype={"seeds": str}).set_index(["method", "seed"])
    assert {key: round(6 * v / 100) for key, v in pairs.difference.items()} == {
        ("qure", "0"): 2, ("qure", "1"): 4, ("qure", "2"): 4, ("qure", "mean"): 4,
        ("sprc", "0"): 4, ("sprc", "1"): 4, ("sprc", "mean"): 4,
    }  # fmt: skip
    # two seeds are here, as many as were committed: those here count
    assert pairs.seeds.dropna().to_dict() == {("qure", "mean"): "1 2", ("sprc", "mean"): "0 1"}
    assert (reference / "notebooks" / "kept.ipynb").exists() and "5" in (tmp_path / "README.md").read_text()


def test_index_shows_every_figure_with_its_line(tmp_path):
    for name in ("00_a", "02_b"):
        figure = Figure()
        figure.subplots().plot([1, 2])
        save(figure, name, see=f"look at <{name}>", folder=tmp_path)
    write_index(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 2 and "look at &lt;00_a&gt;" in page and 'src="02_b.png"' in page
    assert (tmp_path / "00_a.svg").is_file()


def test_a_clean_run_stands_under_every_kind_it_was_asked_for_and_once(tmp_path):
    for kind in ("shuffle", "hard"):
        record(tmp_path, 0, 0.0, 80.0, run_id="same", noise_kind=kind)
        record(tmp_path, 0, 0.5, 50.0, run_id=f"half-{kind}", noise_kind=kind)
    (tmp_path / "runs" / "again.json").write_text((tmp_path / "runs" / "same-hard.json").read_text())
    table = collect(tmp_path)
    summary = summarise(table)
    assert sorted(zip(summary.noise_kind, summary.noise_rate, strict=True)) == [
        ("hard", 0.0), ("hard", 0.5), ("shuffle", 0.0), ("shuffle", 0.5),
    ]  # fmt: skip
    assert summary.seeds.tolist() == ["0"] * 4
    clean = table[(table.noise_rate == 0) & (table.category == "mean") & table.reported]
    assert len(clean) == 2


@pytest.mark.parametrize(
    "change", [{"lr": 1e-3}, {"batch_size": 64}, {"caption_mode": "first"}, {"config": {"temperature": 0.1}}]
)
def test_settings_that_differ_are_never_averaged(tmp_path, change):
    record(tmp_path, 0, 0.5, 50.0)
    record(tmp_path, 1, 0.5, 90.0, run_id="other", **change)
    summary = summarise(collect(tmp_path))
    assert sorted(summary["R@1"]) == ["50.0 [48.0, 52.0]", "90.0 [88.0, 92.0]"]
    assert set(change) & set(summary.columns) or "changed" in summary.columns
    lines = recall_by_rate(collect(tmp_path).query("reported")).axes[0].containers
    assert len(lines) == 2


def test_two_answers_for_one_seed_are_refused(tmp_path):
    record(tmp_path, 0, 0.5, 50.0)
    record(tmp_path, 0, 0.5, 51.0, run_id="newer")
    with pytest.raises(DataError, match="two records disagree about infonce on garments with shuffle 0.5, seed 0"):
        collect(tmp_path)


def test_every_seed_has_its_column(study):
    wide = every_seed(collect(study)).set_index("noise_rate")
    assert wide.loc[0.5, ["seed 0", "seed 1"]].tolist() == [50.0, 54.0]


def test_detection_table_averages_seeds_and_shows_chance(study):
    row = detection_table(collect(study)).iloc[0]
    assert row["AUROC similarity"] == "0.905 ±0.007" and row["chance"] == "0.500" and row["seeds"] == 2


def test_paired_differences_are_within_seeds(tmp_path):
    runs, rng = tmp_path / "all", np.random.default_rng(0)
    expected = {}
    for seed in (0, 1):
        base = rng.integers(0, 4, size=40)
        for method, shift in (("infonce", 0), ("rcl", seed)):
            run_id = f"{method}{seed}"
            record(tmp_path, seed, 0.5, 50.0, run_id=run_id, method=method, lr=3e-3 if method == "infonce" else 1e-3)
            better = np.maximum(base - shift, 0)
            expected[run_id] = 100 * np.mean(better == 0)
            frame = pd.DataFrame({"query": range(40), "category": "NA", "better": better, "tied": 0})
            (runs / run_id).mkdir(parents=True)
            frame.to_csv(runs / run_id / "ranks_test.csv", index=False)
    table = paired(collect(tmp_path), runs=runs).set_index("seed")
    assert table.loc["0", "difference"] == 0
    assert table.loc["1", "difference"] == pytest.approx(expected["rcl1"] - expected["infonce1"]) != 0
    assert table.loc["mean", "difference"] == pytest.approx(table.loc["1", "difference"] / 2)
    assert table.loc["mean", "low"] < table.loc["mean", "difference"] < table.loc["mean", "high"]
    assert (table.method == "rcl").all() and (table.against == "infonce").all()
    assert paired(collect(tmp_path), runs=tmp_path / "nowhere").empty


def test_a_reference_of_an_older_version_is_not_compared(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(publishing, "project_root", lambda: tmp_path)
    reference = tmp_path / "results" / "reference"
    reference.mkdir(parents=True)
    collect(study).drop(columns=["changed", "options", "lr"]).to_csv(reference / "results.csv", index=False)
    write_tables(study)
    assert "older version (no changed, options, lr)" in capsys.readouterr().out


def test_attributes_have_a_table_of_their_own(tmp_path):
    record(tmp_path, 0, 0.5, 50.0)
    path = next((tmp_path / "runs").iterdir())
    content = json.loads(path.read_text())
    cell = {"metric": "top-1 colour", "category": "all", "value": 71.0, "n": 12, "low": 70.0, "high": 72.0}
    content["metrics"].append(cell | {"split": "test"})
    path.write_text(json.dumps(content))
    assert attribute_table(collect(tmp_path))["top-1 colour"].tolist() == ["71.0 [70.0, 72.0]"]


def test_a_default_that_is_asked_for_by_name_is_the_same_setting(tmp_path):
    """One run may be asked for in two ways; seeds of both are averaged."""
    full = {"variant": "paper", "temperature": 0.07}
    record(tmp_path, 0, 0.5, 50.0, config=full)
    record(tmp_path, 1, 0.5, 60.0, config=full, method_options={"temperature": 0.07})
    table = collect(tmp_path)
    assert table.changed.unique().tolist() == ["none"]
    assert summarise(table)["R@1"].tolist() == ["55.0 ±7.1 [53.0, 57.0]"]


def test_an_option_that_a_record_is_too_old_for_stands_at_its_default(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, config={"variant": "paper"})
    record(tmp_path, 1, 0.5, 60.0, config={"variant": "paper", "temperature": 0.07})
    record(tmp_path, 2, 0.5, 90.0, config={"variant": "paper", "temperature": 0.1})
    assert summarise(collect(tmp_path))["R@1"].tolist() == ["55.0 ±7.1 [53.0, 57.0]", "90.0 [88.0, 92.0]"]


def test_differences_are_written_against_both_baselines(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "project_root", lambda: tmp_path)
    folder, runs = tmp_path / "study", tmp_path / "results" / "runs"
    methods = (
        "infonce",
        "rcl",
        "conesep-adapted",
        "oracle-rcl",
        "infonce+random",
        "infonce+twodrop",
        "conesep-adapted+midzone",
    )
    for method, own in zip(methods, (0, 1, 2, 3, 1, 4, 5), strict=True):
        name = f"{method}-run"
        record(folder, 0, 0.5, 50.0, run_id=name, method=method, config={"variant": "x"})
        for split in ("val", "test"):
            (runs / name).mkdir(parents=True, exist_ok=True)
            better = [0] * (own + 1) + [1] * (5 - own)
            pd.DataFrame({"category": ["dress"] * 6, "better": better, "tied": 0}).to_csv(
                runs / name / f"ranks_{split}.csv", index=False
            )
    monkeypatch.setattr("cirkit.tables.results_dir", lambda: tmp_path / "results")
    publishing.write_tables(folder)
    found = pd.read_csv(folder / "paired.csv").query("seed == 'mean'").set_index(["method", "against"]).difference
    expected = {("rcl", "infonce"): 1, ("conesep-adapted", "infonce"): 2, ("oracle-rcl", "infonce"): 3,
                ("infonce+random", "infonce"): 1, ("infonce+twodrop", "infonce"): 4,
                ("conesep-adapted+midzone", "infonce"): 5, ("conesep-adapted", "rcl"): 1,
                ("conesep-adapted+midzone", "rcl"): 4, ("infonce+twodrop", "infonce+random"): 3,
                ("conesep-adapted+midzone", "conesep-adapted"): 3}  # fmt: skip
    assert {k: round(6 * v / 100) for k, v in found.items()} == expected


def test_accumulated_steps_are_another_setting_and_one_where_a_record_is_older(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, run_id="four", accumulation=4)
    record(tmp_path, 0, 0.5, 60.0, run_id="old")
    path = tmp_path / "runs" / "old.json"
    content = json.loads(path.read_text())
    content["parameters"].pop("accumulation", None)
    path.write_text(json.dumps(content))
    table = tidy(sorted((tmp_path / "runs").glob("*.json")))
    assert table.groupby("run_id").accumulation.first().to_dict() == {"four": 4, "old": 1}
    assert (up_to_date(table.drop(columns="accumulation")).accumulation == 1).all()
