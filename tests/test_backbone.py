"""The backbone against the Q-Former of LAVIS, and its own contracts."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from golden_backbone import golden_config
from safetensors.torch import load_file, save_file
from torch import nn

from cirkit.backbone import Backbone, BackboneConfig, TokenBatch
from cirkit.lavis import translate_state
from cirkit.presets import load_backbone, load_state, save_backbone
from cirkit.tokens import build_vocabulary

TOLERANCE = {"rtol": 0, "atol": 1e-5}


def small_backbone(seed: int = 0, **changes) -> Backbone:
    torch.manual_seed(seed)
    config = BackboneConfig(
        name="small",
        vocabulary=build_vocabulary(["red", "sleeves"]),
        width=24,
        layers=2,
        heads=4,
        intermediate=48,
        query_tokens=3,
        embed_dim=7,
        vision_width=24,
        vision_layers=1,
        image_size=16,
        text_length=12,
    )
    return Backbone(dataclasses.replace(config, **changes)).eval()


@pytest.fixture(scope="module")
def lavis(golden):
    """The golden arrays as tensors, and a backbone that carries their weights."""
    data = {k: torch.from_numpy(v) for k, v in golden("lavis_qformer").items()}
    backbone = Backbone(golden_config(data, int(data["config_query_tokens"]))).eval()
    backbone.ln_vision = nn.Identity()  # the golden image states are already behind that LayerNorm
    state = translate_state({k.removeprefix("state."): v for k, v in data.items() if k.startswith("state.")})
    state["query_tokens"] = data["query_tokens"]
    state |= {k: v for k, v in backbone.state_dict().items() if k.startswith("vision_model.")}
    load_state(backbone, state, "lavis_qformer")
    tokens = TokenBatch(data["input_ids"], data["attention_mask"])
    return backbone, data, tokens


@torch.no_grad()
def test_hidden_states_equal_lavis(lavis):
    backbone, data, tokens = lavis
    images = data["target_image_embeds"], data["reference_image_embeds"]
    torch.testing.assert_close(
        backbone.hidden_states(images[0], queries=backbone.query_tokens), data["target_hidden_out"], **TOLERANCE
    )
    torch.testing.assert_close(
        backbone.hidden_states(images[1], tokens, backbone.query_tokens), data["fusion_hidden_out"], **TOLERANCE
    )
    torch.testing.assert_close(backbone.hidden_states(texts=tokens), data["text_only_hidden_out"], **TOLERANCE)


@torch.no_grad()
def test_features_equal_lavis(lavis):
    backbone, data, tokens = lavis
    target = backbone.encode_target(data["target_image_embeds"])
    torch.testing.assert_close(target, data["target_features_out"], **TOLERANCE)
    torch.testing.assert_close(backbone.encode_text(tokens), data["text_only_features_out"], **TOLERANCE)
    for pool, name in (("text", "position_n"), ("mean", "query_mean")):
        query = backbone.compose(data["reference_image_embeds"], tokens, pool=pool)
        torch.testing.assert_close(query, data[f"composed_features_{name}_out"], **TOLERANCE)
        similarity = torch.einsum("bd,gnd->bgn", query, target).amax(-1)
        torch.testing.assert_close(similarity, data[f"similarity_{name}_out"], **TOLERANCE)


@torch.no_grad()
def test_passes_without_image_equal_lavis(lavis):
    """SPRC's and TME's second passes: queries and text, no cross-attention."""
    backbone, data, tokens = lavis
    first = data["fusion_hidden_out"][:, : backbone.config.query_tokens]
    hidden = backbone.hidden_states(texts=tokens, queries=first)
    torch.testing.assert_close(hidden, data["sprc_second_pass_hidden_out"], **TOLERANCE)
    hidden = backbone.hidden_states(texts=tokens, queries=data["tme_reference_hidden_out"])
    torch.testing.assert_close(hidden, data["tme_composed_hidden_out"], **TOLERANCE)


@torch.no_grad()
def test_prompt_and_difference_passes_equal_lavis(lavis):
    """Learned tokens inserted behind [CLS] (SPRC, TME), and TME's difference tokens in place of the text."""
    backbone, data, tokens = lavis
    positions = backbone.embeddings.position_embeddings.weight
    words = backbone.embeddings.word_embeddings(tokens.ids)
    prompts = data["prompt_tokens"].expand(len(words), -1, -1)
    embeds = torch.cat([words[:, :1], prompts, words[:, 1:]], dim=1)
    mask = torch.cat([torch.ones(prompts.shape[:2]), tokens.mask.float()], dim=1)
    hidden = backbone.run_qformer(embeds + positions[: embeds.shape[1]], mask, query_length=0)
    torch.testing.assert_close(hidden, data["sprc_prompt_hidden_out"], **TOLERANCE)
    query = nn.functional.normalize(backbone.text_projection(hidden[:, 0]), dim=-1)
    torch.testing.assert_close(query, data["sprc_prompt_query_out"], **TOLERANCE)

    reference, difference = data["tme_reference_hidden_out"], data["tme_difference_tokens"]
    embeds = torch.cat([reference, difference + positions[: difference.shape[1]]], dim=1)
    hidden = backbone.run_qformer(embeds, torch.ones(embeds.shape[:2]), query_length=0)
    torch.testing.assert_close(hidden, data["tme_difference_hidden_out"], **TOLERANCE)


def test_golden_state_is_translated_completely(lavis):
    backbone, data, _ = lavis
    names = {
        k for k in translate_state({k.removeprefix("state."): v for k, v in data.items() if k.startswith("state.")})
    }
    assert names == {
        k for k in backbone.state_dict() if not k.startswith(("vision_model.", "ln_vision.")) and k != "query_tokens"
    }


