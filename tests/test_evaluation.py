"""Numbers made of ranks: golden recalls, ties by expectation, intervals, noise detection, attributes."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from cirkit import detection
from cirkit.data.annotations import DataError
from cirkit.evaluation import (
    attribute_accuracy,
    bootstrap_interval,
    detection_quality,
    linear_probe,
    paired_bootstrap,
    recall_at,
    recall_table,
)
from cirkit.scores import rank_targets, ranks_from_similarity, ranks_in_subsets


def frame(ranks, category="dress") -> pd.DataFrame:
    columns = {name: column.tolist() for name, column in ranks._asdict().items()}
    return pd.DataFrame({"category": category, **columns})


def random_ranks(sizes: dict[str, int], candidates: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    category = np.repeat(list(sizes), list(sizes.values()))
    better = rng.integers(candidates, size=len(category))
    tied = rng.integers(candidates - better)
    return pd.DataFrame({"category": category, "better": better, "tied": tied, "candidates": candidates})


# --- recall ---------------------------------------------------------------------------------------------


def test_recall_is_that_of_the_released_evaluators(golden):
    data = golden("eval_fashioniq_recall")
    similarity, target, reference = data["similarity"], data["target_index"], data["reference_index"]
    for exclude, ks, expected in (
        (reference, (1, 10, 50), data["recall_at_1_10_50_reference_masked_out"]),
        (None, (10, 50), data["recall_at_10_50_reference_kept_out"]),
    ):
        table = recall_table(frame(ranks_from_similarity(similarity, target, exclude)), ks=ks)
        values = table[table["category"] == "dress"]["value"]
        np.testing.assert_allclose(values, expected, atol=1e-3)
        assert (table["n"] == 40).all() and (table["candidates"] == 80 - (exclude is not None)).all()


def test_subset_recall_is_that_of_the_released_evaluators(golden):
    data = golden("eval_cirr_recall")
    similarity, target, reference = data["similarity"], data["target_index"], data["reference_index"]
    ranks = frame(ranks_from_similarity(similarity, target, reference), "")
    within = ranks_in_subsets(similarity, target, data["subset_index"], reference)
    ranks = ranks.assign(**{f"subset_{name}": values.numpy() for name, values in within._asdict().items()})
    table = recall_table(ranks, n=20).query("category == 'mean'").set_index("metric")
    assert table.index.tolist() == ["R@1", "R@5", "R@10", "R@50", "Rs@1", "Rs@2", "Rs@3"]
    np.testing.assert_allclose(table["value"][:4], data["recall_at_1_5_10_50_out"], atol=1e-3)
    np.testing.assert_allclose(table["value"][4:], data["subset_recall_at_1_2_3_out"], atol=1e-3)
    np.testing.assert_allclose(table.loc[["R@5", "Rs@1"], "value"].mean(), data["mean_r5_rsub1_out"], atol=1e-3)
    assert table["candidates"].tolist() == [79.0] * 4 + [5.0] * 3 and (table["n"] == 40).all()
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()


def test_impossible_subset_counts_are_refused():
    ranks = frame(ranks_from_similarity(np.eye(3), [0, 1, 2]))
    ranks = ranks.assign(subset_better=[0, 2, 0], subset_tied=0, subset_candidates=2)
    with pytest.raises(ValueError, match="1 of 3 queries rank more images than they have candidates"):
        recall_table(ranks)


def test_masking_the_reference_decides_when_it_is_the_top_hit():
    queries = torch.tensor([[1.0, 0.0]])
    targets = torch.tensor([[[1.0, 0.0]], [[0.8, 0.6]], [[0.0, 1.0]]])
    for exclude, expected in ((None, 0.0), ([0], 100.0)):
        table = recall_table(frame(rank_targets(queries, targets, [1], exclude)), ks=(1,))
        assert table["value"].tolist() == [expected, expected]


@pytest.mark.parametrize("k", [1, 10, 50, 101, 500])
def test_constant_scores_give_chance_level(k):
    ranks = ranks_from_similarity(np.full((4, 101), 0.3), [0, 0, 50, 100])
    np.testing.assert_allclose(recall_at(ranks.better, ranks.tied, k), min(k / 101, 1))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data(), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_recall_is_the_mean_over_all_orders_of_ties(scores, data, k):
    target = data.draw(st.integers(0, len(scores) - 1))
    excluded = data.draw(st.sampled_from([-1, *(i for i in range(len(scores)) if i != target)]))
    hits = []
    for order in itertools.permutations(i for i in range(len(scores)) if i != excluded):
        ranking = sorted(order, key=lambda i: -scores[i])  # stable: equal scores stay in this order
        hits.append(target in ranking[:k])
    ranks = ranks_from_similarity([scores], [target], [excluded])
    expected = float(Fraction(sum(hits), len(hits)))
    assert recall_at(ranks.better, ranks.tied, k) == pytest.approx([expected], abs=1e-12)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 120))
def test_recall_never_falls_with_k(better, tied, k):
    here, next_one = (recall_at([better], [tied], x)[0] for x in (k, k + 1))
    assert 0 <= here <= next_one <= 1
    assert next_one == 1 or k < better + tied + 1
    assert here == 0 or k > better


@pytest.mark.parametrize("k", [0, -1, 1.0, True, None])
def test_k_is_a_positive_integer(k):
    with pytest.raises(ValueError, match="k must be a positive integer"):
        recall_at([0], [0], k)


@pytest.mark.parametrize(
    "better, tied", [([-1, 0], [0, 0]), ([0, 0], [0, -1]), ([np.nan, 0], [0, 0]), ([np.inf, 0], [0, 0])]
)
def test_impossible_counts_are_refused(better, tied):
    with pytest.raises(ValueError, match="1 of 2 queries"):
        recall_at(better, tied, 1)
    with pytest.raises(ValueError, match="must both be"):
        recall_at(better, tied[:1], 1)


# --- the table ------------------------------------------------------------------------------------------


def test_table_has_each_category_and_the_macro_mean():
    ranks = random_ranks({"toptee": 7, "dress": 30, "shirt": 3}).sample(frac=1, random_state=0)
    table = recall_table(ranks, ks=(1, 10))
    assert table.columns.tolist() == ["metric", "category", "value", "n", "low", "high", "candidates"]
    assert table["metric"].tolist() == ["R@1"] * 4 + ["R@10"] * 4
    assert table["category"].tolist() == ["dress", "shirt", "toptee", "mean"] * 2
    assert table["n"].tolist() == [30, 3, 7, 40] * 2
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    parts = dict(list(ranks.groupby("category")))
    for row in table.itertuples():
        chosen = parts.values() if row.category == "mean" else [parts[row.category]]
        recalls = [100 * recall_at(p["better"], p["tied"], int(row.metric[2:])).mean() for p in chosen]
        assert row.value == pytest.approx(np.mean(recalls))
    pd.testing.assert_frame_equal(table, recall_table(ranks, ks=(1, 10)))


def test_macro_interval_resamples_within_categories():
    """Categories that differ from each other but not within leave nothing to resample."""
    ranks = pd.DataFrame({"category": list("aaaaaaaaabbb"), "better": [0] * 9 + [5] * 3, "tied": 0})
    ranks["candidates"] = 9
    row = recall_table(ranks, ks=(1,)).iloc[-1]
    assert (row["category"], row["value"], row["low"], row["high"]) == ("mean", 50, 50, 50)
    assert bootstrap_interval(recall_at(ranks["better"], ranks["tied"], 1)).low < 0.7


@pytest.mark.parametrize(
    "change, message",
    [
        ({"better": 40}, "3 of 3 queries rank more images than they have candidates"),
        ({"candidates": np.nan}, "3 of 3 queries rank more images"),
        ({"better": np.nan}, "3 of 3 queries rank more images"),
        ({"better": -1}, "3 of 3 queries have negative"),
        ({"category": "mean"}, 'a category is called "mean"'),
    ],
)
def test_table_refuses_broken_ranks(change, message):
    ranks = random_ranks({"dress": 3}).assign(**change)
    with pytest.raises(ValueError, match=message):
        recall_table(ranks)


def test_table_refuses_missing_columns_and_no_queries():
    with pytest.raises(ValueError, match="ranks lack the column tied, candidates"):
        recall_table(random_ranks({"dress": 3})[["better", "category"]])
    with pytest.raises(ValueError, match="no queries"):
        recall_table(random_ranks({"dress": 3}).iloc[:0])


# --- intervals ------------------------------------------------------------------------------------------


def test_interval_of_a_share_agrees_with_the_normal_approximation():
    values = np.repeat([1.0, 0.0], [300, 700])
    value, low, high, n = bootstrap_interval(values, n=4000)
    assert (value, n) == (0.3, 1000)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 1000)
    assert [low, high] == pytest.approx([0.3 - half, 0.3 + half], abs=0.1 * half)
    _, low, high, _ = bootstrap_interval(values, n=4000, level=0.5)
    assert high - low == pytest.approx(2 * 0.6745 / 1.96 * half, rel=0.15)


def test_interval_of_a_macro_mean_agrees_with_the_normal_approximation():
    values, groups = np.repeat([1.0, 0.0, 1.0, 0.0], [50, 50, 80, 320]), ["a"] * 100 + ["b"] * 400
    value, low, high, n = bootstrap_interval(values, groups, n=4000)
    assert value == pytest.approx(0.35) and n == 500
    half = 1.96 * np.sqrt(0.25 / 100 + 0.16 / 400) / 2
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_intervals_repeat_and_leave_global_state_alone():
    values = np.random.default_rng(0).random(50)
    np.random.seed(5)
    state = np.random.get_state()[1].tolist()
    first = bootstrap_interval(values, seed=3)
    assert np.random.get_state()[1].tolist() == state
    np.random.seed(6)
    assert bootstrap_interval(values, seed=3) == first != bootstrap_interval(values, seed=4)


def test_one_query_has_an_interval_without_width():
    assert bootstrap_interval([0.4]) == (0.4, 0.4, 0.4, 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"values": []}, "B at least 1"),
        ({"values": [0.0, np.nan, np.inf]}, "2 of 3 values are NaN or infinite"),
        ({"values": [0.0, 1.0], "groups": ["a"]}, "need values"),
        ({"values": [0.0, 1.0], "groups": ["a", None]}, "1 of 2 values"),
        ({"values": [[0.0, 1.0]]}, "need values"),
        ({"values": [0.0], "n": 0}, "n >= 1"),
        ({"values": [0.0], "level": 95}, "level between 0 and 1"),
    ],
)
def test_interval_refuses_what_has_no_mean(arguments, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(**arguments)


def test_paired_interval_leaves_out_what_both_find_hard():
    rng = np.random.default_rng(0)
    hard = rng.random(200)
    a, b = hard + 0.1, hard + rng.normal(0, 0.01, 200)
    paired = paired_bootstrap(a, b, ["x"] * 120 + ["y"] * 80)
    separate = bootstrap_interval(a)
    assert paired.value == pytest.approx(np.mean([(a - b)[:120].mean(), (a - b)[120:].mean()]))
    assert paired.low < 0.1 < paired.high and (paired.high - paired.low) * 5 < separate.high - separate.low
    assert paired_bootstrap(a, a) == (0, 0, 0, 200)
    with pytest.raises(ValueError, match="same queries"):
        paired_bootstrap(a, b[:-1])


# --- noise detection ------------------------------------------------------------------------------------


def noise_case(seed: int = 0, n: int = 120, levels: int = 6):
    rng = np.random.default_rng(seed)
    kind = rng.choice(["", "shuffle", "hard"], size=n)
    noisy = (kind != "") & (rng.random(n) < 0.9)  # a tenth was selected but did not change
    score = rng.integers(levels, size=n) + noisy * rng.integers(3, size=n)
    return score.astype(float), noisy, kind


def test_detection_per_kind_is_against_all_clean_rows():
    score, noisy, kind = noise_case()
    table = detection_quality(score, noisy, kind, n=50)
    assert table["kind"].tolist() == ["all", "all", "hard", "hard", "shuffle", "shuffle"]
    for row in table.itertuples():
        rows = [i for i in range(len(score)) if not noisy[i] or row.kind in ("all", kind[i])]
        metric = {"AUROC": roc_auc_score, "AP": average_precision_score}[row.metric]
        assert row.value == pytest.approx(metric(noisy[rows], score[rows]))
        assert (row.n, row.n_noisy) == (len(rows), sum(noisy[rows]))
        assert 0 <= row.low <= row.value <= row.high <= 1


def test_auroc_is_the_share_of_ordered_pairs():
    score, noisy, _ = noise_case()
    pairs = [(a > b) + (a == b) / 2 for a in score[noisy] for b in score[~noisy]]
    assert detection_quality(score, noisy)["value"][0] == pytest.approx(np.mean(pairs))


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_counts_of_a_resample_give_what_scikit_learn_gives(seed, levels):
    score, noisy, _ = noise_case(seed, 60, levels)
    thresholds = np.unique(score)[::-1]
    true, false = (np.array([[(score[part] >= t).sum() for t in thresholds]]) for part in (noisy, ~noisy))
    expected = [[roc_auc_score(noisy, score), average_precision_score(noisy, score)]]
    np.testing.assert_allclose(detection._auroc_and_ap(true, false), expected)


def test_detection_intervals_agree_with_a_slow_bootstrap():
    score, noisy, _ = noise_case(n=200)
    table = detection_quality(score, noisy, n=2000)
    rng = np.random.default_rng(1)
    parts = np.flatnonzero(noisy), np.flatnonzero(~noisy)
    slow = []
    for _ in range(300):
        rows = np.concatenate([rng.choice(part, len(part)) for part in parts])
        slow.append([metric(noisy[rows], score[rows]) for metric in (roc_auc_score, average_precision_score)])
    np.testing.assert_allclose(table[["low", "high"]], np.quantile(slow, [0.025, 0.975], axis=0).T, atol=0.02)
    pd.testing.assert_frame_equal(table, detection_quality(score, noisy, n=2000))


@pytest.mark.parametrize("truth", [False, True])
def test_one_class_alone_has_no_detection_quality(truth):
    table = detection_quality([0.1, 0.2, 0.3], np.full(3, truth), ["shuffle"] * 3)
    assert table[["value", "low", "high"]].isna().all(axis=None)
    assert table["n"].tolist() == [3] * 4 and table["n_noisy"].tolist() == [3 * truth] * 4


@pytest.mark.parametrize(
    "score, noisy, kind, message",
    [
        ([0.1, np.nan], [True, False], None, "1 of 2 noise scores are NaN or infinite"),
        ([0.1, 0.2], [1, 0], None, "is_noisy"),
        ([0.1, 0.2], [True], None, "need score"),
        ([0.1, 0.2], [True, False], ["x"], "one kind per score"),
        ([0.1, 0.2], [True, False], ["", ""], "1 of 1 noisy rows have no kind"),
    ],
)
def test_detection_refuses_what_cannot_be_judged(score, noisy, kind, message):
    with pytest.raises(ValueError, match=message):
        detection_quality(score, noisy, kind)


# --- attributes and probe -------------------------------------------------------------------------------


def test_attribute_accuracy_counts_agreement_with_the_target():
    attributes = pd.DataFrame(
        {"colour": ["red", "red", "blue"], "sleeve": ["long", "short", "long"]}, index=["a", "b", "c"]
    )
    table = attribute_accuracy(attributes, ["a", "b", "c", "b"], ["a", "a", "a", "c"])
    assert table.columns.tolist() == ["attribute", "value", "n", "low", "high"]
    assert table["attribute"].tolist() == ["colour", "sleeve", "all"]
    assert table["value"].tolist() == [50, 50, 25] and table["n"].tolist() == [4, 4, 4]
    assert (table["low"] < table["value"]).all() and (table["value"] < table["high"]).all()


def test_attribute_accuracy_names_unknown_images():
    attributes = pd.DataFrame({"colour": ["red", "blue"]}, index=["a", "b"])
    with pytest.raises(DataError, match="2 images have no attributes: x, y"):
        attribute_accuracy(attributes, ["a", "y"], ["x", "b"])
    twice = attributes.iloc[[0, 0]]
    for table, predicted, target in ((attributes, [], []), (attributes, ["a"], []), (twice, ["a"], ["a"])):
        with pytest.raises(ValueError, match="first hits"):
            attribute_accuracy(table, predicted, target)


def test_linear_probe_reads_what_is_there_and_nothing_else():
    rng = np.random.default_rng(0)
    labels = rng.choice(["long", "none", "short"], size=400)
    features = rng.normal(size=(400, 5)) * [1, 1e-3, 1, 1, 1]
    features[:, 1] += 0.01 * (labels == "long") - 0.01 * (labels == "short")  # small scale, large signal
    assert linear_probe(features[:300], labels[:300], features[300:], labels[300:]) > 0.95
    shuffled = rng.permutation(labels)
    assert linear_probe(features[:300], shuffled[:300], features[300:], shuffled[300:]) < 0.5
