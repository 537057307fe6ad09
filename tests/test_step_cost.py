"""What a step costs: arithmetic and memory are counts, so they can be tested; time is only there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.methods import build_method
from cirkit.step_cost import EPOCHS, _Arithmetic, _Kept, step_cost
from cirkit.training import TrainConfig


@pytest.fixture(scope="module")
def world(mini_world):
    """Triplets, and a maker of their features, which serve every backbone with the same tower."""
    train, stores = load_fashioniq(mini_world, "train"), []

    def store_of(backbone):
        if not stores:
            stores.append(build_store(backbone, ImageFolder(mini_world), train.image_ids(), progress=False))
        return stores[0]

    return train, store_of


def cost(world, backbone, name: str, batch_size: int = 8) -> dict[str, float]:
    (train, store_of), config = world, TrainConfig(batch_size=batch_size, epochs=1)
    method = build_method(name, backbone)
    return step_cost(method, train, store_of(backbone), config, np.arange(len(train)) % 4 > 0, steps=1)


def test_a_step_of_twice_the_rows_takes_about_twice_the_work(world, small_backbone):
    small, large = (cost(world, small_backbone(), "infonce", size) for size in (8, 16))
    assert 1.9 < large["flops"] / small["flops"] < 2.2 and 1.9 < large["activations"] / small["activations"] < 2.2
    assert small["state"] == large["state"] and min(small.values()) >= 0 < small["seconds"]


def test_a_drawn_negative_and_an_anchor_cost_what_they_add(world, small_backbone):
    plain, drawn, anchors = (
        cost(world, small_backbone(), n) for n in ("infonce", "infonce+random", "conesep-released")
    )
    # a third image beside query and target; a query with negative prompts and random triplets
    assert 1.1 < drawn["flops"] / plain["flops"] < 1.6 and 1.5 < anchors["flops"] / plain["flops"]
    assert plain["activations"] < drawn["activations"] and plain["activations"] < anchors["activations"]


def test_only_an_oracle_is_told_the_truth(world, small_backbone):
    (train, store_of), clean = world, np.arange(len(world[0])) % 4 > 0
    for name, told in (("infonce", None), ("oracle-infonce", clean.tolist())):
        method, seen = build_method(name, small_backbone()), []
        method.start_epoch = lambda view, seen=seen: seen.append(view.clean)
        step_cost(method, train, store_of(method.backbone), TrainConfig(batch_size=8), clean, steps=1)
        assert [truth if truth is None else truth.tolist() for truth in seen] == [told] * EPOCHS


def test_state_is_parameters_gradients_and_two_moments(world, small_backbone):
    trained = sum(p.numel() for p in build_method("infonce", small_backbone()).parameters() if p.requires_grad)
    assert cost(world, small_backbone(), "infonce")["state"] == 4 * 4 * trained


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        step_cost(None, None, None, None, None, steps=0)


def test_arithmetic_of_products_by_hand():
    a, b = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    with _Arithmetic() as counter:
        (a @ b).sum().backward()
    assert counter.flops == 3 * 2 * 3 * 5 * 7  # forward, and one product for each gradient


def test_what_is_kept_counts_each_storage_once_and_no_parameter():
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(6, 4)
    kept = _Kept({weight.untyped_storage().data_ptr()})
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
        y = x @ weight
        (y.exp() + y.view(24).square().view(6, 4)).sum()
    assert sum(kept.sizes.values()) == 4 * (6 * 4 * 3)  # x, y, and its exponential


def test_a_method_that_changes_images_is_given_them(world, mini_world, small_backbone):
    train, store_of = world
    method, seen = build_method("infonce", small_backbone()), []
    store = store_of(method.backbone)
    pixels = build_store(method.backbone, ImageFolder(mini_world), train.image_ids(), progress=False, pixels=True)
    plain, method.uses_pixels = method.loss, True
    method.loss = lambda batch, step: seen.append(batch) or plain(batch, step)
    step_cost(method, train, store, TrainConfig(batch_size=8, epochs=1), np.ones(len(train), dtype=bool), 1, pixels)
    with torch.no_grad():
        torch.testing.assert_close(method.backbone.patch_tokens(seen[0].target_pixels), seen[0].targets)
