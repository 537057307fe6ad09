"""TME: the released forward in every phase, its losses, the partition, the defects that are mended, its training."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from golden_backbone import golden_backbone
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.backbone import TokenBatch
from cirkit.data.captions import CAPTION_FORMS, join_captions
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.losses import robust_contrastive, row_losses
from cirkit.methods import Batch, TrainingView, build_method, method_config
from cirkit.methods.tme import alignment_loss, caption_mean, infonce_clamped, weighted_loss
from cirkit.methods.tme_config import PHASES, SWITCHES, VARIANTS
from cirkit.mixture import clean_rows, scoring_batches
from cirkit.noise import corrupt
from cirkit.scores import max_over_tokens
from cirkit.train_scores import detection_by_epoch
from cirkit.training import TrainConfig, fit

close = partial(torch.testing.assert_close, rtol=0, atol=1e-5, check_dtype=False)
RCL = {"clean_loss": "rcl", "noisy_loss": "none", "trade_off": 1.0}
TERMS = {
    "qformer": {"rm"},
    "proj": {"pm", "sa", "rd"},
    "last": {"rm", "pm", "sa", "rd"},
    "main": {"rm", "pm", "sa", "rd"},
}


# --- the released code: losses ----------------------------------------------------------------------------------------


def test_losses_of_given_probabilities(golden):
    g = tensors(golden("tme_get_closs"))
    similarity, rows = g["probability"].log(), torch.zeros(14, dtype=torch.bool)
    rows[g["subset_rows"]] = True
    for loss, name in ((robust_contrastive, "rcl"), (infonce_clamped, "infonce")):
        close(loss(similarity, 1.0, torch.ones_like(rows)), g[f"{name}_out"])
        close(loss(similarity, 1.0, rows), g[f"{name}_subset_out"])
        close(loss(similarity, 1.0, torch.zeros_like(rows)), g["empty_out"])


def test_weighted_loss_of_clean_and_noisy_rows(golden):
    g = tensors(golden("tme_robust_infonce"))
    clean, tau = g["clean_label"] > 0, 0.07
    everyone, nobody = torch.ones_like(clean), torch.zeros_like(clean)
    close(weighted_loss(g["scores"], tau, clean, **RCL), g["loss_rcl_out"])
    close(weighted_loss(g["scores"], tau, clean, "rcl", "infonce", g["mixed_trade_off"].item()), g["loss_mixed_out"])
    close(weighted_loss(g["scores"], tau, everyone, "infonce", "none", 1.0), g["loss_infonce_all_clean_out"])
    close(weighted_loss(g["scores"], tau, nobody, **RCL), g["loss_all_noisy_out"])


def test_loss_and_similarity_a_row(golden):
    g = tensors(golden("tme_per_sample_loss"))
    close(row_losses(g["similarity"], g["temperature"].item()), g["loss_out"])
    close(g["similarity"].diagonal(), g["similarity_out"])


@pytest.mark.parametrize(("kind", "name"), [("mse", "mse"), ("smooth_l1", "smoothl1")])
def test_alignment(golden, kind, name):
    g = tensors(golden("tme_align"))
    clean = g["clean_label"] > 0
    close(alignment_loss(g["left"], g["right"], clean, kind), g[f"{name}_clean_only_out"])
    close(alignment_loss(g["left"], g["right"], clean & False, kind), g["all_noisy_out"])


def test_a_temperature_below_its_bound_is_lifted_and_goes_on_learning(golden, small_backbone):
    g = tensors(golden("tme_robust_infonce"))
    method = build_method("tme", small_backbone())
    method.learned.data.fill_(g["temperature_small_in"])
    temperature = method.temperature()
    close(temperature.detach(), g["temperature_after_clamp"])
    loss = weighted_loss(g["scores"], temperature, g["clean_label"] > 0, **RCL)
    torch.testing.assert_close(loss.item(), g["loss_small_temperature_out"].item(), rtol=0, atol=1e-3)
    loss.backward()
    assert method.learned.grad.item() != 0


def test_captions_take_the_forms_of_the_released_code(golden):
    g = golden("tme_fiq_caption_randomisation")
    plain = [caption.strip(" .,?").lower() for caption in g["flattened_captions"].tolist()]
    pairs, seen = list(zip(plain[::2], plain[1::2], strict=True)), set()
    for drawing in g["output"].tolist():
        for pair, text in zip(pairs, drawing, strict=True):
            forms = {join_captions(pair, form): form for form in CAPTION_FORMS}
            seen.add(forms[text.lower()])
    assert seen == set(CAPTION_FORMS)


# --- the released code: whole forward ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(golden):
    """The golden arrays, and the released variant on a backbone that carries their weights."""
    lavis, g = tensors(golden("lavis_qformer")), tensors(golden("tme_end_to_end"))
    backbone = golden_backbone(lavis, g, "tme_end_to_end")
    backbone.config = dataclasses.replace(backbone.config, text_length=g["text_ids"].shape[1])
    method = build_method("tme-released", backbone).eval()
    with torch.no_grad():
        method.prompt_tokens.copy_(g["prompt_tokens"])
        method.difference.weight.copy_(g["difference_weight"])
        method.difference.bias.copy_(g["difference_bias"])
    batch = Batch(torch.arange(6), g["vit_reference"], TokenBatch(g["text_ids"], g["text_mask"]), g["vit_target"])
    return g, method, batch


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("cut", [False, True])
def test_terms_of_each_phase(released, phase, cut):
    """Padding that a batch is cut by makes no difference, as the released mean of the caption fills it up again."""
    g, method, batch = released
    if cut:
        batch = batch._replace(texts=batch.texts.rows(batch.rows))
        assert batch.texts.ids.shape[1] == g["text_mask"].sum(1).max() < 32
    method.phase, method.clean = phase, g["clean_label"] > 0
    total, logs = method.loss(batch, 0)
    assert set(method.terms) == TERMS[phase]
    for name in method.terms:
        assert logs[name] == pytest.approx(g[f"{phase}_l{name}_out"].item(), abs=1e-5), name
    weights = {"rm": 1, "pm": 1, "sa": 1, "rd": 0.1}
    assert total.item() == pytest.approx(sum(weights[name] * logs[name] for name in TERMS[phase]), abs=1e-6)


def test_loss_and_similarity_of_each_row_of_the_whole_forward(released):
    g, method, batch = released
    similarity = max_over_tokens(method.query(batch.references, batch.texts), method.target(batch.targets))
    close(row_losses(similarity, method.temperature()), g["per_sample_loss_out"])
    close(similarity.diagonal(), g["per_sample_similarity_out"])


def test_queries_and_alignment_of_the_golden_qformer(golden):
    """The three queries one by one, on image states that are behind the LayerNorm already."""
    lavis = tensors(golden("lavis_qformer"))
    case = {
        "query_tokens": lavis["query_tokens"],
        "ln_vision_weight": torch.ones(48),
        "ln_vision_bias": torch.zeros(48),
    }
    backbone = golden_backbone(lavis, case, "lavis_qformer")
    backbone.config = dataclasses.replace(backbone.config, text_length=12)
    backbone.ln_vision = torch.nn.Identity()
    method = build_method("tme-released", backbone).eval()
    texts = TokenBatch(lavis["input_ids"], lavis["attention_mask"])
    reference = method.image_states(lavis["reference_image_embeds"])
    close(reference, lavis["tme_reference_hidden_out"])
    close(method.query(lavis["reference_image_embeds"], texts), lavis["tme_composed_out"])
    difference = lavis["tme_difference_tokens"]
    close(method.difference_query(reference, difference), lavis["tme_difference_query_out"])
    caption, clean = caption_mean(backbone, texts, masked=False), lavis["tme_clean_label"] > 0
    close(alignment_loss(difference.mean(dim=1), caption, clean), lavis["tme_alignment_loss_out"])


# --- options ----------------------------------------------------------------------------------------------------------


def test_variants_are_columns_of_the_table_and_only_adapted_changes():
    for column, (name, variant) in enumerate(zip(("tme-released", "tme"), VARIANTS, strict=True)):
        config = method_config(name)
        assert config.variant == variant
        assert {switch: getattr(config, switch) for switch in SWITCHES} == {k: v[column] for k, v in SWITCHES.items()}
    for switch, (own, other) in SWITCHES.items():
        assert getattr(method_config("tme", **{switch: own}), switch) is own
        with pytest.raises(ValueError, match=f'{switch}={other} would no longer be the released .* take method "tme"$'):
            method_config("tme-released", **{switch: other})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.005}, "temperature must be at least 0.01, got 0.005"),
        ({"beta": -0.1}, "beta must not be negative"), ({"prompt_weight": -1}, "prompt_weight must not be negative"),
        ({"alignment_weight": -1}, "alignment_weight must not"), ({"proj_epochs": -1}, "proj_epochs must not be neg"),
        ({"trade_off": 1.1}, r"trade_off must lie between 0 and 1, got 1\.1"), ({"threshold": -0.1}, "threshold must"),
        ({"partition_batch": 1}, "partition_batch must be at least 2, got 1"),
        ({"partition": "median"}, "must be .*mixture"), ({"clean_loss": "none"}, "must be .*rcl"),
    ],
)  # fmt: skip
def test_impossible_options_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        method_config("tme", **options)


def test_epochs_belong_to_phases():
    def phases(**epochs):
        config = method_config("tme", **{f"{name}_epochs": n for name, n in epochs.items()})
        return [config.phase(epoch) for epoch in range(8)]

    assert phases() == [*PHASES[:3], *["main"] * 5]
    assert phases(qformer=3, proj=2, last=1) == [*["qformer"] * 3, *["proj"] * 2, "last", "main", "main"]
    assert phases(qformer=0, proj=0, last=0) == ["main"] * 8


# --- losses and queries on other data ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", [5, 1])
@pytest.mark.parametrize("half", [False, True])
def test_every_phase_gives_a_finite_scalar_and_gradients(small_backbone, phase, size, half):
    method = build_method("tme", small_backbone()).train()
    method.phase = phase
    if phase == "main":
        method.clean = torch.tensor([False, True, True, False, True])
    method._train(phase)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss, logs = method.loss(random_batch(method.backbone, size), 0)
    assert loss.shape == () and loss.isfinite() and all(math.isfinite(v) for v in logs.values())
    loss.backward()
    gradients = {name for name, p in method.named_parameters() if p.grad is not None}
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)
    own = {"prompt_tokens", "difference.weight", "difference.bias"}
    assert (gradients & own == own) is (phase != "qformer")
    assert (gradients <= own) is (phase == "proj")


def test_noisy_rows_are_no_queries_but_stay_negatives_and_the_difference_takes_all(small_backbone):
    method = build_method("tme", small_backbone()).eval()
    batch = random_batch(method.backbone, 5)
    batch = batch._replace(rows=torch.tensor([6, 2, 0, 4, 1]))
    method.phase = "main"
    method.clean = torch.tensor([True, False, True, True, False, True, False])
    clean = torch.tensor([False, True, True, False, False])
    _, logs = method.loss(batch, 0)
    similarity = method.similarity(batch).detach()
    assert logs["rm"] == pytest.approx(slow_rcl(similarity, 0.07, [1, 2]), rel=1e-4)
    assert method.observed["flagged"].tolist() == (~clean).float().tolist() and logs["flagged"] == pytest.approx(0.6)
    torch.testing.assert_close(method.observed["similarity"], similarity.diagonal())
    method.clean = torch.ones(7, dtype=torch.bool)
    _, whole = method.loss(batch, 0)
    assert whole["rd"] == logs["rd"] and whole["pm"] != logs["pm"] and whole["sa"] != logs["sa"]
    assert whole["rm"] == pytest.approx(slow_rcl(similarity, 0.07, range(5)), rel=1e-4)


def slow_rcl(similarity, tau, rows):
    total = 0.0
    for i in rows:
        weights = [math.exp(s / tau) for s in similarity[i].tolist()]
        total -= sum(math.log(1 - w / sum(weights)) for j, w in enumerate(weights) if j != i)
    return total / len(rows)


def test_the_evaluated_query_is_the_one_of_reference_and_text(small_backbone):
    method = build_method("tme", small_backbone()).eval()
    batch = random_batch(method.backbone, 5)
    together = method.query(batch.references, batch.texts)
    assert together.shape == (5, 7)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    for i in range(5):
        alone = method.query(batch.references[i : i + 1], batch.texts.rows(torch.tensor([i])))
        torch.testing.assert_close(alone[0], together[i])
    assert not torch.allclose(together, method.backbone.compose(batch.references, batch.texts), atol=1e-2)
    with torch.no_grad():
        method.prompt_tokens.add_(1)
        method.difference.weight.add_(1)
    torch.testing.assert_close(method.query(batch.references, batch.texts), together)


def test_the_caption_is_a_constant_of_the_alignment(small_backbone):
    method = build_method("tme", small_backbone(), qformer_epochs=0, proj_epochs=0).train()
    method.phase = "last"
    method.loss(random_batch(method.backbone, 5), 0)
    words = method.backbone.embeddings.word_embeddings.weight
    assert torch.autograd.grad(method.terms["sa"], words, allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(method.terms["sa"], method.difference.weight)[0].abs().sum() > 0


def test_masked_caption_mean_is_of_the_own_tokens_and_the_released_one_is_not(small_backbone):
    backbone = small_backbone()
    words = backbone.embeddings.word_embeddings.weight
    with torch.no_grad():
        words[0] = 3.0  # [PAD] of a pretrained model is no zero
    texts = backbone.tokenize(["is red", "is long and teal", ""])
    lengths, limit = texts.mask.sum(1).tolist(), backbone.config.text_length
    assert len(set(lengths)) == 3 and max(lengths) < limit
    masked, released = (caption_mean(backbone, texts, masked=m) for m in (True, False))
    for i, length in enumerate(lengths):
        own = words[texts.ids[i, :length]].sum(dim=0)
        torch.testing.assert_close(masked[i], own / length)
        torch.testing.assert_close(released[i], (own + (limit - length) * words[0]) / limit)
    losses = []
    for on in (True, False):
        method = build_method("tme", backbone, masked_caption_mean=on)
        method.difference.load_state_dict({"weight": torch.zeros(24, 24), "bias": torch.zeros(24)})
        method.phase = "last"
        losses.append(method.loss(random_batch(backbone, 5), 0)[1]["sa"])
    assert losses[0] < losses[1]


# --- the partition ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triplets(mini_world):
    return load_fashioniq(mini_world, "train")


@pytest.fixture
def world(mini_world, triplets, small_backbone):
    """Maker of a method and of the view of an epoch."""

    def make(name="tme", epoch=3, rows=None, triplets=triplets, **options):
        backbone = small_backbone()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            method = build_method(name, backbone, **{"partition_batch": 16} | options)
        store = build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
        return method, TrainingView(triplets, store, epoch, 8, 5, rows=rows)

    return make


def scored(method, view):
    rows = torch.arange(len(view.triplets)) if view.rows is None else view.rows
    return method.score(view, rows)


def test_scores_are_those_of_a_slow_loop(world, triplets):
    method, view = world()
    values, seen = scored(method, view)
    assert seen.all() and len(triplets) % 16
    tokens = method.backbone.tokenize(triplets.texts)
    batches = scoring_batches(len(triplets), 16, [5, 0, 1], True)
    expected = {}
    for rows in batches:
        references, targets = (
            view.store.patches(view.store.rows([ids[i] for i in rows]))
            for ids in (triplets.references, triplets.targets)
        )
        similarity = method.similarity(
            Batch(torch.from_numpy(rows), references, tokens.rows(torch.from_numpy(rows)), targets)
        )
        for k, row in enumerate(rows):
            loss = torch.logsumexp(similarity[k] / 0.07, dim=0) - similarity[k, k] / 0.07
            expected[row] = loss.item(), similarity[k, k].item()
    losses, similarities = np.array([expected[row] for row in range(len(triplets))]).T
    np.testing.assert_allclose(values["loss"], losses, atol=1e-4)
    np.testing.assert_allclose(values["similarity"], similarities, atol=1e-5)


def test_every_image_is_encoded_once(world, triplets, monkeypatch):
    method, view = world()
    counted, encode = [], method.image_states
    monkeypatch.setattr(method, "image_states", lambda patches: counted.append(len(patches)) or encode(patches))
    monkeypatch.setattr(method, "target", lambda patches: pytest.fail("an image is encoded again"))
    scored(method, view)
    assert sum(counted) == len({*triplets.references, *triplets.targets}) < 2 * len(triplets)
    assert max(counted) == 16


def test_full_batches_leave_out_the_rest_or_fill_it_up():
    for n, size in ((10, 4), (8, 4), (3, 4), (9, 2)):
        some, whole = (scoring_batches(n, size, [1], all_rows) for all_rows in (False, True))
        assert {len(batch) for batch in whole} == {min(n, size)} and all(len(set(b)) == len(b) for b in whole)
        assert set(np.concatenate(whole)) == set(range(n)) and len(whole) == math.ceil(n / size)
        assert [list(b) for b in whole[: len(some)]] == [list(b) for b in some] and len(some) == max(n // size, 1)


def test_released_rows_without_a_batch_keep_loss_0_and_count_as_clean(world, triplets):
    n, flagged = len(triplets), {}
    for on in (False, True):
        method, view = world(score_all=on)
        values, seen = scored(method, view)
        record = method.start_epoch(view)
        flagged[on] = (~method.clean).numpy()
        assert record["flagged_all"] == pytest.approx(flagged[on].mean())
        assert record["unscored"] == (0 if on else n % 16) == (~seen).sum() == (values["loss"] == 0).sum()
        if not on:
            missed = ~seen
    assert missed.any() and method.clean.shape == (n,) and not flagged[False][missed].any()
    assert flagged[True].any() and not flagged[True].all()
    other, view = world(score_all=False, fixed_order=False, epoch=4)
    assert not np.array_equal(missed, ~scored(other, view)[1]), "another set in each epoch"


@pytest.mark.parametrize("switch", ["fixed_order", "fixed_texts"])
def test_losses_that_do_not_change_between_epochs_unless_released(world, triplets, switch):
    drawn = triplets.replace(caption_mode="random") if switch == "fixed_texts" else triplets
    for on in (True, False):
        first, later = (scored(*world(epoch=epoch, triplets=drawn, **{switch: on}))[0] for epoch in (3, 4))
        assert np.allclose(first["loss"], later["loss"], atol=1e-5) is on
        # the similarity of a pair does not depend on the batch, only on the text
        same_text = on or switch == "fixed_order"
        assert np.allclose(first["similarity"], later["similarity"], atol=1e-5) is same_text


def test_flipped_similarity_calls_the_others_clean(world):
    kept = {}
    for flip in (True, False):
        method, view = world(partition="percent", partition_by="similarity", threshold=0.25, flip_similarity=flip)
        method.start_epoch(view)
        similarity = scored(method, view)[0]["similarity"]
        kept[flip] = similarity[method.clean.numpy()].mean() - similarity.mean()
    assert kept[True] > 0 > kept[False]


def test_partition_is_of_the_losses_by_the_rule_asked_for(world):
    for options in ({}, {"partition": "direct", "threshold": 0.4}, {"partition_by": "similarity"}):
        method, view = world(**options)
        method.start_epoch(view)
        config, values = method.config, scored(method, view)[0]
        by = config.partition_by
        expected = clean_rows(values[by], config.partition, config.threshold, by, seed=view.seed + view.epoch)
        assert (method.clean.numpy() == expected).all() and 0 < expected.mean() < 1


def test_rows_that_are_not_trained_on_take_no_part(world, triplets):
    chosen = torch.arange(1, len(triplets), 3)
    method, view = world(rows=chosen)
    record = method.start_epoch(view)
    others = torch.ones(len(triplets), dtype=torch.bool)
    others[chosen] = False
    assert method.clean[others].all() and not method.clean[chosen].all()
    selected = triplets.select(chosen.numpy())
    alone, its_view = world(triplets=selected)
    its_view = dataclasses.replace(its_view, store=view.store)
    assert alone.start_epoch(its_view) == record
    assert torch.equal(alone.clean, method.clean[chosen])


def test_there_is_no_partition_in_the_warm_up(world):
    for epoch, phase in enumerate(PHASES[:3]):
        method, view = world(epoch=epoch)
        method.clean = torch.zeros(3, dtype=torch.bool)
        assert method.start_epoch(view) == {} and method.phase == phase and method.clean is None


# --- training ---------------------------------------------------------------------------------------------------------

CONFIG = TrainConfig(epochs=5, batch_size=30, lr=2e-3)


def test_each_phase_trains_its_own_parts_and_what_it_flags_is_judged(world, triplets):
    method, view = world()
    noisy = corrupt(triplets, 0.5, "shuffle", seed=1)
    states = [{name: value.clone() for name, value in method.trained_state().items()}]

    def look(epoch, method, observed):
        states.append({name: value.clone() for name, value in method.trained_state().items()})
        return detection_by_epoch(observed, noisy)

    history = fit(method, noisy.triplets, view.store, CONFIG, on_epoch=look, progress=False)
    moved = [
        {name for name in after if not torch.equal(before[name], after[name])}
        for before, after in zip(states, states[1:], strict=False)
    ]
    own = {"prompt_tokens", "difference.weight", "difference.bias"}
    assert moved[0] and not moved[0] & own and moved[1] == own
    assert moved[2] > own | {"learned"} and moved[3] > own | {"learned"}
    there = {name: history[name].notna().tolist() for name in ("rm", "pm", "s_ii", "flagged", "recall flagged")}
    assert there["rm"] == [True, False, True, True, True] and there["pm"] == [False, True, True, True, True]
    assert there["s_ii"] == [True] * 5
    assert there["flagged"] == there["recall flagged"] == [False, False, False, True, True]
    assert history["flagged_all"].notna().tolist() == there["flagged"]


@pytest.mark.parametrize("killed", [1, 4])
def test_a_run_interrupted_in_any_phase_goes_on_as_if_never_interrupted(world, tmp_path, killed):
    whole, view = world()
    expected = fit(whole, view.triplets, view.store, CONFIG, progress=False).loss.tolist()

    def kill(epoch, *_):
        if epoch == killed:
            raise KeyboardInterrupt
        return {}

    method, view = world()
    with pytest.raises(KeyboardInterrupt):
        fit(method, view.triplets, view.store, CONFIG, tmp_path, on_epoch=kill, progress=False)
    for again in (world()[0], method):  # in a new process, and in the cell that was interrupted
        history = fit(again, view.triplets, view.store, CONFIG, tmp_path, progress=False)
        assert history.loss.tolist() == expected
        for key, value in whole.trained_state().items():
            assert torch.equal(value, again.trained_state()[key]), key


def test_every_triplet_noisy_is_said(small_backbone):
    method = build_method("tme", small_backbone())
    assert method.diagnose({"flagged": 1.0}) == "every triplet counts as noisy"
    assert method.diagnose({"flagged": 0.5}) is None and method.diagnose({}) is None
