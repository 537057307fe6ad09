"""The simulated judge: its pairs come from the world alone, its choice from grades, its noise from a seed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirkit.data import DataError, load_fashioniq
from cirkit.data.truth import attributes, preservation, relevance
from cirkit.evaluation import preference_table
from cirkit.judge import agreements, decisive_difference, draw_pairs, judge


@pytest.fixture(scope="module")
def world(mini_world):
    return attributes(mini_world), load_fashioniq(mini_world, "val")


def pairs(*rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["grade1", "grade2", "kept1", "kept2"])


def test_pairs_are_disjoint_sets_of_plausible_images_with_their_grades(world):
    truth, val = world
    drawn = draw_pairs(truth, val, per_query=2, kept=0.6, size=3)
    assert drawn["query"].tolist() == sorted([*range(len(val))] * 2)
    filled = 0
    for pair in drawn.itertuples():
        query = val[pair.query]
        assert pair.category == query.category
        both = (*pair.set1, *pair.set2)
        assert len(set(both)) == 6 and query.reference not in both and set(both) <= set(val.galleries[pair.category])
        for images, grade, kept in ((pair.set1, pair.grade1, pair.kept1), (pair.set2, pair.grade2, pair.kept2)):
            asked = relevance(truth, [query.reference], [query.target], images)
            rest = preservation(truth, [query.reference], [query.target], images)
            assert (grade, kept) == (pytest.approx(asked.mean()), pytest.approx(rest.mean()))
            everything = preservation(truth, [query.reference], [query.target], val.galleries[pair.category])[0]
            kept = np.delete(everything, val.galleries[pair.category].index(query.reference))
            assert (rest >= min(0.6, np.sort(kept)[-6])).all()
            filled += (rest < 0.6).any()
    assert 0 < filled < len(drawn)  # galleries of 20: some queries have fewer than six images that keep as much
    assert drawn["grade1"].nunique() > 2 and (drawn["grade1"] != drawn["grade2"]).mean() > 0.3


def test_pairs_depend_on_seed_and_row_only(world):
    truth, val = world
    drawn = draw_pairs(truth, val, kept=0.4, size=3)
    assert drawn.equals(draw_pairs(truth, val, kept=0.4, size=3))
    assert not drawn["set1"].equals(draw_pairs(truth, val, kept=0.4, size=3, seed=1)["set1"])
    fewer = draw_pairs(truth, val.select(range(4)), kept=0.4, size=3)
    assert fewer.equals(drawn[drawn["query"] < 4].reset_index(drop=True))


def test_every_grade_of_the_pool_is_as_likely(world):
    truth, val = world
    drawn = draw_pairs(truth, val, per_query=20, kept=0, size=1)
    # blind draws would satisfy little: about one gallery image in ten has the colour asked for
    by_row = drawn.groupby("query")["grade1"].agg(["mean", "nunique"])
    assert (by_row["nunique"] > 1).all() and 0.35 < by_row["mean"].mean() < 0.65


def test_neither_set_is_favoured_where_the_best_images_run_out(world):
    truth, val = world
    drawn = draw_pairs(truth, val, per_query=150, kept=0.6, size=5)
    assert abs((drawn["grade1"] - drawn["grade2"]).mean()) < 0.02
    by_place = relevance(truth, [val.references[0]], [val.targets[0]], val.galleries[val.categories[0]])[0]
    assert 0 < (by_place == 1).sum() < 10  # so that they do run out


def test_small_galleries_and_splits_without_targets_are_refused(world):
    truth, val = world
    with pytest.raises(DataError, match="a gallery of 20 is too small for two sets"):
        draw_pairs(truth, val, size=40)
    with pytest.raises(DataError, match="no public ground truth"):
        draw_pairs(truth, val.replace(targets=(None,) * len(val)))


def test_judge_by_hand():
    made = pairs((0.6, 0.4, 0, 1), (0.4, 0.6, 1, 0), (0.5, 0.5, 0.2, 0.4), (0.5, 0.5, 0.4, 0.2), (0.5, 0.5, 0.3, 0.3))
    assert judge(made).tolist() == [1, 2, 2, 1, 0]
    np.testing.assert_allclose(decisive_difference(made), [0.2, -0.2, -0.2, 0.2, 0], atol=1e-9)


def test_thirds_that_add_up_in_another_order_are_a_tie():
    one, two = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    assert one != two and judge(pairs((0.5, 0.5, one, two))).tolist() == [0]


def test_noise_follows_bradley_and_terry():
    made = pairs(*[(0.6, 0.4, 0, 0)] * 4000, *[(0.5, 0.5, 0, 0)] * 10)
    choice = judge(made, temperature=0.2, seed=3)
    share = (choice[:4000] == 1).mean()
    assert share == pytest.approx(1 / (1 + np.exp(-1)), abs=0.03)
    assert (choice[4000:] == 0).all()
    np.testing.assert_array_equal(choice, judge(made, 0.2, seed=3))
    assert (choice != judge(made, 0.2, seed=4)).any()
    np.testing.assert_array_equal(judge(made, 1e-9), judge(made))


@pytest.mark.parametrize("temperature", [-0.1, np.nan, np.inf])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be 0 or above"):
        judge(pairs((1, 0, 0, 0)), temperature)


def test_a_model_that_scores_by_grade_agrees_always_and_swapped_names_change_nothing(world):
    truth, val = world
    drawn = draw_pairs(truth, val, per_query=3, kept=0.4, size=3)
    preferred = judge(drawn)
    usable = preferred > 0
    difference, preferred = decisive_difference(drawn)[usable], preferred[usable]
    table = preference_table(difference, np.zeros(len(difference)), preferred, n=20).set_index("metric")
    assert table.loc["agreement", "value"] == table.loc["ratio", "value"] == 1
    assert table.loc["agreement", "n"] == usable.sum() and table.loc["agreement", "ties"] == 0
    worst = preference_table(-difference, np.zeros(len(difference)), preferred, n=20).set_index("metric")
    assert worst.loc["agreement", "value"] == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 2)), min_size=1, max_size=9))
def test_agreements_average_to_the_two_sided_agreement(rows):
    one, two, preferred = (np.array(column) for column in zip(*rows, strict=True))
    values = agreements(one, two, preferred)
    table = preference_table(one, two, preferred, n=5).set_index("metric")
    assert (values[one == two] == 0.5).all()
    if (one != two).any():
        assert values[one != two].mean() == pytest.approx(table.loc["agreement", "value"])
    np.testing.assert_array_equal(values, agreements(two, one, 3 - preferred))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([1.0], [2.0], [0]), "leave ties of the judge out"), (([np.nan], [2.0], [1]), "1 of 1 pairs have a score")],
)
def test_what_cannot_agree_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        agreements(*arguments)
