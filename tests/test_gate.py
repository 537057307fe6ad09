"""The gate: its label-free rule, training on what it keeps alone, and its place in runs, records and tables."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_snakefile import ROOT, snakemake, stand_in
from test_tables import record
from test_training import CONFIG, Killed, Oracle, Probe, losses, train, world  # noqa: F401

from cirkit import plots
from cirkit.evidence import evidence_scores
from cirkit.gate import FACTOR, Gate, gate_quality, kept_rows, mirrored_null, open_gate
from cirkit.ledger import Ledger, NoisyTriplets
from cirkit.methods import build_method
from cirkit.noise import corrupt
from cirkit.presets import load_backbone, save_backbone
from cirkit.records import load_metrics, tidy
from cirkit.run_parameters import RunParameters
from cirkit.runs import prepare, train_or_load
from cirkit.tables import collect, compare, detection_table, paired
from cirkit.training import CHECKPOINT, epoch_order, fit

matplotlib.use("agg")

# --- the rule -----------------------------------------------------------------------------------------------------


def test_the_null_is_the_mirror_image_of_the_negative_side():
    evidence = np.array([-0.5, 0.3, -0.1, 0.2, -0.2, 0.0, 0.9])
    assert mirrored_null(evidence, 1.0) == 0.2
    assert mirrored_null(evidence) == FACTOR * 0.2
    assert kept_rows(evidence).tolist() == [False, True, False, False, False, False, True]
    # of an even number of negative rows the middle of the two in the middle
    assert mirrored_null(np.array([-0.5, -0.1, 0.4]), 2.0) == pytest.approx(0.6)


def test_without_a_negative_row_there_is_no_null_and_only_0_is_no_evidence():
    assert mirrored_null(np.array([0.0, 0.1, 2.0])) == 0
    assert kept_rows(np.array([0.0, 1e-6, 2.0])).tolist() == [False, True, True]


def test_with_negative_rows_alone_none_is_kept():
    assert not kept_rows(np.array([-0.1, -0.2, -0.3])).any()


def test_rows_at_the_threshold_are_treated_alike_and_do_not_pass():
    evidence = np.array([-0.25, 0.5, 0.5, 0.5, 0.75, 0.75])
    assert kept_rows(evidence, 2.0).tolist() == [False, False, False, False, True, True]


def test_factor_0_keeps_what_speaks_for_itself():
    assert kept_rows(np.array([-0.5, 0.0, 0.001]), 0.0).tolist() == [False, False, True]


def test_of_a_normal_null_one_in_six_passes():
    null = np.random.default_rng(0).normal(0, 3, 100_000)
    assert mirrored_null(null) == pytest.approx(3, rel=0.02)
    assert kept_rows(null).mean() == pytest.approx(0.159, abs=0.005)


# sixteenths are exact in float32, and so are their products with powers of two
_SIXTEENTHS = st.lists(st.integers(-32, 32), min_size=1, max_size=30).map(lambda v: np.array(v, dtype=np.float32) / 16)


@settings(max_examples=60, deadline=None)
@given(_SIXTEENTHS, st.sampled_from([0.25, 8.0]), st.randoms(use_true_random=False))
def test_neither_unit_nor_order_decides(evidence, unit, random):
    kept = kept_rows(evidence)
    assert np.array_equal(kept_rows(unit * evidence), kept)
    order = random.sample(range(len(evidence)), len(evidence))
    assert np.array_equal(kept_rows(evidence[order]), kept[order])
    assert not kept[evidence <= 0].any()
    assert not (kept_rows(evidence, 3.0) & ~kept).any(), "a stricter gate keeps nothing more"


@pytest.mark.parametrize(
    ("evidence", "factor", "message"),
    [
        ([0.1, np.nan, -np.inf], 1.0, "evidence of 2 of 3 rows is NaN or infinite"),
        ([], 1.0, "at least one row"),
        ([[0.1]], 1.0, "at least one row"),
        ([0.1], -1.0, "factor must be 0 or more"),
        ([0.1], np.nan, "factor must be 0 or more"),
    ],
)
def test_what_the_rule_cannot_judge_is_refused(evidence, factor, message):
    with pytest.raises(ValueError, match=message):
        mirrored_null(np.array(evidence), factor)


# --- how well it tells --------------------------------------------------------------------------------------------


def judged(evidence, kind, changed) -> pd.DataFrame:
    """Quality of a gate with this evidence, indexed by metric and category."""
    evidence, changed = np.array(evidence, dtype=np.float32), np.array(changed, dtype=bool)
    ledger = Ledger(np.array(kind), np.array(["target" if k else "none" for k in kind]), changed, None, None, ())
    gate = Gate("text", evidence, mirrored_null(evidence), kept_rows(evidence))
    return gate_quality(gate, NoisyTriplets(None, ledger)).set_index(["metric", "category"])


def test_quality_is_of_the_rows_dropped_and_each_kind_stands_alone():
    # threshold 0.148; dropped: rows 0, 1, 2, 5
    table = judged(
        [-0.1, 0.1, 0.0, 0.2, 0.5, -0.1, 0.4, 0.6],
        ["hard", "hard", "shuffle", "shuffle", "shuffle", "", "", ""],
        [True, True, True, True, False, False, False, False],
    )
    values = {key: round(value, 4) for key, value in table.value.items()}
    assert values["kept gate", "all"] == 0.5 and values["kept gate", "clean"] == 0.75
    assert values["precision gate", "all"] == 0.75 and values["recall gate", "all"] == 0.75
    assert values["precision gate", "hard"] == 0.6667 and values["recall gate", "hard"] == 1
    # the third row of shuffle was selected and got its own value back: it is clean
    assert values["precision gate", "shuffle"] == 0.5 and values["recall gate", "shuffle"] == 0.5
    assert table.loc[("kept gate", "clean"), "n"] == 4 and table.loc[("recall gate", "hard"), "n"] == 2
    # a hard row ties with one of four clean rows at -0.1 and lies above it at 0.1
    assert values["AUROC evidence", "hard"] == pytest.approx((3.5 + 3) / 8, abs=1e-4)
    assert (table.low <= table.value).all() and (table.value <= table.high).all()


def test_of_clean_data_only_what_it_loses_is_told():
    table = judged([-0.1, 0.5, 0.6], ["", "", ""], [False] * 3)
    assert table.index.tolist() == [("kept gate", "all"), ("kept gate", "clean")]
    assert table.value.round(4).tolist() == [0.6667, 0.6667]


def test_where_nothing_is_dropped_precision_does_not_exist():
    table = judged([0.1, 0.5, 0.6], ["hard", "", ""], [True, False, False])
    assert np.isnan(table.loc[("precision gate", "all"), "value"]) and table.loc[("recall gate", "all"), "value"] == 0


# --- training on what it keeps ------------------------------------------------------------------------------------


def test_only_kept_rows_are_seen_in_as_many_steps(world, small_backbone):  # noqa: F811
    triplets, store = world[:2]
    rows = np.arange(3, len(triplets), 4)
    whole, gated = Probe(small_backbone()), Probe(small_backbone())
    fit(whole, triplets, store, CONFIG, progress=False)
    fit(gated, triplets, store, CONFIG, progress=False, rows=rows)
    assert len(gated.batches) == len(whole.batches)
    seen = {int(row) for _, batch in gated.batches for row in batch.rows}
    assert seen == set(rows.tolist())
    assert all(view.rows is None for view in whole.views)
    assert all(view.rows.tolist() == rows.tolist() and view.rows.dtype == torch.int64 for view in gated.views)


def test_all_rows_by_name_train_as_many_times_on_each(world, small_backbone):  # noqa: F811
    rows = np.arange(len(world[0]))
    _, history = train(world, small_backbone, rows=rows)
    assert losses(history) == losses(train(world, small_backbone)[1])


def test_a_methods_own_choice_is_made_among_the_kept_rows(world, small_backbone):  # noqa: F811
    class Chooser(Oracle):
        def training_rows(self, clean):
            return np.flatnonzero(clean)

    n = len(world[0])
    clean, rows = np.arange(n) % 3 > 0, np.arange(0, n, 2)
    method = Chooser(small_backbone())
    fit(method, world[0], world[1], CONFIG, clean=clean, progress=False, rows=rows)
    expected = [row for row in rows.tolist() if clean[row]]
    assert method.views[0].rows.tolist() == expected
    assert {int(row) for _, batch in method.batches for row in batch.rows} <= set(expected)
    with pytest.raises(ValueError, match="would train on 1 of"):
        fit(Chooser(small_backbone()), world[0], world[1], CONFIG, clean=clean, progress=False, rows=np.array([0, 1]))


@pytest.mark.parametrize("rows", [[0, 0, 1], [-1, 2], [0, 10_000], [True, False], [0.0, 1.0], [[0, 1]]])
def test_rows_that_are_none_are_refused(world, small_backbone, rows):  # noqa: F811
    with pytest.raises(ValueError, match="rows must be different row numbers of"):
        train(world, small_backbone, rows=np.array(rows))


def test_a_gated_run_resumes_to_the_same_numbers_and_only_behind_its_own_gate(world, small_backbone, tmp_path):  # noqa: F811
    rows = np.arange(0, len(world[0]), 3)
    whole, expected = train(world, small_backbone, rows=rows)

    def kill(epoch, *_):
        if epoch == 1:
            raise Killed
        return {}

    with pytest.raises(Killed):
        train(world, small_backbone, rows=rows, folder=tmp_path, on_epoch=kill)
    assert (tmp_path / CHECKPOINT).is_file()
    for other in (rows[1:], None):
        with pytest.raises(ValueError, match="belongs to another run: different rows to train on;"):
            train(world, small_backbone, rows=other, folder=tmp_path)
    resumed, history = train(world, small_backbone, rows=rows, folder=tmp_path)
    assert losses(history) == losses(expected)
    for key, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[key]), key


def test_steps_are_counted_from_the_whole_set():
    rows = np.arange(7)
    assert len(epoch_order(40, 5, 0, 0, rows)) == len(epoch_order(40, 5, 0, 0)) == 8


# --- in a run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def parameters(mini_world, small_backbone, tmp_path) -> dict:
    """A run of a second with a gate; see the fixture of test_runs."""
    folder = tmp_path / "backbone"
    save_backbone(small_backbone(), folder)
    return {
        "backbone": str(folder), "dataset": "fashioniq", "data_root": str(mini_world), "noise_rate": 0.5,
        "noise_kind": "hard", "epochs": 2, "batch_size": 32, "progress": False, "device": "cpu", "gate": "text",
    }  # fmt: skip


def test_a_gated_run_trains_on_what_the_pretrained_backbone_keeps_and_records_it(parameters):
    run = train_or_load(**parameters)
    pretrained = load_backbone(parameters["backbone"])
    evidence = evidence_scores(pretrained, run.noisy.triplets, run.store)["text"]
    after = evidence_scores(run.method.backbone, run.noisy.triplets, run.store)["text"]
    assert np.array_equal(run.gate.evidence, evidence) and not np.allclose(evidence, after, atol=1e-3)
    scores = pd.read_csv(run.folder / "scores_train.csv")
    assert np.array_equal(scores.kept, kept_rows(evidence)) and 0 < scores.kept.sum() < len(scores)
    assert np.allclose(scores.evidence, evidence)
    content = load_metrics(run.folder)
    assert content["gate"] == {"kept": scores.kept.sum(), "of": len(scores), "threshold": mirrored_null(evidence)}
    table = tidy([run.folder]).query("split == 'train'").set_index(["metric", "category"])
    dropped, noise = ~scores.kept, run.noisy.ledger.changed
    assert table.loc[("kept gate", "all"), "value"] == pytest.approx(scores.kept.mean())
    assert table.loc[("precision gate", "hard"), "value"] == pytest.approx(noise[dropped].mean())
    assert table.loc[("recall gate", "hard"), "value"] == pytest.approx(dropped[noise].mean())
    assert ("AUROC evidence", "hard") in table.index and ("AUROC similarity", "hard") in table.index
    assert not table.reported.any() and set(table.gate) == {"text"}
    again = prepare(**parameters)
    assert again.done and np.array_equal(again.rows, run.rows)


def test_training_gets_the_kept_rows(parameters, monkeypatch):
    seen = []
    monkeypatch.setattr("cirkit.runs.fit", lambda *given, **_: seen.append(given) or pd.DataFrame({"epoch": [1]}))
    for gate in ("text", ""):
        run = prepare(**parameters | {"gate": gate})
        run.fit(progress=False)
        given = [value for value in seen[-1] if isinstance(value, np.ndarray) and value.dtype == np.int64]
        assert len(given) == bool(gate) and (not gate or np.array_equal(given[0], np.flatnonzero(run.gate.kept)))
    assert run.gate is None and run.rows is None


def test_the_gate_is_in_the_id_and_where_there_is_none_nothing_of_it_is(parameters):
    gated, plain = prepare(**parameters), prepare(**parameters | {"gate": ""})
    assert gated.id.startswith("infonce-gate_text-garments-hard-0.5") and "gate" not in plain.id
    ids = {
        prepare(**parameters | {"gate": gate, "gate_factor": f}).id for gate in ("text", "change") for f in (1.0, 2.0)
    }
    assert len(ids | {gated.id, plain.id}) == 6
    assert prepare(**parameters | {"gate": "", "gate_factor": 3.0}).id == plain.id
    assert not {"gate", "gate_factor"} & set(plain.effective)


def test_the_truth_decides_nothing(world, small_backbone):  # noqa: F811
    """Two ledgers, one of which says nothing is wrong, over the same triplets."""
    noisy = corrupt(world[0], 0.5, "shuffle", 1)
    relabelled = corrupt(noisy.triplets, 0.0)
    one, other = (open_gate("change", small_backbone(), n.triplets, world[1]) for n in (noisy, relabelled))
    assert np.array_equal(one.kept, other.kept) and noisy.ledger.changed.any() and not relabelled.ledger.changed.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": "txt"}, "unknown gate 'txt'; known: text, change, composed, or '' for none"),
        ({"gate_factor": -1.0}, "gate_factor must be 0 or more"),
        ({"gate_factor": float("inf")}, "gate_factor must be 0 or more"),
        ({"gate": 1}, "gate must be str"),
        ({"gate_factor": 1e6}, "the gate 'text' with factor 1e\\+06 keeps 0 of 120 triplets"),
    ],
)
def test_wrong_gates_are_one_sentence_before_training(parameters, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(**parameters | change)


@pytest.mark.parametrize("name", ["rcl", "conesep-adapted", "oracle-infonce"])
def test_methods_train_behind_a_gate(world, small_backbone, name):  # noqa: F811
    clean = np.arange(len(world[0])) % 2 == 0
    rows = np.arange(0, len(world[0]), 3)
    seen = []
    fit(
        build_method(name, small_backbone()), world[0], world[1], CONFIG, clean=clean, progress=False, rows=rows,
        on_epoch=lambda epoch, method, observed: seen.append(np.isfinite(observed["similarity"])) or {},
    )  # fmt: skip
    allowed = np.isin(np.arange(len(clean)), rows)
    assert seen and all((found <= allowed).all() and found.any() for found in seen)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_training_notebook_shows_a_gate(parameters, rate):
    shown, run = [], prepare(**parameters | {"noise_rate": rate})
    cells = json.loads((ROOT / "notebooks" / "07_training.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "gate")
    given = {"plots": plots, "plt": plt, "gate_quality": gate_quality, "Markdown": str, "display": shown.append}
    exec(source, given | {"run": run, "ledger": run.noisy.ledger})
    figure, table = shown
    assert len(figure.axes[0].get_legend().get_texts()) == (2 if rate else 1)
    assert ("recall gate" in set(table.metric)) == bool(rate)


# --- in records and tables ----------------------------------------------------------------------------------------


def add(folder: Path, run_id: str, **cells: float) -> None:
    """More metrics of training rows to a made-up record; ``metric__category`` names a cell, spaces are underscores."""
    (path,) = (folder / "runs").glob(f"{run_id}*.json")
    content = json.loads(path.read_text())
    for name, value in cells.items():
        metric, category = name.split("__")
        content["metrics"].append({"metric": metric.replace("_", " "), "category": category, "value": value, "n": 40,
                                   "n_noisy": 20, "low": 0.1, "high": 0.9, "split": "train"})  # fmt: skip
    path.write_text(json.dumps(content))


def test_a_record_older_than_gates_had_none(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, run_id="old")
    path = tmp_path / "runs" / "old.json"
    content = json.loads(path.read_text())
    assert content["parameters"].pop("gate") == "" and content["parameters"].pop("gate_factor") == FACTOR
    path.write_text(json.dumps(content))
    record(tmp_path, 1, 0.5, 60.0, run_id="new")
    record(tmp_path, 0, 0.5, 70.0, run_id="gated", gate="text")
    record(tmp_path, 0, 0.5, 80.0, run_id="strict", gate="text", gate_factor=2.0)
    record(tmp_path, 1, 0.5, 50.0, run_id="idle", gate="", gate_factor=2.0, method="rcl")
    table = tidy(sorted((tmp_path / "runs").glob("*.json")))
    assert table.groupby("run_id").gate.first().to_dict() == {
        "old": "none", "new": "none", "gated": "text", "strict": "text 2", "idle": "none",
    }  # fmt: skip


def test_a_reference_older_than_gates_is_still_compared(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, run_id="plain")
    record(tmp_path, 0, 0.5, 70.0, run_id="gated", gate="text")
    table = collect(tmp_path)
    old = table[table.gate == "none"].drop(columns="gate")
    difference = compare(table, old)
    assert difference.gate.tolist() == ["none"] and difference.difference.tolist() == [0]


def test_detection_shows_the_gate_where_there_is_one(tmp_path):
    record(tmp_path, 0, 0.5, 50.0, run_id="plain")
    assert not detection_table(collect(tmp_path)).columns.str.contains("gate|evidence").any()
    for seed in (0, 1):
        record(tmp_path, seed, 0.5, 60.0, run_id=f"gated{seed}", gate="text")
        add(tmp_path, f"gated{seed}", kept_gate__all=0.4, kept_gate__clean=0.8, AUROC_evidence__shuffle=0.7 + seed / 10,
            AUROC_evidence__all=0.1, precision_gate__shuffle=0.9, recall_gate__shuffle=0.6)  # fmt: skip
    record(tmp_path, 0, 0.0, 80.0, run_id="clean", gate="text")
    add(tmp_path, "clean", kept_gate__all=0.85, kept_gate__clean=0.85)
    table = detection_table(collect(tmp_path)).set_index(["gate", "noise_rate"])
    row = table.loc[("text", 0.5)]
    assert row["AUROC evidence"] == "0.750 ±0.071" and row["AUROC similarity"] == "0.905 ±0.007"
    assert row["kept gate"] == "0.400 ±0.000" and row["kept clean"] == "0.800 ±0.000" and row["chance"] == "0.500"
    assert row["precision gate"] == "0.900 ±0.000" and row["recall gate"] == "0.600 ±0.000" and row["seeds"] == 2
    clean = table.loc[("text", 0.0)]
    assert clean["kept clean"] == "0.850" and clean["AUROC similarity"] == clean["chance"] == "–"
    assert table.loc[("none", 0.5), "AUROC evidence"] == "–" and table.loc[("none", 0.5), "AUROC similarity"] == "0.900"


def test_gated_runs_are_paired_with_the_baseline_without_a_gate(tmp_path):
    runs = tmp_path / "all"
    for run_id, hits, changes in (
        ("plain", 1, {}), ("gated", 3, {"gate": "text"}), ("other", 2, {"method": "rcl", "gate": "text"}),
    ):  # fmt: skip
        record(tmp_path, 0, 0.5, 50.0, run_id=run_id, **changes)
        (runs / run_id).mkdir(parents=True)
        frame = pd.DataFrame({"category": ["dress"] * 4, "better": [0] * hits + [1] * (4 - hits), "tied": 0})
        frame.to_csv(runs / run_id / "ranks_test.csv", index=False)
    table = paired(collect(tmp_path), runs=runs).query("seed == 'mean'").set_index("method")
    assert table.difference.to_dict() == {"infonce": 50, "rcl": 25} and set(table.gate) == {"text"}


# --- in a batch ---------------------------------------------------------------------------------------------------


def test_a_batch_takes_a_gate_and_names_it(tmp_path):
    folder = stand_in(tmp_path / "study")
    shutil.copy(ROOT / "cirkit" / "evidence.py", folder / "cirkit")
    shutil.copy(ROOT / "notebooks" / "07_training.ipynb", folder / "notebooks")
    listed = snakemake(folder, "grid", "--summary", "--config", "RATES=0.5", "KINDS=hard", "GATE=text")
    found = re.findall(r"results/study/runs/(\S+)\.json", listed.stdout + listed.stderr)
    assert set(found) == {"infonce-tiny-garments-hard-0.5-gate_text-seed0"}, listed.stderr
    wrong = snakemake(folder, "grid", "--dry-run", "--config", "GATE=txt")
    assert "GATE: 'txt' is unknown; choose among text, change, composed." in wrong.stderr


def test_make_knows_the_setting():
    (line,) = re.findall(r"^SETTINGS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    snakefile = (ROOT / "Snakefile").read_text()
    assert "GATE" in line.split() and all(f'"{name}"' in snakefile for name in line.split())


def test_without_a_gate_a_run_has_the_default_factor():
    assert RunParameters().gate == "" and RunParameters().gate_factor == FACTOR == 1.48
