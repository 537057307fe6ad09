"""INTENT: its losses and its whole forward against the released numbers, the intervention, and where pixels go."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from golden_backbone import golden_backbone
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.backbone import TokenBatch
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import PixelStore, build_store, store_key
from cirkit.losses import robust_contrastive
from cirkit.methods import Batch, TrainingView, build_method
from cirkit.methods.intent import causal_consistency, discriminative
from cirkit.runs import prepare
from cirkit.scores import max_over_tokens
from cirkit.spectrum import spectrum_mix
from cirkit.training import TrainConfig, fit

NAMES = ("intent", "intent-released")


def close(obtained, expected):
    torch.testing.assert_close(obtained.double(), expected.double(), rtol=0, atol=1e-5)


# --- the released numbers ---------------------------------------------------------------------------------------------


def test_rank_and_discriminative_loss_of_the_released_code(golden):
    g = tensors(golden("intent_rank_and_discriminative"))
    similarity, scale = max_over_tokens(g["composed"], g["target_tokens"]), float(g["loss_scale"])
    close(robust_contrastive(similarity, 0.07), g["rank_loss_out"])
    over_tokens = max_over_tokens(g["composed"], F.normalize(g["target_tokens"], dim=1))
    close(discriminative(over_tokens, scale, 0.07), g["discriminative_loss_out"])
    close(discriminative(similarity, scale, 0.07), g["discriminative_loss_if_features_normalised_reference"])
    assert over_tokens.max() > 1  # no cosines any more


def test_causal_consistency_of_the_released_code(golden):
    g = tensors(golden("intent_causal_consistency"))
    close(causal_consistency(g["tokens_intervened"], g["tokens"]), g["loss_out"])
    close(causal_consistency(g["tokens"], g["tokens"]), g["loss_self_out"])


def test_both_phases_are_the_released_forward(golden):
    lavis, g = tensors(golden("lavis_qformer")), tensors(golden("intent_end_to_end"))
    method = build_method("intent-released", golden_backbone(lavis, g, "intent_end_to_end")).train()
    with torch.no_grad():
        method.causal_projection.weight.copy_(g["causal_proj_weight"])
        method.causal_projection.bias.copy_(g["causal_proj_bias"])
    method.intervene = lambda batch: g["vit_reference_intervened"]
    batch = Batch(torch.arange(6), g["vit_reference"], TokenBatch(g["text_ids"], g["text_mask"]), g["vit_target"])
    total, logs = method.loss(batch, 0)
    expected = {"rank": "warmup_loss_stu", "discriminative": "warmup_loss_odl", "causal": "warmup_loss_caco"}
    for term, name in expected.items():
        assert logs[term] == pytest.approx(float(g[f"{name}_out"]), abs=1e-5), term
    weighted = logs["rank"] + 0.5 * logs["discriminative"] + logs["causal"]
    assert total.item() == pytest.approx(weighted, abs=1e-5)
    total.backward()
    assert method.causal_projection.weight.grad.abs().sum() > 0 and method.scale.grad.isfinite()

    method.start_epoch(TrainingView(None, None, 2, 8, 0))
    total, logs = method.loss(batch, 1)
    assert "causal" not in logs and "causal" not in method.terms
    assert logs["rank"] == pytest.approx(float(g["main_loss_stu_out"]), abs=1e-5)
    assert logs["discriminative"] == pytest.approx(float(g["main_loss_odl_out"]), abs=1e-5)
    assert total.item() == pytest.approx(logs["rank"] + 0.5 * logs["discriminative"], abs=1e-5)


# --- losses -----------------------------------------------------------------------------------------------------------


def test_discriminative_loss_equals_a_slow_loop():
    s, total = torch.randn(5, 5, dtype=torch.float64), 0.0
    for i in range(5):
        p = (s[i] / 0.3).softmax(0)
        r = torch.zeros(5, dtype=torch.float64)
        for j in range(5):
            rival = max(p[k] for k in range(5) if k != i) if i == j else p[i]
            r[j] = (p[j] + 1 - rival) / 2
        total -= (4 * r).log_softmax(0)[i].item()
    assert discriminative(s, 4, 0.3).item() == pytest.approx(total / 5)
    assert discriminative(s.T, 4, 0.3).item() != pytest.approx(total / 5, rel=1e-3)


def test_causal_consistency_equals_a_slow_loop_and_ignores_rotations():
    one, other = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    centre = torch.eye(5, dtype=torch.float64) - 1 / 5
    total = 0.0
    for a, b in zip(one, other, strict=True):
        k, m = (centre @ (u @ u.T) @ centre for u in (a, b))
        total += ((k * m).sum() / ((k * k).sum() * (m * m).sum()).sqrt()).item()
    assert causal_consistency(one, other).item() == pytest.approx(1 - total / 3, abs=1e-6)
    rotation = torch.linalg.qr(torch.randn(7, 7, dtype=torch.float64)).Q
    assert causal_consistency(one @ rotation, one).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [5, 1])
def test_losses_have_finite_gradients_in_every_precision(dtype, size):
    s = torch.randn(size, size, dtype=dtype, requires_grad=True)
    loss = discriminative(s, 10, 0.07)
    (gradient,) = torch.autograd.grad(loss, s)
    assert loss.dtype == torch.float32 and loss.isfinite() and gradient.isfinite().all()
    assert size > 1 or loss == 0
    tokens = torch.randn(size, 3, 7, dtype=dtype, requires_grad=True)
    for other in (torch.randn(size, 3, 7, dtype=dtype), torch.ones(size, 3, 7, dtype=dtype)):
        loss = causal_consistency(other, tokens)
        (gradient,) = torch.autograd.grad(loss, tokens)
        assert loss.shape == () and loss.isfinite() and gradient.isfinite().all()
    same = torch.ones(size, 3, 7, dtype=dtype, requires_grad=True)
    assert torch.autograd.grad(causal_consistency(same, same), same)[0].isfinite().all()


# --- the intervention -------------------------------------------------------------------------------------------------


def mixed_images(method, batch, monkeypatch):
    """The images that the tower is given when the strengths are one half."""
    monkeypatch.setattr("cirkit.methods.intent.torch.rand", lambda n, **_: torch.full((n,), 0.5))
    seen = []
    method.backbone.patch_tokens = lambda pixels: seen.append(pixels)
    method.intervene(batch)
    return seen[0]


def test_plain_pixels_are_mixed_and_normalised_again(small_backbone, monkeypatch):
    backbone = small_backbone(image_mean=(0.4, 0.5, 0.6), image_std=(0.2, 0.3, 0.4))
    batch = random_batch(backbone, 3)
    mean, std = torch.tensor([0.4, 0.5, 0.6])[:, None, None], torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    plain = torch.rand(2, 3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    pictures = [(x - mean) / std for x in plain]
    batch = batch._replace(reference_pixels=pictures[0], target_pixels=pictures[1])
    adapted = mixed_images(build_method("intent", backbone), batch, monkeypatch)
    torch.testing.assert_close(adapted * std + mean, spectrum_mix(*plain, torch.full((3,), 0.5)), rtol=0, atol=1e-5)
    released = mixed_images(build_method("intent-released", backbone), batch, monkeypatch)
    torch.testing.assert_close(released, spectrum_mix(*pictures, torch.full((3,), 0.5)))
    assert ((released == 0) | (released == 1)).float().mean() > 0.5  # most of the picture is gone
    assert released.min() == 0 and adapted.min() < -0.5


def test_a_random_partner_is_another_row(small_backbone, monkeypatch):
    batch = random_batch(small_backbone(), 5)
    own = mixed_images(build_method("intent", small_backbone()), batch, monkeypatch)
    for seed in range(5):
        torch.manual_seed(seed)
        other = mixed_images(build_method("intent", small_backbone(), partner="random"), batch, monkeypatch)
        assert ((own - other).abs().amax(dim=(1, 2, 3)) > 1e-3).all()
    alone = Batch(*(x[:1] if isinstance(x, torch.Tensor) else x for x in batch))
    assert mixed_images(build_method("intent", small_backbone(), partner="random"), alone, monkeypatch).isfinite().all()


def test_strengths_are_drawn_anew_and_follow_alpha(small_backbone):
    batch = random_batch(small_backbone(), 4)
    backbone = small_backbone()
    method = build_method("intent", backbone)
    plain = backbone.patch_tokens(batch.reference_pixels.clamp(-2, 2))
    first, second = (method.intervene(batch) for _ in range(2))
    assert (first - second).abs().amax(dim=(1, 2)).min() > 1e-4
    weak = build_method("intent", backbone, alpha=1e-6).intervene(batch)
    torch.testing.assert_close(weak, plain, rtol=0, atol=1e-2)
    assert (first - plain).abs().max() > 0.05


def test_the_axis_of_unit_length_is_a_switch(small_backbone):
    losses = {}
    for axis in ("features", "tokens"):
        method = build_method("intent", small_backbone(), unit_axis=axis)
        batch = random_batch(method.backbone, 5)
        losses[axis] = method.loss(batch, 0)[1]["discriminative"]
        targets = method.target(batch.targets)
        if axis == "tokens":
            targets = targets / targets.norm(dim=1, keepdim=True)
        scores = max_over_tokens(method.query(batch.references, batch.texts), targets)
        assert losses[axis] == pytest.approx(discriminative(scores, 10.0, 0.07).item(), abs=1e-5)
    assert losses["features"] != pytest.approx(losses["tokens"], rel=1e-3)


# --- options and training ---------------------------------------------------------------------------------------------


def test_variants_keep_their_switches(small_backbone):
    adapted, released = (build_method(name, small_backbone()).config for name in NAMES)
    assert (adapted.mixed_pixels, adapted.unit_axis, adapted.partner) == ("plain", "features", "target")
    assert (released.mixed_pixels, released.unit_axis, released.partner) == ("normalised", "tokens", "target")
    changed = build_method("intent-released", small_backbone(), causal_epochs=5, alpha=0.5).config
    assert (changed.causal_epochs, changed.alpha) == (5, 0.5)
    for options, message in (
        ({"mixed_pixels": "plain"}, "would no longer be the released variant of INTENT"),
        ({"unit_axis": "features"}, "would no longer be the released variant of INTENT"),
        ({"partner": "random"}, "would no longer be the released variant of INTENT"),
        ({"alpha": 0}, "alpha must be greater than 0 and at most 1"), ({"ratio": 1.5}, "ratio must be greater than 0"),
        ({"scale": 0}, "scale must be greater than 0"), ({"causal_epochs": -1}, "causal_epochs must not be negative"),
        ({"discriminative_weight": -1}, "must not be negative"), ({"causal_weight": -0.1}, "must not be negative"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            build_method("intent-released", small_backbone(), **options)


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    made = small_backbone(), ImageFolder(mini_world), triplets.image_ids()
    return triplets, *(build_store(*made, progress=False, pixels=pixels) for pixels in (False, True))


def test_a_pixel_store_holds_what_the_tower_takes(world, mini_world, small_backbone):
    triplets, features, pixels = world
    backbone, images = small_backbone(), ImageFolder(mini_world)
    assert isinstance(pixels, PixelStore) and pixels.shape == (3, 48, 48) and pixels.folder != features.folder
    asked = [triplets.references[3], triplets.targets[0]]
    found = pixels.patches(pixels.rows(asked))
    assert torch.equal(found, torch.stack([backbone.preprocess(images.load(image)) for image in asked]))
    torch.testing.assert_close(backbone.patch_tokens(found), features.patches(features.rows(asked)))
    with pytest.raises(ValueError, match="does not fit its index"):
        PixelStore(features.folder)
    key = store_key(backbone, images, asked, pixels=True)
    assert key != store_key(backbone, images, asked)
    assert key == store_key(small_backbone(seed=1), images, asked, pixels=True)  # whatever the tower's weights
    assert key != store_key(small_backbone(image_std=(0.3,) * 3), images, asked, pixels=True)


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_with_pixels_for_as_long_as_it_needs_them(world, small_backbone, name):
    triplets, store, pixels = world
    method = build_method(name, small_backbone(), causal_epochs=1)
    seen, loss = [], method.loss
    method.loss = lambda batch, step: seen.append(batch) or loss(batch, step)
    history = fit(method, triplets, store, TrainConfig(epochs=2, batch_size=12), progress=False, pixels=pixels)
    assert np.isfinite(history.loss).all() and history.causal.isna().tolist() == [False, True]
    assert history["gradient causal"][0] > 0
    steps = len(seen) // 2
    assert all(batch.reference_pixels is None and batch.target_pixels is None for batch in seen[steps:])
    for batch in seen[:2]:
        for found, images, patches in (
            (batch.reference_pixels, triplets.references, batch.references),
            (batch.target_pixels, triplets.targets, batch.targets),
        ):
            assert torch.equal(found, pixels.patches(pixels.rows([images[row] for row in batch.rows.tolist()])))
            torch.testing.assert_close(method.backbone.patch_tokens(found), patches)


def test_without_pixels_it_says_what_is_missing(world, small_backbone):
    config = TrainConfig(epochs=2, batch_size=12)
    with pytest.raises(ValueError, match="INTENT needs the pixels of its images"):
        fit(build_method("intent", small_backbone()), *world[:2], config, progress=False)
    method = build_method("intent", small_backbone())
    batch = random_batch(method.backbone, 3)._replace(reference_pixels=None)
    with pytest.raises(ValueError, match="its batches need reference_pixels and target_pixels"):
        method.loss(batch, 0)
    never = build_method("intent", small_backbone(), causal_epochs=0)
    assert "causal" not in never.loss(batch, 0)[1]


def test_a_method_without_use_for_pixels_gets_none(world, small_backbone):
    method, seen = build_method("infonce", small_backbone()), []
    loss = method.loss
    method.loss = lambda batch, step: seen.append(batch) or loss(batch, step)
    fit(method, *world[:2], TrainConfig(epochs=2, batch_size=12), progress=False, pixels=world[2])
    assert {batch.reference_pixels for batch in seen} == {None}


def test_a_run_gets_the_pixels_of_its_training_triplets(mini_world, monkeypatch):
    settings = dict(dataset="fashioniq", data_root=str(mini_world), backbone="tiny-random", epochs=2, batch_size=16)
    given, bind = [], inspect.signature(fit).bind
    monkeypatch.setattr("cirkit.runs.fit", lambda *a: given.append(bind(*a).arguments["pixels"]) or pd.DataFrame())
    for method in ("intent", "infonce"):
        run = prepare(**settings, method=method, progress=False)
        run.fit(progress=False)
    assert set(given[0].ids) == {*run.noisy.triplets.references, *run.noisy.triplets.targets}
    assert isinstance(given[0], PixelStore) and given[1] is None
