"""Unlearning watched: nearness, margins, equal forgetting, and training that goes on."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.forgetting import at_equal, continue_training, margins, nearness
from cirkit.losses import infonce
from cirkit.methods import build_method
from cirkit.retrieval import encode_images, encode_queries
from cirkit.training import TrainConfig

CONFIG = TrainConfig(epochs=1, batch_size=8)


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train").select(range(20))
    backbone = small_backbone()
    store = build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
    return build_method("infonce", backbone), triplets, store


def test_nearness_looks_past_oneself():
    queries = F.normalize(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    noisy = torch.tensor([True, False, False, True, True, False, False])
    slow = [max(float(queries[i] @ queries[j]) for j in range(7) if noisy[j] and j != i) for i in range(7)]
    torch.testing.assert_close(nearness(queries, noisy), torch.tensor(slow))


def test_nearness_needs_two_noisy_triplets():
    with pytest.raises(ValueError, match="at least two noisy triplets, got 1"):
        nearness(torch.eye(3), torch.tensor([True, False, False]))


def test_margins_against_a_slow_loop(world):
    method, triplets, store = world
    triplets = triplets.replace(targets=(*triplets.targets[:19], triplets.targets[0]))  # one image is a target twice
    queries = encode_queries(method, triplets, store)
    tokens = dict(zip(triplets.targets, encode_images(method, triplets.targets, store), strict=True))
    own, margin = margins(method, triplets, store)
    for i, image in enumerate(triplets.targets):
        scores = {other: float((tokens[other] @ queries[i]).max()) for other in tokens}
        assert own[i] == pytest.approx(scores[image], abs=1e-6)
        wrong = max(score for other, score in scores.items() if other != image)
        assert margin[i] == pytest.approx(scores[image] - wrong, abs=1e-6)


def test_margins_need_a_wrong_image(world):
    method, triplets, store = world
    with pytest.raises(ValueError, match="at least two different targets"):
        margins(method, triplets.select([0, 0]), store)


def of_clean_rows(method, batch, noisy):
    return infonce(method.similarity(batch), 0.07, ~noisy)


def test_training_goes_on_the_same_way_twice_and_tells_its_steps(world):
    method, triplets, store = world
    noisy = np.arange(20) % 2 == 0
    batches = [np.arange(8), np.arange(8, 16)]
    before = of(method)
    ends, steps, shown = [], [], []
    for _ in range(2):

        def loss(method, batch, flags):
            shown.append((batch.rows.tolist(), flags.tolist()))
            return of_clean_rows(method, batch, flags)

        arm = continue_training(
            copy.deepcopy(method), loss, triplets, store, noisy, batches, CONFIG, 1e-3, steps.append
        )
        assert not arm.training
        ends.append(of(arm))
    assert torch.equal(*ends) and not torch.equal(ends[0], before) and torch.equal(of(method), before)
    assert steps == [1, 2, 1, 2]
    assert shown[:2] == [(rows.tolist(), noisy[rows].tolist()) for rows in batches]


def of(method):
    return torch.cat([parameter.detach().flatten() for parameter in method.parameters()])


def test_a_learning_rate_too_small_to_matter_changes_nothing_that_matters(world):
    method, triplets, store = world
    before = of(method)
    continue_training(method, of_clean_rows, triplets, store, np.zeros(20, bool), [np.arange(8)], CONFIG, 1e-9)
    torch.testing.assert_close(of(method), before, atol=1e-8, rtol=0)


@pytest.mark.parametrize("sign", [1, -1], ids=["descent", "ascent"])
def test_the_loss_goes_where_its_sign_sends_it(world, sign):
    method, triplets, store = world
    losses: list[float] = []

    def loss(method, batch, noisy):
        value = infonce(method.similarity(batch), 0.07, noisy)
        losses.append(value.item())
        return sign * value

    continue_training(method, loss, triplets, store, np.arange(20) < 8, [np.arange(16)] * 12, CONFIG, 1e-3)
    assert sign * losses[-1] < sign * losses[0]


def test_a_loss_that_is_not_finite_is_named_with_its_step(world):
    method, triplets, store = world

    def loss(method, batch, flags):
        return of_clean_rows(method, batch, flags) * float("nan")

    with pytest.raises(ValueError, match="the loss is nan in step 1"):
        continue_training(method, loss, triplets, store, np.zeros(20, bool), [np.arange(8)], CONFIG, 1e-3)


def test_equal_forgetting_lies_on_the_line_between_two_moments():
    reached, values = [0.0, 0.1, 0.3], [[0.0, 0.0], [1.0, -2.0], [2.0, -6.0]]
    np.testing.assert_allclose(at_equal(0.05, reached, values), [0.5, -1.0])
    np.testing.assert_allclose(at_equal(0.25, reached, values), [1.75, -5.0])
    np.testing.assert_allclose(at_equal(0.3, reached, values), [2.0, -6.0])


def test_equal_forgetting_is_that_of_the_first_time_and_none_where_it_never_came():
    reached, values = [0.0, 0.2, 0.1, 0.4], [[0.0], [1.0], [5.0], [9.0]]
    np.testing.assert_allclose(at_equal(0.2, reached, values), [1.0])
    np.testing.assert_allclose(at_equal(-1.0, reached, values), [0.0])
    assert at_equal(0.5, reached, values) is None
