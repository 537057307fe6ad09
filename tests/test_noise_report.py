"""The noise report on one's own table: looks, reasons, what to expect of the flags, and the files."""

from __future__ import annotations

import csv
import dataclasses
import re

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch

from cirkit import __main__ as command
from cirkit.data.annotations import DataError
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.data.table import read_table
from cirkit.data.table_export import write_world_table
from cirkit.evidence import evidence_scores
from cirkit.expectation import injected, precision_table, recall_table
from cirkit.features import build_store
from cirkit.gate import kept_rows
from cirkit.methods import build_method
from cirkit.noise_report import make_report, write_cleaned, write_page, write_report
from cirkit.plots.own_data import contact_sheet, expected_precision, look_panels
from cirkit.presets import load_backbone, save_backbone
from cirkit.retrieval import encode_images, encode_queries
from cirkit.row_reasons import findings, found_counts, model_reasons, table_reasons, unflagged, worst_first
from cirkit.suspicion import Looks, Suspicion, check_reads

matplotlib.use("agg")


@pytest.fixture(scope="module")
def csv_file(mini_world, tmp_path_factory):
    """A table of 40 triplets of the mini world."""
    triplets = load_fashioniq(mini_world, "train").select(range(3, 118, 3)).replace(name="mini")
    return write_world_table(triplets, ImageFolder(mini_world), tmp_path_factory.mktemp("own") / "data", "garments")


@pytest.fixture
def table(csv_file):
    return read_table(csv_file, csv_file.parent / "images", progress=False)


@pytest.fixture
def suspicion(table, small_backbone):
    backbone = small_backbone()
    store = build_store(backbone, table.images, table.image_ids(), progress=False)
    with pytest.warns(UserWarning, match="optimizer steps"):
        return Suspicion(backbone, table, store, epochs=1, batch_size=8, seed=3, progress=False)


def looks(evidence, threshold, alike, similarity, boundary, spread=1.0) -> Looks:
    columns = [np.array(c, dtype=np.float32) for c in (evidence, alike, similarity, boundary)]
    return Looks(columns[0], threshold, *columns[1:], spread)


# --- who may look -----------------------------------------------------------------------------------------------------


def test_the_tiny_backbones_read_their_own_world_alone(table, csv_file, tmp_path):
    tiny, scenes = load_backbone("tiny"), load_backbone("tiny-scenes")
    check_reads(tiny, table)
    with pytest.raises(ValueError, match="'tiny-scenes' does not know .* words"):
        check_reads(scenes, table)
    # the same words and pictures, but nobody says that they are of a world
    mine = tmp_path / "mine.csv"
    mine.write_bytes(csv_file.read_bytes())
    own = read_table(mine, csv_file.parent / "images", progress=False)
    for backbone in (tiny, scenes):
        with pytest.raises(ValueError, match=r"cannot judge .*mine\.csv: take 'small' \(`make small`"):
            check_reads(backbone, own)
    check_reads(load_backbone("tiny-random"), own)
    with pytest.raises(ValueError, match="take 'small'"):
        make_report(own, "tiny", "cpu", progress=False)


