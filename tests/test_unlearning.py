"""BTU: mask, labels, plan, loss and gradients against the released code's numbers, and by the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from golden_tensors import tensors

from cirkit.anchors import query_oriented
from cirkit.boundary import fidelity, noisy_rows
from cirkit.losses import robust_contrastive
from cirkit.scores import max_over_tokens
from cirkit.transport import sinkhorn_pot, sinkhorn_released
from cirkit.unlearning import RELEASED, hard_labels, soft_labels, transport_mask, unlearning

TOLERANCE = {"rtol": 0, "atol": 1e-5}
NOISY = torch.tensor([False, True, False, True, False])
TAU = 0.07


def released(g: dict[str, torch.Tensor]):
    """What the released code does after the warm-up with these features: similarities, noisy rows, unlearning."""
    similarity = max_over_tokens(g["composed"], g["target_tokens"])
    own, boundary = similarity.detach().diagonal(), g["boundary"].item()
    values = fidelity(own, boundary, "released", guard=False)
    noisy = noisy_rows(own, boundary, values, "fraction", g["omega"].item())
    negative = max_over_tokens(g["negative_composed"], g["target_tokens"]).T
    return similarity, values, noisy, unlearning((similarity / TAU).softmax(dim=1), negative, noisy, **RELEASED)


@pytest.fixture(params=["a", "b"])
def scene(request, golden):
    g = tensors(golden(f"conesep_post_warmup_{request.param}"))
    for name in ("composed", "negative_composed", "target_tokens"):
        g[name].requires_grad_()
    return g, *released(g)


def test_after_the_warm_up_all_is_as_released(scene):
    g, similarity, values, noisy, result = scene
    assert set(noisy.nonzero().flatten().tolist()) == set(g["noisy_ids"].tolist())
    assert noisy.sum() == g["noisy_count"] and g["temperature"].item() == TAU
    for obtained, name in (
        (similarity, "composed_target_similarity"), (values, "fidelity"), (result.cost, "cost_v"),
        ((similarity / TAU).softmax(dim=1), "softmaxed_positive_block"), (result.plan, "plan_v"),
        (max_over_tokens(g["negative_composed"], g["target_tokens"]).T, "negative_block"),
        (result.label, "label_v2t_after_softmax"), (result.cost.T, "cost_t"),
        (result.mask.long(), "mask_v"), (result.hard.long(), "hard_label_v"),
        (result.mask.long().T, "mask_t"), (result.hard.long().T, "hard_label_t"),
    ):  # fmt: skip
        torch.testing.assert_close(obtained.detach(), g[name], **TOLERANCE)


def test_the_transposed_problem_is_as_released(scene):
    g, _, _, _, result = scene
    rows, columns = torch.full((24,), 1 / 24), torch.full((12,), 1 / 12)
    plan = sinkhorn_released(result.cost.T, rows, columns, result.mask.T)
    torch.testing.assert_close(plan, g["plan_t"], **TOLERANCE)
    label = soft_labels(plan, result.hard.T, g["gamma"].item()).softmax(dim=1)
    torch.testing.assert_close(label, g["label_t2v_after_softmax"], **TOLERANCE)


def test_losses_and_gradients_are_as_released(scene):
    g, similarity, _, noisy, result = scene
    one_way = unlearning(
        (similarity / TAU).softmax(dim=1), g["negative_block"], noisy, **RELEASED | {"both_directions": False}
    ).loss.item()
    assert one_way == pytest.approx(g["loss_img"].item(), abs=1e-5)
    assert 2 * result.loss.item() - one_way == pytest.approx(g["loss_txt"].item(), abs=1e-5)
    assert result.loss.item() == pytest.approx(g["loss_ul_unweighted"].item(), abs=1e-5)
    weighted = g["weight_unlearn"].item() * result.loss
    assert weighted.item() == pytest.approx(g["loss_ul"].item(), abs=1e-5)
    robust = robust_contrastive(similarity, TAU)
    assert robust.item() == pytest.approx(g["loss_robust"].item(), abs=1e-5)
    band = query_oriented(g["composed"], g["negative_composed"], form="coordinates")
    assert band.item() == pytest.approx(g["query_oriented_unweighted"].item(), abs=1e-5)
    assert g["weight_query_oriented"].item() * band.item() == pytest.approx(g["query_oriented"].item(), abs=1e-5)

    inputs = g["composed"], g["negative_composed"], g["target_tokens"]
    for name, gradient in zip(
        ("composed", "negative", "target"), torch.autograd.grad(weighted, inputs, retain_graph=True), strict=True
    ):
        torch.testing.assert_close(gradient, g[f"grad_loss_ul_{name}"], **TOLERANCE)
    for name, gradient in zip(("composed", "target"), torch.autograd.grad(robust, inputs[::2]), strict=True):
        torch.testing.assert_close(gradient, g[f"grad_loss_robust_{name}"], **TOLERANCE)


def test_no_noisy_row_is_nan_in_the_released_code(golden):
    g = tensors(golden("conesep_post_warmup_no_noisy"))
    similarity, _, noisy, result = released(g)
    assert noisy.sum() == g["noisy_count"] == 0
    assert g["loss_ul"].isnan() and result.loss.isnan()
    assert robust_contrastive(similarity, TAU).item() == pytest.approx(g["loss_robust"].item(), abs=1e-5)
    band = 0.8 * query_oriented(g["composed"], g["negative_composed"], form="coordinates").item()
    assert band == pytest.approx(g["query_oriented"].item(), abs=1e-5)


def test_masks_and_hard_labels_by_hand():
    own = transport_mask(NOISY)
    closed = {(1, 1), (3, 3), (0, 5), (2, 7), (4, 9)}
    assert {tuple(p) for p in (~own).nonzero().tolist()} == closed
    last = transport_mask(NOISY, "last_column")
    assert {tuple(p) for p in (~last).nonzero().tolist()} == {(1, 1), (3, 3), (0, 9), (2, 9), (4, 9)}
    assert hard_labels(NOISY).argmax(dim=1).tolist() == [0, 6, 2, 8, 4]
    assert hard_labels(NOISY, "last_column").argmax(dim=1).tolist() == [0, 9, 2, 9, 4]
    assert hard_labels(NOISY).sum(dim=1).tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="'own_anchor' or 'last_column', got 'column'"):
        transport_mask(NOISY, "column")


def test_rows_believed_in_part_may_go_both_ways_and_are_labelled_half_and_half():
    partial = torch.tensor([True, False, False, True, False])
    closed = {(1, 1), (2, 7), (4, 9)}
    assert {tuple(p) for p in (~transport_mask(NOISY, partial=partial)).nonzero().tolist()} == closed
    labels = hard_labels(NOISY, partial=partial)
    assert labels[0].nonzero()[:, 0].tolist() == [0, 5] and labels[3].nonzero()[:, 0].tolist() == [3, 8]
    assert labels.sum(dim=1).tolist() == [1.0] * 5 and labels.max(dim=1).values.tolist() == [0.5, 1, 1, 0.5, 1]
    scores = torch.randn(5, 5) * 0.2, torch.randn(5, 5) * 0.2
    for marginals in ("uniform", "labels"):
        moved = unlearning(*scores, NOISY, marginals=marginals, partial=partial)
        assert moved.plan[0, 0] > 0 and moved.plan[0, 5] > 0 and moved.loss.isfinite()


def test_soft_labels_by_hand():
    plan, hard = torch.tensor([[0.1, 0.3, 0.0], [0.2, 0.2, 0.4]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    expected = torch.tensor([[0.6 * 0.25 + 0.4, 0.6 * 0.75, 0.0], [0.6 * 0.25, 0.6 * 0.25, 0.6 * 0.5 + 0.4]])
    torch.testing.assert_close(soft_labels(plan, hard, 0.6), expected)
    assert torch.equal(soft_labels(plan, hard, 0.0), hard)
    assert soft_labels(torch.zeros(1, 3), hard[:1]).isnan().all()


@pytest.mark.parametrize("marginals", ["uniform", "labels"])
@pytest.mark.parametrize("gamma", [0.7, 0.0])
def test_the_papers_loss_equals_a_slow_loop(marginals, gamma):
    positive, negative = (torch.randn(5, 5, dtype=torch.float64) * 0.2 for _ in range(2))
    result = unlearning(positive, negative, NOISY, 0.1, gamma, 0.05, marginals=marginals)
    mass = [0.1] * 10 if marginals == "uniform" else [0.2, 0, 0.2, 0, 0.2, 0, 0.2, 0, 0.2, 0]
    open_ = [[not (j == i if NOISY[i] else j == 5 + i) for j in range(10)] for i in range(5)]
    scores = [positive[i].tolist() + negative[i].tolist() for i in range(5)]
    plan = sinkhorn_pot(
        1 - torch.tensor(scores, dtype=torch.float64), torch.full((5,), 0.2, dtype=torch.float64),
        torch.tensor(mass, dtype=torch.float64), torch.tensor(open_), 0.05,
    )  # fmt: skip
    total = 0.0
    for i in range(5):
        log_all = math.log(sum(math.exp(s / 0.1) for s in scores[i]))
        for j in range(10):
            label = gamma * plan[i, j].item() / plan[i].sum().item()
            label += (1 - gamma) * (j == (5 + i if NOISY[i] else i))
            if label > 0:
                total += label * (math.log(label) - (scores[i][j] / 0.1 - log_all))
    assert result.loss.item() == pytest.approx(total / 5, rel=1e-6)
    assert result.plan.sum(dim=0).tolist() == pytest.approx(mass, abs=0.01)
    turned = unlearning(positive.T, negative.T, NOISY, 0.1, gamma, 0.05, marginals=marginals).loss.item()
    assert turned != pytest.approx(total / 5, rel=1e-3)


def test_uniform_columns_send_half_of_all_mass_to_anchors_and_labels_what_is_noisy():
    positive, negative = torch.eye(5) * 0.8, torch.full((5, 5), 0.1)
    for noisy in (NOISY, torch.tensor([True, False, False, False, False])):
        to_anchors = {
            form: unlearning(positive, negative, noisy, marginals=form).plan[:, 5:].sum().item()
            for form in ("uniform", "labels")
        }
        assert to_anchors["uniform"] == pytest.approx(0.5, abs=0.01)
        assert to_anchors["labels"] == pytest.approx(noisy.float().mean().item(), abs=0.01)


@pytest.mark.parametrize("solver", ["pot", "released"])
@pytest.mark.parametrize("mask", ["own_anchor", "last_column"])
def test_what_is_closed_gets_only_the_hard_labels_share(solver, mask):
    result = unlearning(torch.randn(5, 5) * 0.2, torch.randn(5, 5) * 0.2, NOISY, mask=mask, solver=solver)
    assert (result.plan[~result.mask] == 0).all() and (result.label[~result.mask] == 0).all()
    torch.testing.assert_close(result.label.sum(dim=1), torch.ones(5))
    assert not any(part.requires_grad for part in result[1:])


def test_a_noisy_row_is_drawn_from_its_target_to_its_anchor_and_a_clean_row_is_not():
    positive, negative = torch.full((5, 5), 0.2).requires_grad_(), torch.full((5, 5), 0.2).requires_grad_()
    unlearning(positive, negative, NOISY, marginals="labels").loss.backward()
    target, anchor = positive.grad.diagonal(), negative.grad.diagonal()
    assert (target[NOISY] > 0).all() and (anchor[NOISY] < 0).all(), "a step of descent goes against the gradient"
    assert (target[~NOISY] < 0).all() and (anchor[~NOISY] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("marginals", ["uniform", "labels"])
@pytest.mark.parametrize("share", [0, 1, 3, 5])
def test_losses_and_gradients_stay_finite(dtype, marginals, share):
    noisy = torch.arange(5) < share
    for scale in (0.0, 1.0):
        positive = (scale * (2 * torch.eye(5) - 1)).to(dtype).requires_grad_()
        negative = (-scale * (2 * torch.eye(5) - 1)).to(dtype).requires_grad_()
        result = unlearning(positive, negative, noisy, marginals=marginals)
        result.loss.backward()
        assert result.loss.dtype == torch.float32 and result.loss.isfinite()
        assert positive.grad.isfinite().all() and negative.grad.isfinite().all()


def test_two_rows_are_enough_and_one_is_refused():
    for noisy in ([True, False], [False, True], [True, True], [False, False]):
        result = unlearning(torch.eye(2), torch.zeros(2, 2), torch.tensor(noisy))
        assert result.loss.isfinite() and (result.plan[~result.mask] == 0).all()
    with pytest.raises(ValueError, match="^unlearning needs at least two triplets: .* nowhere to go$"):
        unlearning(torch.ones(1, 1), torch.ones(1, 1), torch.tensor([True]))


def test_a_plan_that_came_back_empty_is_nan_and_not_a_loss_of_0():
    """The released loop at a regularisation that makes exp(-cost / reg) 0; training refuses a loss that is NaN."""
    positive = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)) * 0.2
    result = unlearning(positive - 50, positive - 50, NOISY, reg=1e-4, solver="released", scale_cost=False)
    assert (result.plan.sum(dim=1) == 0).any() and result.loss.isnan()
    with pytest.raises(ValueError, match="reg is too small for so few rounds"):
        unlearning(positive - 50, positive - 50, NOISY, reg=1e-4)


def test_anchors_that_nobody_is_sent_to_do_not_spoil_the_transposed_problem():
    positive, negative = (torch.randn(5, 5, requires_grad=True) for _ in range(2))
    loss = unlearning(positive, negative, NOISY, marginals="labels", both_directions=True).loss
    loss.backward()
    assert loss.isfinite() and positive.grad.isfinite().all() and negative.grad.isfinite().all()
