"""HABIT: its losses against the released numbers, whose history a step sees, and what the two switches change."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.history import PositionHistory, RowHistory
from cirkit.losses import robust_contrastive, robust_rows
from cirkit.methods import TrainingView, build_method
from cirkit.methods.habit import consistency, outliers, soft_margin
from cirkit.mutual_information import soft_labels, transition_rates
from cirkit.noise import corrupt
from cirkit.scores import max_over_tokens
from cirkit.train_scores import detection_by_epoch
from cirkit.training import TrainConfig, epoch_order, fit


def close(obtained, expected):
    torch.testing.assert_close(obtained.double(), expected.double(), rtol=0, atol=1e-5)


# --- the released numbers ---------------------------------------------------------------------------------------------


def test_rank_loss_of_the_released_code(golden):
    g = tensors(golden("habit_rank_and_consistency"))
    similarity = max_over_tokens(g["composed"], g["target_tokens"])
    close(similarity, g["similarity_out"])
    rows = robust_rows(similarity, 0.07)
    close(rows.mean(), g["rank_loss_all_out"])
    close((rows * g["sample_mask"].bool()).mean(), g["rank_loss_masked_out"])
    assert rows.argmin() == g["min_loss_index_all_out"]
    close(rows.mean(), robust_contrastive(similarity, 0.07))


def test_both_orders_of_the_consistency_term(golden):
    g = tensors(golden("habit_rank_and_consistency"))
    now, before = g["similarity_out"], g["historical_similarity"]
    labels = g["current_soft_label"], g["historical_soft_label"]
    close(consistency(now, before, *labels), g["consistency_with_arguments_in_declared_order_out"])
    close(consistency(before, now, *labels), g["consistency_as_called_in_forward_out"])


def test_outlier_mask_of_the_released_code(golden):
    g = tensors(golden("habit_rank_and_consistency"))
    options = float(g["dbscan_eps"]), int(g["dbscan_min_samples"])
    before, now = (outliers(g[f"dbscan_{name}_in"], *options) for name in ("history", "current"))
    assert (~(before & now)).int().tolist() == g["dbscan_mask_out"].tolist()
    assert before.sum() == 3 and now.sum() == 2  # so that neither of them alone would give the mask


def test_soft_margin_of_the_released_code(golden):
    g = tensors(golden("habit_soft_margin"))
    similarity, margin = max_over_tokens(g["composed"], g["target_tokens"]), float(g["margin"])
    close(soft_margin(similarity, g["soft_label"], margin), g["loss_exponential_out"])
    close(soft_margin(similarity, torch.ones(16), margin), g["loss_hard_margin_out"])


# --- losses -----------------------------------------------------------------------------------------------------------


def test_soft_margin_equals_a_slow_loop():
    s, labels = torch.randn(5, 5, dtype=torch.float64), torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
    total = 0.0
    for i in range(5):
        hardest = max(s[i, j].item() for j in range(5) if j != i)
        total += max(0.0, 0.3 * (10 ** labels[i].item() - 1) / 9 + hardest - s[i, i].item())
    assert soft_margin(s, labels, 0.3).item() == pytest.approx(total / 5)
    assert soft_margin(s.T, labels, 0.3).item() != pytest.approx(total / 5, rel=1e-3)


def test_consistency_is_a_divergence_over_all_elements_and_zero_for_equals():
    now, before = torch.randn(2, 3, 3, dtype=torch.float64)
    a, b = torch.tensor([0.2, 0.5, 1.0]), torch.tensor([0.9, 0.1, 0.4])
    total = 0.0
    for i in range(3):
        p, q = ((10 * w[i] * s[i]).softmax(0) for w, s in ((a, now), (b, before)))
        total += sum((q[j] * (q[j] / p[j]).log()).item() for j in range(3))
    assert consistency(now, before, a, b).item() == pytest.approx(total / 9)
    assert consistency(now, now, a, a).item() == pytest.approx(0, abs=1e-12)


def test_outliers_leave_unknown_labels_alone():
    labels = torch.cat([torch.linspace(0.5, 0.509, 10), torch.tensor([0.8, torch.nan])])
    assert outliers(labels).tolist() == [False] * 10 + [True, False]
    assert not outliers(torch.full((4,), torch.nan)).any()
    assert outliers(labels[:9]).all() and not outliers(labels[:9], min_samples=9).any()
    assert not outliers(labels, eps=0.5).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [5, 1])
def test_losses_have_finite_gradients_in_every_precision(dtype, size):
    s = torch.randn(size, size, dtype=dtype, requires_grad=True)
    before, labels = torch.randn(size, size), torch.rand(size)
    for loss in (robust_rows(s, 0.07).mean(), soft_margin(s, labels), consistency(s, before, labels, labels)):
        assert loss.shape == () and loss.isfinite() and loss.dtype == torch.float32
        (gradient,) = torch.autograd.grad(loss, s)
        assert gradient.isfinite().all() and (gradient.abs().sum() > 0) == (size > 1)


# --- history ----------------------------------------------------------------------------------------------------------


def step_of(rows: list[int], seed: int = 0):
    """Rows, composed, target tokens, similarity and labels of a step."""
    generator = torch.Generator().manual_seed(seed)
    composed = torch.nn.functional.normalize(torch.randn(len(rows), 7, generator=generator), dim=-1)
    targets = torch.nn.functional.normalize(torch.randn(len(rows), 2, 7, generator=generator), dim=-1)
    labels = torch.rand(len(rows), generator=generator)
    return torch.tensor(rows), composed, targets, max_over_tokens(composed, targets), labels


def test_history_by_row_follows_the_rows_wherever_they_go():
    history = RowHistory()
    history.start(9, afresh=True)
    first, second = step_of([0, 4, 7]), step_of([1, 2, 3], seed=1)
    assert history.recall(first[0]) is None
    history.record(*first)
    history.record(*second)
    assert history.recall(first[0]) is None  # a row that stands in two batches of the first epoch
    history.start(9, afresh=False)
    past = history.recall(torch.tensor([7, 8, 2, 0]))  # the last of one batch, unseen, one of another, the first
    assert past.known.tolist() == [True, False, True, True]
    torch.testing.assert_close(past.labels[past.known], torch.stack([first[4][2], second[4][1], first[4][0]]))
    composed = torch.stack([first[1][2], second[1][1], first[1][0]])
    targets = torch.stack([first[2][2], second[2][1], first[2][0]])
    torch.testing.assert_close(past.similarity, max_over_tokens(composed, targets), rtol=0, atol=2e-3)
    assert history.recall(torch.tensor([5, 6])) is None
    history.start(9, afresh=True)
    assert history.recall(first[0]) is None


def test_history_by_position_gives_whoever_stood_there():
    history = PositionHistory()
    history.start(9, afresh=True)
    first, second = step_of([0, 4, 7]), step_of([1, 2, 3], seed=1)
    for step in (first, second):
        assert history.recall(step[0]) is None
        history.record(*step)
    history.start(9, afresh=False)
    for step in (first, second):
        past = history.recall(torch.tensor([8, 5, 6]))
        assert past.known.all() and torch.equal(past.similarity, step[3]) and torch.equal(past.labels, step[4])
        history.record(*step_of([8, 5, 6], seed=2))
    assert history.similarities.shape == (3, 3, 3)  # one epoch's, however many follow
    history.record(*first)
    assert history.recall(first[0]) is not None and history.place == 0  # behind the last place comes the first


# --- the method -------------------------------------------------------------------------------------------------------


def second_epoch(name, backbone, first, second, size=6, **options):
    """The method after an epoch of batches ``first``, and what it then says of ``second``."""
    method = build_method(name, backbone, **options).train()
    for epoch, batches in enumerate((first, second)):
        method.start_epoch(TrainingView([0] * size, None, epoch, 3, 0))
        said = [method.loss(batch, epoch * len(batches) + i) for i, batch in enumerate(batches)]
    return method, said


def test_a_step_by_hand(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 6)
    method, [(total, logs)] = second_epoch("habit", backbone, [batch], [batch], min_samples=2, eps=0.02)
    composed, targets = backbone.compose(batch.references, batch.texts), backbone.encode_target(batch.targets)
    hidden = backbone.hidden_states(batch.references, batch.texts, backbone.query_tokens)
    fused = torch.nn.functional.normalize(backbone.text_projection(hidden[:, :3]), dim=-1)
    s = max_over_tokens(composed, targets)
    rows = robust_rows(s, 0.07)
    labels = soft_labels(transition_rates(fused, targets, rows.argmin()))
    dropped = outliers(labels, 0.02, 2)  # nothing has changed since the epoch before
    assert 0 < dropped.sum() < 6
    current = labels * ~dropped
    expected = {
        "rank": rows[~dropped].sum() / 6,
        "soft_margin": soft_margin(s, current),
        "consistency": consistency(s, s, current, labels),
    }
    for term, value in expected.items():
        assert logs[term] == pytest.approx(value.item(), abs=1e-5), term
    weighted = expected["rank"] + 0.1 * expected["soft_margin"] + 10 * expected["consistency"]
    assert total.item() == pytest.approx(weighted.item(), abs=1e-4)
    assert sum(method.terms.values()).item() == pytest.approx(total.item())
    assert method.observed["flagged"].tolist() == dropped.float().tolist()
    assert logs["flagged"] == pytest.approx(dropped.float().mean().item())


def test_a_row_is_dropped_only_if_its_label_stands_alone_twice(small_backbone):
    batch = random_batch(small_backbone(), 6)
    first, [(_, logs)] = second_epoch("habit", small_backbone(), [batch], [batch])
    assert logs["flagged"] == 1.0 and logs["rank"] == 0.0  # fewer than 10 rows are all outliers
    assert first.diagnose(logs) == "every triplet counts as noisy"
    method = build_method("habit", small_backbone(), min_samples=3).train()
    method.start_epoch(TrainingView([0] * 6, None, 0, 3, 0))
    _, logs = method.loss(batch, 0)
    assert "flagged" not in logs and "flagged" not in method.observed and "consistency" not in logs
    alone = outliers(method.history.labels, 0.01, 3)
    assert alone.sum() > 3
    method.start_epoch(TrainingView([0] * 6, None, 1, 3, 0))
    method.history.labels = torch.tensor([0.5, 0.5, 0.5, 0.1, 0.2, 0.3])
    _, logs = method.loss(batch, 1)
    assert method.observed["flagged"].bool().tolist() == [False] * 3 + alone[3:].tolist()


def shuffled(batch, order):
    return batch._replace(
        rows=batch.rows[order],
        references=batch.references[order],
        texts=batch.texts.rows(order),
        targets=batch.targets[order],
    )


def test_by_row_an_order_of_the_batch_changes_nothing_by_position_it_does(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 6)
    other = shuffled(batch, torch.tensor([3, 0, 5, 1, 2, 4]))
    options = {"min_samples": 2}
    for name, switch, same in (("habit", {}, True), ("habit", {"history": "position"}, False)):
        _, [(_, logs)] = second_epoch(name, backbone, [batch], [batch], **options, **switch)
        _, [(_, moved)] = second_epoch(name, backbone, [batch], [other], **options, **switch)
        assert (logs["consistency"] == pytest.approx(moved["consistency"], abs=1e-6)) == same


def test_the_order_of_the_consistency_term_is_a_switch(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 6)
    found = {}
    for order in ("fixed", "swapped"):
        method, [(_, logs)] = second_epoch(
            "habit", backbone, [batch], [shuffled(batch, torch.tensor([3, 0, 5, 1, 2, 4]))],
            consistency_order=order, history="position", min_samples=2,
        )  # fmt: skip
        found[order] = logs["consistency"]
        past = method.history.similarities[0]
        assert not past.requires_grad and method.terms["consistency"].requires_grad
    assert found["fixed"] != pytest.approx(found["swapped"], rel=1e-2)


@pytest.mark.parametrize("name", ["habit", "habit-released"])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("size", [5, 1])
def test_the_second_epoch_has_finite_gradients(small_backbone, name, half, size):
    batch = random_batch(small_backbone(), size)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        method, [(loss, _)] = second_epoch(name, small_backbone(), [batch], [batch], size=size)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_variants_keep_their_switches(small_backbone):
    adapted, released = (build_method(name, small_backbone()).config for name in ("habit", "habit-released"))
    assert (adapted.history, adapted.consistency_order) == ("row", "fixed")
    assert (released.history, released.consistency_order) == ("position", "swapped")
    for options, message in (
        ({"history": "row"}, "would no longer be the released variant of HABIT"),
        ({"consistency_order": "fixed"}, "would no longer be the released variant of HABIT"),
        ({"eps": 0.0}, "eps must be greater than 0"), ({"min_samples": 0}, "min_samples must be greater than 0"),
        ({"sharpness": 0}, "sharpness must be greater than 0"), ({"bins": 1}, "bins must be at least 2"),
        ({"margin": -0.1}, "margin must not be negative"), ({"soft_weight": -1}, "soft_weight must not be negative"),
        ({"consistency_weight": -1}, "consistency_weight must not be negative"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            build_method("habit-released", small_backbone(), **options)


@pytest.mark.parametrize("name", ["habit", "habit-released"])
@pytest.mark.parametrize("batch_size", [11, 1000])
def test_it_trains_at_any_batch_size_and_its_flags_are_judged(mini_world, small_backbone, name, batch_size):
    noisy = corrupt(load_fashioniq(mini_world, "train"), 0.5, "shuffle", seed=1)
    method = build_method(name, small_backbone(), min_samples=3, eps=0.003)
    store = build_store(method.backbone, ImageFolder(mini_world), noisy.triplets.image_ids(), progress=False)
    config = TrainConfig(epochs=2, batch_size=batch_size, lr=2e-3)
    seen = []
    with pytest.warns(UserWarning, match="optimizer steps") if batch_size == 1000 else nullcontext():
        history = fit(
            method, noisy.triplets, store, config, progress=False,
            on_epoch=lambda epoch, method, observed: seen.append(observed) or detection_by_epoch(observed, noisy),
        )  # fmt: skip
    assert np.isfinite(history.loss).all() and history.consistency.isna().tolist() == [True, False]
    assert history["recall flagged"].isna().tolist() == [True, False]
    assert "flagged" not in seen[0] and np.nanmean(seen[1]["flagged"]) == pytest.approx(history.flagged[1], abs=0.01)
    assert not any(key.startswith("history.") for key in method.trained_state())


def test_each_row_finds_what_its_last_batch_found(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    method = build_method("habit", small_backbone())
    store = build_store(method.backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
    config = TrainConfig(epochs=3, batch_size=16, lr=2e-3)
    written, read = [{}, {}, {}], [{}, {}, {}]
    recall, record = method.history.recall, method.history.record

    def spy_recall(rows):
        past, epoch = recall(rows), method.epoch_under_test
        if past is not None:
            read[epoch] |= {row: label for row, label in zip(rows.tolist(), past.labels.tolist(), strict=True)}
        return past

    def spy_record(rows, *found):
        written[method.epoch_under_test] |= dict(zip(rows.tolist(), found[-1].tolist(), strict=True))
        record(rows, *found)

    start = method.start_epoch
    method.start_epoch = lambda view: setattr(method, "epoch_under_test", view.epoch) or start(view)
    method.history.recall, method.history.record = spy_recall, spy_record
    fit(method, triplets, store, config, progress=False)
    assert not read[0]
    for epoch in (1, 2):
        rows = np.concatenate(epoch_order(len(triplets), 16, 0, epoch)).tolist()
        for row in rows:
            earlier = [written[e][row] for e in range(epoch) if row in written[e]]
            assert read[epoch][row] == earlier[-1] if earlier else np.isnan(read[epoch][row])


def test_the_history_of_an_earlier_training_is_forgotten(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    method = build_method("habit", small_backbone())
    store = build_store(method.backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
    config = TrainConfig(epochs=2, batch_size=12, lr=1e-4)
    for _ in range(2):
        history = fit(method, triplets, store, config, progress=False)
        assert np.isnan(history.consistency[0])