def test_a_preset_that_is_not_made_yet_says_how(table, monkeypatch, tmp_path):
    monkeypatch.setenv("CIRKIT_WEIGHTS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="`make small` makes them"):
        make_report(table, progress=False)


def test_small_is_taken_by_its_name_for_ones_own_pictures(csv_file, tmp_path, small_backbone, monkeypatch):
    monkeypatch.setenv("CIRKIT_WEIGHTS", str(tmp_path))
    save_backbone(small_backbone(), tmp_path / "small")
    mine = tmp_path / "mine.csv"
    mine.write_bytes(csv_file.read_bytes())
    report = make_report(read_table(mine, csv_file.parent / "images", progress=False), epochs=0, progress=False)
    assert report.backbone == "small" and len(report.findings) == 39


# --- looks ------------------------------------------------------------------------------------------------------------


def test_the_first_look_is_the_gate_of_the_untrained_model(suspicion, table, small_backbone):
    evidence = evidence_scores(small_backbone(), table.triplets(), suspicion.store, ("text",))["text"]
    np.testing.assert_allclose(suspicion.own.evidence, evidence, atol=1e-6)
    kept = kept_rows(evidence)
    assert 0 < kept.sum() < len(kept)
    assert (suspicion.own.depths["evidence"] > 0).tolist() == (~kept).tolist()


def test_no_row_is_judged_by_a_model_that_saw_it(suspicion, table, small_backbone):
    """Each fold's weights in a fresh model give its similarities, and its texts have no say in these weights."""
    triplets = table.triplets()
    assert sorted(np.bincount(suspicion.folds).tolist()) == [19, 20]
    before = {k: v.clone() for k, v in build_method("infonce", small_backbone()).trained_state().items()}
    after = suspicion.method.trained_state()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    for fold in (0, 1):
        method = build_method("infonce", small_backbone())
        method.load_trained_state(suspicion._states[fold], "test")
        q, t = (
            encode_queries(method, triplets, suspicion.store),
            encode_images(method, triplets.targets, suspicion.store),
        )
        slow = [max(float(token @ q[i]) for token in t[i]) for i in range(len(triplets))]
        mine = suspicion.folds == fold
        np.testing.assert_allclose(suspicion.own.similarity[mine], np.array(slow)[mine], atol=1e-5)
        assert np.abs(suspicion.own.similarity[~mine] - np.array(slow)[~mine]).max() > 1e-3


def test_training_takes_the_other_half_of_what_passes_the_gate(table, small_backbone, monkeypatch):
    backbone, seen = small_backbone(), []
    store = build_store(backbone, table.images, table.image_ids(), progress=False)
    monkeypatch.setattr("cirkit.suspicion.fit", lambda *_, rows, **__: seen.append(rows))
    looking = Suspicion(backbone, table, store, epochs=2, seed=1, progress=False)
    passed = kept_rows(looking.evidence)
    assert [rows.tolist() for rows in seen] == [
        [row for row in range(39) if passed[row] and looking.folds[row] != fold] for fold in (0, 1)
    ]
    assert 0 < sum(map(len, seen)) == passed.sum() < 39
    # a backbone that sees nothing in the texts leaves too few rows, and then the whole half is taken
    monkeypatch.setattr("cirkit.suspicion.evidence_scores", lambda *_: {"text": np.full(39, -1, dtype=np.float32)})
    seen.clear()
    Suspicion(backbone, table, store, epochs=2, seed=1, progress=False)
    assert sorted(np.concatenate(seen)) == list(range(39))


def test_triplets_in_the_place_of_rows_are_judged_by_these_rows_models(suspicion):
    rows = np.array([7, 2, 30])
    again = suspicion.look(suspicion.triplets.select(rows), rows)
    for name in ("evidence", "alike", "similarity", "boundary"):
        np.testing.assert_allclose(getattr(again, name), getattr(suspicion.own, name)[rows], atol=1e-5)
    assert again.spread == suspicion.own.spread > 0


def test_without_training_there_is_one_look(table, small_backbone):
    backbone = small_backbone()
    store = build_store(backbone, table.images, table.image_ids(), progress=False)
    own = Suspicion(backbone, table, store, epochs=0).own
    assert np.isnan(own.similarity).all() and np.isfinite(own.evidence).all()
    found = findings(table, own)
    assert np.isfinite(found.score).all() and set(found.found_by) <= {"", "evidence", "table", "evidence + table"}
    recalls = recall_table(own, {})
    assert recalls.boundary.isna().all() and recalls.both.isna().all()
    with pytest.raises(ValueError, match="epochs must be 0 or more, got -1"):
        Suspicion(backbone, table, store, epochs=-1)


# --- reasons ----------------------------------------------------------------------------------------------------------


def test_what_the_table_says_against_itself(table):
    texts, references, targets = list(table.texts), list(table.references), list(table.targets)
    references[4], texts[4], targets[4] = references[1], f"  {texts[1].upper()} ", targets[1]
    references[6], texts[6] = references[2], texts[2]
    assert targets[6] != targets[2]
    targets[9] = references[9]
    changed = dataclasses.replace(table, references=tuple(references), texts=tuple(texts), targets=tuple(targets))
    reasons = table_reasons(changed)
    assert reasons[4] == ["the same pictures and text as row 3"] and reasons[1] == []
    assert reasons[6] == ["the same reference and text as row 4, with another target"]
    assert reasons[2] == ["the same reference and text as row 8, with another target"]
    assert reasons[9] == ["reference and target are one picture"]
    assert sum(map(bool, reasons)) == 4 + sum(map(bool, table_reasons(table)))


def test_reasons_name_the_look_and_its_numbers():
    seen = looks(
        [-0.5, 0.1, 0.9, 0.2, -0.1], 0.2, [0.99, 0.1, 0.2, 0.3, 0.3], [0.9, 0.9, 0.1, 0.9, 0.5], [0.5] * 5, 0.25
    )
    reasons = model_reasons(seen)
    assert reasons[0] == [
        "the target looks like the reference, and the text fits the reference better (evidence -0.50, needs more than"
        " 0.20)"
    ]
    assert reasons[1] == ["the text hardly speaks for the target (evidence 0.10, needs more than 0.20)"]
    assert reasons[2] == ["reference and text lead elsewhere (similarity 0.10, boundary 0.50)"]
    assert len(reasons[3]) == 1, "at the threshold is not above it"
    assert len(reasons[4]) == 2
    np.testing.assert_allclose(seen.depths["evidence"][:3], [3.5, 0.5, -3.5], rtol=1e-5)
    np.testing.assert_allclose(seen.depths["boundary"][:3], [-1.6, -1.6, 1.6], rtol=1e-5)
    assert seen.depths["evidence"][3] > 0 and seen.depths["boundary"][4] > 0


def test_scores_add_up_and_the_worst_come_first(table):
    n = len(table)
    evidence, similarity = np.full(n, 0.9), np.full(n, 0.9)
    evidence[[3, 8]], similarity[[5, 8]] = 0.0, 0.0
    seen = looks(evidence, 0.2, np.linspace(0, 1, n), similarity, np.full(n, 0.5), 0.25)
    found = findings(table, seen)
    plain = [not reasons for reasons in table_reasons(table)]
    assert all(plain), "the mini table has no trouble of its own"
    np.testing.assert_allclose(found.score[[0, 3, 5, 8]], [-2, 0, 1, 3], atol=1e-6)
    assert found.found_by[[0, 3, 5, 8]].tolist() == ["", "evidence", "boundary", "evidence + boundary"]
    assert worst_first(found).row.tolist() == [10, 7, 5]
    assert found_counts(found).rows.sum() == 3
    assert np.flatnonzero(~unflagged(found, [7])).tolist() == [3, 8]
    assert found.row.tolist() == list(range(2, n + 2))


# --- what to expect ---------------------------------------------------------------------------------------------------


def test_precision_is_the_share_of_right_flags_by_counting():
    """Bayes, against a count: 100 rows, 20 of them wrong, recall 3/4, 10 false alarms."""
    wrong = np.arange(100) < 20
    flags = (np.arange(100) < 15) | (np.arange(100) >= 90)
    own = looks(np.where(flags, -1, 1), 0.5, np.zeros(100), np.ones(100), np.zeros(100))
    noise = looks(np.where(flags, -1, 1)[:20], 0.5, np.zeros(20), np.ones(20), np.zeros(20))
    recalls = recall_table(own, {"shuffle": noise, "hard": "nobody could make it"})
    assert recalls.kind.tolist() == ["own table", "shuffle", "hard"]
    assert recalls["any"].round(4).tolist()[:2] == [0.25, 0.75] and recalls.both.tolist()[:2] == [0, 0]
    assert recalls.note[2] == "nobody could make it" and recalls.n.tolist() == [100, 20, 0]
    table = precision_table(recalls, (0.2, 0.05, 0.4)).set_index(["flags", "kind"])
    assert table.loc[("any", "shuffle"), "20%"] == pytest.approx(wrong[flags].mean()) == pytest.approx(0.6)
    assert table.loc[("any", "shuffle"), "5%"] == pytest.approx(0.15)
    assert np.isnan(table.loc[("any", "shuffle"), "40%"]), "30 wrong flags among 25"
    assert table.loc[("any", "shuffle"), "at most"] == pytest.approx(1 / 3)
    assert table.loc[("both", "shuffle")].isna().all() and ("any", "hard") not in table.index


def test_injected_rows_are_those_that_really_changed(suspicion):
    noise = injected(suspicion, 0.25, seed=5)
    assert set(noise) == {"shuffle", "hard", "partial"}
    assert 0 < len(noise["shuffle"].evidence) <= 9 and len(noise["hard"].evidence) == 9
    assert injected(suspicion, 0.25, seed=5)["hard"].similarity.tolist() == noise["hard"].similarity.tolist()
    # a hard row's target is a look-alike of its reference
    assert np.median(noise["hard"].alike) > np.median(suspicion.own.alike)


def test_a_kind_that_cannot_be_made_says_why(suspicion):
    suspicion.triplets = suspicion.triplets.replace(captions=(("is red",),) * len(suspicion.triplets))
    noise = injected(suspicion, 0.25, kinds=("partial",))
    assert "whose text has several clauses" in noise["partial"]
    recalls = recall_table(suspicion.own, noise)
    assert "several clauses" in recalls.note[1] and not len(precision_table(recalls))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(table):
    with pytest.warns(UserWarning, match="optimizer steps"):
        return make_report(table, "tiny", "cpu", epochs=1, batch_size=8, progress=False)


def test_the_files_hold_every_row_and_leave_the_input_alone(report, table, csv_file, tmp_path):
    before = csv_file.read_bytes()
    page, cleaned = write_report(report, tmp_path / "out")
    assert csv_file.read_bytes() == before
    with cleaned.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.DictReader(file))
    assert cleaned.read_bytes().startswith(b"\xef\xbb\xbf")
    assert [line["text"] for line in lines] == list(table.columns["text"]) and len(lines) == 39
    assert list(lines[0]) == ["reference", "text", "target", "category", "score", "flag", "reason"]
    assert [line["flag"] == "yes" for line in lines] == report.findings.flag.tolist()
    assert all(bool(line["reason"]) == (line["flag"] == "yes") for line in lines)
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") == 2 * report.findings.flag.sum() > 0 and "http" not in text
    order = [int(row) for row in re.findall(r"<tr><td>(\d+)<td><img", text)]
    assert order == worst_first(report.findings).row.tolist()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "cleaned.csv"}
    with pytest.raises(DataError, match="is the table itself"):
        write_cleaned(table, report.findings, csv_file)
    assert "of 39 rows are flagged" in report.summary() and report.summary().count("\n") == 0


