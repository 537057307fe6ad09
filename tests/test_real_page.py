"""docs/real.md: current, and every command of it is one that would run where the data are."""

from __future__ import annotations

import re

import pytest

from cirkit.methods import method_class, method_config
from cirkit.paths import project_root
from cirkit.presets import PRESETS
from cirkit.real_page import PAPERS, page, rows
from cirkit.run_parameters import RunParameters
from cirkit.train import read_parameters


def test_the_page_is_current():
    text = (project_root() / "docs" / "real.md").read_text(encoding="utf-8")
    assert text == page(), "run python -m cirkit.real_page"


def test_every_row_names_a_run_that_can_be_prepared():
    found = rows()
    assert len(found) == sum(len(paper.rates) for paper in PAPERS)
    common = re.search(r"cirkit.train (dataset=.*) \"\$@\"", page()).group(1).split()
    for text in found.command:
        words = text.strip("`").split()
        assert words[0] == "row"
        parameters = RunParameters(**read_parameters([*common, *words[1:]]))
        method_config(parameters.method)
        assert parameters.backbone in PRESETS and "fashioniq" in method_class(parameters.method).published_lr


@pytest.mark.parametrize(("row", "noise", "printed"), [("ConeSep", "0.2", "54.93 / 75.01"), ("QuRe", "0", "52.60 / –")])
def test_the_papers_numbers_stand_in_their_rows(row, noise, printed):
    found = rows().set_index(["row", "noise"])["paper, R@10 / R@50"]
    assert found[row, noise] == printed