def test_shapes_norms_and_poolings():
    backbone = small_backbone()
    patches = backbone.patch_tokens(torch.randn(5, 3, 16, 16))
    assert patches.shape == (5, 4, 24) and not patches.requires_grad
    target = backbone.encode_target(patches)
    assert target.shape == (5, 3, 7)
    texts = ["is red", "has long sleeves and is red", "", "red", "x"]
    for pool in ("text", "mean"):
        query = backbone.compose(patches, texts, pool=pool)
        assert query.shape == (5, 7)
        torch.testing.assert_close(query.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(target.norm(dim=-1), torch.ones(5, 3))
    with pytest.raises(ValueError, match="pool"):
        backbone.compose(patches, texts, pool="max")


def test_batch_of_one_and_padding_do_not_change_a_query():
    backbone = small_backbone()
    patches = backbone.patch_tokens(torch.randn(3, 3, 16, 16))
    texts = ["red", "sleeves are red and much longer", ""]
    together = backbone.compose(patches, texts)
    for i in range(3):
        torch.testing.assert_close(backbone.compose(patches[i : i + 1], texts[i : i + 1])[0], together[i])


def test_prompts_of_another_length_move_the_text_position():
    backbone = small_backbone()
    patches = backbone.patch_tokens(torch.randn(2, 3, 16, 16))
    prompts = torch.cat([backbone.query_tokens, backbone.query_tokens], dim=1)
    hidden = backbone.hidden_states(patches, ["red", "red sleeves"], prompts)
    expected = nn.functional.normalize(backbone.text_projection(hidden[:, 6]), dim=-1)
    torch.testing.assert_close(backbone.compose(patches, ["red", "red sleeves"], prompts), expected)


def test_every_trained_part_gets_a_gradient_and_the_tower_none():
    backbone = small_backbone().train()
    patches = backbone.patch_tokens(torch.randn(4, 3, 16, 16))
    query = backbone.compose(patches, ["red", "sleeves", "red sleeves", "a"])
    score = torch.einsum("bd,gnd->bgn", query, backbone.encode_target(patches)).amax(-1)
    nn.functional.cross_entropy(score / 0.07, torch.arange(4)).backward()
    for name, parameter in backbone.named_parameters():
        if name.startswith("vision_model."):
            assert parameter.grad is None and not parameter.requires_grad, name
        elif parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name
    for part in ("query_tokens", "ln_vision.weight", "text_projection.weight", "vision_projection.weight"):
        assert backbone.get_parameter(part).grad.abs().sum() > 0, part
    assert not backbone.vision_model.training


def test_half_precision_stays_finite_and_close():
    backbone = small_backbone()
    patches = backbone.patch_tokens(torch.randn(3, 3, 16, 16))
    exact = backbone.compose(patches, ["red", "sleeves", "a b"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = backbone.compose(patches, ["red", "sleeves", "a b"])
    assert rough.isfinite().all()
    assert (exact - rough.float()).abs().max() < 0.05


def test_the_tower_gives_the_same_tokens_inside_a_training_in_half_precision():
    backbone, pixels = small_backbone(), torch.randn(3, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = backbone.patch_tokens(pixels)
    assert torch.equal(inside, backbone.patch_tokens(pixels))


def test_disagreeing_batch_sizes_are_named():
    backbone = small_backbone()
    patches = backbone.patch_tokens(torch.randn(3, 3, 16, 16))
    with pytest.raises(ValueError, match=r"batch size.*\[2, 3\]"):
        backbone.compose(patches, ["red", "red"])
    with pytest.raises(ValueError, match="texts or queries"):
        backbone.hidden_states(patches)


def test_saved_and_loaded_is_the_same(tmp_path):
    backbone = small_backbone(seed=3)
    save_backbone(backbone, tmp_path, {"seed": 3})
    again = load_backbone(str(tmp_path))
    assert again.fingerprint() == backbone.fingerprint()
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.equal(again.patch_tokens(pixels), backbone.patch_tokens(pixels))


@pytest.mark.parametrize("damage", ["renamed", "missing", "shape"])
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, damage):
    save_backbone(small_backbone(), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    weight = state.pop("text_projection.weight")
    if damage == "renamed":
        state["text_proj.weight"] = weight
    elif damage == "shape":
        state["text_projection.weight"] = weight[:, :5].contiguous()
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="text_projection.weight"):
        load_backbone(str(tmp_path))


def test_unknown_names_and_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown backbone 'tinny'.*tiny"):
        load_backbone("tinny")
    save_backbone(small_backbone(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"widht": 3}))
    with pytest.raises(ValueError, match="widht"):
        load_backbone(str(tmp_path))


def test_changing_one_weight_or_the_transform_changes_the_fingerprints():
    backbone, same, other = small_backbone(), small_backbone(), small_backbone(pad_ratio=1.0)
    assert backbone.fingerprint() == same.fingerprint()
    assert backbone.tower_fingerprint() != other.tower_fingerprint()
    with torch.no_grad():
        next(same.vision_model.parameters()).flatten()[0] += 1e-3
    assert backbone.tower_fingerprint() != same.tower_fingerprint()
    same = small_backbone()
    with torch.no_grad():
        same.query_tokens.flatten()[0] += 1e-3
    assert backbone.fingerprint() != same.fingerprint()
    assert backbone.tower_fingerprint() == same.tower_fingerprint()


def test_loading_leaves_the_global_random_stream_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    load_backbone("tiny-random", seed=5)
    assert torch.equal(torch.rand(3), expected)
