"""The mid zone against a slow loop over single queries, and what must hold for any scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cirkit.mid_zone import chooser, delta, mid_zone, scaled_delta
from cirkit.mining import draw

SCALES = ("minmax", "quantile")
QUARTERS = st.lists(st.integers(-40, 40), min_size=2, max_size=12)
BANDS = st.tuples(st.integers(0, 9), st.integers(1, 10)).filter(lambda b: b[0] < b[1])


def slow_zone(ordered: list[float], own: float, alpha: float, beta: float, scale: str) -> tuple[set[int], int]:
    """Places in the zone of one query, its own target's first place left out, and how often it was widened."""
    gaps = [own - s for s in ordered]
    candidates = [k for k, s in enumerate(ordered) if s > -np.inf]
    lower = [k for k in candidates if gaps[k] > 0]
    largest = max((gaps[k] for k in candidates), default=0.0)

    def value(k: int) -> float:
        if scale == "quantile":
            return np.float32((lower.index(k) + 0.5) / len(lower)) if k in lower else -1.0
        return np.float32(gaps[k]) / np.float32(largest if largest > 0 else 1)

    target = ordered.index(own)
    low, high, step = alpha, beta, 0
    while True:
        found = {k for k in candidates if np.float32(low) <= value(k) <= np.float32(high)} - {target}
        if step:
            found &= set(lower)
        if found:
            return found, step
        if low <= 0 and high >= 1:
            return set(candidates) - {target}, step + 1
        step += 1
        low, high = max(alpha - 0.1 * step, 0.0), min(beta + 0.1 * step, 1.0)


def places(zone, row: int, own_place: int) -> set[int]:
    return set(range(int(zone.first[row]), int(zone.last[row]))) - {own_place}


def descending(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([sorted(row, reverse=True) for row in rows])


def test_delta_is_the_targets_score_minus_the_candidates():
    ordered, own = torch.tensor([[0.5, 0.25, -torch.inf]]), torch.tensor([0.25])
    torch.testing.assert_close(delta(ordered, own), torch.tensor([[-0.25, 0.0, torch.inf]]))
    with pytest.raises(ValueError, match=r"\(1, 3\) and \(2,\)"):
        delta(ordered, torch.zeros(2))


def test_both_readings_by_hand():
    # target on place 1; below it gaps of .1, .2, .3, .4 and 1: min-max takes .2 .. .8, quantile the middle three
    ordered = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, -0.2]])
    own = torch.tensor([0.8])
    torch.testing.assert_close(
        scaled_delta(ordered, own), torch.tensor([[-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 1.0]]), atol=1e-6, rtol=0
    )
    ranks = scaled_delta(ordered, own, "quantile")
    torch.testing.assert_close(ranks, torch.tensor([[-torch.inf] * 2 + [0.1, 0.3, 0.5, 0.7, 0.9]]))
    assert places(mid_zone(ordered, own, 0.15, 0.45), 0, 1) == {3, 4, 5}
    assert places(mid_zone(ordered, own, scale="quantile"), 0, 1) == {3, 4, 5}
    assert places(mid_zone(ordered, own, 0.5, 1.0), 0, 1) == {6}


@pytest.mark.parametrize("count", [10, 25, 100])
def test_the_quantile_zone_is_60_percent_of_what_lies_below_the_target(count):
    ordered = torch.linspace(1, -1, count + 1)[None]
    zone = mid_zone(ordered, ordered[:, 0], scale="quantile")
    assert int(zone.sizes) == round(0.6 * count) and int(zone.fallback) == 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("band", [(0.2, 0.8), (0.0, 1.0), (0.0, 0.35), (0.45, 0.55), (0.9, 1.0)])
def test_zones_are_those_of_a_slow_loop(scale, band):
    rng = np.random.default_rng(7)
    rows = rng.integers(-12, 12, size=(80, 9)) / 16  # few values, so that there are ties and empty zones
    ordered = descending(rows.tolist())
    ordered[::3, -2:] = -torch.inf
    target = torch.from_numpy(rng.integers(0, 7, size=80))
    own = ordered.gather(1, target[:, None])[:, 0]
    zone = mid_zone(ordered, own, *band, scale)
    for row in range(80):
        first = ordered[row].tolist().index(own[row].item())
        expected, steps = slow_zone(ordered[row].tolist(), own[row].item(), *band, scale)
        assert places(zone, row, first) == expected and int(zone.fallback[row]) == steps, row


@pytest.mark.parametrize("scale", SCALES)
def test_an_empty_zone_is_widened_and_at_last_everything(scale):
    ordered = torch.tensor([[0.9, 0.5, 0.49, -0.5], [0.9, 0.8, 0.7, 0.5], [0.9, 0.5, -torch.inf, -torch.inf]])
    zone = mid_zone(ordered, torch.tensor([0.5, 0.5, 0.5]), 0.3, 0.7, scale)
    assert places(zone, 0, 1) == {2, 3} and int(zone.fallback[0]) == (3 if scale == "minmax" else 1)
    assert places(zone, 1, 3) == {0, 1, 2} and int(zone.fallback[1]) == 4  # nothing below the target
    assert places(zone, 2, 1) == {0} and int(zone.fallback[2]) == 4


