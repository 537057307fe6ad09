"""The table of differences between ConeSep's paper, its released code and this package."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from cirkit.conesep_page import page
from cirkit.methods.conesep_config import NUMBERS, SWITCHES, VARIANTS, ConeSepConfig, changes
from cirkit.methods.conesep_differences import DIFFERENCES, differences

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = {f.name for f in dataclasses.fields(ConeSepConfig)}


def test_every_difference_is_there_once_with_switches_and_tests_that_exist():
    assert [d.number for d in DIFFERENCES] == list(range(1, 28))
    for d in DIFFERENCES:
        if not isinstance(d.switches, str):
            assert d.switches and set(d.switches) <= OPTIONS, d.number
        assert d.tests, d.number
        for test in d.tests:
            file, name = test.split("::")
            source = (ROOT / "tests" / f"test_{file}.py").read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", source, flags=re.M), f"{d.number}: {test}"


def test_every_switch_between_paper_and_released_code_is_in_a_difference():
    named = {s for d in DIFFERENCES if not isinstance(d.switches, str) for s in d.switches}
    apart = set(changes("released", "paper")) - set(NUMBERS)
    assert apart <= named | {"solver", "both_directions"}


def test_the_page_is_current():
    assert (ROOT / "docs" / "conesep.md").read_text(encoding="utf-8") == page()


def test_chosen_differences_show_what_each_variant_does():
    table = differences(5, 24)
    assert table.index.tolist() == [5, 24]
    assert table.here[5] == "; ".join(f"{v}: {SWITCHES['mask'][i]}" for i, v in enumerate(VARIANTS))
    assert table.switch[24] == "–"
