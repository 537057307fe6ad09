"""Files appear whole or not at all."""

from __future__ import annotations

import pytest

from cirkit.paths import atomic_path, cache_dir, project_root, resolve, results_dir


def test_file_appears_only_when_whole(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with pytest.raises(RuntimeError), atomic_path(target) as path:
        path.write_text("half")
        assert not target.exists()
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    with atomic_path(target) as path:
        path.write_text("whole")
    assert [p.name for p in target.parent.iterdir()] == ["a.txt"] and target.read_text() == "whole"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(OSError), atomic_path(target) as path:
        path.write_text("new")
        raise OSError("disk full")
    assert target.read_text() == "old"


def test_the_first_of_two_folders_stays(tmp_path):
    target = tmp_path / "folder"
    with atomic_path(target) as ours:
        ours.mkdir()
        (ours / "ours").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [p.name for p in target.iterdir()] == ["theirs"]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_folders_follow_the_environment_and_never_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("results") == project_root() / "results"
    assert resolve(tmp_path / "x") == tmp_path / "x"
    assert cache_dir() == tmp_path / "cache" and results_dir() == tmp_path / "results"
    monkeypatch.delenv("CIRKIT_CACHE")
    monkeypatch.delenv("CIRKIT_RESULTS")
    assert cache_dir() == project_root() / ".cache" and results_dir() == project_root() / "results"
