"""ConeSep whole, in its three variants: the released forward, guards, who gets which gradient, and its training."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from golden_backbone import golden_backbone
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.anchors import NEGATIONS
from cirkit.backbone import Backbone, TokenBatch
from cirkit.boundary import gaussian_patches, separation
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.losses import infonce, robust_contrastive
from cirkit.methods import Batch, TrainingView, build_method, method_config
from cirkit.methods.conesep import LEARNED_SCALE
from cirkit.methods.conesep_config import NUMBERS, SWITCHES, VARIANTS, changes
from cirkit.noise import corrupt
from cirkit.train_scores import detection_by_epoch
from cirkit.training import TrainConfig, epoch_order, fit
from cirkit.unlearning import RELEASED

NAMES = [f"conesep-{variant}" for variant in VARIANTS]
OURS = NAMES[1:]


def after_warmup(name, backbone, boundary=None, **options):
    """A method that unlearns and whose warm-up is over; with a boundary given, that is what it estimates."""
    method = build_method(name, backbone, **{"warmup": 0, "kappa": 0.5} | options).train()
    if boundary is not None:
        method.estimate_boundary = lambda texts: torch.tensor(boundary)
    return method


# --- the released code ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(golden):
    """The golden arrays, and the released variant on a backbone that carries their weights."""
    lavis, g = tensors(golden("lavis_qformer")), tensors(golden("conesep_end_to_end"))
    backbone = golden_backbone(lavis, g, "conesep_end_to_end")
    assert backbone.ln_vision.eps == g["layer_norm_eps"]
    method = build_method("conesep-released", backbone).train()
    torch.testing.assert_close(method.negative_prompts.data, g["query_tokens"])
    method.negative_prompts.data.copy_(g["negative_tokens"])
    batch = Batch(torch.arange(6), g["vit_reference"], TokenBatch(g["text_ids"], g["text_mask"]), g["vit_target"])
    return g, method, batch


def test_both_phases_are_the_released_forward(released, monkeypatch):
    g, method, batch = released
    negated = TokenBatch(g["negated_text_ids"], g["negated_text_mask"])
    drawn = torch.stack([(g["text_ids"] == row).all(dim=1).nonzero()[0, 0] for row in g["gaussian_text_ids"]])
    images = [g["vit_gaussian_target"], g["vit_gaussian_reference"]]
    monkeypatch.setattr(method, "negated", lambda texts: negated)
    monkeypatch.setattr("cirkit.methods.conesep.gaussian_patches", lambda *_: images.pop())
    monkeypatch.setattr("cirkit.boundary.torch.randint", lambda *_, **__: drawn)

    total, logs = method.loss(batch, 0)
    weights = dict(
        zip(("unlearning", "target_oriented", "query_oriented"), g["weights_unlearn_target_query"], strict=True)
    )
    expected = {
        "rank": g["warmup_loss_robust_out"],
        "query_oriented": g["warmup_query_oriented_out"],
        "target_oriented": g["warmup_target_oriented_out"],
    }
    check_terms(method, total, logs, expected, weights)
    assert len(images) == 2 and "flagged" not in logs

    method.epoch = 2
    total, logs = method.loss(batch, 0)
    expected = {
        "rank": g["loss_robust_out"], "query_oriented": g["query_oriented_out"], "unlearning": g["loss_ul_out"],
    }  # fmt: skip
    check_terms(method, total, logs, expected, weights)
    assert not images and logs["flagged"] == g["omega"] == 0.5


def check_terms(method, total, logs, expected, weights):
    """Weighted terms as given, unweighted ones in the log, and the total their sum."""
    assert set(method.terms) == set(expected)
    for name, value in expected.items():
        assert method.terms[name].item() == pytest.approx(value.item(), abs=1e-5), name
        assert logs[name] == pytest.approx(value.item() / float(weights.get(name, 1)), abs=2e-5), name
    assert total.item() == pytest.approx(sum(v.item() for v in expected.values()), abs=2e-5)


def test_a_share_that_comes_to_no_row_is_nan_as_released_and_skipped_with_guards(small_backbone):
    for name, options, missing in (
        ("conesep-released", {}, False),
        ("conesep-adapted", {"start": "released", "guards": True}, True),
    ):
        method = after_warmup(name, small_backbone(), omega=0.05, **options)
        loss, logs = method.loss(random_batch(method.backbone, 6), 0)
        assert logs["flagged"] == 0 and ("unlearning" not in logs) is missing and loss.isnan().item() is not missing


# --- switches ---------------------------------------------------------------------------------------------------------


def test_each_variant_is_its_column_of_the_table():
    for column, variant in enumerate(VARIANTS):
        config = method_config(f"conesep-{variant}")
        assert (config.variant, config.start) == (variant, variant)
        assert {name: getattr(config, name) for name in SWITCHES} == {k: v[column] for k, v in SWITCHES.items()}
        started = dataclasses.asdict(method_config("conesep-adapted", start=variant))
        assert started == dataclasses.asdict(config) | {"variant": "adapted"}
    released = method_config("conesep-released")
    own = {"temperature": "label_temperature"}
    assert {name: getattr(released, own.get(name, name)) for name in RELEASED} == RELEASED


def test_what_differs_between_variants_leads_from_one_to_the_other():
    paper, adapted = (dataclasses.asdict(method_config(f"conesep-{v}")) for v in ("paper", "adapted"))
    differing = changes()
    assert {k: (paper[k], adapted[k]) for k in paper if paper[k] != adapted[k]} == differing | {
        "variant": ("paper", "adapted"), "start": ("paper", "adapted"),
    }  # fmt: skip
    rebuilt = method_config("conesep-adapted", start="paper", **{k: v[1] for k, v in differing.items()})
    assert dataclasses.asdict(rebuilt) | {"start": "adapted"} == adapted
    assert changes("adapted", "adapted") == {}


TAKEN = {
    "fidelity": "literal", "split": "fraction", "omega": 0.3, "draws": 3, "boundary_every": 5, "pool": True,
    "boundary_from": "zero", "anchor_prompts": "shared", "partial": 0.6, "prompt_init": "query",
    "negate_text": True, "target_oriented": "balanced", "query_oriented": "constants", "anchors_train": "prompts",
    "rank_loss": "infonce", "rank_rows": "clean", "negative_block": "targets", "positive_block": "softmax",
    "mask": "last_column", "marginals": "labels", "solver": "released", "scale_cost": True, "resoftmax": True,
    "label_temperature": 0.5, "both_directions": True, "warmup_lr": 0.5,
    "scale_lr": True, "guards": False, "kappa": 0.1, "zeta": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
def test_a_changed_switch_is_no_longer_the_papers(name):
    assert set(TAKEN) == set(SWITCHES) and getattr(method_config("conesep-paper"), name) != TAKEN[name]
    assert getattr(method_config("conesep-adapted", **{name: TAKEN[name]}), name) == TAKEN[name]
    if name in NUMBERS:
        assert getattr(method_config("conesep-paper", **{name: TAKEN[name]}), name) == TAKEN[name]
        return
    message = rf"^{name}=.* no longer be the paper variant of ConeSep; take 'conesep-adapted' with start='paper'$"
    with pytest.raises(ValueError, match=message):
        method_config("conesep-paper", **{name: TAKEN[name]})
    assert method_config("conesep-paper", **{name: SWITCHES[name][1]}) == method_config("conesep-paper")


# what else must be set for a switch to count, and those that six rows need not show: who is flagged, how often the
# boundary is estimated, learning rates, guards where nothing needs guarding
# a small reg, with which the released loop ends before it has converged
NEEDS = {"marginals": {"solver": "pot"}, "solver": {"marginals": "uniform", "reg": 0.01}}
ELSEWHERE = {"fidelity", "omega", "boundary_from", "draws", "boundary_every", "pool", "warmup_lr", "scale_lr", "guards"}


def losses_and_pulls(backbone, **options) -> list[float]:
    """Total loss and sum of squared gradients in warm-up and after it, from the same random state."""
    numbers = []
    for warmup in (1, 0):
        torch.manual_seed(0)
        method = build_method("conesep-adapted", backbone, **options | {"warmup": warmup})
        loss, _ = method.train().loss(random_batch(backbone, 6), 0)
        pulls = torch.autograd.grad(loss, [p for p in method.parameters() if p.requires_grad], allow_unused=True)
        numbers += [loss.item(), sum(float(g.square().sum()) for g in pulls if g is not None)]
    return numbers


@pytest.mark.parametrize("start", VARIANTS)
def test_every_switch_changes_what_is_computed_from_every_start(small_backbone, start):
    backbone = small_backbone()
    for name in set(SWITCHES) - ELSEWHERE:
        needed = {"start": start, "kappa": 0.4, "omega": 0.4} | NEEDS.get(name, {})
        if start == "released" and name != "mask":
            needed |= {"mask": "own_anchor"}
        base = method_config("conesep-adapted", **needed)
        values = {column for column in SWITCHES[name] if column != getattr(base, name)} or {TAKEN[name]}
        for value in values:
            pair = [losses_and_pulls(backbone, **needed | changed) for changed in ({}, {name: value})]
            assert not np.allclose(*pair, rtol=1e-6, equal_nan=True), f"{name}={value}"


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize("name", SWITCHES)
def test_values_that_a_switch_does_not_have_are_refused(method, name):
    wrong = {bool: 1, int: 0.5, float: "1", str: "papr"}[type(TAKEN[name])]
    with pytest.raises(ValueError, match=rf"^option '{name}' of method '{method}' must be .*, got {wrong!r}$"):
        method_config(method, **{name: wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": 1.5}, r"omega must lie between 0 and 1, got 1\.5"), ({"gamma": -0.1}, "gamma must lie between"),
        ({"kappa": -1.0}, "kappa must not be negative"), ({"zeta": -0.1}, "zeta must not"), ({"nu": -1}, "nu must not"),
        ({"warmup": -1}, "warmup must not be negative, got -1"), ({"draws": -4}, "draws must not be negative"),
        ({"reg": 0.0}, "reg must be greater than 0"), ({"warmup_lr": 0.0}, "warmup_lr must be greater than 0"),
        ({"boundary_every": 0}, "boundary_every must be greater than 0"),
        ({"label_temperature": 0.0}, "label_temperature must be greater"), ({"draws": 0}, "draws must be at least 1"),
        ({"partial": 0.2, "mask": "last_column"}, "partial needs mask='own_anchor' and a split by fidelity"),
        ({"partial": 0.2, "split": "boundary"}, "partial needs mask"), ({"momentum": 1.5}, "momentum must lie between"),
        ({"start": "papr"}, "option 'start' of method .* must be .*, got 'papr'"),
        ({"variant": "paper"}, "has no variant 'paper'; it has adapted"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        method_config("conesep-adapted", **options)


def test_start_is_for_the_adapted_variant():
    with pytest.raises(ValueError, match="'conesep-adapted'"):
        method_config("conesep-paper", start="adapted")


# --- guards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("boundary", "share"), [(-2.0, 0.0), (2.0, 1.0), (None, None)])
@pytest.mark.parametrize("size", [6, 2, 1])
@pytest.mark.parametrize("precision", ["full", "bfloat16", "float16", "half patches"])
def test_losses_and_gradients_are_finite_whoever_is_noisy(small_backbone, name, boundary, share, size, precision):
    method = after_warmup(name, small_backbone(), boundary)
    batch = random_batch(method.backbone, size)
    if precision == "half patches":
        batch = batch._replace(references=batch.references.half(), targets=batch.targets.half())
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss, logs = method.loss(batch, 0)
    assert loss.shape == () and loss.isfinite() and all(math.isfinite(v) for v in logs.values())
    assert share is None or logs["flagged"] == share
    assert ("unlearning" in method.terms) is (logs["flagged"] > 0 and size > 1)
    assert method.terms["rank"].isfinite() and "target_oriented" not in method.terms
    assert all(term.dtype == torch.float32 for term in method.terms.values())
    loss.backward()
    gradients = {k: p.grad for k, p in method.named_parameters() if p.grad is not None}
    assert gradients and all(g.isfinite().all() for g in gradients.values())


def test_queries_meet_anchors_in_full_precision_under_autocast(small_backbone, monkeypatch):
    """Rounded to bfloat16, a cosine of 0.5 is off by 0.002: a thirtieth of the temperature."""
    blocks = []
    monkeypatch.setattr(
        "cirkit.methods.conesep.unlearning", lambda positive, negative, *_, **__: blocks.append(negative)
    )
    method = build_method("conesep-paper", small_backbone())
    composed, anchors = (torch.nn.functional.normalize(torch.randn(5, 7), dim=1) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        method.unlearn(torch.eye(5), anchors, composed, anchors[:, None], torch.ones(5, dtype=torch.bool))
    torch.testing.assert_close(blocks[0], composed @ anchors.T)


def test_nobody_noisy_ranks_all_and_all_noisy_ranks_nobody(small_backbone):
    for boundary, rows in ((-2.0, slice(None)), (2.0, slice(0, 0))):
        method = after_warmup("conesep-adapted", small_backbone(), boundary)
        batch = random_batch(method.backbone, 5)
        logs = method.loss(batch, 0)[1]
        chosen = torch.zeros(5, dtype=torch.bool)
        chosen[rows] = True
        assert logs["rank"] == pytest.approx(infonce(method.similarity(batch), 0.07, chosen).item(), abs=1e-5)
    method = after_warmup("conesep-paper", small_backbone(), 2.0)
    expected = robust_contrastive(method.similarity(batch), 0.07).item()
    assert method.loss(batch, 0)[1]["rank"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_total_is_the_sum_of_the_weighted_terms_of_each_phase(small_backbone, name):
    method = build_method(name, small_backbone(), warmup=1, kappa=0.3, nu=0.7, zeta=0.9)
    batch = random_batch(method.backbone, 6)
    method.estimate_boundary = lambda texts: method.similarity(batch).detach().diagonal().median()
    for epoch, weights in ((0, {"target_oriented": 0.7}), (1, {"unlearning": 0.3})):
        method.epoch = epoch
        loss, logs = method.loss(batch, 0)
        weights |= {"rank": 1.0, "query_oriented": 0.9}
        assert set(method.terms) == set(weights)
        assert loss.item() == pytest.approx(sum(w * logs[k] for k, w in weights.items()), rel=1e-5)


# --- who gets which gradient ------------------------------------------------------------------------------------------


def reached(method, term) -> set[str]:
    """Names of the parameters that a term has a gradient for."""
    named = [(name, p) for name, p in method.named_parameters() if p.requires_grad]
    if not method.terms[term].requires_grad:
        return set()
    gradients = torch.autograd.grad(method.terms[term], [p for _, p in named], retain_graph=True, allow_unused=True)
    return {name for (name, _), g in zip(named, gradients, strict=True) if g is not None and g.abs().sum() > 0}


@pytest.mark.parametrize("name", NAMES)
def test_anchor_losses_reach_what_anchors_train_says(small_backbone, name):
    method = build_method(name, small_backbone(), warmup=1, kappa=0.5).train()
    prompts_alone = method.config.anchors_train == "prompts"
    batch, prompts = random_batch(method.backbone, 6), {"negative_prompts"}
    trained = {k for k, p in method.named_parameters() if p.requires_grad}
    method.estimate_boundary = lambda texts: method.similarity(batch).detach().diagonal().median()
    for epoch, terms in ((0, ("target_oriented", "query_oriented")), (1, ("query_oriented",))):
        method.epoch = epoch
        method.loss(batch, 0)
        assert {k for k, p in method.named_parameters() if p.requires_grad} == trained
        assert "negative_prompts" not in reached(method, "rank")
        for term in terms:
            got = reached(method, term)
            assert prompts <= got and (got == prompts) is prompts_alone, term
    moved = reached(method, "unlearning")
    assert "backbone.text_projection.weight" in moved and ("negative_prompts" in moved) is not prompts_alone


def test_parameters_are_set_free_again_after_an_error(small_backbone, monkeypatch):
    method = build_method("conesep-adapted", small_backbone())
    batch, before = random_batch(method.backbone, 3), [p.requires_grad for p in method.parameters()]

    def broken(*_):
        assert not any(p.requires_grad for p in method.backbone.parameters())
        raise RuntimeError

    monkeypatch.setattr(method.backbone, "compose", broken)
    with pytest.raises(RuntimeError):
        method.anchors(batch.references, batch.texts)
    assert [p.requires_grad for p in method.parameters()] == before and True in before and False in before


def test_without_unlearning_anchors_that_train_nothing_else_are_not_computed(small_backbone, monkeypatch):
    for name, needed in (("conesep-adapted", False), ("conesep-paper", True)):
        method = after_warmup(name, small_backbone(), kappa=0.0)
        calls = []
        anchors = method.anchors
        monkeypatch.setattr(method, "anchors", lambda *a, call=anchors, seen=calls: seen.append(1) or call(*a))
        method.loss(random_batch(method.backbone, 4), 0)
        assert bool(calls) is needed and "unlearning" not in method.terms


def test_negative_prompts_start_as_they_should_and_have_no_decay(small_backbone):
    for name, copied in (("conesep-released", True), ("conesep-paper", False), ("conesep-adapted", False)):
        method = build_method(name, small_backbone())
        prompts, queries = method.negative_prompts, method.backbone.query_tokens
        assert prompts.shape == queries.shape and prompts is not queries
        assert torch.equal(prompts, queries) is copied
        decayed, plain = (group["params"] for group in method.parameter_groups(0.1))
        assert any(p is prompts for p in plain) and not any(p is prompts for p in decayed)
        assert "negative_prompts" in method.trained_state()


# --- negated texts ----------------------------------------------------------------------------------------------------


def words(method, tokens: TokenBatch) -> list[list[str]]:
    pieces = method.backbone.config.vocabulary
    return [
        [pieces[i] for i, m in zip(row, mask, strict=True) if m]
        for row, mask in zip(*(t.tolist() for t in tokens), strict=True)
    ]


@pytest.mark.parametrize("limit", [32, 7, 4])
def test_a_negation_goes_between_cls_and_the_text(small_backbone, limit):
    method = build_method("conesep-released", small_backbone(text_length=limit))
    tokenizer = method.backbone.tokenizer
    prefixes = [tokenizer.pieces(text)[1:-1] for text in NEGATIONS]
    texts = ["is red", "", "is longer and more blue and has red sleeves and dots and stripes and is red", "red"]
    before = method.backbone.tokenize(texts)
    seen = set()
    for _ in range(20):
        after = method.negated(before)
        assert after.ids.shape == after.mask.shape and after.ids.shape[1] <= limit
        assert (after.ids[after.mask == 0] == 0).all() and after.mask.sum(dim=1).max() == after.ids.shape[1]
        for row, own in zip(words(method, after), words(method, before), strict=True):
            assert row[0] == "[CLS]" and row[-1] == "[SEP]" and len(row) >= min(len(own), limit)
            fitting = [p for p in prefixes if row == ["[CLS]", *(p + own[1:-1])[: limit - 2], "[SEP]"]]
            assert fitting, row
            seen |= {tuple(p) for p in fitting}
    assert len(seen) == len(NEGATIONS)
    assert torch.equal(before.ids, method.backbone.tokenize(texts).ids), "the texts themselves stay as they are"


def test_a_negated_batch_of_one_composes(small_backbone):
    method = build_method("conesep-released", small_backbone())
    batch = random_batch(method.backbone, 1)
    assert words(method, method.negated(batch.texts))[0][-2:] == ["red", "[SEP]"]
    assert method.anchors(batch.references, batch.texts).shape == (1, 7)


# --- when the boundary is estimated -----------------------------------------------------------------------------------


def view(epoch: int, seed: int = 0) -> TrainingView:
    return TrainingView(None, None, epoch, 3, seed)


def test_a_running_boundary_is_the_mean_of_the_steps_so_far_and_travels_with_the_weights(small_backbone, monkeypatch):
    values = iter((0.5, 0.1, -0.3))
    monkeypatch.setattr("cirkit.methods.conesep.noise_boundary", lambda *_: torch.tensor(next(values)))
    options = {"boundary_from": "running", "momentum": 0.75}
    method, batch = after_warmup("conesep-adapted", small_backbone(), **options), random_batch(small_backbone(), 6)
    found = [method.estimate_boundary(batch.texts).item() for _ in range(3)]
    assert found == pytest.approx([0.5, 0.75 * 0.5 + 0.25 * 0.1, 0.75 * (0.75 * 0.5 + 0.25 * 0.1) - 0.25 * 0.3])
    other = after_warmup("conesep-adapted", small_backbone(), **options)
    other.load_trained_state(method.trained_state(), "here")
    assert other.running_boundary.item() == pytest.approx(found[-1])


def test_a_learned_boundary_comes_to_lie_between_right_and_wrong_pairs(small_backbone):
    method = after_warmup("conesep-adapted", small_backbone(), boundary_from="learned")
    batch = random_batch(small_backbone(), 6)
    others = [p for name, p in method.named_parameters() if p.requires_grad and name != "learned_boundary"]
    _, logs = method.loss(batch, 0)
    pulled = torch.autograd.grad(method.terms["boundary"], others, allow_unused=True, retain_graph=True)
    assert all(gradient is None for gradient in pulled) and logs["boundary"] == 0.0
    s = torch.full((6, 6), 0.2).fill_diagonal_(0.8)
    optimizer = torch.optim.AdamW([method.learned_boundary], lr=method.lr / 3, weight_decay=0.0)
    for _ in range(56):  # as many as two epochs of warm-up have
        optimizer.zero_grad()
        separation(s, LEARNED_SCALE * method.learned_boundary).backward()
        optimizer.step()
    assert 0.25 < method.estimate_boundary(batch.texts).item() < 0.75


def test_without_a_boundary_fidelity_is_the_similarity_itself(small_backbone):
    method = after_warmup("conesep-adapted", small_backbone(), boundary_from="zero", omega=0.5)
    method.boundary = method.estimate_boundary(random_batch(small_backbone(), 4).texts)
    s = torch.diag(torch.tensor([0.8, 0.41, 0.39, -0.2]))
    assert method.split(s).tolist() == [False, False, True, True]


def test_partly_believed_rows_lie_just_above_omega_and_may_go_both_ways(small_backbone, monkeypatch):
    method = after_warmup(
        "conesep-adapted", small_backbone(), boundary=0.0, omega=0.5, partial=0.3, anchors_train="all"
    )
    method.boundary = torch.tensor(0.0)
    s = torch.diag(torch.tensor([1.0, 0.81, 0.79, 0.51, 0.49, -0.2]))
    noisy = method.split(s)
    assert noisy.tolist() == [False, False, False, False, True, True]
    assert method.believed_in_part(s, noisy).tolist() == [False, False, True, True, False, False]
    moved = method.unlearn(s, torch.eye(6, 7), torch.eye(6, 7), torch.eye(6, 7)[:, None], noisy)
    assert moved.mask[2].all() and moved.hard[2, 2] == moved.hard[2, 8] == 0.5
    assert not moved.mask[0, 6] and not moved.mask[4, 4]
    assert after_warmup("conesep-adapted", small_backbone()).believed_in_part(s, noisy) is None


def test_without_a_ranking_loss_the_rest_is_left(small_backbone):
    method = after_warmup("conesep-adapted", small_backbone(), boundary=0.0, rank_loss="none", start="paper")
    total, logs = method.loss(random_batch(small_backbone(), 6), 0)
    assert logs["rank"] == 0.0 and total.isfinite() and total.requires_grad


@pytest.mark.parametrize(("every", "expected"), [(1, list(range(14, 28))), (7, [14, 21]), (5, [14, 15, 20, 25])])
def test_the_boundary_is_estimated_at_the_start_of_an_epoch_and_every_so_many_steps(small_backbone, every, expected):
    method = build_method("conesep-adapted", small_backbone(), warmup=1, boundary_every=every)
    batch, estimated, step = random_batch(method.backbone, 4), [], [0]
    method.estimate_boundary = lambda texts: estimated.append(step[0]) or torch.tensor(0.1 * len(estimated))
    for epoch in (0, 1):
        method.start_epoch(view(epoch))
        for step[0] in range(14 * epoch, 14 * epoch + 14):
            logs = method.loss(batch, step[0])[1]
            if epoch:
                assert logs["boundary"] == pytest.approx(0.1 * len(estimated))
    assert estimated == expected, "none in the warm-up"


def test_a_pool_is_drawn_once_by_the_seed_and_others_anew(small_backbone, monkeypatch):
    backbone, drawn = small_backbone(), []

    def watched(*arguments):
        drawn.append(gaussian_patches(*arguments))
        return drawn[-1]

    monkeypatch.setattr("cirkit.methods.conesep.gaussian_patches", watched)
    texts = random_batch(backbone, 5).texts

    def boundaries(seed, times=2, **options):
        drawn.clear()
        method = build_method("conesep-adapted", backbone, **options)
        method.start_epoch(view(2, seed))
        for _ in range(times):
            torch.manual_seed(len(drawn))  # the same texts, and images that must not care
            yield method.estimate_boundary(texts).item()
        assert not method.boundary

    first = list(boundaries(0))
    assert [len(d) for d in drawn] == [64, 64] and not torch.equal(*drawn)
    pool = list(drawn)
    assert list(boundaries(0)) == first and all(map(torch.equal, drawn, pool))
    again = build_method("conesep-adapted", backbone)
    for seed in (0, 1):  # a method that is trained twice, with different seeds
        again.start_epoch(view(2, seed))
        torch.manual_seed(0)
        last = again.estimate_boundary(texts).item()
    assert last == next(boundaries(1))
    list(boundaries(1))
    assert not torch.equal(drawn[0], pool[0])
    for draws, count in ((0, 5), (3, 3)):
        list(boundaries(0, pool=False, draws=draws))
        assert [len(d) for d in drawn] == [count] * 4 and not torch.equal(drawn[0], drawn[2])


def test_a_pool_is_drawn_anew_every_so_many_epochs(small_backbone, monkeypatch):
    backbone, drawn = small_backbone(), []
    watched = lambda *arguments: drawn.append(gaussian_patches(*arguments)) or drawn[-1]  # noqa: E731
    monkeypatch.setattr("cirkit.methods.conesep.gaussian_patches", watched)
    texts = random_batch(backbone, 5).texts

    def pools(epochs, **options):
        """The first image of each epoch's pool, where one was drawn."""
        method, firsts = build_method("conesep-adapted", backbone, draws=3, **options), []
        for epoch in epochs:
            drawn.clear()
            method.start_epoch(view(epoch))
            method.estimate_boundary(texts)
            firsts.append(drawn[0] if drawn else None)
        return firsts

    third = pools(range(7), pool_epochs=3)
    assert [first is not None for first in third] == [True, False, False] * 2 + [True]
    assert not torch.equal(third[0], third[3]) and not torch.equal(third[3], third[6])
    assert torch.equal(pools([5], pool_epochs=3)[0], third[3])  # a resumed run draws what it had
    never = pools(range(4))
    assert torch.equal(never[0], third[0]) and never[1:] == [None] * 3
    with pytest.raises(ValueError, match="pool_epochs says when to draw .* needs pool=True"):
        build_method("conesep-paper", backbone, pool_epochs=2)


