"""Two processes that share a run compute what one does: loss and gradients of every method, training, metrics, resume.

The two are forked once from a server that has imported everything, and do all checks in one go; what they found is
compared here, with each other and with what one process computes.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import MINI_RECIPE

import cirkit.run_identity
from cirkit import parallel, train
from cirkit.backbone import Backbone
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.garments import build_garments
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.methods import REGISTRY, Batch, TrainingView, build_method
from cirkit.noise import corrupt
from cirkit.presets import load_backbone, save_backbone
from cirkit.records import load_metrics
from cirkit.retrieval import rank_queries
from cirkit.stepping import gradient_norms
from cirkit.training import CHECKPOINT, TrainConfig, fit

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["cirkit.runs"])
METHODS = ("infonce", "conesep-adapted", "conesep-released", "qure", "tme")
CONFIG = TrainConfig(epochs=2, batch_size=23, lr=1e-3, accumulation=2)
# AdamW makes of a tiny gradient's last digits a step, so weights need more
WEIGHTS_CLOSE = {"rtol": 1e-2, "atol": 5e-4}


class World:
    """A noisy training set, its features and pixels, and methods on one backbone."""

    def __init__(self, folder: Path):
        root = build_garments(folder / "worlds", MINI_RECIPE, progress=False)
        self.backbone = folder / "backbone"
        plain = load_fashioniq(root, "train")
        self.triplets = corrupt(plain, 0.5, "shuffle", 1).triplets
        made = load_backbone(str(self.backbone)), ImageFolder(root), plain.image_ids()
        self.val = load_fashioniq(root, "val")
        self.evaluated = build_store(*made[:2], self.val.image_ids(), folder / "features", progress=False)
        self.store, self.pixels = (
            build_store(*made, folder / "features", progress=False, pixels=pixels) for pixels in (False, True)
        )
        self.clean = np.arange(len(plain)) % 3 > 0

    def method(self, name: str, **options):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build_method(name, load_backbone(str(self.backbone)), **options)

    def fit(self, method, config: TrainConfig = CONFIG, **options) -> pd.DataFrame:
        return fit(
            method, self.triplets, self.store, config, clean=self.clean, pixels=self.pixels, progress=False, **options
        )


def one_step(world: World, name: str, rows: np.ndarray) -> dict:
    """Loss, terms, each term's gradient norm and every gradient of one batch, in the fifth epoch of eight."""
    method = world.method(name)
    torch.manual_seed(3)
    part = world.triplets.select(rows)
    images = [world.store.patches(world.store.rows(ids)) for ids in (part.references, part.targets)]
    pixels = [world.pixels.patches(world.pixels.rows(ids)) for ids in (part.references, part.targets)]
    batch = Batch(torch.from_numpy(rows), images[0], method.backbone.tokenize(part.texts), images[1], *pixels)
    for epoch in (0, 4):  # of the first, some methods keep a history
        truth = torch.from_numpy(world.clean) if method.uses_ledger else None
        method.eval().start_epoch(TrainingView(world.triplets, world.store, epoch, 8, 0, truth))
        loss, terms = method.train().loss(batch, epoch)
    norms = gradient_norms(method)
    loss.backward()
    found = {key: p.grad for key, p in method.named_parameters() if p.grad is not None}
    parallel.average(found.values())
    return {"loss": loss.item(), "numbers": {**terms, **norms}, "gradients": found}


class Killed(Exception):
    pass


def stop_in_second_epoch(epoch, *_):
    if epoch:
        raise Killed
    return {}


def trained(world: World, name: str, **options) -> dict:
    """A training of two epochs: its history, the weights, and the ranks of the queries of another split."""
    method = world.method(name)
    history = world.fit(method, **options)
    ranks = rank_queries(method, world.val, world.evaluated)
    return {"history": history.drop(columns="seconds").to_dict("list"), "state": method.trained_state(), "ranks": ranks}


def sentence(work) -> str:
    with pytest.raises(parallel.ReplicaError) as caught:
        work()
    return str(caught.value)


def drifting(world: World) -> str:
    """Train on; the second process forgets itself in the first epoch."""
    method = world.method("infonce")

    def drift(*_):
        if not parallel.is_main():
            with torch.no_grad():
                method.backbone.query_tokens.add_(1e-6)
        return {}

    return sentence(lambda: world.fit(method, on_epoch=drift))


def other_draws(world: World) -> str:
    method = world.method("infonce")
    loss = method.loss
    method.loss = lambda *a: [x * (1 if parallel.is_main() else 1.01) if torch.is_tensor(x) else x for x in loss(*a)]
    return sentence(lambda: world.fit(method))


