"""Ours beside the published: matching, rank agreement with what is known of it, and relative drops."""

from __future__ import annotations

import doctest
import itertools
from math import factorial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from cirkit import rank_correlation
from cirkit.agreement import (
    beside,
    draws,
    laboratory,
    missing,
    places,
    published_tables,
    rank_agreement,
    relative_drop,
)
from cirkit.data.annotations import DataError
from cirkit.joined import combine
from cirkit.published import load
from cirkit.rank_correlation import exact_p, kendall, spearman
from cirkit.records import KEYS

ORDER = ("sprc", "tme", "habit", "intent", "conesep-adapted")  # worst first, as published at rate 0.8


def row(method: str, value: float, rate: float = 0.8, seed: int = 0, width: float = 0.0, **changes) -> dict:
    cell = dict.fromkeys(KEYS, "x") | {
        "dataset": "garments", "method": method, "changed": "none", "gate": "none", "options": "{}",
        "noise_kind": "shuffle", "noise_rate": rate, "lr": 3e-3, "noise_seed": 42 + seed, "seed": seed,
        "metric": "R@1", "category": "mean", "reported": True, "value": value,
        "low": value - width / 2, "high": value + width / 2, "candidates": 600.0,
    }  # fmt: skip
    return cell | changes


def rows(values: dict[str, float], **common) -> pd.DataFrame:
    return pd.DataFrame([row(method, value, **common) for method, value in values.items()])


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return load()


@pytest.fixture
def same_order() -> pd.DataFrame:
    return rows({method: 10.0 * (i + 1) for i, method in enumerate(ORDER)})


# --- rank correlation -------------------------------------------------------------------------------------

few = st.lists(st.integers(0, 4), min_size=2, max_size=6)


@settings(max_examples=100, deadline=None)
@given(few, st.randoms())
def test_both_statistics_are_scipys(x, random):
    y = [random.randrange(5) for _ in x]
    for ours, theirs in ((kendall, kendalltau), (spearman, spearmanr)):
        if len(set(x)) > 1 and len(set(y)) > 1:
            assert ours(np.array(x), np.array(y)) == pytest.approx(theirs(x, y).statistic, abs=1e-12)
        else:
            assert np.isnan(ours(np.array(x), np.array(y)))


def test_many_orders_at_once_are_each_alone():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.integers(0, 4, size=(7, 5))
    for statistic in (kendall, spearman):
        np.testing.assert_allclose(statistic(x, y), [statistic(x, each) for each in y])


@pytest.mark.parametrize("y", [[1, 2, 3, 4, 5], [1, 2, 3, 5, 4], [3, 1, 4, 5, 2], [5, 4, 3, 2, 1]])
def test_p_counts_all_orders(y):
    x = np.arange(5.0)
    assert exact_p(x, np.array(y)) == pytest.approx(kendalltau(x, y, method="exact").pvalue)
    slow = [abs(spearmanr(x, order).statistic) for order in itertools.permutations(y)]
    assert exact_p(x, np.array(y), spearman) == np.mean(np.array(slow) >= abs(spearmanr(x, y).statistic) - 1e-9)


def test_few_methods_cannot_prove_anything():
    assert exact_p(np.array([1, 2]), np.array([1, 2])) == 1.0
    assert exact_p(np.array([1, 2, 3]), np.array([1, 2, 3])) == pytest.approx(2 / 6)
    assert exact_p(np.array([1, 2, 3]), np.array([7, 7, 7])) == 1.0  # no order at all
    with pytest.raises(ValueError, match="all orders of 9 methods are too many"):
        exact_p(np.arange(9), np.arange(9))


def test_examples():
    assert doctest.testmod(rank_correlation).attempted == 1


# --- our rows ---------------------------------------------------------------------------------------------


def test_a_readers_rows_replace_those_of_the_reference_and_no_others():
    reference = pd.concat([rows({"sprc": 1.0}, seed=s) for s in (0, 1)]).drop(columns="gate")
    table = combine(reference, rows({"sprc": 5.0, "tme": 6.0}))
    values = table.set_index(["method", "seed"])
    assert values.value.to_dict() == {("sprc", 0): 5.0, ("tme", 0): 6.0, ("sprc", 1): 1.0}
    assert values.origin.tolist() == ["own", "own", "reference"]
    assert table.gate.tolist() == ["none"] * 3  # the reference is older than gates
    assert combine(reference, pd.DataFrame()).origin.tolist() == ["reference"] * 2


def test_the_laboratory_keeps_one_plain_setting_a_method():
    table = pd.concat([
        rows({"sprc": 1.0}), rows({"sprc": 2.0}, seed=1), rows({"sprc": 9.0}, lr=1e-3),
        rows({"sprc": 9.0}, gate="text"), rows({"sprc": 9.0}, changed="drop=0.1"),
        rows({"sprc": 9.0}, noise_kind="hard"), rows({"sprc": 9.0}, reported=False),
        rows({"sprc": 9.0}, category="dress"), rows({"tme": 3.0}, lr=1e-3),
    ])  # fmt: skip
    assert laboratory(table).set_index(["method", "seed"]).value.to_dict() == {
        ("sprc", 0): 1.0, ("sprc", 1): 2.0, ("tme", 0): 3.0,
    }  # fmt: skip
    assert laboratory(table, "hard").value.tolist() == [9.0]
    assert laboratory(table, "partial").empty


def test_published_tables_keep_sources_apart_and_cells_once(published):
    table = published_tables(published)
    assert not table.duplicated(["table", "dataset", "noise", "method", "metric"]).any()
    sprc = table[(table.method == "SPRC") & (table.metric == "Average R@10") & (table.noise == 0)]
    assert sprc.set_index("table").value.to_dict() == {"ConeSep": 54.92, "QuRe and DQE-CIR": 50.86}
    assert set(table[table.table == "QuRe and DQE-CIR"].noise) == {0.0}


