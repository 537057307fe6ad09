"""The loop: it learns, repeats itself, resumes, and keeps the truth about the noise from those who must not know."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.methods import REGISTRY, Method, build_method, method_class
from cirkit.noise import corrupt
from cirkit.training import CHECKPOINT, TrainConfig, epoch_order, fit

CONFIG = TrainConfig(epochs=3, batch_size=16, lr=2e-3)
BLIND = [name for name in REGISTRY if not method_class(name).uses_ledger]


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    backbone = small_backbone()
    return triplets, build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)


def train(world, small_backbone, name="infonce", triplets=None, config=CONFIG, **options):
    method = build_method(name, small_backbone())
    return method, fit(method, triplets or world[0], world[1], config, progress=False, **options)


def losses(history: pd.DataFrame) -> list[float]:
    return history.loss.tolist()


def test_it_learns_and_writes_a_history(world, small_backbone):
    _, history = train(world, small_backbone, config=TrainConfig(epochs=6, batch_size=16, lr=5e-3))
    assert history.epoch.tolist() == [1, 2, 3, 4, 5, 6]
    assert history.loss.iloc[-1] < history.loss.iloc[0]
    assert {"loss", "infonce", "s_ii", "gradient_norm", "lr", "seconds"} <= set(history)


def test_same_seed_same_run_and_other_seed_another(world, small_backbone):
    first, second = (train(world, small_backbone)[1] for _ in range(2))
    assert losses(first) == losses(second)
    other = train(world, small_backbone, config=TrainConfig(epochs=3, batch_size=16, seed=1))[1]
    assert losses(first) != losses(other)


def test_global_random_state_neither_matters_nor_changes(world, small_backbone):
    torch.manual_seed(1)
    first = train(world, small_backbone)[1]
    torch.manual_seed(2)
    expected = torch.rand(2)
    torch.manual_seed(2)
    second = train(world, small_backbone)[1]
    assert torch.equal(torch.rand(2), expected)
    assert losses(first) == losses(second)


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", REGISTRY)
def test_interrupted_run_resumes_to_the_same_numbers(world, small_backbone, tmp_path, name):
    clean = np.ones(len(world[0]), dtype=bool)
    whole, expected = train(world, small_backbone, name, clean=clean)

    def kill_in_second_epoch(epoch, method):
        if epoch == 1:
            raise Killed
        return {}

    with pytest.raises(Killed):
        train(world, small_backbone, name, folder=tmp_path, clean=clean, on_epoch=kill_in_second_epoch)
    assert (tmp_path / CHECKPOINT).is_file()
    resumed, history = train(world, small_backbone, name, folder=tmp_path, clean=clean)
    assert losses(history) == losses(expected)
    for key, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[key]), key


def test_damaged_checkpoint_is_named(world, small_backbone, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="resume.pt cannot be resumed"):
        train(world, small_backbone, folder=tmp_path)


def test_checkpoint_loads_weights_only_and_without_the_tower(world, small_backbone, tmp_path):
    train(world, small_backbone, folder=tmp_path)
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert not any("vision_model" in key for key in state["method"])


@pytest.mark.parametrize("name", BLIND)
def test_removing_the_ledger_changes_no_loss(world, small_backbone, name):
    noisy = corrupt(world[0], 0.5, "shuffle", seed=1)
    told = train(world, small_backbone, name, noisy.triplets, clean=noisy.ledger.clean)[1]
    untold = train(world, small_backbone, name, noisy.triplets, clean=None)[1]
    lied_to = train(world, small_backbone, name, noisy.triplets, clean=~noisy.ledger.clean)[1]
    assert losses(told) == losses(untold) == losses(lied_to)


def test_epoch_order_visits_rows_once_and_drops_the_rest():
    batches = epoch_order(10, 4, seed=0, epoch=0)
    assert [len(b) for b in batches] == [4, 4] and len(set(np.concatenate(batches))) == 8
    assert len(epoch_order(3, 4, seed=0, epoch=0)[0]) == 3
    assert not np.array_equal(batches[0], epoch_order(10, 4, seed=0, epoch=1)[0])


def test_loss_that_is_not_finite_stops_the_run(world, small_backbone):
    method = build_method("infonce", small_backbone())
    with torch.no_grad():
        method.backbone.query_tokens.fill_(float("nan"))
    with pytest.raises(ValueError, match="loss is nan in epoch 1, step 1"):
        fit(method, world[0], world[1], CONFIG, progress=False)


def test_impossible_settings_are_named():
    for name in ("epochs", "batch_size", "lr"):
        with pytest.raises(ValueError, match=f"{name} must be greater than 0"):
            TrainConfig(**{name: 0})


class Probe(Method):
    """Writes down what training hands to a method."""

    def __init__(self, backbone):
        super().__init__(backbone, Method.Config())
        self.batches, self.views, self.draws = [], [], []

    def start_epoch(self, view):
        self.views.append(view)

    def loss(self, batch, step):
        self.batches.append((step, batch))
        self.draws.append(torch.rand(()).item())
        return self.query(batch.references, batch.texts).sum(), {}


class Oracle(Probe):
    uses_ledger = True


def test_a_step_gets_its_own_references_texts_and_targets(world, small_backbone):
    triplets = world[0].replace(caption_mode="random")
    probe = Probe(small_backbone())
    history = fit(probe, triplets, world[1], CONFIG, progress=False)
    steps = len(epoch_order(len(triplets), CONFIG.batch_size, CONFIG.seed, 0))
    assert [step for step, _ in probe.batches] == list(range(3 * steps))
    for step, batch in probe.batches:
        rows = batch.rows.numpy()
        texts = triplets.epoch_texts(step // steps, CONFIG.seed)
        expected = probe.backbone.tokenize([texts[i] for i in rows])
        assert torch.equal(batch.texts.ids, expected.ids)
        for patches, ids in ((batch.references, triplets.references), (batch.targets, triplets.targets)):
            assert torch.equal(patches, world[1].patches(world[1].rows([ids[i] for i in rows])))
    assert len(set(history.lr)) == 3, "the learning rate follows its schedule"


def test_the_truth_reaches_oracles_and_nobody_else(world, small_backbone):
    clean = np.arange(len(world[0])) % 2 == 0
    blind, oracle = Probe(small_backbone()), Oracle(small_backbone())
    for method in (blind, oracle):
        fit(method, world[0], world[1], CONFIG, clean=clean, progress=False)
    assert all(view.clean is None for view in blind.views)
    assert all(np.array_equal(view.clean.numpy(), clean) for view in oracle.views)
    with pytest.raises(ValueError, match="oracle"):
        fit(Oracle(small_backbone()), world[0], world[1], CONFIG, progress=False)


def test_random_draws_follow_the_seed_and_go_on_after_a_resume(world, small_backbone, tmp_path):
    whole = Probe(small_backbone())
    fit(whole, world[0], world[1], CONFIG, progress=False)

    def kill(epoch, method):
        if epoch == 1:
            raise Killed
        return {}

    with pytest.raises(Killed):
        fit(Probe(small_backbone()), world[0], world[1], CONFIG, tmp_path, on_epoch=kill, progress=False)
    resumed = Probe(small_backbone())
    fit(resumed, world[0], world[1], CONFIG, tmp_path, progress=False)
    assert resumed.draws == whole.draws[len(whole.draws) // 3 :]
