"""The code fingerprint moves with the code and only with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cirkit
from cirkit import provenance as module
from cirkit.provenance import code_fingerprint, git_state, package_versions, provenance, source_digest


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A private copy of the package's sources that the fingerprint looks at."""
    copy = tmp_path / "cirkit"
    shutil.copytree(Path(cirkit.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    monkeypatch.setattr(module, "__file__", str(copy / "provenance.py"))
    return copy


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_comments_and_docstrings_do_not_count(package):
    before = code_fingerprint()
    edit(package / "schedule.py", "def epoch_order(", "# a remark\ndef epoch_order(")
    edit(package / "methods" / "infonce.py", "Under noise alone", "In other words, under noise alone")
    edit(package / "plots" / "style.py", "set_style", "set_the_style")
    assert code_fingerprint() == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("schedule.py", "warmup: float = 0.15", "warmup: float = 0.16"),
        ("training.py", "FEWEST_STEPS = 20", "FEWEST_STEPS = 21"),
        ("parallel.py", "count > 1", "count > 2"),
        ("methods/infonce.py", "staticmethod(infonce)", "staticmethod(row_losses)"),
        ("methods/base.py", "temperature: float = 0.07", "temperature: float = 0.08"),
        ("losses.py", "_CLAMP = 1e-7", "_CLAMP = 1e-6"),
        ("runs.py", "alike()(*ids)", "alike()(*ids) * 2"),
    ],
)
def test_code_counts(package, file, old, new):
    before = code_fingerprint("infonce")
    edit(package / file, old, new)
    assert code_fingerprint("infonce") != before


def test_another_method_or_reader_does_not_count(package):
    before, other = code_fingerprint("infonce"), code_fingerprint("rcl")
    edit(package / "methods" / "rcl.py", "lr = 1e-3", "lr = 2e-3")
    edit(package / "data" / "garments.py", "seed: int = 0", "seed: int = 1")
    assert code_fingerprint("infonce") == before
    assert code_fingerprint("rcl") != other


def test_record_names_commit_versions_and_machine():
    record = provenance()
    assert set(git_state()) == {"commit", "dirty"} <= set(record)
    assert package_versions()["torch"] and record["versions"]["transformers"]
    assert record["threads"] >= 1 and record["python"].startswith("3.")


def test_source_digest_is_of_the_named_modules_alone(package):
    before = source_digest("towers", "data.images")
    edit(package / "backbone.py", "import torch", "import torch  # a remark\nx = 1")
    assert source_digest("towers", "data.images") == before
    edit(package / "data" / "images.py", "import numpy as np", "import numpy as np\nx = 1")
    assert source_digest("towers", "data.images") != before
