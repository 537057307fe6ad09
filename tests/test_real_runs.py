"""From a checkpoint in each real format to a result: trained, evaluated, interrupted and resumed, loaded again."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from mini_fashioniq import write_annotations, write_images
from real_formats import FORMATS, write

import cirkit.run_identity
import cirkit.runs
from cirkit.checkpoints import CHECKPOINT
from cirkit.runs import Run, load_metrics, train_or_load

pytestmark = pytest.mark.filterwarnings("ignore:this run has .* optimizer steps")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A small folder in FashionIQ's layout."""
    return write_images(write_annotations(tmp_path_factory.mktemp("data")), size=(40, 31))


@pytest.fixture(autouse=True, scope="module")
def _code_read_once():
    """The fingerprint of the code takes longer than all the rest of these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cirkit.run_identity, "code_fingerprint", cache(cirkit.run_identity.code_fingerprint))
        yield


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_on_each_format(data, form, monkeypatch, tmp_path):
    backbone = write(tmp_path / "mine", form)

    def go() -> Run:
        return train_or_load(
            progress=False, method="infonce", backbone=str(backbone), dataset="fashioniq", data_root=str(data),
            epochs=2, batch_size=2, device="cpu",
        )  # fmt: skip

    run = go()
    assert run.config.lr == 2e-5, "the published rate, on a published tower"
    assert run.done and not (run.folder / CHECKPOINT).exists()
    record = load_metrics(run.folder)
    assert record["effective"]["backbone"] == "mine"
    recall = pd.DataFrame(record["metrics"]).query("metric == 'R@10' and split == 'val'").value
    assert len(recall) and recall.between(0, 100).all()
    state = run.method.trained_state()
    assert not any(name.startswith("backbone.vision_model.") for name in state)
    start = cirkit.runs.load_backbone(str(backbone)).state_dict()
    assert any(not torch.equal(value, start[name.removeprefix("backbone.")]) for name, value in state.items())

    # the same elsewhere, stopped after its first epoch
    monkeypatch.setenv("CIRKIT_RESULTS", str(tmp_path / "elsewhere"))
    detect, epochs = cirkit.runs.detection_by_epoch, []

    def stopping(*arguments):
        epochs.append(len(epochs))
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return detect(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cirkit.runs, "detection_by_epoch", stopping)
        with pytest.raises(KeyboardInterrupt):
            go()
    assert list((tmp_path / "elsewhere").rglob(CHECKPOINT))
    resumed, loaded = go(), go()
    assert resumed.folder != run.folder
    for other in (resumed, loaded):
        assert other.id == run.id
        assert all(torch.equal(value, state[name]) for name, value in other.method.trained_state().items())
    assert len(loaded.history()) == 2
    assert np.array_equal(pd.read_csv(resumed.folder / "ranks_val.csv"), pd.read_csv(run.folder / "ranks_val.csv"))
