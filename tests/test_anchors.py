"""NBL: the two losses of the anchors, against the released code's numbers, slow loops, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from golden_tensors import tensors

from cirkit.anchors import query_oriented, similarity_band, target_oriented
from cirkit.losses import robust_contrastive
from cirkit.scores import max_over_tokens

TARGET_FORMS, QUERY_FORMS = ("softmax", "logits", "balanced"), ("coordinates", "constants", "batch_means")


def test_target_oriented_loss_of_the_released_code(golden):
    g = tensors(golden("conesep_target_oriented"))
    for given, expected in (("negative_to_target_similarity", "loss_out"), ("raw_similarity", "loss_raw_out")):
        # the released function takes what was put through a softmax, or not, before
        value = target_oriented(g[given], 1.0, "logits").item()
        assert value == pytest.approx(g[expected].item(), abs=1e-5)


def test_query_oriented_loss_of_the_released_code(golden):
    g = tensors(golden("conesep_query_oriented"))
    for form, expected in (("coordinates", "loss_as_called_out"), ("constants", "loss_rowwise_2d_out")):
        value = query_oriented(g["composed"], g["negative_composed"], temperature=0.07, form=form).item()
        assert value == pytest.approx(g[expected].item(), abs=1e-5)


def test_warm_up_losses_of_the_released_code(golden):
    g = tensors(golden("conesep_warmup"))
    composed, anchors, targets, tau = g["composed"], g["negative_composed"], g["target_tokens"], 0.07
    similarity, away = max_over_tokens(composed, targets), max_over_tokens(anchors, targets)
    for scores, expected in ((similarity, "composed_target_prob"), (away, "negative_target_prob")):
        torch.testing.assert_close((scores / tau).softmax(dim=1), g[expected], rtol=0, atol=1e-5)
    pull = target_oriented(away, tau, "softmax").item()
    band = query_oriented(composed, anchors, form="coordinates").item()
    assert pull == pytest.approx(g["target_oriented_unweighted"].item(), abs=1e-5)
    assert band == pytest.approx(g["query_oriented_unweighted"].item(), abs=1e-5)
    assert g["weight_target_oriented"].item() * pull == pytest.approx(g["target_oriented"].item(), abs=1e-5)
    assert g["weight_query_oriented"].item() * band == pytest.approx(g["query_oriented"].item(), abs=1e-5)
    assert robust_contrastive(similarity, tau).item() == pytest.approx(g["loss_robust"].item(), abs=1e-5)


def test_target_oriented_losses_equal_a_slow_loop():
    similarity, tau = torch.randn(5, 5, dtype=torch.float64) * 0.2, 0.1
    terms = {"own": [], "other": [], "softmax": []}
    for i, row in enumerate(similarity.tolist()):
        weights = [math.exp(s / tau) for s in row]
        for j, s in enumerate(row):
            sign = -1 if i == j else 1
            terms["own" if i == j else "other"].append(math.log(1 + math.exp(-sign * s / tau)))
            terms["softmax"].append(math.log(1 + math.exp(-sign * weights[j] / sum(weights))))
    expected = {
        "logits": (sum(terms["own"]) + sum(terms["other"])) / 5,
        "balanced": sum(terms["own"]) / 5 + sum(terms["other"]) / 20,
        "softmax": sum(terms["softmax"]) / 5,
    }
    for form, value in expected.items():
        assert target_oriented(similarity, tau, form).item() == pytest.approx(value, abs=1e-9), form
    assert target_oriented(similarity.T, tau, "softmax").item() != pytest.approx(expected["softmax"], abs=1e-4)


def test_query_oriented_losses_equal_a_slow_loop():
    composed, anchors = (F.normalize(torch.randn(5, 7, dtype=torch.float64), dim=1) for _ in range(2))
    similarity, tau = torch.randn(5, 5, dtype=torch.float64) * 0.2, 0.1

    def outside(value: float, low: float, high: float) -> float:
        return (max(value - high, 0.0) + max(low - value, 0.0)) / tau

    right = sum(similarity[i, i].item() for i in range(5)) / 5
    wrong = sum(similarity[i, j].item() for i in range(5) for j in range(5) if i != j) / 20
    low, high = min(right, wrong), max(right, wrong)
    own = [sum(composed[i, d].item() * anchors[i, d].item() for d in range(7)) for i in range(5)]
    every = [(composed[i, d] * anchors[j, d]).item() for i in range(5) for j in range(5) for d in range(7)]
    expected = {
        "batch_means": sum(outside(v, low, high) for v in own) / 5,
        "constants": sum(outside(v, -0.007, -0.002) for v in own) / 5,
        "coordinates": sum(outside(v, -0.007, -0.002) for v in every) / 175,
    }
    for form, value in expected.items():
        assert query_oriented(composed, anchors, similarity, tau, form).item() == pytest.approx(value, abs=1e-6), form


@pytest.mark.parametrize("size", [1, 5, 21])
def test_the_gradient_of_the_coordinates_is_that_of_the_plain_formula(size):
    composed, anchors = (F.normalize(torch.randn(size, 7).double(), dim=1).requires_grad_() for _ in range(2))
    products = composed[:, None] * anchors
    plain = ((products + 0.002).clamp(min=0) + (-0.007 - products).clamp(min=0)).mean() / 0.1
    loss = query_oriented(composed, anchors, None, 0.1, "coordinates")
    torch.testing.assert_close(loss, plain)
    for ours, expected in zip(*(torch.autograd.grad(x, (composed, anchors)) for x in (loss, plain)), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_band_is_in_rising_order_and_takes_no_gradient(sign):
    similarity = (sign * (torch.eye(4) - 0.1)).requires_grad_()
    low, high = similarity_band(similarity)
    assert low < high and not low.requires_grad
    composed, anchors = torch.eye(4, 7), torch.eye(4, 7).requires_grad_()
    query_oriented(composed, anchors, similarity).backward()
    assert similarity.grad is None and anchors.grad is not None


def test_an_anchor_inside_the_band_is_left_alone():
    similarity = torch.full((3, 3), -0.2).fill_diagonal_(0.4)
    composed = torch.eye(3, 7)
    for value, still in ((0.0, True), (0.39, True), (0.41, False), (-0.21, False)):
        anchors = (value * composed).requires_grad_()
        loss = query_oriented(composed, anchors, similarity)
        loss.backward()
        assert (loss.item() == 0) is still and (anchors.grad.abs().sum() == 0).item() is still, value


def test_a_step_takes_an_anchor_off_its_own_target_and_softmax_hardly():
    steps = {}
    for form in TARGET_FORMS:
        similarity = torch.full((5, 5), 0.1).requires_grad_()
        target_oriented(similarity, 0.07, form).backward()
        others = similarity.grad.masked_select(~torch.eye(5, dtype=torch.bool))
        assert (similarity.grad.diagonal() > 0).all() and (others < 0).all(), form
        steps[form] = similarity.grad.diagonal().min().item()
    assert steps["softmax"] < 0.2 * steps["logits"] and steps["balanced"] == pytest.approx(steps["logits"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 4])
def test_half_precision_extremes_and_a_batch_of_one_stay_finite(dtype, size):
    for scale in (0.0, 1.0, -1.0):
        similarity = torch.full((size, size), -scale, dtype=dtype).fill_diagonal_(scale).requires_grad_()
        for form in TARGET_FORMS:
            loss = target_oriented(similarity, 0.01, form)
            loss.backward()
            assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
            assert similarity.grad.isfinite().all()
        composed, anchors = torch.eye(size, 7, dtype=dtype), (scale * torch.eye(size, 7)).to(dtype).requires_grad_()
        for form in QUERY_FORMS:
            loss = query_oriented(composed, anchors, similarity.detach(), 0.07, form)
            loss.backward()
            assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
            assert anchors.grad.isfinite().all()


def test_unknown_forms_are_one_sentence():
    with pytest.raises(ValueError, match="'softmax', 'logits' or 'balanced', got 'soft'"):
        target_oriented(torch.eye(3), form="soft")
    with pytest.raises(ValueError, match="'coordinates', 'constants' or 'batch_means', got 'means'"):
        query_oriented(torch.eye(3), torch.eye(3), torch.eye(3), form="means")
