"""Stage 1: its parts, and the shipped checkpoints against their own recipes."""

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
from cirkit.data import scenes
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.garments import GarmentsRecipe, attributes, stage1_images, vocabulary
from cirkit.presets import WEIGHTS, load_backbone, unknown_words
from cirkit.pretrain import (
    WORLDS,
    AttributeHead,
    BatchSampler,
    Stage1Config,
    contrastive_loss,
    pretrain,
    probe_world,
    shared_attributes,
    text_to_image_recall,
)
from cirkit.tokens import build_vocabulary

each_world = pytest.mark.parametrize("world", list(WORLDS))


def recipe(world: str) -> dict:
    return json.loads((WEIGHTS / WORLDS[world].preset / "recipe.json").read_text())


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
    sampler = BatchSampler(truth, config, shared_attributes(truth))
    batches = [sampler.draw(step).numpy() for step in range(10)]
    again = BatchSampler(truth, config, shared_attributes(truth))
    assert all(np.array_equal(again.draw(step).numpy(), batch) for step, batch in enumerate(batches))
    for batch in batches:
        assert len(batch) == 64
        assert len(truth.iloc[batch].drop_duplicates()) == 64
    sizes = [min(len(np.unique(grouping[batch])) for grouping in sampler.groupings) for batch in batches]
    assert max(sizes[5::2]) < min(sizes[:5])


def test_hard_batches_of_scenes_are_whole_groups_of_look_alikes():
    recipe = scenes.ScenesRecipe(size=8, eval_groups=2, circo_images=5)
    _, _, truth = scenes.stage1_images(recipe, 400, progress=False)
    config = Stage1Config(steps=10, batch_size=64, plain_share=0.5, group_size=8)
    sampler = BatchSampler(truth, config, WORLDS["scenes"].groupings(truth))
    groups = [np.unique(sampler.draw(step).numpy() // scenes.STAGE1_GROUP, return_counts=True) for step in range(10)]
    assert all(len(numbers) == 8 and set(counts) == {8} for numbers, counts in groups[5::2])
    assert min(len(numbers) for numbers, _ in groups[:5]) > 20


def test_attribute_loss_equals_a_slow_loop():
    truth = pd.DataFrame({"colour": ["red", "blue", "green", "red"], "size": ["small", "large", "large", "large"]})
    head = AttributeHead(truth, 7)
    embedding, rows = torch.randn(3, 7), torch.tensor([3, 0, 2])
    logits = (head.linear.weight @ (7**0.5 * embedding).T).T + head.linear.bias
    expected = []
    for row, values in zip(rows.tolist(), logits.detach(), strict=True):
        for name, known, part in (
            ("colour", ["blue", "green", "red"], values[:3]),
            ("size", ["large", "small"], values[3:]),
        ):
            expected.append(float(part.logsumexp(0) - part[known.index(truth[name][row])]))
    assert head(embedding, rows).item() == pytest.approx(np.mean(expected), rel=1e-5)


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


@each_world
def test_shipped_weights_are_those_of_the_recipe_in_the_code(world):
    record, source = recipe(world), WORLDS[world]
    assert record["stage1"] == dataclasses.asdict(source.config)
    assert record.get("attribute_weight", 0.0) == source.attribute_weight
    assert record["world"] == dataclasses.asdict(source.recipe())
    backbone = load_backbone(source.preset)
    assert backbone.config.name == source.preset
    assert record["fingerprint"] == backbone.fingerprint()
    assert (WEIGHTS / source.preset / "model.safetensors").stat().st_size <= 4e6


@each_world
def test_shipped_weights_reach_what_is_asked_of_them(world):
    names = {
        "garments": {"category", "colour", "sleeve", "pattern", "neckline", "length"},
        "scenes": {"shape", "colour", "size", "relation", "count", "other", "other_colour", "background"},
    }
    probe = recipe(world)["probe"]
    assert set(probe) == names[world]
    assert min(probe.values()) >= 80


@each_world
def test_shipped_vocabulary_covers_the_words_of_its_world_only(world):
    backbone = load_backbone(WORLDS[world].preset)
    for word in WORLDS[world].vocabulary():
        assert backbone.tokenizer.pieces(word)[1:-1] == [word]
    assert "[UNK]" not in backbone.tokenizer.pieces("a sequined halter-neck, size 12")
    other = next(source for name, source in WORLDS.items() if name != world)
    assert len(unknown_words(backbone, other.vocabulary())) > 30


def test_unknown_words_are_named_once_the_most_used_first():
    texts = ["Make the GARMENT zebra, please", "zebra zebra sleeves", "please a v-neck"]
    assert unknown_words(load_backbone("tiny"), texts) == ["zebra", "please", "garment"]
    assert unknown_words(load_backbone("tiny"), ["is red", ""]) == []


def test_stage_1_sees_no_combination_of_validation_or_test(mini_world):
    _, _, truth = stage1_images(MINI_RECIPE, 200, progress=False)
    seen = set(map(tuple, truth.to_numpy()))
    world = attributes(mini_world)
    for split in ("val", "test"):
        ids = [i for gallery in load_fashioniq(mini_world, split).galleries.values() for i in gallery]
        assert not seen & set(map(tuple, world.loc[ids, truth.columns].to_numpy()))


@each_world
@torch.inference_mode()
def test_shipped_weights_find_fresh_pictures_by_their_caption(world):
    """The recorded text-to-image recall, measured again on other images."""
    source = WORLDS[world]
    pixels, captions, truth = source.stage1_images(source.recipe(seed=1), 120, progress=False)
    backbone = load_backbone(source.preset)
    batch = torch.stack([backbone.preprocess(Image.fromarray(p)) for p in pixels])
    images = backbone.encode_target(backbone.patch_tokens(batch))
    content = truth.groupby(list(truth.columns)).ngroup().to_numpy()
    recall = text_to_image_recall(images, backbone.encode_text(captions), content)
    assert recall["R@1"] > 90 and recall["R@10"] > 98


@pytest.mark.slow
@each_world
def test_recorded_probe_is_what_the_shipped_weights_give(world, monkeypatch, tmp_path):
    monkeypatch.setenv("CIRKIT_CACHE", str(tmp_path))
    source = WORLDS[world]
    probe = probe_world(load_backbone(source.preset), source.build(), progress=False)
    assert pd.Series(probe).sub(pd.Series(recipe(world)["probe"])).abs().max() < 1.0
