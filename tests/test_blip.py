"""The backbone on BLIP: the same numbers as transformers, and methods that need query tokens refused in time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from mini_fashioniq import write_annotations, write_images
from real_formats import DIM, SIDE, WORDS, blip2_model, blip_model, write_transformers

import cirkit.runs
from cirkit.methods import REGISTRY, build_method
from cirkit.methods.base import Batch
from cirkit.presets import load_backbone
from cirkit.runs import prepare

TEXTS = ["is red", "has longer sleeves, and is red", ""]
TOLERANCE = {"rtol": 0, "atol": 1e-5}
WITHOUT = {"infonce", "rcl", "oracle-infonce", "oracle-rcl", "infonce+random", "infonce+twodrop", "infonce+midzone"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The model of transformers and our backbone with its weights."""
    theirs = blip_model()
    folder = write_transformers(tmp_path_factory.mktemp("blip") / "mine", theirs)
    return theirs, load_backbone(str(folder))


@pytest.fixture
def pixels():
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_features_equal_the_model_of_transformers(pair, pixels):
    theirs, ours = pair
    tokens, patches = ours.tokenize(TEXTS), ours.patch_tokens(pixels)
    given = {"input_ids": tokens.ids, "attention_mask": tokens.mask, "pixel_values": pixels}
    alone = theirs(**given, use_itm_head=False)
    torch.testing.assert_close(ours.ln_vision(patches), alone.last_hidden_state, **TOLERANCE)
    target, text = ours.encode_target(patches), ours.encode_text(tokens)
    assert target.shape == (3, 1, DIM)
    torch.testing.assert_close(target[:, 0] @ text.T, alone.itm_score, **TOLERANCE)
    expected = F.normalize(theirs.text_proj(alone.question_embeds[:, 0]), dim=-1)
    torch.testing.assert_close(text, expected, **TOLERANCE)

    assert ours.config.vocabulary == (*WORDS, "[DEC]", "[ENC]")
    ids = tokens.ids.clone()
    ids[:, 0] = len(WORDS) + 1
    looking = theirs(**given | {"input_ids": ids}, use_itm_head=True)
    expected = F.normalize(theirs.text_proj(looking.question_embeds[:, 0]), dim=-1)
    query = ours.compose(patches, TEXTS)
    torch.testing.assert_close(query, expected, **TOLERANCE)
    assert (query - text).abs().max() > 1e-2


@torch.no_grad()
def test_without_an_encoder_token_cls_stays(tmp_path, pixels):
    theirs = blip_model(len(WORDS))
    ours = load_backbone(str(write_transformers(tmp_path / "mine", theirs)))
    tokens, patches = ours.tokenize(TEXTS), ours.patch_tokens(pixels)
    looking = theirs(input_ids=tokens.ids, attention_mask=tokens.mask, pixel_values=pixels, use_itm_head=True)
    expected = F.normalize(theirs.text_proj(looking.question_embeds[:, 0]), dim=-1)
    torch.testing.assert_close(ours.compose(patches, tokens), expected, **TOLERANCE)


@torch.no_grad()
def test_padding_and_the_rest_of_the_batch_do_not_change_a_query(pair, pixels):
    _, ours = pair
    patches = ours.patch_tokens(pixels)
    together = ours.compose(patches, TEXTS)
    for i in range(3):
        torch.testing.assert_close(ours.compose(patches[i : i + 1], TEXTS[i : i + 1])[0], together[i], **TOLERANCE)
    with pytest.raises(ValueError, match=r"batch size: \[2, 3\]"):
        ours.compose(patches, TEXTS[:2])


def test_what_needs_query_tokens_says_so(pair, pixels):
    _, ours = pair
    patches = ours.patch_tokens(pixels)
    calls = [
        lambda: ours.query_tokens,
        lambda: ours.hidden_states(patches, TEXTS),
        lambda: ours.run_qformer(patches, patches, 0),
        lambda: ours.compose(patches, TEXTS, pool="mean"),
        lambda: ours.compose(patches, TEXTS, prompts=torch.zeros(2, 64)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="'mine' is a BLIP: it has no query tokens"):
            call()


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_runs_on_it_or_is_refused_when_it_is_built(pair, pixels, name):
    _, ours = pair
    refused = "option pool 'mean' needs" if name in ("qure", "qure-released", "dqe") else "it needs"
    if name not in WITHOUT:
        with pytest.raises(ValueError, match=f"cannot use the backbone 'mine': .*{refused} query tokens"):
            build_method(name, ours)
        return
    method = build_method(name, ours)
    if name in ("infonce", "rcl"):
        patches, tokens = ours.patch_tokens(pixels), ours.tokenize(TEXTS)
        loss, _ = method.train().loss(Batch(torch.arange(3), patches, tokens, patches.flip(0)), 0)
        loss.backward()
        for part in ("ln_vision.weight", "vision_projection.weight", "text_projection.weight"):
            assert ours.get_parameter(part).grad.abs().sum() > 0, part
        crossing = "text_encoder.encoder.layer.0.crossattention.self.key.weight"
        assert ours.get_parameter(crossing).grad.abs().sum() > 0
        ours.zero_grad()


def test_options_that_need_query_tokens_are_refused_and_others_are_not(pair):
    _, ours = pair
    with pytest.raises(ValueError, match="DQE cannot use .* option sub_queries 'tokens' needs query tokens"):
        build_method("dqe", ours, pool="text", sub_queries="tokens")
    dqe = build_method("dqe", ours, pool="text", attributes=("length=longer",))
    assert dqe.query(torch.randn(3, 5, 48), TEXTS).shape == (3, DIM)
    qure = build_method("qure", ours, variant="adapted", pool="text", temperature_form="none")
    assert qure.temperature.item() == 1


def test_a_run_is_refused_before_images_are_encoded(tmp_path, monkeypatch, pair):
    folder = write_transformers(tmp_path / "mine", pair[0])
    data = write_images(write_annotations(tmp_path / "data"))
    monkeypatch.setattr(cirkit.runs, "build_store", lambda *_, **__: pytest.fail("images were encoded"))
    with pytest.raises(ValueError, match="^SPRC cannot use the backbone 'mine'"):
        prepare(progress=False, method="sprc", backbone=str(folder), dataset="fashioniq", data_root=str(data))


def test_every_method_may_use_a_q_former(tmp_path):
    backbone = load_backbone(str(write_transformers(tmp_path / "mine", blip2_model())))
    for name in REGISTRY:
        build_method(name, backbone)
