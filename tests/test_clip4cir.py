"""CLIP4Cir against the numbers of its released code, and its two stages in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from golden_tensors import tensors
from test_methods import random_batch

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.losses import infonce, row_losses
from cirkit.methods import build_method
from cirkit.methods.clip4cir import Combiner, element_wise_sum, image_features, text_features
from cirkit.retrieval import encode_images, encode_queries
from cirkit.training import CHECKPOINT, TrainConfig, fit

CONFIG = TrainConfig(epochs=4, batch_size=16, lr=2e-3)
RELEASED_NAMES = {
    "text_projection": "text_projection_layer",
    "image_projection": "image_projection_layer",
    "mixture_hidden": "combiner_layer",
    "mixture": "output_layer",
    "balance_hidden": "dynamic_scalar.0",
    "balance": "dynamic_scalar.3",
}


def close(obtained, expected, atol=1e-5):
    torch.testing.assert_close(obtained, expected, rtol=0, atol=atol)


# -- features and the Combiner -----------------------------------------------------------------------------------------


def released_combiner(g) -> Combiner:
    projection, features = g["weight.text_projection_layer.weight"].shape
    combiner = Combiner(features, projection, len(g["weight.combiner_layer.weight"]), dropout=0.5)
    combiner.load_state_dict(
        {
            f"{own}.{kind}": g[f"weight.{name}.{kind}"]
            for own, name in RELEASED_NAMES.items()
            for kind in ("weight", "bias")
        }
    )
    return combiner.eval()


def test_combiner_of_the_released_code(golden):
    g = tensors(golden("clip4cir_combiner"))
    query = released_combiner(g)(g["image_features"], g["text_features"])
    close(query, g["combined_out"])
    cosines = query @ F.normalize(g["target_features"], dim=-1).T
    close(int(g["logit_scale"]) * cosines, g["logits_out"], atol=1e-4)  # float32 at 100


def test_sum_and_loss_of_the_released_code(golden):
    g = tensors(golden("clip4cir_element_wise_sum"))
    close(element_wise_sum(g["image_features"], g["text_features"]), g["sum_out"])
    g = tensors(golden("clip4cir_loss"))
    close(infonce(g["logits"], 1.0), g["loss_out"])


def test_combiner_equals_a_slow_loop(golden):
    g = tensors(golden("clip4cir_combiner"))
    combiner = released_combiner(g).double()
    image, text = g["image_features"][:3].double(), g["text_features"][:3].double()
    fast = combiner(image, text)

    def layer(name, inputs):
        weight, bias = (g[f"weight.{RELEASED_NAMES[name]}.{kind}"].double() for kind in ("weight", "bias"))
        return torch.stack(
            [sum(w * x for w, x in zip(row, inputs, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        )

    for i in range(3):
        both = [*layer("text_projection", text[i]).relu(), *layer("image_projection", image[i]).relu()]
        share = layer("balance", layer("balance_hidden", both).relu()).sigmoid()
        mixture = layer("mixture", layer("mixture_hidden", both).relu())
        total = mixture + share * text[i] + (1 - share) * image[i]
        torch.testing.assert_close(fast[i], total / total.square().sum().sqrt())


def test_dropout_acts_in_training_only():
    combiner = Combiner(7, 28, 56, dropout=0.5)
    image, text = torch.randn(3, 7), torch.randn(3, 7)
    assert not torch.equal(combiner(image, text), combiner(image, text))
    combiner.eval()
    assert torch.equal(combiner(image, text), combiner(image, text))
    assert combiner(image[:1], text[:1]).shape == (1, 7)


def test_features_are_raw_and_their_place_is_the_backbone(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 5)
    image, text = image_features(backbone, batch.references), text_features(backbone, batch.texts)
    tokens = backbone.vision_projection(backbone.hidden_states(batch.references, queries=backbone.query_tokens))
    torch.testing.assert_close(image, sum(tokens[:, n] for n in range(3)) / 3)
    torch.testing.assert_close(F.normalize(text, dim=-1), backbone.encode_text(batch.texts))
    assert image.shape == text.shape == (5, 7)
    for raw in (image, text):
        assert (raw.norm(dim=1) - 1).abs().max() > 0.1


# -- the method --------------------------------------------------------------------------------------------------------


def staged(backbone, stage: int, **options):
    method = build_method("clip4cir", backbone, **options)
    method.stage.fill_(stage)
    return method


def test_queries_and_targets_by_stage(small_backbone):
    backbone = small_backbone()
    batch = random_batch(backbone, 5)
    image, text = image_features(backbone, batch.references), text_features(backbone, batch.texts)
    first, second = (staged(backbone, stage).eval() for stage in (1, 2))
    torch.testing.assert_close(first.query(batch.references, batch.texts), F.normalize(image + text, dim=-1))
    torch.testing.assert_close(second.query(batch.references, batch.texts), second.combiner(image, text))
    for method in (first, second):
        target = method.target(batch.targets)
        assert target.shape == (5, 1, 7)
        torch.testing.assert_close(target[:, 0], F.normalize(image_features(backbone, batch.targets), dim=-1))
        cosines = F.cosine_similarity(
            method.query(batch.references, batch.texts)[:, None], image_features(backbone, batch.targets)[None], dim=-1
        )
        torch.testing.assert_close(method.similarity(batch), cosines)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("size", [5, 1])
@pytest.mark.parametrize("half", [False, True])
def test_loss_and_what_gets_a_gradient(small_backbone, stage, size, half):
    method = staged(small_backbone(), stage, dropout=0.0).train()
    batch = random_batch(method.backbone, size)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss, _ = method.loss(batch, 0)
        similarity = method.similarity(batch)
    assert loss.shape == () and loss.dtype == torch.float32
    assert loss.item() == pytest.approx(row_losses(100 * similarity, 1.0).mean().item(), rel=1e-4, abs=1e-6)
    loss.backward()
    reached = {name.partition(".")[0] for name, p in method.named_parameters() if p.grad is not None}
    assert reached == ({"backbone"} if stage == 1 else {"combiner"})
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_the_combiner_has_the_released_proportions(small_backbone):
    linear = build_method("clip4cir", small_backbone()).combiner.mixture_hidden
    assert (linear.in_features, linear.out_features) == (2 * 4 * 7, 8 * 7)
    changed = build_method("clip4cir", small_backbone(), projection=1, hidden=2, dropout=0.1).combiner
    assert (changed.mixture_hidden.in_features, changed.mixture.in_features) == (14, 14)
    assert changed.dropout.p == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage1": 1.5}, r"stage1 is a share of all epochs, from 0 to 1, got 1\.5"),
        ({"stage1": -0.1}, "from 0 to 1, got -0.1"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1\.0"),
        ({"projection": 0}, "projection must be greater than 0, got 0"),
        ({"hidden": -2}, "hidden must be greater than 0, got -2"),
    ],
)
def test_options_out_of_range_are_one_sentence(small_backbone, options, message):
    with pytest.raises(ValueError, match=message):
        build_method("clip4cir", small_backbone(), **options)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    return triplets, build_store(small_backbone(), ImageFolder(mini_world), triplets.image_ids(), progress=False)


def made(small_backbone, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build_method("clip4cir", small_backbone(), **options)


def snapshots(method, world, **options):
    """History, and the trained state before and after every epoch."""
    states = [{k: v.clone() for k, v in method.trained_state().items()}]

    def keep(*_):
        states.append({k: v.clone() for k, v in method.trained_state().items()})
        return {}

    return fit(method, *world, CONFIG, on_epoch=keep, progress=False, **options), states


def changed(before, after) -> set[str]:
    return {name.partition(".")[0] for name in before if name != "stage" and not torch.equal(before[name], after[name])}


def test_each_stage_trains_its_own_part_and_the_loss_falls(world, small_backbone):
    history, states = snapshots(made(small_backbone), world)
    assert history.stage.tolist() == [1, 1, 2, 2]
    moved = [changed(*pair) for pair in zip(states, states[1:], strict=False)]
    assert moved == [{"backbone"}, {"backbone"}, {"combiner"}, {"combiner"}]
    assert history.loss[1] < history.loss[0] and history.loss[3] < history.loss[2]
    assert history.gradient_norm.gt(0).all()


@pytest.mark.parametrize(("stage1", "stages"), [(0, [2, 2, 2, 2]), (0.3, [1, 1, 2, 2]), (1, [1, 1, 1, 1])])
def test_share_of_the_first_stage(world, small_backbone, stage1, stages):
    history = fit(made(small_backbone, stage1=stage1), *world, CONFIG, progress=False)
    assert history.stage.tolist() == stages


class Killed(Exception):
    pass


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_run_killed_at_either_side_of_the_border_resumes_bit_for_bit(world, small_backbone, tmp_path, last):
    whole = made(small_backbone)
    expected, _ = snapshots(whole, world)

    def kill(epoch, *_):
        if epoch == last:
            raise Killed
        return {}

    stopped = made(small_backbone)
    with pytest.raises(Killed):
        fit(stopped, *world, CONFIG, tmp_path, on_epoch=kill, progress=False)
    assert (tmp_path / CHECKPOINT).is_file()
    # in a new process, and in a notebook cell that is run again with the method as the interrupt left it
    content = (tmp_path / CHECKPOINT).read_bytes()
    for method in (made(small_backbone), stopped):
        (tmp_path / CHECKPOINT).write_bytes(content)
        history = fit(method, *world, CONFIG, tmp_path, progress=False)
        assert history.loss.tolist() == expected.loss.tolist()
        for name, value in whole.trained_state().items():
            assert torch.equal(value, method.trained_state()[name]), name


def test_a_second_run_of_the_same_method_starts_with_the_first_stage(world, small_backbone):
    method = made(small_backbone)
    fit(method, *world, CONFIG, progress=False)
    history, states = snapshots(method, world)
    assert history.stage.tolist() == [1, 1, 2, 2]
    assert changed(states[0], states[1]) == {"backbone"}


def test_the_stage_travels_with_the_weights(world, small_backbone):
    triplets, store = world
    method = made(small_backbone)
    fit(method, *world, CONFIG, progress=False)
    loaded = build_method("clip4cir", small_backbone(seed=1))
    assert loaded.stage == 1
    loaded.load_trained_state(method.trained_state(), "a run")
    assert loaded.stage == 2
    # the towers have one source of weights, so patches of the store serve both
    queries = encode_queries(method, triplets, store)
    assert torch.equal(encode_queries(loaded, triplets, store), queries)
    assert torch.equal(encode_images(loaded, store.ids, store), encode_images(method, store.ids, store))
    loaded.stage.fill_(1)
    assert not np.allclose(encode_queries(loaded, triplets, store).numpy(), queries.numpy(), atol=1e-2)
