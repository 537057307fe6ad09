"""Tables from records: means over seeds, obtained beside expected, one README block."""

from __future__ import annotations

import json

import matplotlib
import pandas as pd
import pytest

from cirkit import tables
from cirkit.data.triplets import DataError
from cirkit.runs import RunParameters
from cirkit.tables import BEGIN, END, collect, compare, summarise, write_index, write_tables

matplotlib.use("agg")


def record(folder, seed: int, rate: float, value: float, code: str = "a") -> None:
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
    content = {
        "run_id": f"r{seed}-{rate}", "parameters": {**vars(RunParameters()), "noise_rate": rate, "seed": seed},
        "effective": {"protocols": [{"dataset": "garments"}], "method_config": {"variant": "paper"}, "code": code},
        "noise": {"nominal": rate, "realised": rate - 0.01}, "choose_on": "val", "report_on": "test",
        "comparable": True, "provenance": {"commit": "c0", "versions": {"torch": "2"}}, "metrics": cells,
    }  # fmt: skip
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / f"{seed}-{rate}.json").write_text(json.dumps(content))


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "study"
    for seed, value in ((0, 80.0), (1, 84.0)):
        record(folder, seed, 0.0, value)
        record(folder, seed, 0.5, value - 30)
    return folder


def test_summary_is_the_mean_over_seeds_of_the_reported_split(study):
    summary = summarise(collect(study)).set_index("noise_rate")
    assert summary.loc[0.0, "R@1"] == "82.0 [80.0, 84.0]" and summary.loc[0.5, "R@1"] == "52.0 [50.0, 54.0]"
    assert summary.loc[0.0, "seeds"] == 2 and summary.loc[0.0, "n"] == 12


def test_difference_pairs_the_same_run_of_both_tables(study):
    table = collect(study)
    expected = table.assign(value=table.value + 1.5)
    expected = expected[~((expected.seed == 1) & (expected.noise_rate == 0.5))]
    difference = compare(table, expected)
    assert len(difference) == 3 and (difference.difference + 1.5).abs().max() < 1e-9


def test_study_without_runs_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="no record of a finished run"):
        collect(tmp_path)


def test_tables_are_written_and_mixed_code_is_pointed_out(study, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tables, "project_root", lambda: tmp_path)
    write_tables(study)
    assert len(pd.read_csv(study / "results.csv")) == 16
    assert "82.0 [80.0, 84.0]" in (study / "summary.md").read_text()
    assert "different versions of the code" not in capsys.readouterr().out
    record(study, 2, 0.0, 70.0, code="b")
    write_tables(study)
    assert "different versions of the code" in capsys.readouterr().out


def test_publishing_fills_the_readme_block_and_nothing_else(study, monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "project_root", lambda: tmp_path)
    (tmp_path / "README.md").write_text(f"# head\n{BEGIN}\nold\n{END}\ntail\n")
    (study / "notebooks").mkdir()
    (study / "notebooks" / "07.ipynb").write_text("{}")
    write_tables(study)
    tables.publish(study)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# head\n") and text.endswith("tail\n") and "old" not in text and "82.0 [80.0" in text
    assert (tmp_path / "results" / "reference" / "notebooks" / "07.ipynb").is_file()
    write_tables(study)
    assert (pd.read_csv(study / "difference.csv").difference == 0).all()


def test_index_shows_every_figure_with_its_line(tmp_path):
    from matplotlib.figure import Figure

    from cirkit.plots import save

    for name in ("00_a", "02_b"):
        figure = Figure()
        figure.subplots().plot([1, 2])
        save(figure, name, see=f"look at <{name}>", folder=tmp_path)
    write_index(tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert page.count("<img") == 2 and "look at &lt;00_a&gt;" in page and 'src="02_b.png"' in page
    assert (tmp_path / "00_a.svg").is_file()