def test_what_ties_with_the_target_is_in_the_zone_only_if_it_begins_at_0():
    ordered, own = torch.tensor([[0.5, 0.5, 0.25, 0.0]]), torch.tensor([0.5])
    assert places(mid_zone(ordered, own, 0.0, 0.5), 0, 0) == {1, 2}
    assert places(mid_zone(ordered, own, 0.0, 1.0, "quantile"), 0, 0) == {2, 3}
    assert places(mid_zone(ordered, own, 0.1, 0.2), 0, 0) == {2}  # widened down to 0


@settings(max_examples=150, deadline=None)
@given(row=QUARTERS, place=st.integers(0, 11), band=BANDS, scale=st.sampled_from(SCALES))
def test_members_lie_in_the_band_and_below_the_target(row, place, band, scale):
    ordered = descending([[v / 4 for v in row]])
    own = ordered[:, place % len(row)]
    alpha, beta = band[0] / 10, band[1] / 10
    zone, scaled = mid_zone(ordered, own, alpha, beta, scale), scaled_delta(ordered, own, scale)[0]
    inside = scaled[int(zone.first) : int(zone.last)]
    if not int(zone.fallback):
        assert len(inside) and (inside >= np.float32(alpha)).all() and (inside <= np.float32(beta)).all()
        outside = torch.cat([scaled[: int(zone.first)], scaled[int(zone.last) :]])
        assert not ((outside >= np.float32(alpha)) & (outside <= np.float32(beta))).any()
    elif len(inside) < len(row):
        assert (ordered[0, int(zone.first) : int(zone.last)] < own).all()


@settings(max_examples=150, deadline=None)
@given(row=QUARTERS, place=st.integers(0, 11), band=BANDS, scale=st.sampled_from(SCALES),
       shift=st.integers(-8, 8), power=st.integers(-3, 3))  # fmt: skip
def test_shifted_and_scaled_scores_have_the_same_zone(row, place, band, scale, shift, power):
    ordered = descending([[v / 4 for v in row]])
    own = ordered[:, place % len(row)]
    edges = band[0] / 10, band[1] / 10
    zone = mid_zone(ordered, own, *edges, scale)
    moved = mid_zone(ordered * 2.0**power + shift, own * 2.0**power + shift, *edges, scale)  # exact in binary
    assert all(torch.equal(a, b) for a, b in zip(zone, moved, strict=True))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.lists(st.integers(-9, 9), min_size=6, max_size=6), min_size=1, max_size=5),
       scale=st.sampled_from(SCALES), seed=st.integers(0, 99))  # fmt: skip
def test_what_is_drawn_is_in_the_zone_and_never_the_target(rows, scale, seed):
    scores = torch.tensor(rows) / 8
    own = torch.arange(len(rows)) % 6
    ordered = scores.sort(dim=1, descending=True).values
    value = scores.gather(1, own[:, None])[:, 0]
    zone = chooser(0.2, 0.8, scale)(ordered, value)
    drawn = draw(scores, ordered, zone, own, 2, np.random.default_rng(seed))
    assert (drawn != own[:, None]).all()
    scaled = scaled_delta(ordered, value, scale)
    for row in torch.nonzero(zone.fallback == 0)[:, 0].tolist():
        for image in drawn[row].tolist():
            # equal scores stand together, so any place of this score says whether it can be in the zone
            values = scaled[row][ordered[row] == scores[row, image]]
            assert ((values >= np.float32(0.2)) & (values <= np.float32(0.8))).any()


def test_a_query_does_not_depend_on_the_others():
    ordered = torch.randn(3, 5).sort(dim=1, descending=True).values
    own = ordered[range(3), [0, 2, 4]]
    for scale in SCALES:
        whole = mid_zone(ordered, own, scale=scale)
        for row in range(3):
            alone = mid_zone(ordered[row : row + 1], own[row : row + 1], scale=scale)
            assert all(torch.equal(a[row : row + 1], b) for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("band", [(-0.1, 0.5), (0.5, 0.5), (0.8, 0.2), (0.2, 1.1)])
def test_a_band_out_of_order_is_refused(band):
    with pytest.raises(ValueError, match="0 <= alpha < beta <= 1, got alpha"):
        mid_zone(torch.zeros(1, 3), torch.zeros(1), *band)
    with pytest.raises(ValueError, match="0 <= alpha < beta <= 1, got alpha"):
        chooser(*band, "minmax")


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale must be one of minmax, quantile, got 'rank'"):
        mid_zone(torch.zeros(1, 3), torch.zeros(1), scale="rank")