def test_anchors_that_train_prompts_alone_share_the_memory_of_the_queries(small_backbone, monkeypatch):
    backbone = small_backbone()
    batch, made, whole = random_batch(backbone, 5), [], Backbone.image_memory
    monkeypatch.setattr(Backbone, "image_memory", lambda self, x: made.append(x) or whole(self, x))
    method = build_method("conesep-adapted", backbone, kappa=0.5)
    method.start_epoch(view(0))
    method.loss(batch, 0)
    assert len(made) == 2  # of references and targets
    gradients = []
    for references in (batch.references, backbone.image_memory(batch.references)):
        method.zero_grad()
        anchors = method.anchors(references, batch.texts)
        anchors[:, 0].sum().backward()
        gradients.append((anchors.detach(), method.negative_prompts.grad.clone()))
        assert all(p.grad is None for p in backbone.parameters())
    assert all(map(torch.equal, *gradients))


def test_the_boundary_is_the_mean_similarity_of_random_triplets(small_backbone, monkeypatch):
    backbone = small_backbone()
    images = [torch.randn(4, 9, 24), torch.randn(4, 9, 24)]
    texts = backbone.tokenize(["is red"])
    similarity = torch.stack([
        torch.stack([(backbone.compose(r[None], texts)[0] @ t.T).max() for t in backbone.encode_target(images[1])])
        for r in images[0]
    ])  # fmt: skip
    for pairs, expected in (("all", similarity.mean()), ("matched", similarity.diagonal().mean())):
        left = list(images)
        monkeypatch.setattr("cirkit.methods.conesep.gaussian_patches", lambda *_, rest=left: rest.pop(0))
        method = build_method("conesep-adapted", backbone, pairs=pairs)
        assert method.estimate_boundary(texts).item() == pytest.approx(expected.item(), abs=1e-5)