def test_flags_of_a_backbone_that_sees_nothing_are_called_so(report):
    table = report.recalls.copy()
    for recall, blind in ((0.4, True), (0.9, False)):
        table["any"] = [0.35, recall, 0.3, 0.35]
        changed = dataclasses.replace(report, recalls=table)
        assert changed.summary().startswith("THE FLAGS MEAN NOTHING") == changed.blind == blind
        assert any(title.startswith("Precision") for title in changed.tables()) == (not blind)
    table["any"] = [0.35, np.nan, np.nan, np.nan]  # no kind could be made
    assert "MEAN NOTHING" in dataclasses.replace(report, recalls=table).summary()


def test_a_failed_page_leaves_nothing(report, tmp_path, monkeypatch):
    monkeypatch.setattr("cirkit.noise_report._picture", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(report, tmp_path / "out" / "report.html")
    assert not (tmp_path / "out").exists()


def test_texts_are_escaped_on_the_page(report, tmp_path):
    found = report.findings.assign(text="<script>alert(1)</script>", flag=True, reason="a < b")
    content = write_page(dataclasses.replace(report, findings=found), tmp_path / "page.html").read_text("utf-8")
    assert "<script>" not in content and "a &lt; b" in content


def test_a_column_that_the_report_adds_is_refused_first(table):
    columns = {**table.columns, "flag": ("x",) * len(table)}
    with pytest.raises(DataError, match="row 1 has a column 'flag' already"):
        make_report(dataclasses.replace(table, columns=columns), "no such backbone")
    with pytest.raises(ValueError, match="must lie above 0 and not above 1, got 0"):
        make_report(table, "no such backbone", rate=0)


def test_the_command_writes_and_says_what_it_wrote(csv_file, tmp_path, capsys):
    options = ["report", str(csv_file), "--images", str(csv_file.parent / "images"), "--backbone", "tiny"]
    options += [
        "--epochs",
        "0",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
        "--layout",
        str(tmp_path / "layout"),
    ]
    assert command.main(options) == 0
    printed = capsys.readouterr().out
    assert "Precision to expect" in printed and printed.count("wrote ") == 3
    (layout,) = (tmp_path / "layout").iterdir()
    kept = sum(len(load_fashioniq(layout, split)) for split in ("train", "val"))
    cleaned = pd.read_csv(tmp_path / "out" / "cleaned.csv", keep_default_na=False)
    assert kept == (cleaned.flag == "no").sum()
    assert command.main(["report", str(tmp_path / "none.csv"), "--out", str(tmp_path / "new")]) == 1
    assert "none.csv does not exist" in capsys.readouterr().err and not (tmp_path / "new").exists()
    for wrong, told in (
        (["--layout", str(csv_file)], "--layout must name a folder, but"),
        (["--seed", "-3"], "--seed must be 0 or more"),
        (["--backbone", "nowhere"], "nowhere"),
    ):  # fmt: skip
        assert command.main([*options, *wrong]) == 1
        printed = capsys.readouterr()
        assert told in printed.err and printed.err.count("\n") == 1 and "checking images" not in printed.err


def test_the_cleaned_file_is_separated_and_headed_as_the_table_is(csv_file, tmp_path):
    lines = csv_file.read_text(encoding="utf-8").splitlines()
    parsed = list(csv.reader(lines))
    path = csv_file.parent / "semicolons.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=";").writerows([[name.title() for name in parsed[0]], *parsed[1:]])
    table = read_table(path, csv_file.parent / "images", progress=False)
    found = pd.DataFrame({"score": 0.5, "flag": False, "reason": ""}, index=range(len(table)))
    target = write_cleaned(table, found, tmp_path / "cleaned.csv")
    written = list(csv.reader(target.read_text(encoding="utf-8-sig").splitlines(), delimiter=";"))
    assert written[0] == [*(name.title() for name in parsed[0]), "score", "flag", "reason"]
    assert [row[:-3] for row in written[1:]] == parsed[1:]


def test_pictures_of_a_report(report, table):
    rows = [(table.images.load(table.references[0]), "a long text " * 30, table.images.load(table.targets[0]))] * 3
    figure = contact_sheet(rows, ["one; two", "one", "not flagged"], ["row 2", "row 3", "row 4"])
    figure.canvas.draw()
    assert len(figure.axes) == 12 and "one\ntwo" in [text.get_text() for text in figure.axes[3].texts]
    with pytest.raises(ValueError, match="as many reasons and heads as rows"):
        contact_sheet(rows, ["one"], ["row 2"])
    depths = {"own": report.own.depths, "hard": report.noise["hard"].depths}
    panels = look_panels(depths)
    flagged = int(((depths["own"]["evidence"] > 0) | (depths["own"]["boundary"] > 0)).sum())
    assert len(panels.axes[0].collections[1].get_offsets()) == flagged
    figure = expected_precision(report.precisions)
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    row = report.precisions.query("flags == 'any' and kind == 'shuffle'").iloc[0]
    np.testing.assert_allclose(drawn["shuffle"], [row[n] for n in row.index if str(n).endswith("%")])
