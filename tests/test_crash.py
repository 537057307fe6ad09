"""Killed at any point and started again, a run gives the numbers of a run that nobody disturbed.

Every run here is a process of its own, forked from a server that has imported everything and computed nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import MINI_RECIPE
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import cirkit.data.garments
import cirkit.paths
import cirkit.run_identity
import cirkit.runs
from cirkit.backbone import Backbone
from cirkit.checkpoints import CHECKPOINT
from cirkit.data.annotations import DataError
from cirkit.methods import Method
from cirkit.presets import save_backbone
from cirkit.records import file_digest
from cirkit.runs import load_metrics, prepare, train_or_load
from cirkit.tables import query_hits

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cirkit.runs"])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner, name: str, number: int, then=die):
    """Let ``owner.name`` be called ``number - 1`` times, then die in its place."""
    whole, calls = getattr(owner, name), []

    def counted(*arguments, **options):
        calls.append(None)
        return then(*arguments, **options) if len(calls) == number else whole(*arguments, **options)

    setattr(owner, name, counted)


def half_a_file(_, path):
    Path(path).write_bytes(b"half of a file")
    die()


def half_a_table(_, path, **__):
    half_a_file(None, path)


def half_a_record(path, text, **_):
    path.write_bytes(text[: len(text) // 2].encode())
    die()


# name -> where the process dies, and what an earlier run left that it may use
POINTS = {
    "rendering": lambda: at_call(cirkit.data.garments, "draw_garment", 50),
    "feature building": lambda: at_call(Backbone, "patch_tokens", 2),
    "between epochs": lambda: at_call(Method, "start_epoch", 2),
    "writing the history": lambda: at_call(pd.DataFrame, "to_csv", 1, half_a_table),
    "writing ranks": lambda: at_call(pd.DataFrame, "to_csv", 3, half_a_table),
    "saving the checkpoint": lambda: at_call(torch, "save", 2, half_a_file),
    "saving the model": lambda: at_call(cirkit.runs, "save_file", 1, half_a_file),
    "writing metrics": lambda: at_call(Path, "write_text", 1, half_a_record),
}
BEFORE_TRAINING = ("rendering", "feature building")


def work(backbone: Path, folder: Path, cache: Path, point: str | None = None, barrier=None) -> None:
    """What a process does: render the world, then train or load the run."""
    torch.set_num_threads(1)
    os.environ |= {"CIRKIT_CACHE": str(cache), "CIRKIT_RESULTS": str(folder / "results")}
    cirkit.run_identity.code_fingerprint = one_code
    if barrier is not None:
        barrier.wait()
    if point in BEFORE_TRAINING:
        POINTS[point]()
    world = cirkit.data.garments.build_garments(recipe=MINI_RECIPE, progress=False)
    if point in POINTS and point not in BEFORE_TRAINING:
        run = prepare(**settings(backbone, world))
        POINTS[point]()
        run.fit(progress=False)
        run.record(*run.evaluate())
    else:
        train_or_load(**settings(backbone, world))


def one_code(_) -> str:
    """Processes of one test count as the same code, though somebody may edit a file between them."""
    return "code"


def settings(backbone: Path, world: Path) -> dict:
    return {
        "backbone": str(backbone), "dataset": "fashioniq", "data_root": str(world), "noise_rate": 0.5, "epochs": 3,
        "batch_size": 16, "progress": False, "device": "cpu",
    }  # fmt: skip


def start(*arguments) -> multiprocessing.Process:
    process = PROCESSES.Process(target=work, args=arguments)
    process.start()
    return process


def finish(process) -> int:
    process.join(120)
    return process.exitcode


def the_run(folder: Path) -> Path:
    (run,) = (folder / "results" / "runs").iterdir()
    return run


def assert_same(run: Path, expected: Path) -> None:
    """Same files, same numbers, and nothing left over."""
    assert run.name == expected.name
    assert sorted(p.name for p in run.iterdir()) == sorted(p.name for p in expected.iterdir())
    assert load_metrics(run)["metrics"] == load_metrics(expected)["metrics"]
    for path in expected.glob("*_*.csv"):
        assert (run / path.name).read_bytes() == path.read_bytes(), path.name
    histories = [pd.read_csv(folder / "history.csv").drop(columns="seconds") for folder in (run, expected)]
    pd.testing.assert_frame_equal(*histories, check_exact=True)
    one, other = (load_file(folder / "model.safetensors") for folder in (run, expected))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def left_over(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob(".*")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Folder of a run that nobody disturbed, with its backbone, cache and results."""
    from test_backbone import small_backbone

    folder = tmp_path_factory.mktemp("undisturbed")
    save_backbone(small_backbone(image_size=48, text_length=32), folder / "backbone")
    assert finish(start(folder / "backbone", folder, folder / "cache")) == 0
    assert not left_over(folder)
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_started_again_gives_the_same_run(undisturbed, tmp_path, point):
    cache = tmp_path / "cache" if point in BEFORE_TRAINING else undisturbed / "cache"
    assert finish(start(undisturbed / "backbone", tmp_path, cache, point)) == -signal.SIGKILL
    assert not list(tmp_path.rglob("metrics.json"))
    if point not in BEFORE_TRAINING:
        assert (the_run(tmp_path) / CHECKPOINT).is_file()
    if point != "between epochs":
        assert left_over(tmp_path), "it was to die while something was half written"
    assert finish(start(undisturbed / "backbone", tmp_path, cache)) == 0
    assert_same(the_run(tmp_path), the_run(undisturbed))
    assert not left_over(tmp_path, cache)