def test_missing_rows_are_named_with_their_rates(published):
    joined = beside(rows({"sprc": 5.0, "conesep-paper": 2.0}), published)
    assert joined[joined.value.notna()].groupby("method").noise.unique().map(list).to_dict() == {
        "conesep-paper": [0.8], "sprc": [0.8],
    }  # fmt: skip
    gone = missing(joined).set_index("method")["no row at rate"]
    assert gone["sprc"] == "0 0.2 0.5" and gone["intent"] == "0 0.2 0.5 0.8" and gone["clip4cir"] == "0"
    assert not {"SSN", "CALA"} & set(joined.paper)  # nothing here stands for them
    assert beside(rows({"sprc": 5.0}, dataset="other"), published).empty
    assert beside(rows({"sprc": 5.0}, dataset="scenes"), published, pairs={"FashionIQ": (("R@1", "AVG."),)}).empty


# --- agreement --------------------------------------------------------------------------------------------


def only(frame: pd.DataFrame, **values) -> pd.Series:
    for name, value in values.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_the_papers_own_order_agrees_perfectly(same_order, published):
    found = only(rank_agreement(same_order, published, n=50), table="ConeSep", metric="R@1")
    assert found.methods == "conesep-adapted > intent > habit > tme > sprc" and found.n == 5
    assert (found.tau, found.tau_low, found.tau_high) == (1, 1, 1) and found.rho == pytest.approx(1)
    assert found.p_tau == found.p_rho == found.smallest_p == pytest.approx(2 / factorial(5))


def test_smallest_p_knows_of_published_ties(same_order, published):
    """HABIT and INTENT both have 52.52 at half noise, so two orders of five agree best."""
    half = same_order.assign(noise_rate=0.5)
    found = only(rank_agreement(half, published, n=50), table="ConeSep", metric="R@1")
    assert found.p_tau == found.smallest_p == pytest.approx(4 / factorial(5)) and found.seeds == 1


def test_a_reversed_order_disagrees(same_order, published):
    turned = same_order.assign(value=100 - same_order.value, low=100 - same_order.high, high=100 - same_order.low)
    found = only(rank_agreement(turned, published, n=50), table="ConeSep", metric="R@1")
    assert found.tau == -1 and found.rho == pytest.approx(-1)


def test_each_reading_of_conesep_stands_alone(same_order, published):
    table = pd.concat([same_order, rows({"conesep-paper": 0.1})])
    found = rank_agreement(table, published, n=50).query("metric == 'R@1'").set_index("conesep")
    assert set(found.index) == {"conesep-adapted", "conesep-paper"} and (found.n == 5).all()
    assert found.tau["conesep-adapted"] == 1 and found.tau["conesep-paper"] == pytest.approx(0.2)
    with pytest.raises(DataError, match="only one method may have several rows"):
        rank_agreement(table.assign(), published, rows={"SPRC": ("sprc", "tme"), "ConeSep": ("habit", "intent")})


def test_methods_of_another_table_are_not_compared(published):
    """QuRe's SPRC is not ConeSep's, and one method is no order."""
    assert rank_agreement(rows({"habit": 1.0}), published).empty and places(rows({"habit": 1.0}), published).empty
    found = rank_agreement(rows({"qure": 3.0, "dqe": 5.0, "sprc": 2.0}, rate=0.0), published, n=50)
    assert set(found.table) == {"QuRe and DQE-CIR"} and found.methods.tolist() == ["dqe > qure > sprc"]


def test_seeds_and_queries_widen_the_interval(same_order, published):
    assert only(places(same_order, published, n=50), method="tme", metric="R@1").low == 2 + 2
    blurred = same_order.assign(low=same_order.low - 30, high=same_order.high + 30)
    found = only(rank_agreement(blurred, published), table="ConeSep", metric="R@1")
    assert found.tau == 1 and found.tau_low < 0.7 < found.tau_high
    seeds = pd.concat(
        [same_order, rows({"tme": 60.0}, seed=1)]
    )  # 20 and 60: its mean is third or first, or second last
    spread = only(places(seeds, published), method="tme", metric="R@1")
    assert spread.place == 2.5 and (spread.low, spread.high) == (1, 4)


def test_draws_have_the_width_of_seeds_and_queries():
    part = pd.concat([rows({"sprc": value}, seed=i, width=2 * 1.96) for i, value in enumerate((10.0, 14.0))])
    drawn = draws(part, 40_000, np.random.default_rng(0))
    # two seeds 4 apart: variance 4 of one draw, 2 of the mean of two; and 1 from queries, which all seeds share
    assert drawn.mean() == pytest.approx(12, abs=0.05) and drawn.var() == pytest.approx(3, abs=0.1)


def test_places_and_agreement_are_of_the_same_comparisons(same_order, published):
    table = places(same_order, published, n=50).query("metric == 'R@1'")
    assert table.set_index("method").place.to_dict() == {m: 5.0 - i for i, m in enumerate(ORDER)}
    assert (table.place == table.published_place).all()


def test_relative_drop_by_hand(published):
    table = pd.concat([rows({"sprc": 80.0, "tme": 0.2}, rate=0.0), rows({"sprc": 20.0, "tme": 0.1})])
    drop = relative_drop(table, published, n=50).query("metric == 'R@1' and noise == 0.8").set_index("method")
    assert drop.value["sprc"] == drop.low["sprc"] == pytest.approx(75)
    assert drop.published["sprc"] == pytest.approx(100 * (1 - 33.51 / 54.92))
    # 0.2 is about chance among 600 images: nothing to lose; and no row is no number
    assert np.isnan(drop.value["tme"]) and np.isnan(drop.value["habit"])
