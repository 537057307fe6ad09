"""Arithmetic on paper is what torch counts, and docs/scale.md is what it says."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
import torch

from cirkit import scale_page, sizing
from cirkit.backbone import Backbone, BackboneConfig
from cirkit.methods import build_method
from cirkit.methods.base import Batch
from cirkit.paths import project_root
from cirkit.step_cost import arithmetic, kept_for_backward
from cirkit.tokens import build_vocabulary

BATCH = 5
TEXTS = ["long and blue"] * BATCH
SHAPES = {
    "convolutional": {},
    "vit": {
        "tower": "vit", "vision_heads": 2, "vision_intermediate": 40, "patch_size": 12, "layers": 5, "query_tokens": 6,
    },
    "every layer attends": {"cross_attention_frequency": 1, "layers": 3, "embed_dim": 11},
}  # fmt: skip


def config(**changes) -> BackboneConfig:
    made = BackboneConfig(
        "paper", build_vocabulary(["blue", "long", "and", "no", "not"]), width=24, layers=4, heads=3, intermediate=56,
        query_tokens=3, embed_dim=7, vision_width=36, vision_layers=2, image_size=48,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def backbone(**changes) -> Backbone:
    torch.manual_seed(0)
    return Backbone(config(**changes)).eval()


def batch_of(made: Backbone) -> Batch:
    shape = (BATCH, sizing.patches(made.config), made.config.vision_width)
    return Batch(torch.arange(BATCH), torch.randn(shape), made.tokenize(TEXTS), torch.randn(shape))


def trained(name: str, made: Backbone, after_warmup: bool = False):
    """A method, and one step of it forward and back."""
    method, batch = build_method(name, made).train(), batch_of(made)
    method.epoch = 9 if after_warmup else 0
    return method, lambda: method.loss(batch, 0)[0].backward()


@pytest.mark.parametrize("shape", SHAPES)
def test_flops_of_a_tower(shape):
    made = backbone(**SHAPES[shape])
    size = made.config.image_size
    counted = arithmetic(lambda: made.patch_tokens(torch.randn(2, 3, size, size)))
    assert counted == 2 * sizing.tower_flops(made.config, attention=False)
    assert made.patch_tokens(torch.randn(1, 3, size, size)).shape[1] == sizing.patches(made.config)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "method", "after"),
    [
        ("infonce", "infonce", False), ("conesep-released, warm-up", "conesep-released", False),
        ("conesep-released", "conesep-released", True),
    ],
)  # fmt: skip
def test_flops_and_memory_of_a_step(shape, name, method, after):
    made = backbone(**SHAPES[shape])
    method, work = trained(method, made, after)
    step = sizing.steps(BATCH)[name]
    text = made.tokenize(TEXTS).ids.shape[1]
    if step.negation:
        method._negations = method._negations[:1]
        step = dataclasses.replace(step, negation=len(method._negations[0]))
    predicted = sizing.step_flops(made.config, step, BATCH, text, attention=False)
    predicted += (sizing.frozen_flops(made.config, step, BATCH, attention=False)
                  - 2 * BATCH * sizing.tower_flops(made.config, attention=False))  # fmt: skip
    assert arithmetic(work) == pytest.approx(predicted, rel=0.001)
    kept = kept_for_backward(method, work)
    assert sizing.activation_bytes(made.config, step, BATCH, text) == pytest.approx(kept, rel=0.1)


def test_gaussian_images_count_once_in_so_many_steps():
    made = backbone()
    method, batch = build_method("conesep-adapted", made, draws=10, omega=0.0, fidelity="monotone"), batch_of(made)
    method.train().epoch = 9
    method.loss(batch, 0)
    counted = arithmetic(lambda: [method.loss(batch, step)[0].backward() for step in range(7)]) / 7
    step = sizing.Step(gaussian=10 / BATCH, every=7)
    text = made.tokenize(TEXTS).ids.shape[1]
    # the texts that are drawn for them are cut to the longest drawn
    assert counted == pytest.approx(sizing.step_flops(made.config, step, BATCH, text, attention=False), rel=0.01)


def test_attention_adds_what_a_gpu_computes():
    c = config(layers=1, cross_attention_frequency=1)
    plain = sizing.pass_flops(c, 3, 4, "queries", attention=False)
    # 3 of 7 positions ask all 7, and the 36 patches
    assert sizing.pass_flops(c, 3, 4, "queries") - plain == 4 * (3 * 7 + 3 * 36) * 24
    assert sizing.pass_flops(c, 3, 4, "text") - sizing.pass_flops(c, 3, 4, "text", attention=False) == 4 * 7 * 24


def test_parameters_are_those_of_the_backbone():
    made = backbone()
    frozen = sum(p.numel() for p in made.vision_model.parameters())
    assert sizing.parameters(made.config) == (frozen, sum(p.numel() for p in made.parameters()) - frozen)


def test_vit_g_is_as_large_as_it_is_known_to_be():
    frozen, trained = sizing.parameters(sizing.VIT_G)
    assert 0.98e9 < frozen < 1.02e9 and 180e6 < trained < 190e6
    assert sizing.row_bytes(sizing.VIT_G) == 257 * 1408 * 2
    assert 40 < sizing.tower_flops(sizing.VIT_G) / (
        sizing.memory_flops(sizing.VIT_G) + sizing.pass_flops(sizing.VIT_G, 32, 0, "queries")) < 42  # fmt: skip


def test_the_page_is_current():
    page = (project_root() / "docs" / "scale.md").read_text(encoding="utf-8")
    assert page == scale_page.page(), "run `python -m cirkit.scale_page`"


def test_the_page_shows_what_was_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(scale_page, "project_root", lambda: tmp_path)
    assert "has not been run yet" in scale_page.page()
    (tmp_path / "results" / "bench").mkdir(parents=True)
    row = {"backbone": "b", "step": "infonce", "batch": 3, "text tokens": 9}
    for k, name in enumerate(("GFLOP", "activations, MB", "state, MB", "ms")):
        row |= {name: 10.0 * k + 1, f"predicted {name}": 10.0 * k + 2}
    pd.DataFrame([row]).to_csv(tmp_path / "results" / "bench" / "cost.csv", index=False)
    assert "2.00 / 1.00" in scale_page.page() and "32 / 31" in scale_page.page()


def test_counts_of_images_are_those_of_the_files(shared_data):
    from cirkit.data.fashioniq import load_fashioniq

    train, val, test = (load_fashioniq(shared_data / "fashioniq", split) for split in ("train", "val", "test"))
    used = {*train.references, *train.targets}
    found = [(len(used), len(used | set(val.image_ids()))),
             (len(set(train.image_ids())), len({*train.image_ids(), *val.image_ids()})),
             (len(set(train.image_ids())), len({*train.image_ids(), *val.image_ids(), *test.image_ids()}))]  # fmt: skip
    assert [(study.trained, study.images) for study in scale_page.STUDIES[:3]] == found
    assert len(train) == scale_page.STUDIES[0].triplets
