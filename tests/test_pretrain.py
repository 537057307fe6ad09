"""Stage 1: its parts, and the shipped checkpoint against its own recipe."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import MINI_RECIPE
from PIL import Image

from cirkit.backbone import BackboneConfig
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.garments import DEFAULT_RECIPE, GarmentsRecipe, attributes, build_garments, stage1_images, vocabulary
from cirkit.presets import WEIGHTS, load_backbone
from cirkit.pretrain import BatchSampler, Stage1Config, contrastive_loss, pretrain, probe_world, text_to_image_recall
from cirkit.tokens import build_vocabulary

TINY = WEIGHTS / "tiny"


@pytest.fixture(scope="module")
def recipe() -> dict:
    return json.loads((TINY / "recipe.json").read_text())


def test_contrastive_loss_equals_a_slow_loop():
    images, texts = F.normalize(torch.randn(5, 3, 7), dim=-1), F.normalize(torch.randn(5, 7), dim=-1)
    s = [[max(float(texts[i] @ images[j, n]) for n in range(3)) / 0.07 for j in range(5)] for i in range(5)]
    rows = [math.log(sum(math.exp(v) for v in s[i])) - s[i][i] for i in range(5)]
    columns = [math.log(sum(math.exp(s[j][i]) for j in range(5))) - s[i][i] for i in range(5)]
    expected = (sum(rows) + sum(columns)) / 10
    assert contrastive_loss(images, texts, 0.07).item() == pytest.approx(expected, rel=1e-4)


def test_recall_counts_any_image_of_the_content_asked_for():
    images = torch.eye(12)[:, None]
    texts = torch.eye(12)
    texts[0] = F.normalize(torch.tensor([0.9, 1.0] + [0.0] * 10), dim=0)
    distinct = np.arange(12)
    assert text_to_image_recall(images, texts, distinct)["R@1"] == pytest.approx(100 * 11 / 12)
    assert text_to_image_recall(images, texts, distinct)["R@5"] == 100
    twins = np.r_[1, 1, np.arange(2, 12)]
    assert text_to_image_recall(images, texts, twins)["R@1"] == 100


def test_batches_hold_no_vector_twice_and_hard_ones_share_attributes():
    _, _, truth = stage1_images(GarmentsRecipe(size=8), 900, progress=False)
    config = Stage1Config(steps=10, batch_size=64, plain_share=0.5)
    sampler = BatchSampler(truth, config)
    batches = [sampler.draw(step).numpy() for step in range(10)]
    again = BatchSampler(truth, config)
    assert all(np.array_equal(again.draw(step).numpy(), batch) for step, batch in enumerate(batches))
    for batch in batches:
        assert len(batch) == 64
        assert len(truth.iloc[batch].drop_duplicates()) == 64
    sizes = [min(len(np.unique(grouping[batch])) for grouping in sampler.groupings) for batch in batches]
    assert max(sizes[5::2]) < min(sizes[:5])


def test_pretraining_learns_and_repeats_itself():
    config = Stage1Config(images=96, held_out=12, steps=24, batch_size=32, lr=2e-3)
    architecture = BackboneConfig(
        "small", build_vocabulary(vocabulary()), width=24, layers=2, intermediate=48, query_tokens=2, embed_dim=16,
        vision_width=24, vision_layers=1,
    )  # fmt: skip
    first, record = pretrain(config, architecture, progress=False)
    assert record["final_loss"] < math.log(32)
    assert not any(p.requires_grad for p in first.vision_model.parameters())
    assert pretrain(config, architecture, progress=False)[0].fingerprint() == first.fingerprint()
    other = dataclasses.replace(config, seed=1)
    assert pretrain(other, architecture, progress=False)[0].fingerprint() != first.fingerprint()


def test_shipped_weights_are_those_of_the_recipe_in_the_code(recipe):
    assert recipe["stage1"] == dataclasses.asdict(Stage1Config())
    assert recipe["world"] == dataclasses.asdict(DEFAULT_RECIPE)
    assert recipe["fingerprint"] == load_backbone("tiny").fingerprint()
    assert (TINY / "model.safetensors").stat().st_size <= 5e6
    assert recipe["seconds"] <= 600


def test_shipped_weights_reach_what_is_asked_of_them(recipe):
    assert set(recipe["probe"]) == {"category", "colour", "sleeve", "pattern", "neckline", "length"}
    assert min(recipe["probe"].values()) >= 80


def test_shipped_vocabulary_covers_the_words_of_the_world():
    tokenizer = load_backbone("tiny").tokenizer
    for word in vocabulary():
        assert tokenizer.pieces(word)[1:-1] == [word]
    assert "[UNK]" not in tokenizer.pieces("a sequined halter-neck, size 12")


def test_stage_1_sees_no_combination_of_validation_or_test(mini_world):
    _, _, truth = stage1_images(MINI_RECIPE, 200, progress=False)
    seen = set(map(tuple, truth.to_numpy()))
    world = attributes(mini_world)
    for split in ("val", "test"):
        ids = [i for gallery in load_fashioniq(mini_world, split).galleries.values() for i in gallery]
        assert not seen & set(map(tuple, world.loc[ids, truth.columns].to_numpy()))


@torch.inference_mode()
def test_shipped_weights_find_fresh_pictures_by_their_caption(recipe):
    """The recorded text-to-image recall, measured again on part of the held-out images."""
    pixels, captions, truth = stage1_images(GarmentsRecipe(seed=1), 120, progress=False)
    backbone = load_backbone("tiny")
    batch = torch.stack([backbone.preprocess(Image.fromarray(p)) for p in pixels])
    images = backbone.encode_target(backbone.patch_tokens(batch))
    content = truth.groupby(list(truth.columns)).ngroup().to_numpy()
    recall = text_to_image_recall(images, backbone.encode_text(captions), content)
    assert recall["R@1"] > 90 and recall["R@10"] > 98


@pytest.mark.slow
def test_recorded_probe_is_what_the_shipped_weights_give(recipe, tmp_path):
    probe = probe_world(load_backbone("tiny"), build_garments(tmp_path, progress=False), progress=False)
    assert pd.Series(probe).sub(pd.Series(recipe["probe"])).abs().max() < 1.0
