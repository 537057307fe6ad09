"""Files appear whole or not at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cirkit.paths import atomic_path, cache_dir, check_target, check_writable, project_root, resolve, results_dir


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(OSError, match=r"a.txt cannot be written: there is no space left on the disk$"):
        with atomic_path(target) as path:
            path.symlink_to("/dev/full")
            path.write_text("new" * 9999)
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_first_of_two_folders_stays(tmp_path):
    target = tmp_path / "folder"
    with atomic_path(target) as ours:
        ours.mkdir()
        (ours / "ours").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [p.name for p in target.iterdir()] == ["theirs"]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def temporary_of(target: Path) -> Path:
    with atomic_path(target) as path:
        path.touch()
        return path


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_left_alone(tmp_path):
    ours = temporary_of(tmp_path / "a").name
    machine, process, code = re.fullmatch(r"\.a\.([0-9a-f]{8})-(\d+)-([0-9a-f]{8})\.tmp", ours).groups()
    assert int(process) == os.getpid()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = [
        tmp_path / f".store.{machine}-{child.pid}-{code}.tmp",
        tmp_path / f".x.csv.{machine}-{child.pid}-{code}.tmp",
    ]
    elsewhere = tmp_path / f".store.{'0' * 8}-{child.pid}-{code}.tmp"
    ours, old = tmp_path / f".store.{machine}-{process}-{code}.tmp", tmp_path / f".old.{'0' * 8}-1-{code}.tmp"
    theirs = tmp_path / ".theirs.tmp"
    for folder in (dead[0], elsewhere, ours, old):
        folder.mkdir()
        (folder / "patches.npy").touch()
    dead[1].touch()
    theirs.touch()
    yesterday = time.time() - 25 * 3600
    for path in (theirs, old, old / "patches.npy", elsewhere, ours):
        os.utime(path, (yesterday, yesterday))
    temporary_of(tmp_path / "b")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a", tmp_path / "b", elsewhere, ours, theirs])


def test_what_cannot_be_written_to_is_one_sentence_and_nothing_is_made(tmp_path, monkeypatch):
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="results cannot be a folder: .*file is a file$"):
        check_writable(tmp_path / "file" / "results")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(OSError, match="results cannot be written to: .* does not permit it$"):
        check_writable(tmp_path / "results")


def test_folders_follow_the_environment_and_never_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("results") == project_root() / "results"
    assert resolve(tmp_path / "x") == tmp_path / "x"
    assert cache_dir() == tmp_path / "cache" and results_dir() == tmp_path / "results"
    monkeypatch.delenv("CIRKIT_CACHE")
    monkeypatch.delenv("CIRKIT_RESULTS")
    assert cache_dir() == project_root() / ".cache" and results_dir() == project_root() / "results"


def test_a_place_for_a_file_is_checked_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    check_target(tmp_path / "new" / "x.json", "RESULT")
    check_target(tmp_path / "file", "RESULT")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="^RESULT must name a file to write, but .* is a folder$"):
        check_target(tmp_path, "RESULT")
    with pytest.raises(OSError, match="^--result: .* cannot be a folder: .*file is a file$"):
        check_target(tmp_path / "file" / "x.json", "--result")