def test_two_at_once_do_not_disturb_each_other(undisturbed, tmp_path):
    barrier = PROCESSES.Barrier(2)
    both = [start(undisturbed / "backbone", tmp_path, tmp_path / "cache", None, barrier) for _ in range(2)]
    assert [finish(process) for process in both] == [0, 0]
    assert_same(the_run(tmp_path), the_run(undisturbed))
    assert not left_over(tmp_path)
    assert [len(list((tmp_path / "cache" / name).iterdir())) for name in ("worlds", "features")] == [1, 1]


@pytest.fixture
def mine(undisturbed, tmp_path, monkeypatch):
    """Settings of the undisturbed run, for this process and with results of its own."""
    monkeypatch.setenv("CIRKIT_CACHE", str(undisturbed / "cache"))
    monkeypatch.setattr(cirkit.run_identity, "code_fingerprint", one_code)
    (world,) = (undisturbed / "cache" / "worlds").iterdir()
    return settings(undisturbed / "backbone", world)


def test_a_finished_run_is_read_by_another_process(undisturbed, mine, monkeypatch):
    monkeypatch.setenv("CIRKIT_RESULTS", str(undisturbed / "results"))
    run = prepare(**mine)
    assert run.done
    record = run.load()
    metrics, _ = run.evaluate()
    assert json.loads(metrics.to_json(orient="records")) == json.loads(pd.DataFrame(record["metrics"]).to_json(
        orient="records"))  # fmt: skip


def test_weights_that_do_not_fit_are_refused(mine):
    run = train_or_load(**mine)
    path = run.folder / "model.safetensors"
    state = load_file(path)
    save_file({"query": state.pop("backbone.query_tokens"), **state}, path)
    record = load_metrics(run.folder)
    record["files"][path.name] = file_digest(path)
    (run.folder / "metrics.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="missing backbone.query_tokens; unexpected query"):
        train_or_load(**mine)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = {"gone": None, "empty": lambda _: b"", "cut off": lambda content: content[:-9], "one bit": flipped}


@pytest.mark.parametrize("name", ["history.csv", "ranks_test.csv", "scores_train.csv", "model.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_finished_run_lost_is_noticed_and_made_again(undisturbed, mine, monkeypatch, tmp_path, name, damage):
    results = tmp_path / "copied"
    shutil.copytree(undisturbed / "results", results)
    monkeypatch.setenv("CIRKIT_RESULTS", str(results))
    run = prepare(**mine)
    assert run.done
    path = run.folder / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(UserWarning, match=rf"^{name} of \S+ lost or damaged; this run is trained again$"):
        assert not run.done


def test_a_damaged_run_ends_as_it_was(undisturbed, mine):
    run = train_or_load(**mine)
    path = run.folder / "model.safetensors"
    path.write_bytes(flipped(path.read_bytes()))
    with pytest.warns(UserWarning, match="trained again"):
        train_or_load(**mine)
    assert_same(run.folder, the_run(undisturbed))


def test_ranks_that_are_not_those_of_the_run_are_never_compared(mine):
    run = train_or_load(**mine)
    path = run.folder / "ranks_test.csv"
    lines = path.read_text().splitlines()
    whole = query_hits(path, 1)
    assert len(whole) == len(lines) - 1
    path.write_text("\n".join(lines[:-3]) + "\n")
    with pytest.raises(DataError, match=r"ranks_test.csv is not what its run wrote; delete \S+ and train"):
        query_hits(path, 1)


FULL_AT = ["history.csv", "scores_train.csv", "ranks_val.csv", "ranks_test.csv", "model.safetensors", "metrics.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
@pytest.mark.parametrize("name", FULL_AT)
def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_once_there_is_room(undisturbed, mine, monkeypatch, name):
    """Each file lands on the system's own full device; not the weights, whose library replaces what is there."""
    place = cirkit.paths.temporary_path

    def no_room(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    def full(path):
        temporary = place(path)
        if path.name == name:
            temporary.symlink_to("/dev/full")
        return temporary

    with monkeypatch.context() as patch:
        patch.setattr(cirkit.paths, "temporary_path", full)
        if name == "model.safetensors":
            patch.setattr(cirkit.runs, "save_file", no_room)
        with pytest.raises(OSError, match=rf"^\S+{name} cannot be written: there is no space left on the disk$"):
            train_or_load(**mine)
    run = prepare(**mine)
    assert not run.done and not left_over(run.folder)
    train_or_load(**mine)
    assert_same(run.folder, the_run(undisturbed))


def test_a_run_that_failed_does_not_count_as_done(undisturbed, mine, monkeypatch):
    compose = Backbone.compose
    with monkeypatch.context() as patch:
        patch.setattr(Backbone, "compose", lambda *arguments: compose(*arguments) * float("nan"))
        with pytest.raises(ValueError, match="loss is nan in epoch 1, step 1"):
            train_or_load(**mine)
    run = prepare(**mine)
    assert not run.done and not (run.folder / "metrics.json").exists()
    for content in ("", '{"run_id": "' + run.id, "{}", "[]", "null", '{"run_id": "another", "metrics": [{}]}'):
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "metrics.json").write_text(content)
        assert not run.done, content
    train_or_load(**mine)
    assert_same(run.folder, the_run(undisturbed))
