"""Zones between two steepest drops: against the released code, against a slow loop per query, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cirkit.mining import draw, sort_values
from cirkit.two_drops import lower_scores, one_drop, top_k_below, two_drops

RULES = [
    {"strict": False, "threshold": 0}, {"strict": False, "threshold": 1}, {"strict": False, "threshold": 6},
    {"strict": True, "threshold": 0}, {"strict": True, "threshold": 3, "keep_steepest": True},
    {"strict": False, "threshold": 1, "keep_steepest": True},
]  # fmt: skip


def slow(scores, target: int, threshold: int, strict: bool, keep_steepest: bool = False):
    """(first, last, fallback) of one query, in plain steps. Images of equal score stand in corpus order."""
    order = sorted((j for j in range(len(scores)) if scores[j] > -np.inf), key=lambda j: (-scores[j], j))
    own, ranked = scores[target], [scores[j] for j in order]
    less = sum(s >= own for s in ranked)
    start = less if strict else sum(s > own for s in ranked) + 1
    drops = {k: np.float32(ranked[k]) - np.float32(ranked[k + 1]) for k in range(start, len(ranked) - 1)}
    steep = sorted(drops, key=lambda k: (-drops[k], k))
    pairs = [(steep[0], k) for k in steep[1:]] if keep_steepest else list(zip(steep, steep[1:], strict=False))
    for a, b in pairs:
        if abs(a - b) > threshold:
            first, last = min(a, b) + 1, max(a, b) + 1
            if last > less:
                return first, last, 0
            break
    return (less, len(ranked), 1) if less < len(ranked) else (0, len(ranked), 2)


def hard_sets(scores, targets, **rule) -> tuple[list[set[int]], list[int]]:
    """Corpus entries in the zone of each query without its target, and the fallbacks."""
    scores, own = torch.as_tensor(scores), torch.as_tensor(targets)
    value = scores.gather(1, own[:, None])[:, 0]
    order = scores.sort(dim=1, descending=True, stable=True).indices
    place = (order == own[:, None]).int().argmax(dim=1)
    zone = two_drops(sort_values(scores), value, place=place, **rule)
    sets = [set(o[f:t].tolist()) - {int(j)} for o, f, t, j in zip(order, zone.first, zone.last, own, strict=True)]
    return sets, zone.fallback.tolist()


def without_padding(rows) -> list[set[int]]:
    return [set(row[row >= 0].tolist()) for row in rows]


@pytest.mark.parametrize("threshold", [0, 1, 3, 6])
def test_hard_sets_of_the_released_code(golden, threshold):
    g = golden("qure_hard_negatives_cirr")
    sets, fallback = hard_sets(g["score"], g["target_index"], threshold=threshold, strict=False)
    assert sets == without_padding(g[f"hard_negatives_threshold{threshold}"])
    assert [len(s) for s in sets] == g[f"count_threshold{threshold}"].tolist()
    assert fallback == [0] * 12


def test_repeated_images_of_the_released_code(golden):
    g = golden("qure_hard_negatives_fiq_duplicates")
    ids, targets = g["corpus_image_id"], g["target_image_id"]
    entries = [int(np.flatnonzero(ids == target)[0]) for target in targets]
    sets, _ = hard_sets(g["score"], entries, threshold=int(g["consecutive_threshold"]), strict=False)
    expected = without_padding(g["hard_negative_image_ids"])
    assert [{int(ids[j]) for j in s} - {int(t)} for s, t in zip(sets, targets, strict=True)] == expected


def test_where_the_released_code_crashes_or_reuses_places_the_fallback_holds(golden):
    g = golden("qure_hard_negatives_edge")
    assert set(g["status_when_alone"]) == {"UnboundLocalError", "ok"} and set(g["status_as_second_query"]) == {"ok"}
    sets, fallback = hard_sets(g["score"], g["target_index"], threshold=1, strict=False)
    alone, second = (without_padding(g[f"hard_negatives_{name}"]) for name in ("when_alone", "as_second_query"))
    stale = 0
    for row, status in enumerate(g["status_when_alone"]):
        scores, target = g["score"][row], g["target_index"][row]
        lower = set(np.flatnonzero(scores < scores[target]).tolist())
        if status == "ok":
            assert sets[row] == alone[row] == second[row] and fallback[row] == 0
            continue
        # as a second query the released code answers with the places of the first: images ranked above the target
        assert alone[row] == set() and min(scores[list(second[row])]) > scores[target]
        assert sets[row] == (lower or set(range(len(scores))) - {int(target)}) != second[row]
        assert fallback[row] == (1 if lower else 2)
        stale += 1
    assert stale == 4


def test_all_scores_equal(golden):
    assert golden("qure_hard_negatives_edge")["status_all_equal_scores"] == "UnboundLocalError"
    sets, fallback = hard_sets(np.full((1, 9), 0.5, dtype=np.float32), [4], threshold=1, strict=False)
    assert sets == [set(range(9)) - {4}] and fallback == [2]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("levels", [0, 4, 40])
def test_vectorised_zones_equal_a_slow_loop(rule, levels):
    """Sizes from one candidate up, with ``levels`` distinct scores (0: all distinct) and some excluded."""
    rng = np.random.default_rng([levels, len(rule)])
    seen = set()
    for size in (1, 2, 3, 5, 8, 30):
        scores = rng.standard_normal((60, size)).astype(np.float32)
        if levels:
            scores = (scores * levels / 4).round() / levels
        targets = rng.integers(size, size=60)
        for row in range(0, 60, 3):
            other = rng.integers(size)
            if other != targets[row]:
                scores[row, other] = -np.inf
        ordered, value = sort_values(torch.from_numpy(scores)), torch.from_numpy(scores[np.arange(60), targets])
        zone = two_drops(ordered, value, **rule)
        expected = [
            slow(s, t, **({"threshold": 1, "strict": True} | rule)) for s, t in zip(scores, targets, strict=True)
        ]
        assert [tuple(z) for z in torch.stack(zone, dim=1).tolist()] == expected
        seen |= set(zone.fallback.tolist())
    assert seen == {0, 1, 2}


def test_long_walks_end_in_the_same_place_as_short_ones():
    """Drops that get flatter from place to place: every pair of neighbours is adjacent, but for one far below."""
    steps = np.geomspace(1.0, 1e-3, 40).astype(np.float32)
    steps[38] = (steps[29] + steps[30]) / 2
    ordered = torch.from_numpy(np.concatenate([[0.0], -np.cumsum(steps)]).astype(np.float32)[None])
    zone = two_drops(ordered, torch.tensor([1.0]), threshold=1)
    assert (zone.first.item(), zone.last.item(), zone.fallback.item()) == (30, 39, 0)
    assert two_drops(ordered[:, :30], torch.tensor([1.0]), threshold=1).fallback.item() == 1


def test_the_threshold_discards_the_steepest_drop_unless_it_is_kept():
    ordered = torch.tensor([[10.0, 9.9, 6.9, 4.9, 4.8, 4.7, 3.7, 3.6]])
    own = torch.tensor([10.0])
    zones = {
        "paper": two_drops(ordered, own, threshold=0),
        "released": two_drops(ordered, own, threshold=1, strict=False),
        "kept": two_drops(ordered, own, threshold=1, keep_steepest=True),
    }
    assert {k: (z.first.item(), z.last.item()) for k, z in zones.items()} == {
        "paper": (2, 3), "released": (3, 6), "kept": (2, 6),
    }  # fmt: skip


def test_strict_and_released_differ_in_ties_with_the_target():
    scores = torch.tensor([[0.9, 0.9, 0.5, 0.4, 0.39, 0.2, 0.19]])
    strict = two_drops(scores, torch.tensor([0.9]), threshold=1)
    released = two_drops(scores, torch.tensor([0.9]), threshold=1, strict=False)
    assert (strict.first.item(), strict.last.item()) == (3, 5)  # 0.5 to 0.4, and 0.39 to 0.2
    assert (released.first.item(), released.last.item()) == (2, 5)  # 0.9 to 0.5 counts as well


def test_no_zone_holds_nothing_but_the_target():
    """Ties of the target between two drops could be the target itself; then all that score less are taken."""
    scores = torch.tensor([[0.9, 0.9, 0.9, 0.2, 0.2, 0.2]])
    zone = two_drops(scores, torch.tensor([0.9]), threshold=0, strict=False)
    assert (zone.first.item(), zone.last.item(), zone.fallback.item()) == (3, 6, 1)
    for target in range(3):
        drawn = draw(scores, scores, zone, torch.tensor([target]), 3, np.random.default_rng(0))
        assert sorted(drawn[0].tolist()) == [3, 4, 5]


def test_scores_are_not_changed():
    ordered = sort_values(torch.randn(3, 7))
    before = ordered.clone()
    two_drops(ordered, ordered[:, 1].clone())
    assert torch.equal(ordered, before)


def test_one_drop_and_top_k_by_hand():
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.3, 0.25, 0.2], [0.9, 0.9, 0.5, 0.4, -torch.inf, -torch.inf]])
    own = torch.tensor([0.8, 0.9])
    behind = one_drop(scores, own)
    # steepest below the target: 0.7 -> 0.3 and 0.5 -> 0.4
    assert behind.first.tolist() == [3, 3] and behind.last.tolist() == [6, 4] and behind.fallback.tolist() == [0, 0]
    hardest = top_k_below(scores, own, 3)
    assert hardest.first.tolist() == [2, 2] and hardest.last.tolist() == [5, 4]
    assert lower_scores(scores, own).first.tolist() == [2, 2]
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        top_k_below(scores, own, 0)


def test_one_drop_and_top_k_fall_back_where_nothing_is_below():
    scores, own = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1], [0.9, 0.5, 0.1]]), torch.tensor([0.1, 0.5, 0.9])
    behind = one_drop(scores, own)
    assert behind.fallback.tolist() == [2, 1, 0]  # nothing below; a single image below, so no drop; one drop
    assert list(zip(behind.first.tolist(), behind.last.tolist(), strict=True)) == [(0, 3), (2, 3), (2, 3)]
    hardest = top_k_below(scores, own, 1)
    assert hardest.fallback.tolist() == [2, 0, 0]
    assert list(zip(hardest.first.tolist(), hardest.last.tolist(), strict=True)) == [(0, 3), (2, 3), (1, 2)]
    assert one_drop(scores[:, :1], torch.tensor([0.95, 0.9, 0.8])).last.tolist() == [1, 1, 1]
