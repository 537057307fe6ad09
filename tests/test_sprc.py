"""SPRC against the numbers of its released code, its passes, and what each of its terms trains."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from golden_backbone import golden_backbone, golden_config
from golden_tensors import tensors
from test_methods import random_batch
from torch import nn

from cirkit.backbone import Backbone, TokenBatch
from cirkit.lavis import translate_state
from cirkit.losses import infonce
from cirkit.methods import Batch, build_method
from cirkit.methods.sprc import prompt_alignment
from cirkit.passes import prompt_pass, second_pass
from cirkit.presets import load_state
from cirkit.scores import max_over_tokens


def close(obtained, expected):
    torch.testing.assert_close(obtained, expected, rtol=0, atol=1e-5)


# -- passes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lavis(golden):
    """The golden arrays of the Q-Former, and a backbone that carries its weights."""
    g = tensors(golden("lavis_qformer"))
    backbone = Backbone(golden_config(g, int(g["config_query_tokens"]))).eval()
    backbone.ln_vision = nn.Identity()  # the golden image states are already behind that LayerNorm
    state = translate_state({k.removeprefix("state."): v for k, v in g.items() if k.startswith("state.")})
    state |= {k: v for k, v in backbone.state_dict().items() if k.startswith("vision_model.")}
    load_state(backbone, state | {"query_tokens": g["query_tokens"]}, "lavis_qformer")
    return g, backbone, TokenBatch(g["input_ids"], g["attention_mask"])


@torch.no_grad()
def test_passes_of_the_released_code(lavis):
    g, backbone, texts = lavis
    fused = g["fusion_hidden_out"][:, : backbone.config.query_tokens]
    close(second_pass(backbone, fused, texts), g["sprc_composed_out"])
    close(second_pass(backbone, g["tme_reference_hidden_out"], texts), g["tme_composed_out"])
    for prompts in (g["prompt_tokens"], g["prompt_tokens"][0]):
        close(prompt_pass(backbone, prompts, texts), g["sprc_prompt_query_out"])


def test_passes_do_not_depend_on_the_batch_or_on_padding(small_backbone):
    backbone = small_backbone()
    hidden, prompts = torch.randn(3, 2, 24), torch.randn(5, 24)
    texts = ["is red", "has long sleeves and is blue", ""]
    together = second_pass(backbone, hidden, texts), prompt_pass(backbone, prompts, texts)
    for i, text in enumerate(texts):
        torch.testing.assert_close(second_pass(backbone, hidden[i : i + 1], [text])[0], together[0][i])
        torch.testing.assert_close(prompt_pass(backbone, prompts, [text])[0], together[1][i])
    for queries in together:
        assert queries.shape == (3, 7)
        torch.testing.assert_close(queries.norm(dim=1), torch.ones(3))


def test_prompts_count_as_words_and_the_last_position_serves_all_that_are_too_many(small_backbone):
    backbone = small_backbone(text_length=32)
    assert backbone.embeddings.position_embeddings.num_embeddings == 32
    words = backbone.embeddings.word_embeddings.weight
    text = backbone.tokenize(["is red and blue"])
    inside = TokenBatch(
        torch.cat([text.ids[:, :1], torch.tensor([[7, 9]]), text.ids[:, 1:]], dim=1),
        torch.ones(1, text.ids.shape[1] + 2, dtype=torch.long),
    )
    torch.testing.assert_close(prompt_pass(backbone, words[[7, 9]], text), backbone.encode_text(inside))

    long = backbone.tokenize(["red " * 40])
    assert long.ids.shape == (1, 32)
    ids = torch.cat([long.ids[:, :1], torch.tensor([[7, 9]]), long.ids[:, 1:]], dim=1)
    embeds = words[ids] + backbone.embeddings.position_embeddings.weight[[*range(32), 31, 31]]
    states = backbone.run_qformer(embeds, torch.ones(1, 34), query_length=0)
    query = F.normalize(backbone.text_projection(states[:, 0]), dim=-1)
    torch.testing.assert_close(prompt_pass(backbone, words[[7, 9]], long), query)


def test_hidden_states_that_do_not_fit_the_texts_are_refused(small_backbone):
    backbone = small_backbone()
    with pytest.raises(ValueError, match=r"\[B,N,H\], got \(2, 24\)"):
        second_pass(backbone, torch.randn(2, 24), ["red", "blue"])
    with pytest.raises(ValueError, match="1 rows of hidden states for 2 texts"):
        second_pass(backbone, torch.randn(1, 3, 24), ["red", "blue"])
    with pytest.raises(ValueError, match="batch size"):
        second_pass(backbone, torch.randn(3, 3, 24), ["red", "blue"])


# -- losses ------------------------------------------------------------------------------------------------------------


def test_losses_of_the_released_code(golden):
    g = tensors(golden("sprc_losses"))
    tau = float(g["temperature"])
    for query, name in (("composed", "itc"), ("prompt_query", "rtc")):
        close(infonce(max_over_tokens(g[query], g["target_tokens"]), tau), g[f"loss_{name}_out"])
    for prompts in (g["prompt_tokens"], g["prompt_tokens"][None]):
        close(prompt_alignment(g["fusion_hidden"], prompts), g["loss_align_out"])


def test_alignment_equals_a_slow_loop_and_leaves_the_prompts_alone():
    hidden, prompts = torch.randn(3, 5, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    total = 0.0
    for i in range(3):
        for h in range(7):
            total += (sum(hidden[i, :, h].tolist()) / 5 - sum(prompts[:, h].tolist()) / 5) ** 2
    loss = prompt_alignment(hidden, prompts)
    assert loss.shape == () and loss.item() == pytest.approx(total / 21, rel=1e-5)
    loss.backward()
    assert prompts.grad is None and hidden.grad.abs().sum() > 0
    assert prompt_alignment(hidden[:1], prompts).isfinite()
    for half in (torch.float16, torch.bfloat16):
        rough = prompt_alignment(hidden.to(half), prompts.to(half))
        assert rough.dtype == torch.float32 and rough.item() == pytest.approx(loss.item(), rel=0.02)
    with pytest.raises(ValueError, match=r"\(3, 5, 7\) and \(4, 7\)"):
        prompt_alignment(hidden, prompts[:4])


# -- the method --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(golden):
    """Golden arrays of a whole forward pass, and the method on a backbone that carries their weights."""
    lavis, g = tensors(golden("lavis_qformer")), tensors(golden("sprc_end_to_end"))
    backbone = golden_backbone(lavis, g, "sprc_end_to_end")
    method = build_method("sprc", backbone, temperature=float(g["temperature"]), rtc=0.4, align=0.4)
    with torch.no_grad():
        method.prompts.copy_(g["prompt_tokens"])
    return g, method


def test_whole_forward_of_the_released_code(released):
    g, method = released
    batch = Batch(torch.arange(6), g["vit_reference"], TokenBatch(g["text_ids"], g["text_mask"]), g["vit_target"])
    loss, logs = method.loss(batch, 0)
    for name in ("itc", "rtc", "align"):
        assert logs[name] == pytest.approx(g[f"loss_{name}_out"].item(), abs=1e-5)
    close(loss, g["loss_itc_out"] + 0.4 * g["loss_rtc_out"] + 0.4 * g["loss_align_out"])
    assert logs["temperature"] == pytest.approx(0.07)
    loss.backward()
    assert method.temperature.grad.isfinite() and method.temperature.grad.abs() > 0


def test_the_default_is_the_plain_sum_and_logs_are_unweighted(small_backbone):
    batch = random_batch(small_backbone(), 5)
    logs = {}
    for name, options in (("sum", {}), ("weighted", {"rtc": 0.5, "align": 2.0}), ("alone", {"rtc": 0, "align": 0})):
        torch.manual_seed(0)
        loss, logs[name] = build_method("sprc", small_backbone(), **options).loss(batch, 0)
        terms = [logs[name][k] for k in ("itc", "rtc", "align")]
        weights = (1.0, options.get("rtc", 1.0), options.get("align", 1.0))
        assert loss.item() == pytest.approx(sum(w * t for w, t in zip(weights, terms, strict=True)), rel=1e-5)
    assert logs["sum"] == logs["weighted"] == logs["alone"]


def test_which_term_trains_what(small_backbone):
    """Learned prompts by L_rtc alone, S by the other two, the temperature by both contrastive losses."""
    method = build_method("sprc", small_backbone()).train()
    method.loss(random_batch(method.backbone, 5), 0)
    trained = {"prompts": method.prompts, "queries": method.backbone.query_tokens, "tau": method.temperature}
    reached = {}
    for name, term in method.terms.items():
        found = torch.autograd.grad(term, list(trained.values()), retain_graph=True, allow_unused=True)
        reached[name] = {key for key, g in zip(trained, found, strict=True) if g is not None and g.abs().sum() > 0}
    # targets have query tokens, too, so L_rtc reaches them
    assert reached == {"itc": {"queries", "tau"}, "rtc": {"prompts", "queries", "tau"}, "align": {"queries"}}


def test_query_is_the_second_pass_over_the_fused_states(small_backbone):
    backbone = small_backbone()
    method, batch = build_method("sprc", backbone), random_batch(backbone, 5)
    states = backbone.hidden_states(batch.references, batch.texts, backbone.query_tokens)[:, :3]
    again = backbone.hidden_states(texts=batch.texts, queries=states)[:, 3]
    query = method.query(batch.references, batch.texts)
    torch.testing.assert_close(query, F.normalize(backbone.text_projection(again), dim=-1))
    assert query.shape == (5, 7)
    assert not torch.allclose(query, backbone.compose(batch.references, batch.texts), atol=1e-2)


def test_a_temperature_below_zero_has_a_name(small_backbone):
    method = build_method("sprc", small_backbone())
    assert method.diagnose({"temperature": 0.07}) is None
    assert "no longer positive (-0.010)" in method.diagnose({"temperature": -0.01})


@pytest.mark.parametrize("name", ["rtc", "align"])
def test_weights_below_zero_are_refused(small_backbone, name):
    with pytest.raises(ValueError, match=f"{name} must not be negative, got -0.5"):
        build_method("sprc", small_backbone(), **{name: -0.5})