# --- training ---------------------------------------------------------------------------------------------------------

CONFIG = TrainConfig(epochs=3, batch_size=16, lr=1e-3, seed=3)


@pytest.fixture(scope="module")
def world(mini_world):
    return load_fashioniq(mini_world, "train")


@pytest.fixture
def train(world, mini_world, small_backbone):
    """Training of a method on the mini world; its own arguments are those of ``fit``."""
    store = build_store(small_backbone(), ImageFolder(mini_world), world.image_ids(), progress=False)

    def run(method, triplets=world, config=CONFIG, **options):
        return fit(method, triplets, store, config, progress=False, **options)

    run.store = store
    return run


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", OURS)
def test_a_run_interrupted_between_two_estimates_goes_on_as_if_it_were_not(
    world, train, small_backbone, tmp_path, name
):
    def make():
        torch.manual_seed(0)  # of the prompts
        options = {"boundary_every": 5, "kappa": 0.5} if name == "conesep-adapted" else {}
        return build_method(name, small_backbone(), warmup=1, **options)

    whole = make()
    expected = train(whole)
    assert len(epoch_order(len(world), 16, 3, 0)) % 5, "were an estimate due after each epoch, this would prove nothing"

    def kill(epoch, *_):
        if epoch == 2:
            raise Killed
        return {}

    with pytest.raises(Killed):
        train(make(), folder=tmp_path, on_epoch=kill)
    resumed = make()
    history = train(resumed, folder=tmp_path)
    for column in ("loss", "boundary", "flagged", "gradient rank"):
        np.testing.assert_array_equal(history[column], expected[column])
    for key, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[key]), key


