"""Several right answers and people's preferences: golden numbers, ties, and what cannot be judged."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirkit.evaluation import average_precision, precision_table, prediction_hits, preference_table
from cirkit.satisfaction import places_with_ties


@pytest.fixture
def circo(golden):
    data = golden("eval_circo")
    truths = [
        set(ids[:count].tolist())
        for ids, count in zip(data["ground_truth_ids"], data["ground_truth_count"], strict=True)
    ]
    return data, data["predictions"].tolist(), truths


@pytest.mark.parametrize(
    ("length", "precision", "recall"),
    [
        (50, "map_at_k_out", "recall_at_k_out"),
        (10, "map_at_k_with_only_10_predictions_out", "recall_at_k_with_only_10_predictions_out"),
    ],
)
def test_precision_is_that_of_the_released_evaluator(circo, length, precision, recall):
    data, predictions, truths = circo
    hits = prediction_hits([row[:length] for row in predictions], truths)
    first = prediction_hits([row[:length] for row in predictions], [{target} for target in data["target_id"].tolist()])
    for column, k in enumerate(data["ranks"]):
        value = average_precision(hits, data["ground_truth_count"], k).mean()
        np.testing.assert_allclose(value, data[precision][column], atol=1e-8)
        np.testing.assert_allclose(first[:, :k].any(axis=1).mean(), data[recall][column], atol=1e-8)


def test_precision_per_aspect_is_that_of_the_released_evaluator(circo):
    data, predictions, truths = circo
    carried = [
        [name for name, has in zip(data["semantic_aspect_names"].tolist(), row, strict=True) if has]
        for row in data["semantic_aspect_matrix"]
    ]
    hits = prediction_hits(predictions, truths)
    ranks = pd.DataFrame({f"AP@{k}": average_precision(hits, data["ground_truth_count"], k) for k in (5, 10, 25, 50)})
    table = precision_table(ranks, carried, n=20)
    overall = table[table["aspect"] == "all"].set_index("metric")
    assert overall.index.tolist() == ["mAP@5", "mAP@10", "mAP@25", "mAP@50"] and (overall["n"] == 30).all()
    np.testing.assert_allclose(overall["value"], 100 * data["map_at_k_out"], atol=1e-6)
    aspects = table[table["aspect"] != "all"].set_index("aspect")
    assert set(aspects["metric"]) == {"mAP@10"}
    expected = dict(zip(data["semantic_aspect_names"].tolist(), data["semantic_map_at_10_out"], strict=True))
    # an aspect that no query carries is NaN in the released table and has no row in ours
    assert set(aspects.index) == {name for name, value in expected.items() if not np.isnan(value)}
    for name, row in aspects.iterrows():
        assert row["value"] == pytest.approx(100 * expected[name], abs=1e-6)
        assert row["n"] == sum(name in names for names in carried)


def test_repeated_prediction_is_refused_as_by_the_released_evaluator(circo):
    data, predictions, truths = circo
    assert str(data["duplicate_prediction_error"]) == "ValueError"
    predictions[3][7] = predictions[3][6]
    with pytest.raises(ValueError, match="query 3 name an image twice"):
        prediction_hits(predictions, truths)


def test_average_precision_by_hand():
    # right answers at ranks 2 and 3 of 3: (1/2 + 2/3) / 3 at k 5; only rank 2 counts at k 2, over min(3, 2)
    hits = [[False, True, True, False]]
    assert average_precision(hits, [3], 5)[0] == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert average_precision(hits, [3], 2)[0] == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("hits", "truths", "k"),
    [([[True]], [1], 0), ([[True]], [0], 1), ([[True, True]], [1], 1), ([[True]], [1, 1], 1), ([True], [1], 1)],
)
def test_impossible_precision_is_refused(hits, truths, k):
    with pytest.raises(ValueError, match="right answer|need k"):
        average_precision(hits, truths, k)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=5))
def test_ties_are_resolved_against_the_query(images):
    scores = np.array([score for score, _ in images])
    right = np.array([True, *(is_right for _, is_right in images[1:])])
    better = (scores > scores[:, None]).sum(axis=1)[right]
    tied = (scores == scores[:, None]).sum(axis=1)[right] - 1
    places = places_with_ties(better, tied)
    count = int(right.sum())

    def precision(order) -> float:
        return average_precision([right[list(order)]], [count], 5)[0]

    orders = [o for o in itertools.permutations(range(len(scores))) if (np.diff(scores[list(o)]) <= 0).all()]
    hits = np.zeros((1, len(scores)), dtype=bool)
    hits[0, places - 1] = True
    assert average_precision(hits, [count], 5)[0] == min(map(precision, orders))


# --- preference -----------------------------------------------------------------------------------------


def test_preference_ratio_is_the_released_one(golden):
    data = golden("eval_hp_preference_ratio")
    one, two, preferred = data["score_set1"], data["score_set2"], data["preferred"].astype(int)
    table = preference_table(one, two, preferred, n=20).set_index("metric")
    assert table.loc["ratio", "value"] == pytest.approx(float(data["preference_ratio_out"]), abs=1e-9)
    assert table.loc["ratio", "n"] == (one > two).sum()
    assert (table["ties"] == (one == two).sum()).all() and (one == two).any()
    swapped = preference_table(two, one, 3 - preferred, n=20).set_index("metric")
    assert swapped.loc["ratio", "value"] == pytest.approx(float(data["preference_ratio_with_sets_swapped_out"]))
    # two-sided agreement does not change when the sets swap names
    assert swapped.loc["agreement", "value"] == table.loc["agreement", "value"]
    agree = [(p == 1) == (a > b) for a, b, p in zip(one, two, preferred, strict=True) if a != b]
    assert table.loc["agreement", "value"] == pytest.approx(np.mean(agree))
    assert table.loc["agreement", "n"] == len(agree)


def test_where_the_released_ratio_says_0_without_having_looked(golden):
    """Integer labels, and models that never score set 1 higher: 0 in the released code, here a value or none."""
    data = golden("eval_hp_preference_ratio")
    one, two, preferred = data["score_set1"], data["score_set2"], data["preferred"].astype(int)
    assert data["preference_ratio_with_integer_labels_out"] == 0 == data["preference_ratio_when_set1_never_wins_out"]
    assert preference_table(one, two, preferred, n=5)["value"][0] > 0
    never = preference_table(np.minimum(one, two), np.maximum(one, two), preferred, n=5).set_index("metric")
    assert never.loc["ratio", "n"] == 0 and np.isnan(never.loc["ratio", "value"])
    assert never.loc["agreement", "n"] == (one != two).sum()


def test_no_usable_pair_has_no_value():
    table = preference_table([0.1, 0.2], [0.1, 0.3], [1, 2], n=5).set_index("metric")
    assert table.loc["ratio", "n"] == 0 and np.isnan(table.loc["ratio", "value"])
    assert table.loc["agreement", "value"] == 1 and table.loc["agreement", "n"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [2.0], ["1"]), "preferred must hold the integers 1 and 2"),
        (([1.0], [2.0], [3]), "preferred must hold the integers 1 and 2"),
        (([1.0], [np.nan], [1]), "1 of 1 pairs have a score that is NaN"),
        (([1.0], [2.0, 3.0], [1]), "need scores"),
    ],
)
def test_what_cannot_be_judged_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        preference_table(*arguments)


@pytest.mark.parametrize("arguments", [(pd.DataFrame({"better": [0]}),), (pd.DataFrame({"AP@10": [0.5]}), [])])
def test_tables_of_nothing_are_refused(arguments):
    with pytest.raises(ValueError, match="AP@|aspects"):
        precision_table(*arguments)
