"""Graded relevance: gains and nDCG against slow loops over tie orders, by hand, and on a mini world."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirkit.data import DataError, load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.data.truth import attributes, relevance
from cirkit.evaluation import recall_at
from cirkit.features import build_store
from cirkit.gallery_scores import score_galleries
from cirkit.graded import category_parts, expected_gain, grade_ranking, ndcg_at, ndcg_table
from cirkit.methods import build_method
from cirkit.retrieval import rank_queries
from cirkit.scores import ranks_from_similarity


def slow_dcg(scores, grades, k) -> float:
    """Mean DCG over every order of the images in which no score rises."""
    orders = [o for o in itertools.permutations(range(len(scores))) if (np.diff([scores[i] for i in o]) <= 0).all()]
    return float(np.mean([sum(grades[i] / math.log2(r + 2) for r, i in enumerate(o[:k])) for o in orders]))


def slow_ndcg(scores, grades, k) -> float:
    return slow_dcg(scores, grades, k) / slow_dcg(grades, grades, k)


IMAGES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0.25, 0.5, 1])), min_size=1, max_size=5)


def as_query(images):
    scores, grades = np.array([[s for s, _ in images]], dtype=float), np.array([[g for _, g in images]], dtype=float)
    grades[0, 0] = 1.0  # the target
    return scores, grades


@given(IMAGES, st.integers(1, 6))
def test_ties_count_by_their_expectation(images, k):
    scores, grades = as_query(images)
    assert ndcg_at(scores, grades, k)[0] == pytest.approx(slow_ndcg(scores[0], grades[0], k))


def test_by_hand():
    grades = [[0.5, 1.0, 0.0, 0.5]]
    # places: 0.5, 1, 0.5 | ideal: 1, 0.5, 0.5; at 3
    obtained = 0.5 + 1 / math.log2(3) + 0.5 / 2
    assert ndcg_at([[4.0, 3.0, 1.0, 2.0]], grades, 3)[0] == pytest.approx(obtained / (1 + 0.5 / math.log2(3) + 0.25))
    # the first two tied: each place holds 0.75 on average
    tied = 0.75 + 0.75 / math.log2(3)
    assert ndcg_at([[4.0, 4.0, 1.0, 2.0]], grades, 2)[0] == pytest.approx(tied / (1 + 0.5 / math.log2(3)))
    # a tie that reaches over the cut: 1 of its 3 images is seen, with mean grade 0.5
    assert ndcg_at([[9.0, 9.0, 9.0, 1.0]], grades, 1)[0] == pytest.approx(0.5)


def test_several_queries_equal_one_at_a_time():
    rng = np.random.default_rng(0)
    scores, grades = rng.integers(0, 3, (3, 5)).astype(float), rng.integers(0, 3, (3, 5)) / 2
    grades[:, 4] = 1
    together = ndcg_at(scores, grades, 4)
    assert together.shape == (3,) and len(set(together)) > 1
    np.testing.assert_allclose(together, [slow_ndcg(s, g, 4) for s, g in zip(scores, grades, strict=True)])


@given(IMAGES, st.integers(1, 6), st.randoms())
def test_properties(images, k, random):
    scores, grades = as_query(images)
    value = ndcg_at(scores, grades, k)[0]
    assert 0 <= value <= 1
    order = list(range(scores.shape[1]))
    random.shuffle(order)
    assert ndcg_at(scores[:, order], grades[:, order], k)[0] == pytest.approx(value)  # permuting the gallery
    assert ndcg_at(3 * scores - 7, grades, k)[0] == pytest.approx(value)  # any rising scale
    assert ndcg_at(scores, 2 * grades, k)[0] == pytest.approx(value)
    assert ndcg_at(grades, grades, k)[0] == pytest.approx(1)  # the ideal order
    assert ndcg_at(-grades, grades, k)[0] <= value + 1e-12  # no order is worse than the reversed one


def test_a_collapsed_model_gets_the_mean_grade_wherever_the_target_is_listed():
    grades = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    np.testing.assert_allclose(ndcg_at(np.zeros((2, 4)), grades, 1), 0.25)
    np.testing.assert_allclose(ndcg_at(np.zeros((2, 4)), grades, 4), (1 / np.log2(np.arange(2, 6))).mean())


@given(IMAGES, st.integers(1, 6))
def test_gain_of_the_one_target_is_recall(images, k):
    scores, _ = as_query(images)
    own = np.zeros_like(scores)
    own[0, 0] = 1
    ranks = ranks_from_similarity(scores, [0])
    expected = recall_at(ranks.better, ranks.tied, k)
    np.testing.assert_allclose(expected_gain(scores, own, np.ones(k)), expected, atol=1e-12)


def test_the_excluded_image_is_out_of_ranking_and_ideal():
    scores, grades = np.array([[9.0, 3.0, 2.0], [1.0, 3.0, 2.0]]), np.array([[1.0, 0.5, 0.0], [1.0, 0.5, 0.0]])
    before = scores.copy(), grades.copy()
    np.testing.assert_allclose(ndcg_at(scores, grades, 3, [0, -1]), [1, slow_ndcg(scores[1], grades[1], 3)])
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(grades, before[1])


@pytest.mark.parametrize(
    ("scores", "grades", "k", "excluded", "message"),
    [
        ([[1.0, np.nan]], [[1.0, 0.0]], 1, None, "1 of 2 scores are NaN"),
        ([[1.0, np.inf]], [[1.0, 0.0]], 1, None, "1 of 2 scores are NaN or infinite"),
        ([[1.0, 2.0]], [[1.0, -1.0]], 1, None, "1 of 2 gains are negative"),
        ([[1.0, 2.0]], [[1.0, np.nan]], 1, None, "1 of 2 gains are negative or not finite"),
        ([[1.0, 2.0]], [[0.0, 0.0]], 1, None, "1 of 1 queries have no image of a grade above 0"),
        ([[1.0, 2.0]], [[0.0, 1.0]], 1, [1], "no image of a grade above 0"),
        ([[1.0, 2.0]], [[0.0, 1.0]], 0, None, "k must be a positive integer, got 0"),
        ([[1.0, 2.0]], [[0.0, 1.0]], True, None, "k must be a positive integer"),
        ([[1.0, 2.0]], [[1.0]], 1, None, r"need scores and gains \[Q,G\]"),
        ([[1.0, 2.0]], [[0.0, 1.0]], 1, [2], "outside the gallery of 2"),
        ([[1.0, 2.0]], [[0.0, 1.0]], 1, [0.5], "must hold 1 integers"),
    ],
)
def test_what_cannot_be_graded_is_refused(scores, grades, k, excluded, message):
    with pytest.raises(ValueError, match=message):
        ndcg_at(scores, grades, k, excluded)


# --- tables ---------------------------------------------------------------------------------------------


def test_table_weighs_categories_equally_and_carries_n():
    values = pd.DataFrame({"category": ["a", "a", "a", "b"], "nDCG@10": [0.0, 0.5, 1.0, 1.0], "blind@5": [0.0] * 4})
    table = ndcg_table(values, n=200).set_index(["metric", "category"])
    assert table.index.tolist() == [(m, c) for m in ("nDCG@10", "blind@5") for c in ("a", "b", "mean")]
    rows = table.loc["nDCG@10"]
    assert rows["value"].tolist() == [50, 100, 75] and rows["n"].tolist() == [3, 1, 4]
    assert rows.loc["mean", "low"] < 75 < rows.loc["mean", "high"] and rows.loc["b", "low"] == 100
    assert ndcg_table(values, n=200).equals(ndcg_table(values, n=200))


@pytest.mark.parametrize(
    "values",
    [{"category": ["a"]}, {"nDCG@1": [1.0]}, {"category": [], "nDCG@1": []}, {"category": ["mean"], "nDCG@1": [1.0]}],
)
def test_tables_of_nothing_are_refused(values):
    with pytest.raises(ValueError, match="need queries|is called"):
        ndcg_table(pd.DataFrame(values))


# --- on a world -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(mini_world):
    return attributes(mini_world), load_fashioniq(mini_world, "val")


def test_ranking_by_the_grade_itself_is_ideal_and_blindness_is_what_recall_misses(world):
    truth, val = world
    ideal, random = {}, {}
    rng = np.random.default_rng(0)
    for category, rows, gallery in category_parts(val):
        ids = ([column[i] for i in rows] for column in (val.references, val.targets))
        ideal[category] = relevance(truth, *ids, gallery)
        random[category] = rng.random(ideal[category].shape)
    table = grade_ranking(truth, val, ideal, ks=(1, 10))
    assert table["query"].tolist() == list(range(len(val))) and tuple(table["category"]) == val.categories
    np.testing.assert_allclose(table[["nDCG@1", "nDCG@10", "satisfied@1"]], 1)
    # the target is one of the tied images that satisfy all: satisfied = blind + probability of the target
    for row, value in enumerate(table["blind@1"]):
        category = val.categories[row]
        at = [i for i, c in enumerate(val.categories) if c == category].index(row)
        tied = int((ideal[category][at] == 1).sum())
        assert value == pytest.approx(1 - 1 / tied)
    other = grade_ranking(truth, val, random, ks=(10,))
    assert other["nDCG@10"].between(0, 1).all() and other["nDCG@10"].mean() < 0.9
    assert (other["blind@10"] <= other["satisfied@10"]).all()
    assert table["nDCG kept@10"].mean() < 0.99  # ideal for what is asked, blind to what is kept
    target_first = {category: np.zeros_like(ideal[category]) for category in ideal}
    for category, rows, gallery in category_parts(val):
        for at, row in enumerate(rows):
            target_first[category][at, gallery.index(val.targets[row])] = 1
    np.testing.assert_allclose(grade_ranking(truth, val, target_first, ks=(1,))["nDCG kept@1"], 1)


def test_a_reference_that_is_not_ranked_is_not_graded(world):
    truth, val = world
    scores = {category: np.zeros((len(rows), len(gallery))) for category, rows, gallery in category_parts(val)}
    for category, rows, gallery in category_parts(val):
        for at, row in enumerate(rows):
            scores[category][at, gallery.index(val.references[row])] = 1
    kept = grade_ranking(truth, val, scores, ks=(1,))
    assert kept["nDCG@1"].max() < 1 and (kept["satisfied@1"] == 0).all()  # the reference never satisfies all
    masked = grade_ranking(truth, val.replace(exclude_reference=True), scores, ks=(1,))
    assert (masked["nDCG@1"] > 0).all()


def test_scores_of_a_model_are_those_that_rank_its_targets(world, mini_world, small_backbone):
    truth, val = world
    method = build_method("infonce", small_backbone())
    store = build_store(method.backbone, ImageFolder(mini_world), val.image_ids(), progress=False)
    scores = score_galleries(method, val, store, chunk=2)
    ranks = rank_queries(method, val, store)
    for category, rows, gallery in category_parts(val):
        assert scores[category].shape == (len(rows), len(gallery)) and scores[category].dtype == np.float32
        again = ranks_from_similarity(scores[category], [gallery.index(val.targets[row]) for row in rows])
        part = ranks[ranks["category"] == category]
        assert again.better.tolist() == part["better"].tolist() and again.tied.tolist() == part["tied"].tolist()
    values = grade_ranking(truth, val, scores)
    assert set(ndcg_table(values, n=5)["metric"]) >= {"nDCG@1", "nDCG@10", "blind@10"}


def test_a_split_without_targets_is_refused(world):
    truth, val = world
    with pytest.raises(DataError, match="no public ground truth"):
        grade_ranking(truth, val.replace(targets=(None,) * len(val)), {})