def test_diagnose_names_what_went_wrong(small_backbone):
    method = build_method("conesep-paper", small_backbone())
    fine = {"s_ii": 0.5, "s_ij": 0.1, "c_g": 0.0, "flagged": 0.4}
    assert method.diagnose(fine) is None and method.diagnose({"s_ii": 0.5, "s_ij": 0.1}) is None
    for wrong, message in (
        ({"s_ii": 0.615, "s_ij": 0.6}, r"^collapse: right and wrong pairs are alike \(s_ii 0\.6[12], s_ij 0\.60\)$"),
        ({"c_g": 0.95}, r"^collapse: queries and their negative anchors coincide \(c_g 0\.95\)$"),
        ({"flagged": 1.0}, "^every triplet counts as noisy$"),
    ):
        assert re.search(message, method.diagnose(fine | wrong))


def test_a_collapse_is_written_into_the_history(train, small_backbone, capsys):
    """All queries and targets are alike, from the second epoch on."""
    method = build_method("conesep-paper", small_backbone())
    compose = method.backbone.compose

    def collapsed(references, *arguments, **options):
        composed = compose(references, *arguments, **options)
        return composed if method.epoch < 1 else 0 * composed + torch.eye(1, 7)

    method.backbone.compose = collapsed
    history = train(method, config=dataclasses.replace(CONFIG, epochs=2, lr=1e-12))
    assert history["note"].iloc[-1].startswith("collapse: ")
    assert history["s_ii"].iloc[-1] - history["s_ij"].iloc[-1] < 0.02
    assert "epoch 2: collapse: " in "".join(capsys.readouterr())


