"""Our forward pass of the Q-Former against the model's own, with its gradients."""

from __future__ import annotations

import pytest
import torch

from cirkit.qformer import image_memory, run

TEXTS = ["red", "is red and has long sleeves", ""]
N = 3


@pytest.fixture
def given(small_backbone):
    """A backbone whose last layer sees the image too, or not; embeddings, mask and image states."""

    def make(layers: int):
        backbone = small_backbone(layers=layers, cross_attention_frequency=2)
        tokens = backbone.tokenize(TEXTS)
        queries = backbone.query_tokens.expand(len(TEXTS), -1, -1)
        embeds = backbone.embeddings(input_ids=tokens.ids, query_embeds=queries)
        mask = torch.cat([torch.ones(len(TEXTS), N), tokens.mask.float()], dim=1)
        return backbone, embeds, mask, torch.randn(len(TEXTS), 5, 24)

    return make


def by_the_model(backbone, embeds, mask, states, query_length):
    return backbone.qformer(
        query_embeds=embeds, query_length=query_length, attention_mask=mask, encoder_hidden_states=states
    ).last_hidden_state


@pytest.mark.parametrize("layers", [3, 4])
@pytest.mark.parametrize("wanted", [slice(None), slice(N, N + 1), slice(N), slice(1, N), slice(2, N + 2)])
def test_wanted_positions_and_gradients_equal_the_models_own_pass(given, layers, wanted):
    backbone, embeds, mask, states = given(layers)
    trained = [p for p in backbone.qformer.parameters() if p.requires_grad]
    ours = run(backbone.qformer, embeds, mask, N, image_memory(backbone.qformer, states), wanted)
    theirs = by_the_model(backbone, embeds, mask, states, N)[:, wanted]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(theirs)
    found = [torch.autograd.grad((x * weights).sum(), trained, allow_unused=True) for x in (ours, theirs)]
    reached = 0
    for mine, expected in zip(*found, strict=True):
        if mine is None:  # a branch that no wanted position went through
            assert expected is None or not expected.any()
        else:
            reached += 1
            torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)
    assert reached > len(trained) / 2


def test_without_image_every_position_is_text(given):
    backbone, embeds, mask, _ = given(2)
    ours = run(backbone.qformer, embeds, mask)
    torch.testing.assert_close(ours, by_the_model(backbone, embeds, mask, None, 0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run(backbone.qformer, embeds, mask, wanted=slice(1)), ours[:, :1], atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing_and_an_open_mask_would(given):
    backbone, embeds, mask, _ = given(2)
    short = int(mask[0].sum())
    alone = run(backbone.qformer, embeds[:1, :short], mask[:1, :short])
    padded = run(backbone.qformer, embeds[:1], mask[:1])[:, :short]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)
    opened = run(backbone.qformer, embeds[:1], torch.ones_like(mask[:1]))[:, :short]
    assert (opened - alone).abs().max() > 1e-3


def test_passes_that_share_an_image_equal_passes_of_their_own(small_backbone):
    backbone = small_backbone()
    patches, prompts = torch.randn(3, 5, 24), torch.randn(2, 24)
    memory = backbone.image_memory(patches)
    for queries in (None, prompts):
        assert torch.equal(backbone.compose(memory, TEXTS, queries), backbone.compose(patches, TEXTS, queries))
    with pytest.raises(ValueError, match="disagree on the batch size"):
        backbone.compose(memory, TEXTS[:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_a_batch_of_one(small_backbone, dtype):
    backbone = small_backbone()
    patches = torch.randn(1, 5, 24)
    exact = backbone.compose(patches, TEXTS[1:2])
    with torch.autocast("cpu", dtype):
        half = backbone.compose(patches, TEXTS[1:2])
    half.float().sum().backward()
    assert half.shape == (1, 7) and (half.float() - exact).abs().max() < 0.05
    assert all(p.grad is None or p.grad.isfinite().all() for p in backbone.parameters())
