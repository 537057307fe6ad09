"""The registry, what all methods owe, and InfoNCE."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from cirkit.backbone import TokenBatch
from cirkit.methods import REGISTRY, Batch, build_method, method_class
from cirkit.methods.infonce import infonce


def random_batch(backbone, n: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(2 * n, 3, 48, 48, generator=generator)
    patches = backbone.patch_tokens(pixels)
    texts = backbone.tokenize([f"is {colour}" for colour in ("red", "blue", "long and teal", "white", "", "x")][:n])
    return Batch(torch.arange(n), patches[:n], texts, patches[n:])


def test_infonce_equals_a_slow_loop():
    similarity = torch.randn(5, 5, dtype=torch.float64)
    tau, total = 0.07, 0.0
    for i in range(5):
        top = max(similarity[i]) / tau
        total -= similarity[i, i] / tau - top - math.log(sum(math.exp(s / tau - top) for s in similarity[i]))
    assert infonce(similarity, tau).item() == pytest.approx(total.item() / 5, rel=1e-5)
    assert infonce(similarity.T, tau).item() != pytest.approx(total.item() / 5, rel=1e-3)


def test_infonce_wants_a_square_matrix():
    with pytest.raises(ValueError, match=r"\(3, 5\)"):
        infonce(torch.randn(3, 5), 0.07)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("size", [6, 1])
@pytest.mark.parametrize("half", [False, True])
def test_loss_is_a_finite_scalar_with_finite_gradients(small_backbone, name, size, half):
    method = build_method(name, small_backbone()).train()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss, terms = method.loss(random_batch(method.backbone, size), step=0)
    assert loss.shape == () and loss.isfinite() and all(math.isfinite(v) for v in terms.values())
    loss.backward()
    gradients = {k: p.grad for k, p in method.named_parameters() if p.grad is not None}
    assert gradients and all(g.isfinite().all() for g in gradients.values())
    assert not any(k.startswith("backbone.vision_model.") for k in gradients)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_step_lowers_the_loss_on_its_own_batch(small_backbone, name):
    method = build_method(name, small_backbone()).train()
    batch = random_batch(method.backbone, 6)
    optimizer = torch.optim.AdamW(method.parameter_groups(0.0), lr=1e-3)
    losses = []
    for step in range(8):
        loss, _ = method.loss(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_similarity_rows_are_queries(small_backbone):
    method = build_method("infonce", small_backbone()).eval()
    batch = random_batch(method.backbone, 5)
    similarity = method.similarity(batch)
    query = method.query(batch.references, batch.texts)
    target = method.target(batch.targets)
    for i in range(5):
        for j in range(5):
            assert similarity[i, j].item() == pytest.approx(max((target[j] @ query[i]).tolist()), abs=1e-5)


def test_trained_parameters_are_in_exactly_one_group(small_backbone):
    method = build_method("infonce", small_backbone())
    grouped = [id(p) for group in method.parameter_groups(0.05) for p in group["params"]]
    trained = [id(p) for p in method.parameters() if p.requires_grad]
    assert sorted(grouped) == sorted(trained) and len(set(grouped)) == len(grouped)
    tower = {id(p) for p in method.backbone.vision_model.parameters()}
    assert tower and not tower & set(grouped)


def test_unknown_methods_and_options_are_refused(small_backbone):
    with pytest.raises(ValueError, match="unknown method 'infonse'; known: .*infonce"):
        build_method("infonse", small_backbone())
    with pytest.raises(ValueError, match="no option 'temprature' .did you mean 'temperature'"):
        build_method("infonce", small_backbone(), temprature=1.0)


@pytest.mark.parametrize("name", REGISTRY)
def test_config_is_a_frozen_typed_dataclass_with_a_variant(name):
    cls = method_class(name).Config
    assert dataclasses.is_dataclass(cls) and "variant" in {f.name for f in dataclasses.fields(cls)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().variant = "other"


def test_token_batch_rows_cut_padding():
    batch = TokenBatch(torch.tensor([[1, 2, 0, 0], [1, 2, 3, 4]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
    assert batch.rows(torch.tensor([0])).ids.tolist() == [[1, 2]]


def test_the_temperature_asked_for_is_the_one_used(small_backbone):
    losses = []
    for temperature in (0.07, 0.5):
        method = build_method("infonce", small_backbone(), temperature=temperature)
        batch = random_batch(method.backbone, 5)
        losses.append(method.loss(batch, 0)[0].item())
        assert losses[-1] == pytest.approx(infonce(method.similarity(batch), temperature).item(), abs=1e-5)
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)
