"""Partitions of a data set by one value a row: against the released code's numbers, and at their edges."""

from __future__ import annotations

import warnings
from typing import get_args

import numpy as np
import pytest

from cirkit.mixture import Rule, Value, clean_probability, clean_rows, min_max


@pytest.fixture(scope="module")
def g(golden):
    return golden("tme_gmm_partition")


@pytest.fixture(scope="module")
def similarity(g):
    """The similarity of which the released code's other partitions were made: high where the loss is low."""
    return 1 - g["normalised_loss"]


def test_normalisation_and_posterior_of_the_released_code(g):
    losses = min_max(g["raw_loss"])
    np.testing.assert_allclose(losses, g["normalised_loss"], atol=1e-6)
    for seed in (0, 7):
        np.testing.assert_allclose(clean_probability(losses, seed), g["clean_probability_out"], atol=1e-5)


@pytest.mark.parametrize(("name", "threshold"), [("", 0.5), ("_threshold03", 0.3), ("_threshold08", 0.8)])
def test_labels_of_the_released_mixture(g, name, threshold):
    assert (clean_rows(g["raw_loss"], threshold=threshold) == g[f"clean_label{name}_out"]).all()


@pytest.mark.parametrize("flip", [False, True])
def test_the_mixture_reads_a_similarity_the_right_way_round(g, similarity, flip):
    released = g["clean_label_split_by_similarity_out"]
    assert (clean_rows(similarity, by="similarity", flip_similarity=flip) == released).all()


@pytest.mark.parametrize(
    ("rule", "threshold", "name", "wrong", "right"),
    [("direct", 0.5, "", 0.12, 0.88), ("percent", 0.3, "_threshold03", 0.41, 0.95)],
)
def test_other_rules_as_released_and_with_similarity_the_right_way_round(
    g, similarity, rule, threshold, name, wrong, right
):
    """Accuracies are those the released code's labels were found to have."""
    by_loss = clean_rows(g["raw_loss"], rule, threshold)
    assert (by_loss == g[f"{rule}_loss{name}_out"]).all()
    released = clean_rows(similarity, rule, threshold, "similarity", flip_similarity=False)
    assert (released == g[f"{rule}_similarity{name}_out"]).all()
    fixed = clean_rows(similarity, rule, threshold, "similarity")
    truth = g["generating_truth_clean"]
    assert (released == truth).mean() == pytest.approx(wrong, abs=0.005)
    assert (fixed == truth).mean() == (by_loss == truth).mean() == pytest.approx(right, abs=0.005)


def test_two_heaps_are_told_apart_whatever_their_order():
    rng = np.random.default_rng(0)
    low, high = rng.normal(1.0, 0.1, 30), rng.normal(4.0, 0.3, 13)
    order = rng.permutation(43)
    values, truth = np.concatenate([low, high])[order], (np.arange(43) < 30)[order]
    assert (clean_rows(values) == truth).all()
    assert (clean_rows(-values, by="similarity") == truth).all()
    assert (clean_rows(values, "percent", 13 / 43) == truth).all()
    assert clean_rows(values, "percent", 0.0).all() and not clean_rows(values, "percent", 1.0).any()


def test_equal_values_are_all_clean():
    assert min_max(np.full(5, 3.0)).tolist() == [0.0] * 5
    for rule in get_args(Rule):
        for by in get_args(Value):
            assert clean_rows(np.full(5, 3.0), rule, by=by).all() and clean_rows(np.full(1, -2.0), rule, by=by).all()


def test_few_different_values_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clean_rows(np.array([0.0, 0.0, 0.0, 5.0])).tolist() == [True, True, True, False]


def test_what_cannot_be_partitioned_is_named():
    with pytest.raises(ValueError, match=r"values must be \[n\] with n at least 1, got \(2, 3\)"):
        clean_rows(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="2 of 3 values are NaN or infinite"):
        clean_rows(np.array([np.nan, 1.0, np.inf]))
    with pytest.raises(ValueError, match="rule must be .* got 'median'"):
        clean_rows(np.arange(3.0), "median")