def failing(folder: Path) -> str:
    def fail():
        raise OSError("the disk is full")

    if not parallel.is_main():
        return sentence(lambda: parallel.main_only(fail))
    with pytest.raises(OSError):
        parallel.main_only(fail)
    return ""


def one_code(_) -> str:
    """Processes of one test count as the same code, though somebody may edit a file between them."""
    return "code"


def work(rank: int, port: int, folder: Path) -> None:
    """What each of two processes does."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port), "CIRKIT_CACHE": str(folder / "cache"), "CIRKIT_RESULTS": str(folder / "two"),
    }  # fmt: skip
    cirkit.run_identity.code_fingerprint = one_code
    world = World(folder)
    found = {"before": _refused(lambda: world.fit(world.method("infonce")))}
    found["device"] = _refused(lambda: parallel.start("cuda:1"))
    parallel.start("cpu")
    found["counts"] = [count_of_shares(count) for count in range(1, 6)]
    found["steps"] = {name: one_step(world, name, ROWS) for name in REGISTRY}
    found["alone"] = one_step(world, "tme", ROWS[:1])
    found["trained"] = {name: trained(world, name) for name in METHODS}
    with pytest.raises(Killed):
        world.fit(world.method("tme"), folder=folder / "stopped", on_epoch=stop_in_second_epoch)
    found["sentences"] = [drifting(world), other_draws(world), failing(folder)]
    found["command"] = train.main([*words(folder), "--quiet", "--result", str(folder / "two.json")])
    torch.save(found, folder / f"rank{rank}.pt")


ROWS = np.array([5, 1, 9, 30, 14, 22, 8])  # four for the one process, three for the other


def count_of_shares(count: int) -> tuple[int, list[float], list[float]]:
    """Rows of a share, what is gathered of them, and the gradient of rows whose k-th counts k times."""
    rows = torch.arange(1.0, count + 1)[:, None].requires_grad_()
    part = parallel.share(rows)
    whole = parallel.gather(2 * part, count)
    (whole * torch.arange(count)[:, None]).sum().backward()
    parallel.average([rows.grad])
    return len(part), whole.flatten().tolist(), rows.grad.flatten().tolist()


def _refused(work) -> str:
    with pytest.raises(ValueError) as caught:
        work()
    return str(caught.value)


def words(folder: Path) -> list[str]:
    (root,) = (folder / "worlds").iterdir()
    return [
        "method=conesep-adapted", f"backbone={folder / 'backbone'}", "dataset=fashioniq", f"data_root={root}",
        "noise_rate=0.5", "epochs=2", "batch_size=9", "accumulation=2", "device=cpu", "noise_kind=hard", "gate=text",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parallel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIRKIT_CACHE", str(folder / "cache"))
        config = load_backbone("tiny-random").config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            small = dataclasses.replace(config, width=24, layers=2, intermediate=48, embed_dim=7, vision_width=24)
            save_backbone(Backbone(dataclasses.replace(small, vision_layers=1, name="small")), folder / "backbone")
        World(folder)
    return folder


@pytest.fixture(scope="module")
def one(folder) -> World:
    return World(folder)


@pytest.fixture(scope="module")
def both(folder, one) -> list[dict]:
    """What each of the two processes found."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = [PROCESSES.Process(target=work, args=(rank, port, folder)) for rank in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(300)
    assert [process.exitcode for process in pair] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def test_shares_are_of_one_size_and_the_gathered_rows_and_gradients_those_of_the_batch(both):
    for rank in both:
        for count, (size, whole, gradient) in enumerate(rank["counts"], start=1):
            assert size == (1 if count == 1 else -(-count // 2))
            assert whole == [2.0 * k for k in range(1, count + 1)]
            assert gradient == [2.0 * k for k in range(count)]


def assert_same_step(found: list[dict], expected: dict) -> None:
    """Equal between processes; to one process up to float32's rounding, of which machines differ, where sums cancel.

    A row too few or a gradient not averaged is an error of a seventh or a half.
    """
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-5)
    assert found[0]["numbers"] == pytest.approx(expected["numbers"], rel=5e-3, abs=5e-5, nan_ok=True)
    assert found[0]["gradients"].keys() == expected["gradients"].keys()
    for key, gradient in expected["gradients"].items():
        close = {"rtol": 0, "atol": 5e-3 * gradient.abs().max().item() + 2e-6, "msg": lambda m, key=key: f"{key}: {m}"}
        torch.testing.assert_close(found[0]["gradients"][key], gradient, **close)
        assert torch.equal(found[1]["gradients"][key], found[0]["gradients"][key]), key


@pytest.mark.parametrize("name", REGISTRY)
def test_loss_and_gradients_are_those_of_one_process(both, one, name):
    assert_same_step([found["steps"][name] for found in both], one_step(one, name, ROWS))


def test_a_batch_of_one_is_not_divided(both, one):
    assert_same_step([found["alone"] for found in both], one_step(one, "tme", ROWS[:1]))


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for key, value in expected.items():
        if not key.endswith("key.bias"):  # softmax takes it out: its gradient is rounding alone, and AdamW's steps too
            torch.testing.assert_close(found[key], value, **WEIGHTS_CLOSE, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", METHODS)
def test_two_epochs_end_where_one_process_ends(both, one, name):
    expected, found = trained(one, name), both[0]["trained"][name]
    assert found["history"].keys() == expected["history"].keys()
    for column, values in expected["history"].items():
        if column != "note":
            assert found["history"][column] == pytest.approx(values, rel=2e-3, abs=1e-4, nan_ok=True), column
    assert_same_weights(found["state"], expected["state"])
    for key, value in both[1]["trained"][name]["state"].items():
        assert torch.equal(value, found["state"][key]), key
    assert found["ranks"].better.tolist() == expected["ranks"].better.tolist()
    assert found["ranks"].equals(both[1]["trained"][name]["ranks"])


def test_interrupted_in_two_processes_and_resumed_in_one(both, one, folder, tmp_path):
    assert (folder / "stopped" / CHECKPOINT).is_file()
    shutil.copytree(folder / "stopped", tmp_path / "stopped")
    resumed, expected = trained(one, "tme", folder=tmp_path / "stopped"), both[0]["trained"]["tme"]
    assert resumed["history"]["loss"] == pytest.approx(expected["history"]["loss"], rel=1e-4)
    assert_same_weights(resumed["state"], expected["state"])


def test_processes_that_drift_or_fail_stop_with_a_sentence(both):
    for rank, found in enumerate(both):
        weights, loss, stopped = found["sentences"]
        assert weights.startswith("the 2 processes no longer agree on the weights after epoch 1: ")
        assert loss.startswith("the 2 processes no longer agree on the loss: ")
        assert stopped == ("the main process stopped: the disk is full" if rank else "")
        assert found["before"].startswith("2 processes were launched and have not met: call cirkit.parallel.start()")
        assert found["device"] == "2 processes cannot all compute on 'cuda:1'; say 'auto', 'cpu' or 'cuda'"


def test_the_command_leaves_the_record_of_the_notebook(both, one, folder, monkeypatch, capsys, tmp_path):
    assert [found["command"] for found in both] == [0, 0]
    record = load_metrics(folder / "two.json")
    assert record["provenance"]["processes"] == 2 and record["parameters"]["accumulation"] == 2
    (run,) = (folder / "two" / "runs").iterdir()
    assert {p.name for p in run.iterdir()} >= {"metrics.json", "history.csv", "model.safetensors", "ranks_val.csv"}
    assert run.name == record["run_id"] and not (run / CHECKPOINT).exists()
    monkeypatch.setenv("CIRKIT_CACHE", str(folder / "cache"))
    monkeypatch.setattr(cirkit.run_identity, "code_fingerprint", one_code)
    assert train.main([*words(folder), "--quiet", "--result", str(tmp_path / "one.json")]) == 0
    alone = load_metrics(tmp_path / "one.json")
    assert alone["run_id"] == record["run_id"] and alone["run_id"] in capsys.readouterr().out
    assert alone["provenance"]["processes"] == 1
    one_table, two_table = (pd.DataFrame(r["metrics"]).drop(columns=["low", "high"]) for r in (alone, record))
    pd.testing.assert_frame_equal(one_table, two_table, rtol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["noise_ratio=0.5"], "there is no parameter 'noise_ratio' .did you mean 'noise_rate'?"),
        (["noise_rate"], "'noise_rate' is no parameter: write name=value"), (["seed=x"], "seed must be int, got 'x'"),
        (["seed=1", "SEED=2"], "seed is given twice"), (["accumulation=0"], "accumulation must be greater than 0, got"),
        (["accumulation=1.5"], "accumulation must be int, got 1.5"), (["method=infonse"], "unknown method 'infonse'"),
        (["--result", "."], "--result must name a file to write"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_sentence(given, message, capsys):
    assert train.main(given) == 1
    out, err = capsys.readouterr()
    assert message.rstrip("?") in err.replace("(", ".") or message in err
    assert not out and err.count("\n") == 1


def test_parameters_are_read_as_they_are_typed():
    given = ["METHOD=rcl", "noise_rate=1", "exclude_reference=None", 'method_options={"temperature": 0.1}', "gate="]
    assert train.read_parameters(given) == {
        "method": "rcl", "noise_rate": 1, "exclude_reference": None, "method_options": {"temperature": 0.1}, "gate": "",
    }  # fmt: skip