@pytest.mark.filterwarnings("ignore:this run has 1 optimizer steps")
@pytest.mark.parametrize(("name", "warmup"), [("conesep-paper", 0), ("conesep-adapted", 0), ("conesep-adapted", 2)])
def test_gradient_norms_per_term_are_those_of_a_direct_computation(world, train, small_backbone, name, warmup):
    """One step with the whole set in it, so that history and computation see the same weights and rows."""
    method = build_method(name, small_backbone(), warmup=warmup, kappa=0.5)
    same = build_method(name, small_backbone(), warmup=warmup, kappa=0.5).train()
    same.load_state_dict(method.state_dict())
    config = TrainConfig(epochs=1, batch_size=1000, clip_norm=1e9)
    history = train(method, config=config)

    rows = epoch_order(len(world), 1000, 0, 0)[0]
    ids = [[column[i] for i in rows] for column in (world.references, world.targets)]
    references, targets = (train.store.patches(train.store.rows(column)) for column in ids)
    texts = same.backbone.tokenize([world.epoch_texts(0, 0)[i] for i in rows])
    same.start_epoch(view(0))
    torch.manual_seed(0)
    loss, _ = same.loss(Batch(torch.from_numpy(rows), references, texts, targets), 0)
    norms = {}
    for term, value in (same.terms | {None: loss}).items():
        same.zero_grad()
        value.backward(retain_graph=True)
        norms[term] = math.sqrt(sum(float((p.grad**2).sum()) for p in same.parameters() if p.grad is not None))
    total = norms.pop(None)
    assert set(norms) == {c.removeprefix("gradient ") for c in history if c.startswith("gradient ")}
    assert len(norms) == 3 and norms["rank"] > 0
    for term, norm in norms.items():
        assert history[f"gradient {term}"].item() == pytest.approx(norm, rel=1e-3, abs=1e-6), term
    assert history["gradient_norm"].item() == pytest.approx(total, rel=1e-3)


