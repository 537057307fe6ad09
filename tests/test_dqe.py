"""DQE-CIR: the query of sub-queries, its losses against plain formulas, its negatives, and the special case QuRe."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from test_methods import random_batch

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.losses import bradley_terry
from cirkit.methods import build_method
from cirkit.methods.base import TrainingView
from cirkit.mid_zone import mid_zone
from cirkit.mining import corpus_scores
from cirkit.retrieval import encode_images, encode_queries
from cirkit.training import TrainConfig, fit

TEXTS = ["is red", "long sleeves and in blue", "has dots", "a collar, not white", ""]


def made(backbone, **options):
    """A method whose negatives need no training set: the targets of the batch, turned by one place."""
    method = build_method("dqe", backbone, **options).train()
    patches = random_batch(backbone, 6, seed=5).targets
    method.negatives.patches = lambda rows: patches[: len(rows)]
    return method


def batch_of(backbone, texts, seed=0):
    return random_batch(backbone, len(texts), seed)._replace(texts=backbone.tokenize(texts))


def best(query, tokens) -> float:
    return max((tokens.detach() @ query.detach()).tolist())


def test_query_is_q_plus_weighted_sub_queries_on_the_sphere(small_backbone):
    backbone = small_backbone()
    method, batch = made(backbone, weight_start=0.3), batch_of(backbone, TEXTS)
    whole = method.query(batch.references, batch.texts)
    subs = {"colour": ["red", "blue", None, "not white", None], "shape": [None, "long sleeves", None, "collar", None]}
    for row, text in enumerate(TEXTS):
        one = batch.references[row : row + 1]
        total = backbone.compose(one, [text], pool="mean")
        for texts in subs.values():
            if texts[row] is not None:
                total = total + 0.3 * backbone.compose(one, [texts[row]], pool="mean")
        torch.testing.assert_close(whole[row], F.normalize(total, dim=1)[0], atol=2e-6, rtol=0)
    assert not torch.allclose(whole[0], backbone.compose(batch.references, TEXTS, pool="mean")[0], atol=1e-3)


def test_texts_as_strings_or_tokens_and_rows_one_by_one_are_the_same_queries(small_backbone):
    backbone = small_backbone()
    for options in ({}, {"sub_queries": "tokens"}, {"weights": "per_query", "pool": "text"}):
        method, batch = made(backbone, **options).eval(), batch_of(backbone, TEXTS)
        together = method.query(batch.references, TEXTS)
        torch.testing.assert_close(together, method.query(batch.references, batch.texts))
        alone = [method.query(batch.references[i : i + 1], TEXTS[i : i + 1]) for i in range(len(TEXTS))]
        torch.testing.assert_close(together, torch.cat(alone), atol=2e-6, rtol=0)


def test_sub_queries_only_where_a_text_has_such_words(small_backbone):
    backbone = small_backbone()
    batch = batch_of(backbone, TEXTS)
    composed = made(backbone).compose(batch.references, batch.texts)
    assert composed.parts["colour"].rows.tolist() == [0, 1, 3] and composed.parts["shape"].rows.tolist() == [1, 3]
    expected = torch.tensor([[0.1, 0.0], [0.1, 0.1], [0.0, 0.0], [0.1, 0.1], [0.0, 0.0]])
    torch.testing.assert_close(composed.weights, expected)
    torch.testing.assert_close(composed.whole[2], composed.plain[2], atol=1e-6, rtol=0)
    tokens = made(backbone, sub_queries="tokens").compose(batch.references, batch.texts)
    assert tokens.parts["colour"].rows.tolist() == [0, 1, 2, 3, 4] and (tokens.weights > 0).all()


@pytest.mark.parametrize("kind", ["linear", "sigmoid", "softplus"])
@pytest.mark.parametrize("weights", ["scalar", "per_query"])
def test_weights_start_at_their_start_and_learn(small_backbone, weights, kind):
    backbone = small_backbone()
    method = made(backbone, weights=weights, weight_range=kind, weight_start=0.25)
    batch = batch_of(backbone, TEXTS)
    torch.testing.assert_close(method.query_weights(torch.randn(3, 7)), torch.full((3, 2), 0.25))
    optimizer = torch.optim.AdamW(method.parameter_groups(0.05), lr=0.05)
    for step in range(2):
        loss, logs = method.loss(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = method.query_weights(method.compose(batch.references, batch.texts).plain)
    assert ((moved - 0.25).abs() > 1e-3).all() and (kind == "linear" or (moved > 0).all())
    spread = moved.std(dim=0)
    assert (spread > 1e-5).all() if weights == "per_query" else torch.equal(spread, torch.zeros(2))


def test_weights_temperature_and_tokens_have_no_decay_but_a_head_does(small_backbone):
    method = made(small_backbone(), weights="per_query", sub_queries="tokens")
    free = {id(p) for p in method.parameter_groups(0.05)[1]["params"]}
    assert {id(method.raw_weights), id(method.log_temperature), id(method.attribute_tokens)} <= free
    assert id(method.head) not in free


def test_loss_is_that_of_a_slow_loop(small_backbone):
    backbone = small_backbone()
    options = {"margin": 0.3, "lambda_rank": 0.7, "lambda_attribute": 0.4, "temperature": 0.2}
    method, batch = made(backbone, **options), batch_of(backbone, TEXTS)
    loss, logs = method.loss(batch, 0)
    composed = method.compose(batch.references, batch.texts)
    targets, negatives = method.target(batch.targets), method.target(method.negatives.patches(batch.rows))
    pair, rank, extra = [], [], {"colour": [], "shape": []}
    for i in range(len(TEXTS)):
        s_pos, s_neg = best(composed.whole[i], targets[i]), best(composed.whole[i], negatives[i])
        pair.append(math.log(1 + math.exp((s_neg - s_pos) / 0.2)))
        rank.append(max(0.0, 0.3 - s_pos + s_neg))
        for name, (rows, features) in composed.parts.items():
            if i in rows.tolist():
                query = features[rows.tolist().index(i)]
                extra[name].append(max(0.0, 0.3 - best(query, targets[i]) + best(query, negatives[i])))
    mean = {"pair": pair, "rank": rank, **extra}
    mean = {name: sum(values) / len(values) for name, values in mean.items()}
    for name, value in mean.items():
        assert logs[name] == pytest.approx(value, abs=1e-5), name
    expected = mean["pair"] + 0.7 * mean["rank"] + 0.4 * (mean["colour"] + mean["shape"])
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    assert sum(method.terms.values()).item() == pytest.approx(loss.item(), abs=1e-6)
    assert method.terms["shape"].item() == pytest.approx(0.4 * logs["shape"], abs=1e-6)
    assert logs["temperature"] == pytest.approx(0.2) and logs["w_colour"] == pytest.approx(0.1)
    assert method.observed["similarity"].tolist() == pytest.approx(
        [best(composed.whole[i], targets[i]) for i in range(len(TEXTS))], abs=1e-5
    )


def test_without_weights_ranking_attributes_and_zone_it_is_qure(small_backbone):
    backbone = small_backbone()
    options = {"lambda_rank": 0.0, "lambda_attribute": 0.0, "negatives": "corpus"}
    batch = batch_of(backbone, TEXTS)
    values = []
    for method in (made(backbone, weights="off", **options), made(backbone, weight_start=0.0, **options)):
        loss, logs = method.loss(batch, 0)
        query = backbone.compose(batch.references, batch.texts, pool="mean")
        tokens = backbone.encode_target(batch.targets), backbone.encode_target(method.negatives.patches(batch.rows))
        positive, negative = ((query[:, None] * t).sum(2).amax(1) for t in tokens)
        torch.testing.assert_close(loss, bradley_terry(positive, negative, 0.07), atol=1e-5, rtol=0)
        assert set(method.terms) == {"pair"}
        values.append(loss.item())
    assert values[0] == pytest.approx(values[1], abs=1e-6)


@pytest.mark.parametrize("size", [6, 1])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("options", [{}, {"sub_queries": "tokens", "weights": "per_query"}, {"weights": "off"}])
def test_loss_and_gradients_are_finite(small_backbone, size, half, options):
    backbone = small_backbone()
    method = made(backbone, **options)
    batch = batch_of(backbone, ["red, long sleeves", "teal", "", "no sleeves", "dots", "x"][:size])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss, logs = method.loss(batch, 0)
    assert loss.shape == () and loss.dtype == torch.float32 and all(math.isfinite(v) for v in logs.values())
    loss.backward()
    gradients = {k: p.grad for k, p in method.named_parameters() if p.grad is not None}
    assert all(g.isfinite().all() for g in gradients.values()) and not any("vision_model" in k for k in gradients)
    wanted = {"log_temperature"} | ({"raw_weights"} if options.get("weights") != "off" else set())
    wanted |= {"head", "attribute_tokens"} if "sub_queries" in options else set()
    assert all(gradients[name].abs().sum() > 0 for name in wanted)


def test_a_batch_without_any_attribute_word_has_no_attribute_loss(small_backbone):
    backbone = small_backbone()
    method, batch = made(backbone), batch_of(backbone, ["has dots", "", "plain"])
    loss, logs = method.loss(batch, 0)
    assert set(method.terms) == {"pair", "rank"} and not any(name.startswith("w_") for name in logs)
    loss.backward()
    assert not method.raw_weights.grad.any()
    torch.testing.assert_close(
        method.query(batch.references, batch.texts), backbone.compose(batch.references, batch.texts, pool="mean")
    )


@pytest.mark.parametrize("attached", [True, False])
def test_attribute_losses_reach_the_images_only_if_asked(small_backbone, attached):
    backbone = small_backbone()
    method, batch = made(backbone, attribute_targets=attached, margin=3.0), batch_of(backbone, TEXTS)
    method.loss(batch, 0)
    # the query's side never uses the vision projection
    weight = backbone.vision_projection.weight
    (gradient,) = torch.autograd.grad(method.terms["colour"], weight, retain_graph=True, allow_unused=True)
    assert (gradient is not None and bool(gradient.abs().sum() > 0)) == attached
    assert torch.autograd.grad(method.terms["rank"], weight)[0].abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.8, "beta": 0.2}, "the zone needs 0 <= alpha < beta <= 1, got alpha 0.8 and beta 0.2"),
        ({"attributes": ("colour", "fit")}, "attribute 'fit' is none of colour, shape, .*'name=word,another word'"),
        ({"attributes": ("colour", "colour=red")}, r"needs one or more different names, .* got \['colour', 'colour'\]"),
        ({"scale": "rank"}, r"option 'scale' .* must be Literal\['minmax', 'quantile'\], got 'rank'"),
        ({"weight_range": "sigmoid", "weight_start": 1.0}, "weight_start must lie between 0 and 1 for a sigmoid"),
        ({"weight_range": "softplus", "weight_start": 0.0}, "weight_start must be greater than 0"),
        ({"margin": -0.1}, "margin must not be negative, got -0.1"),
        ({"lambda_rank": -1}, "lambda_rank must not be negative"), ({"definitions": 0}, "definitions must be greater"),
        ({"attributes": ()}, r"one or more different names, .* got \[\]"),
        ({"attributes": ("loss=hot,warm", "shape")}, r"none of pair, rank, loss, .*got \['loss', 'shape'\]"),
        ({"temperature": 0}, "temperature must be greater"),
        ({"variant": "released"}, "method 'dqe' has no variant 'released'; it has paper"),
    ],
)  # fmt: skip
def test_options_are_refused_in_one_sentence(small_backbone, options, message):
    with pytest.raises(ValueError, match=message):
        build_method("dqe", small_backbone(), **options)


# --- with a training set ----------------------------------------------------------------------------------------------


@pytest.fixture
def little(mini_world, small_backbone):
    triplets, backbone = load_fashioniq(mini_world, "train"), small_backbone()
    return triplets, build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)


def test_negatives_lie_in_the_zone_of_q_star(little, small_backbone):
    triplets, store = little
    method = build_method("dqe", small_backbone(), weight_start=0.5, definitions=2)
    logs = method.start_epoch(TrainingView(triplets, store, 2, 4, 0))
    assert logs["zone_min"] >= 1 and 0 <= logs["zone_fallback"] < 1
    drawn = method.negatives.rows(torch.arange(len(triplets)))[:, 0]
    queries, ids = encode_queries(method, triplets, store), store.ids
    for category in sorted(set(triplets.categories)):
        rows = [i for i, c in enumerate(triplets.categories) if c == category]
        corpus = list(dict.fromkeys(triplets.targets[i] for i in rows))
        scores = corpus_scores(queries[rows], encode_images(method, corpus, store))
        own = scores[range(len(rows)), [corpus.index(triplets.targets[i]) for i in rows]]
        zone = mid_zone(scores.sort(dim=1, descending=True).values, own)
        for k, i in enumerate(rows):
            image = ids[drawn[i]]
            assert image != triplets.targets[i]
            gap = (own[k] - scores[k, corpus.index(image)]) / (own[k] - scores[k].min())
            assert int(zone.fallback[k]) or 0.2 - 1e-4 <= gap <= 0.8 + 1e-4


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(little, small_backbone, tmp_path):
    triplets, store = little

    def train(folder, stop=None):
        method = build_method("dqe", small_backbone(), definitions=2)

        def each(epoch, method, observed):
            if epoch == stop:
                raise KeyboardInterrupt
            return {}

        config = TrainConfig(epochs=5, batch_size=24, lr=1e-3, schedule="cosine")
        return method, fit(method, triplets, store, config, folder, on_epoch=each, progress=False)

    whole, history = train(None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop=3)
    resumed, _ = train(tmp_path)
    for name, tensor in whole.trained_state().items():
        assert torch.equal(tensor, resumed.trained_state()[name]), name
    assert {"pair", "rank", "colour", "shape", "w_colour", "w_shape", "s_pos", "s_neg", "temperature"} <= set(history)
    assert {"zone_mean", "zone_min", "zone_fallback", "gradient pair", "gradient colour"} <= set(history)
    assert history.zone_mean.notna().tolist() == [True, False, True, False, True]
    assert history.w_colour.nunique() > 1
