"""Shared losses: against the released code's numbers, against slow loops, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch

from cirkit.losses import bradley_terry, infonce, robust_contrastive, row_losses
from cirkit.scores import max_over_tokens


def tensors(arrays: dict) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in arrays.items() if value.dtype.kind in "fib"}


def test_robust_loss_of_conesep(golden):
    g = tensors(golden("conesep_robust_infonce"))
    for tokens, expected in (("target_tokens", "loss_out"), ("target_tokens_aligned", "loss_aligned_out")):
        similarity = max_over_tokens(g["composed"], g[tokens])
        assert robust_contrastive(similarity, 0.07).item() == pytest.approx(g[expected].item(), rel=1e-5)


def test_robust_loss_of_tme_on_some_rows_with_its_gradients(golden):
    g = tensors(golden("tme_robust_infonce"))
    scores, tau = g["scores"].clone().requires_grad_(), g["temperature"].clone().requires_grad_()
    loss = robust_contrastive(scores, tau, g["clean_label"] > 0)
    loss.backward()
    assert loss.item() == pytest.approx(g["loss_rcl_out"].item(), rel=1e-5)
    assert torch.allclose(scores.grad, g["grad_scores"], atol=1e-5)
    assert tau.grad.item() == pytest.approx(g["grad_temperature"].item(), rel=1e-4)
    small = robust_contrastive(g["scores"], g["temperature_after_clamp"], g["clean_label"] > 0)
    assert small.item() == pytest.approx(g["loss_small_temperature_out"].item(), rel=1e-5)


def test_loss_per_row_of_tme(golden):
    g = tensors(golden("tme_per_sample_loss"))
    assert torch.allclose(row_losses(g["similarity"], 0.07), g["loss_out"], rtol=1e-5)


def test_robust_loss_equals_a_slow_loop():
    similarity, tau, rows = torch.randn(5, 5, dtype=torch.float64) * 0.1, 0.07, [0, 3]
    total = 0.0
    for i in rows:
        weights = [math.exp(s / tau) for s in similarity[i].tolist()]
        total -= sum(math.log(1 - w / sum(weights)) for j, w in enumerate(weights) if j != i)
    mask = torch.zeros(5, dtype=torch.bool)
    mask[rows] = True
    assert robust_contrastive(similarity, tau, mask).item() == pytest.approx(total / 2, rel=1e-9)
    assert robust_contrastive(similarity.T, tau, mask).item() != pytest.approx(total / 2, rel=1e-3)


@pytest.mark.parametrize("loss", [infonce, robust_contrastive])
def test_edges(loss):
    with pytest.raises(ValueError, match=r"\(3, 5\)"):
        loss(torch.randn(3, 5), 0.07)
    certain = torch.full((4, 4), -30.0, dtype=torch.float16).fill_diagonal_(30.0).requires_grad_()
    for similarity in (certain, torch.randn(1, 1, requires_grad=True), certain.detach().flip(1).requires_grad_()):
        value = loss(similarity, 0.07)
        value.backward()
        assert value.dtype == torch.float32 and value.isfinite() and similarity.grad.isfinite().all()


def test_no_believed_row_is_a_zero_with_zero_gradient():
    similarity = torch.randn(4, 4, requires_grad=True)
    loss = robust_contrastive(similarity, 0.07, torch.zeros(4, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0 and (similarity.grad == 0).all()
    with pytest.raises(ValueError, match=r"rows must be \[4\], got \(3,\)"):
        robust_contrastive(similarity, 0.07, torch.ones(3, dtype=torch.bool))


def test_a_wrong_pair_pulls_less_than_under_infonce():
    """A pair far below its rivals: InfoNCE pulls it with all it has, the robust loss hardly."""
    pulls = {}
    for loss in (infonce, robust_contrastive):
        similarity = torch.tensor([[-0.5, 0.5, 0.1], [0.0, 0.9, 0.0], [0.0, 0.0, 0.9]], requires_grad=True)
        loss(similarity, 0.07).backward()
        pulls[loss] = -similarity.grad[0, 0].item()
    assert pulls[infonce] > 1 and abs(pulls[robust_contrastive]) < 0.01


def test_several_negatives_stand_in_one_softmax_with_the_target():
    positive, negative = torch.randn(3), torch.randn(3, 5)
    by_hand = [
        -math.log(math.exp(p / 0.2) / (math.exp(p / 0.2) + sum(math.exp(n / 0.2) for n in ns)))
        for p, ns in zip(positive.tolist(), negative.tolist(), strict=True)
    ]
    assert bradley_terry(positive, negative, 0.2).item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    torch.testing.assert_close(bradley_terry(positive, negative[:, :1]), bradley_terry(positive, negative[:, 0]))
    far = bradley_terry(torch.full((2,), 60000.0), torch.zeros(2, 3), 0.01)
    assert far == 0 and bradley_terry(torch.zeros(2), torch.full((2, 3), 60000.0), 0.01).isfinite()
    with pytest.raises(ValueError, match=r"negatives, got \(3,\), \(2, 5\)"):
        bradley_terry(positive, negative[:2])