def test_flags_are_counted_against_the_ledger_by_hand(world, train, small_backbone):
    noisy = corrupt(world, 0.5, "shuffle", seed=1)
    method, history = build_method("conesep-adapted", small_backbone(), warmup=1), {}

    def look(epoch, method, observed):
        history[epoch] = observed | {"columns": detection_by_epoch(observed, noisy)}
        return history[epoch]["columns"]

    table = train(method, noisy.triplets, on_epoch=look)
    assert "flagged" not in history[0] and np.isnan(table["recall flagged"].iloc[0])
    for epoch in (1, 2):
        flagged, counts = history[epoch]["flagged"], dict.fromkeys(("hit", "false", "missed"), 0)
        for flag, changed in zip(flagged.tolist(), noisy.ledger.changed.tolist(), strict=True):
            if not math.isnan(flag):  # the rows that the last partial batch would have held
                counts["hit"] += flag == 1 and changed
                counts["false"] += flag == 1 and not changed
                counts["missed"] += flag == 0 and changed
        assert min(counts.values()) > 0
        for name, rest in (("precision", "false"), ("recall", "missed")):
            expected = counts["hit"] / (counts["hit"] + counts[rest])
            assert table[f"{name} flagged"].iloc[epoch] == pytest.approx(expected)


def test_flags_of_nobody_and_of_a_run_without_noise(world):
    clean, noisy = corrupt(world, 0.0, seed=0), corrupt(world, 0.5, seed=0)
    some, none = np.zeros(len(world)), np.zeros(len(world))
    some[:4] = 1
    assert detection_by_epoch({"flagged": some}, clean)["precision flagged"] == 0
    assert np.isnan(detection_by_epoch({"flagged": some}, clean)["recall flagged"])
    result = detection_by_epoch({"flagged": none}, noisy)
    assert np.isnan(result["precision flagged"]) and result["recall flagged"] == 0


def test_the_learning_rate_follows_the_warm_up_and_the_share_of_clean_rows(train, small_backbone, monkeypatch):
    rates: list[list[float]] = []

    class Watched(torch.optim.AdamW):
        def step(self, *arguments, **options):
            rates[-1].append(self.param_groups[0]["lr"])
            return super().step(*arguments, **options)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    flagged, config = [], dataclasses.replace(CONFIG, epochs=2)
    for name, options in (("conesep-paper", {}), ("conesep-adapted", {}), ("conesep-adapted", {"scale_lr": False})):
        method = build_method(name, small_backbone(), warmup=1, **options)
        split = method.split
        method.split = lambda similarity, split=split, seen=flagged: seen.append(split(similarity)) or seen[-1]
        rates.append([])
        flagged.clear()
        train(method, config=config)
        if name == "conesep-adapted":
            steps = len(rates[0]) // 2
            clean = [(~rows).float().mean().item() for rows in flagged]
            assert len(clean) == steps and (len(set(clean)) > 1 or not method.config.scale_lr)
            scale = [method.config.warmup_lr] * steps + (clean if method.config.scale_lr else [1.0] * steps)
            assert rates[-1] == pytest.approx([r * by for r, by in zip(rates[0], scale, strict=True)])
