"""Drawn negatives: draws from zones, mining against a loop per query, corpora, and draws that outlive an interrupt."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from made_triplets import make
from test_training import Killed
from test_two_drops import slow

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.drawn import DrawnNegatives, default_corpus, definition_epochs
from cirkit.features import build_store
from cirkit.methods import build_method
from cirkit.methods.base import TrainingView
from cirkit.mining import Zone, choose, corpora, corpus_scores, draw, mine, sort_values, whole_corpus
from cirkit.retrieval import encode_images, encode_queries
from cirkit.scores import max_over_tokens
from cirkit.training import TrainConfig, fit
from cirkit.two_drops import two_drops


def zones(*bounds) -> Zone:
    first, last = torch.tensor(bounds).T
    return Zone(first, last, torch.zeros_like(first))


def drawn(scores, zone, own, count, seed=0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return draw(scores, sort_values(scores), zone, torch.tensor(own), count, rng).tolist()


def test_sorted_values():
    scores = torch.tensor([[0.1, -torch.inf, 0.3, 0.3], [1.0, 2.0, 4.0, 3.0]])
    assert sort_values(scores).tolist() == [[scores[0, 2].item()] * 2 + [scores[0, 0].item(), -torch.inf], [4, 3, 2, 1]]


def test_draws_are_uniform_over_the_zone_without_the_target():
    """Places 1 to 4 of 3 2 0 4 1, once with the target among them and once with it outside."""
    row = torch.tensor([[0.5, 0.1, 0.7, 0.9, 0.3]])
    scores, n = row.expand(6000, 5).contiguous(), 6000
    for own, members in ((0, [1, 2, 4]), (3, [0, 1, 2, 4])):
        found = np.array(drawn(scores, zones(*[(1, 5)] * n), [own] * n, 1))[:, 0]
        places, counts = np.unique(found, return_counts=True)
        assert places.tolist() == members
        spread = np.sqrt(n / len(members))
        assert np.abs(counts - n / len(members)).max() < 4 * spread


@pytest.mark.parametrize("count", [1, 4, 9, 40])
def test_no_draw_is_repeated_until_the_zone_is_used_up(count):
    scores = torch.rand(20, 200, generator=torch.Generator().manual_seed(0))
    order = scores.sort(dim=1, descending=True).indices
    sizes = [3, 9, 40, 150]
    bounds = [(30, 30 + sizes[row % 4]) for row in range(20)]
    own = [int(order[row, 32 if row % 2 else 5]) for row in range(20)]
    for row, places in enumerate(drawn(scores, zones(*bounds), own, count)):
        members = set(order[row, 30 : bounds[row][1]].tolist()) - {own[row]}
        assert set(places) <= members
        times = np.bincount(places, minlength=200)[sorted(members)]
        assert times.max() - times.min() <= 1


def test_images_of_equal_score_stand_in_corpus_order():
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.5, 0.1, 0.5]])
    for place, expected in ((0, 1), (1, 0), (2, 2), (3, 3), (4, 5), (5, 4)):
        own = 4 if expected != 4 else 1
        assert drawn(scores, zones((place, place + 1)), [own], 1) == [[expected]]
    for own in (0, 2, 3, 5):  # the target is taken out wherever it stands among its ties
        found = {drawn(scores, zones((1, 5)), [own], 1, seed)[0][0] for seed in range(40)}
        assert found == {0, 2, 3, 5} - {own}


def test_a_zone_of_the_target_alone_is_refused():
    with pytest.raises(ValueError, match="no negative to draw"):
        drawn(torch.tensor([[0.9, 0.5]]), zones((0, 1)), [0], 1)


def test_whole_corpus_leaves_out_what_is_no_candidate():
    ordered = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, -torch.inf]])
    zone = whole_corpus(ordered, ordered[:, 0])
    assert (zone.first.tolist(), zone.last.tolist(), zone.sizes.tolist()) == ([0, 0], [3, 2], [3, 2])


def test_blocks_and_threads_change_no_draw(monkeypatch):
    scores = torch.randn(50, 33, generator=torch.Generator().manual_seed(3))
    own = torch.arange(50) % 33
    monkeypatch.setattr("cirkit.mining._BLOCK", 33 * 7)

    def found(threads):
        torch.set_num_threads(threads)
        try:
            return choose(scores, own, two_drops, 4, np.random.default_rng(5))
        finally:
            assert torch.get_num_threads() == threads
            torch.set_num_threads(1)

    one, two = found(1), found(2)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    whole = two_drops(sort_values(scores), scores.gather(1, own[:, None])[:, 0])
    assert torch.equal(one[1], whole.sizes) and torch.equal(one[2], whole.fallback)


def test_scores_by_blocks_are_those_of_the_whole():
    queries, tokens = torch.randn(3, 7), torch.randn(5, 2, 7)
    torch.testing.assert_close(corpus_scores(queries, tokens, chunk=2), max_over_tokens(queries, tokens))


def test_corpora():
    triplets = make(
        ["a", "b", "c", "d"], [("x",)] * 4, ["t", "u", "t", "v"], ["shirt", "dress", "shirt", "shirt"],
        galleries={"shirt": ["t", "extra", "v"], "dress": ["u"]},
    )  # fmt: skip
    found = [(rows.tolist(), images) for rows, images in corpora(triplets, "targets")]
    assert found == [([0, 2, 3], ["t", "v"]), ([1], ["u"])]
    found = [(rows.tolist(), images) for rows, images in corpora(triplets, "split")]
    assert found == [([0, 2, 3], ["t", "v", "a", "c", "d", "extra"]), ([1], ["u", "b"])]
    with pytest.raises(ValueError, match="'targets' or 'split', got 'all'"):
        next(corpora(triplets, "all"))
    assert default_corpus(triplets) == "targets" and default_corpus(make(["a"], [("x",)], ["t"])) == "split"


@pytest.mark.parametrize(
    ("epochs", "definitions", "expected"),
    [(30, 6, [5, 10, 15, 20, 25]), (50, 6, [8, 16, 24, 32, 40, 48]), (8, 6, [1, 2, 3, 4, 5, 6, 7]), (1, 6, [])],
)
def test_definition_epochs(epochs, definitions, expected):
    assert definition_epochs(epochs, definitions) == expected


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    method = build_method("qure", small_backbone())
    return method, triplets, build_store(method.backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)


@pytest.mark.parametrize("corpus", ["targets", "split"])
@pytest.mark.parametrize("exclude", [False, True])
def test_mining_equals_a_loop_over_queries(world, corpus, exclude):
    """More draws than any zone holds, so that all of it is drawn."""
    method, triplets, store = world
    found = mine(method, triplets, store, partial(two_drops, threshold=0), corpus, 70, 0, exclude, chunk=7)
    names, drawn_references = np.array(store.ids), 0
    queries = encode_queries(method, triplets, store)
    for row in range(len(triplets)):
        images = next(images for rows, images in corpora(triplets, corpus) if row in rows)
        reference, target = triplets.references[row], triplets.targets[row]
        if exclude and reference != target:
            images = [image for image in images if image != reference]
        scores = max_over_tokens(queries[row : row + 1], encode_images(method, images, store))[0].numpy()
        first, last, fallback = slow(scores, images.index(target), threshold=0, strict=True)
        order = np.argsort(-scores, kind="stable")
        members = {images[j] for j in order[first:last]} - {target}
        assert set(names[found.draws[row]]) == members
        assert (found.sizes[row], found.fallback[row]) == (last - first, fallback)
        drawn_references += reference in members
    assert drawn_references == 0 if exclude else drawn_references > 0


def test_a_count_below_one_is_refused(world):
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        mine(*world, whole_corpus, "split", 0, 0)


def view_of(world, epoch, epochs=7):
    return TrainingView(world[1], world[2], epoch, epochs, 0)


def test_a_period_lasts_until_the_next_definition_and_never_repeats(world):
    method, triplets, store = world
    negatives = DrawnNegatives(two_drops, definitions=2)  # 7 epochs: 0-2, 3-5, 6
    rows, targets = torch.arange(len(triplets)), torch.from_numpy(store.rows(triplets.targets))
    with pytest.raises(RuntimeError, match="start_epoch has to come before"):
        negatives.rows(rows)
    epochs = []
    for epoch in range(7):
        said = negatives.start_epoch(method, view_of(world, epoch))
        assert bool(said) == (epoch in (0, 3, 6))
        epochs.append(negatives.rows(rows)[:, 0])
        assert (epochs[-1] != targets).all()
    assert (epochs[0] != epochs[1]).all() and (epochs[1] != epochs[2]).all() and (epochs[0] != epochs[2]).all()
    patches = negatives.patches(rows[:3])
    assert torch.equal(patches, store.patches(epochs[6][:3]))


def test_several_negatives_an_epoch_are_all_different_and_in_their_triplets_order(world):
    method, triplets, store = world
    negatives = DrawnNegatives(whole_corpus, definitions=2, per_epoch=3)
    rows = torch.arange(len(triplets))
    seen = []
    for epoch in range(3):
        negatives.start_epoch(method, view_of(world, epoch))
        seen.append(negatives.rows(rows))
    together = torch.cat(seen, dim=1)
    assert together.shape == (len(triplets), 9)
    assert all(len(set(row)) == 9 for row in together.tolist())
    patches = negatives.patches(rows[2:4])
    assert torch.equal(patches, store.patches(seen[2][2:4].flatten()))


def test_resuming_within_a_period_goes_on_with_its_draws(world, small_backbone, tmp_path):
    _, triplets, store = world
    config = TrainConfig(epochs=6, batch_size=16, lr=2e-3, schedule="cosine")

    def trained(folder, stop=None):
        method = build_method("qure", small_backbone(), definitions=2)  # defines at 3 as well
        epochs = []

        def each(epoch, method, _):
            if epoch == stop:
                raise Killed
            epochs.append(method.negatives.rows(torch.arange(len(triplets)))[:, 0])
            return {}

        return fit(method, triplets, store, config, folder, on_epoch=each, progress=False), epochs

    whole, expected = trained(None)
    for stop in (1, 4):
        folder = tmp_path / str(stop)
        with pytest.raises(Killed):
            trained(folder, stop)
        resumed, epochs = trained(folder)
        assert resumed.loss.tolist() == whole.loss.tolist()
        assert len(epochs) == 6 - stop and all(torch.equal(a, b) for a, b in zip(epochs, expected[stop:], strict=True))


def test_one_named_category_draws_from_its_targets_as_several_do():
    assert default_corpus(make(["a"], [("x",)], ["t"], ["dress"])) == "targets"


def test_a_corpus_without_a_negative_is_named(world):
    method, triplets, store = world
    one = triplets.select([0])
    with pytest.raises(ValueError, match=f"for '{one.categories[0]}': its corpus .'targets'. has 1 images"):
        mine(method, one, store, whole_corpus, "targets", 1, 0)


def test_scores_that_are_no_numbers_are_refused_with_their_count(world):
    method, triplets, store = world
    with torch.no_grad():
        method.backbone.text_projection.bias[0] = torch.nan
    few = triplets.select(range(3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        mine(method, few, store, whole_corpus, "split", 1, 0)
