"""QuRe against the numbers of its released code, and what its options do."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from golden_backbone import golden_backbone
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.backbone import TokenBatch
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.drawn import definition_epochs
from cirkit.features import build_store
from cirkit.losses import bradley_terry, row_losses
from cirkit.methods import Batch, build_method
from cirkit.scores import max_over_tokens
from cirkit.similarity import own_similarity
from cirkit.training import TrainConfig, fit


def close(obtained, expected):
    torch.testing.assert_close(obtained, expected, rtol=0, atol=1e-5)


def test_score_of_the_released_code(golden):
    g = tensors(golden("qure_score"))
    close(max_over_tokens(g["query"], g["target_tokens"]), g["score_out"])


@pytest.mark.parametrize("form", ["temp", "notemp"])
def test_loss_and_gradients_of_the_released_code(golden, form):
    g = tensors(golden("qure_two_way_loss"))
    query = g["query_unnormalised"].clone().requires_grad_()
    tau = torch.tensor(float(g["temperature"]), requires_grad=True)
    tokens = [F.normalize(g[f"{name}_tokens_unnormalised"], dim=-1) for name in ("positive", "negative")]
    scores = [own_similarity(F.normalize(query, dim=-1), t) for t in tokens]
    divisor = tau if form == "temp" else 1.0
    close(torch.stack(scores, dim=1) / divisor, g[f"scores_{form}_out"])
    loss = bradley_terry(*scores, divisor)
    loss.backward()
    close(loss, g[f"loss_{form}_out"])
    close(query.grad, g[f"grad_query_{form}"])
    if form == "temp":
        close(tau.grad, g["grad_temperature"])


def test_bradley_terry_is_the_two_way_divergence():
    positive, negative = torch.randn(2, 5, dtype=torch.float64)
    two = torch.stack([positive, negative], dim=1).div(0.3).log_softmax(dim=1)
    one_hot = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(5, 2)
    expected = F.kl_div(two, one_hot, reduction="batchmean")
    assert bradley_terry(positive, negative, 0.3).item() == pytest.approx(expected.item(), abs=1e-12)
    slow = sum(math.log1p(math.exp(-(p - n) / 0.3)) for p, n in zip(positive.tolist(), negative.tolist(), strict=True))
    assert bradley_terry(positive, negative, 0.3).item() == pytest.approx(slow / 5, abs=1e-12)
    assert bradley_terry(torch.tensor([1.0]), torch.tensor([-1.0]), 1e-4).item() == 0.0
    for half in (torch.float16, torch.bfloat16):
        assert bradley_terry(positive.to(half), negative.to(half), 0.07).dtype == torch.float32
    with pytest.raises(ValueError, match=r"\(5,\), \(1, 5\)"):
        bradley_terry(positive, negative[None])


@pytest.fixture(scope="module")
def released(golden):
    """Golden arrays of a whole forward pass, and the released variant on a backbone that carries their weights."""
    lavis, g = tensors(golden("lavis_qformer")), tensors(golden("qure_end_to_end"))
    backbone = golden_backbone(lavis, g, "qure_end_to_end")
    return g, build_method("qure-released", backbone, temperature=float(g["temperature"]))


def test_whole_forward_of_the_released_code(released):
    g, method = released
    texts = TokenBatch(g["text_ids"], g["text_mask"])
    negative = g["vit_negative"]
    method.negatives.patches = lambda rows: negative[rows]
    query = method.query(g["vit_reference"], texts)
    scores = [own_similarity(query, method.target(g[f"vit_{name}"])) for name in ("positive", "negative")]
    close(torch.stack(scores, dim=1) / method.temperature, g["scores_out"])
    loss, logs = method.loss(Batch(torch.arange(6), g["vit_reference"], texts, g["vit_positive"]), 0)
    close(loss, g["loss_out"])
    assert logs["bradley_terry"] == loss.item() and logs["temperature"] == pytest.approx(0.07)
    loss.backward()
    assert method.learned.grad.isfinite() and method.backbone.query_tokens.grad.abs().sum() > 0


@pytest.mark.parametrize("form", ["log", "free", "none"])
def test_forms_of_the_temperature(small_backbone, form):
    method = build_method("qure", small_backbone(), variant="adapted", temperature=0.2, temperature_form=form)
    assert method.temperature.item() == pytest.approx(1.0 if form == "none" else 0.2)
    names = {name for name, _ in method.named_parameters()}
    assert ("learned" in names) == (form != "none")
    if form != "none":
        method.learned.data -= 9.0  # a step too far
        assert (method.temperature > 0) == (form == "log")


def test_queries_are_means_of_the_query_positions(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 5)
    for options, pool in (({}, "mean"), ({"variant": "adapted", "pool": "text"}, "text")):
        query = build_method("qure", backbone, **options).query(batch.references, batch.texts)
        torch.testing.assert_close(query, backbone.compose(batch.references, batch.texts, pool=pool))
    assert query.shape == (5, 7)


def test_what_a_step_observes_is_the_similarity_in_the_batch(small_backbone):
    method = build_method("qure", small_backbone()).train()
    batch = random_batch(method.backbone, 5)
    method.negatives.patches = lambda rows: batch.references
    _, logs = method.loss(batch, 0)
    similarity = method.similarity(batch).detach()
    torch.testing.assert_close(method.observed["similarity"], similarity.diagonal())
    torch.testing.assert_close(method.observed["loss"], row_losses(similarity, 0.07))
    assert logs["s_pos"] == pytest.approx(similarity.diagonal().mean().item())


def test_variants_keep_their_switches_and_adapted_may_change_them(small_backbone):
    paper, released = (build_method(name, small_backbone()).config for name in ("qure", "qure-released"))
    assert (paper.threshold, paper.below, paper.corpus, paper.temperature_form) == (0, "score", "split", "log")
    assert (released.threshold, released.below, released.corpus, released.temperature_form) == (
        1, "place", "by_data", "free",
    )  # fmt: skip
    changed = build_method("qure", small_backbone(), variant="adapted", keep_steepest=True, threshold=3).config
    assert (changed.keep_steepest, changed.threshold, changed.below) == (True, 3, "score")
    for name, options in (("qure", {"threshold": 1}), ("qure-released", {"corpus": "split"})):
        with pytest.raises(ValueError, match="no longer be the (paper|released) variant of QuRe"):
            build_method(name, small_backbone(), **options)
    for options, message in (
        ({"definitions": 0}, "definitions must be greater than 0"),
        ({"variant": "adapted", "threshold": -1}, "threshold must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            build_method("qure", small_backbone(), **options)


@pytest.mark.parametrize("name", ["qure", "qure-released"])
def test_it_trains_and_says_when_it_defined_which_zones(mini_world, small_backbone, name):
    triplets = load_fashioniq(mini_world, "train")
    method = build_method(name, small_backbone(), definitions=2)
    store = build_store(method.backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
    config = TrainConfig(epochs=5, batch_size=16, lr=2e-3, schedule="cosine")
    history = fit(method, triplets, store, config, progress=False)
    mined = [0, *definition_epochs(5, 2)]
    assert mined == [0, 2, 4]
    assert history.zone_mean.notna().tolist() == [epoch in mined for epoch in range(5)]
    assert (history.zone_fallback.dropna() < 1).all() and (history.zone_min.dropna() >= 1).all()
    warm_up, *hard = history.zone_mean.dropna()
    assert max(hard) < warm_up
    assert method.temperature.item() != pytest.approx(0.07)
