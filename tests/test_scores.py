"""Scores and ranks against slow loops, under ties, permutations, blocks, masks and broken numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cirkit.evaluation import recall_at
from cirkit.scores import (
    max_over_tokens,
    member_scores,
    rank_and_top_k,
    rank_members,
    rank_targets,
    ranks_from_similarity,
    ranks_in_subsets,
    top_k,
)


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1).to(dtype)


def grid(*shape: int, seed: int = 0, span: int = 2) -> torch.Tensor:
    """Small integers: products are exact in every dtype, and ties are frequent."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-span, span + 1, shape, generator=generator).float()


def slow_score(query, tokens) -> float:
    return max(math.fsum(q * t for q, t in zip(query, token, strict=True)) for token in tokens)


def slow_ranks(queries, targets, target_index, exclude_index) -> list[tuple[int, int, int]]:
    ranks = []
    for query, target, excluded in zip(queries.tolist(), target_index, exclude_index, strict=True):
        values = [np.float32(slow_score(query, tokens)) for tokens in targets.tolist()]
        others = [value for g, value in enumerate(values) if g not in (target, excluded)]
        own = values[target]
        ranks.append((sum(v > own for v in others), sum(v == own for v in others), len(others) + 1))
    return ranks


def as_tuples(ranks) -> list[tuple[int, int, int]]:
    assert all(column.dtype == torch.long for column in ranks)
    return list(zip(*(column.tolist() for column in ranks), strict=True))


# --- max over tokens ------------------------------------------------------------------------------------


def test_max_over_tokens_is_the_slow_loop():
    queries, targets = unit(3, 7), unit(5, 2, 7, seed=1)
    expected = [[slow_score(q, tokens) for tokens in targets.tolist()] for q in queries.tolist()]
    result = max_over_tokens(queries, targets)
    assert result.shape == (3, 5) and result.dtype == torch.float32
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("b, g, n, d", [(1, 1, 1, 1), (1, 5, 2, 7), (3, 1, 2, 7), (3, 5, 1, 7)])
def test_ones_stay_dimensions(b, g, n, d):
    queries, targets = unit(b, d), unit(g, n, d, seed=1)
    assert max_over_tokens(queries, targets).shape == (b, g)
    index = [g - 1] * b
    assert as_tuples(rank_targets(queries, targets, index)) == slow_ranks(queries, targets, index, [-1] * b)
    values, positions = top_k(queries, targets, 1)
    assert values.shape == positions.shape == (b, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_also_under_autocast(dtype):
    queries, targets = unit(3, 7, dtype=dtype), unit(5, 2, 7, seed=1, dtype=dtype)
    expected = max_over_tokens(queries.float(), targets.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for q, t in ((queries, targets), (queries.float(), targets), (queries.float(), targets.float())):
            result = max_over_tokens(q, t)
            assert result.dtype == torch.float32
            torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_gradient_reaches_the_best_token_alone():
    queries = torch.tensor([[1.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[[0.2, 0.1], [0.6, 0.3]]], requires_grad=True)
    max_over_tokens(queries, targets).sum().backward()
    assert targets.grad.tolist() == [[[0.0, 0.0], [1.0, 0.0]]]
    torch.testing.assert_close(queries.grad, torch.tensor([[0.6, 0.3]]))


@pytest.mark.parametrize(
    "queries, targets",
    [((7,), (5, 2, 7)), ((3, 7), (5, 7)), ((3, 6), (5, 2, 7)), ((3, 7), (0, 2, 7)), ((3, 7), (5, 0, 7))],
)
def test_other_shapes_are_refused(queries, targets):
    queries, targets = torch.zeros(queries), torch.zeros(targets)
    for function in (max_over_tokens, lambda q, t: rank_targets(q, t, [0] * 3), lambda q, t: top_k(q, t, 1)):
        with pytest.raises(ValueError, match=r"need queries \[B,D\] and targets \[G,N,D\]"):
            function(queries, targets)


# --- ranks ----------------------------------------------------------------------------------------------


@given(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4),
    st.booleans(), st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_ranks_are_those_of_the_slow_loop(b, g, n, d, chunk, ties, masked, seed):
    queries, targets = (grid(b, d, seed=seed), grid(g, n, d, seed=seed + 1, span=1)) if ties else (
        unit(b, d, seed=seed), unit(g, n, d, seed=seed + 1)
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    target = rng.integers(g, size=b)
    exclude = rng.integers(-1, g, size=b) if masked else np.full(b, -1)
    exclude[exclude == target] = -1
    expected = slow_ranks(queries, targets, target, exclude)
    assert as_tuples(rank_targets(queries, targets, target, exclude if masked else None, chunk)) == expected
    if ties:  # exact in float32 as well
        similarity = max_over_tokens(queries, targets)
        for given_as in (similarity, similarity.numpy(), similarity.half(), similarity.long()):
            assert as_tuples(ranks_from_similarity(given_as, target.tolist(), exclude)) == expected


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_images_tie_wherever_they_stand(chunk, dtype):
    """The gallery holds every image several times, in random places, across the borders of all blocks."""
    copies, images = 6, 61
    queries, originals = unit(23, 97, dtype=dtype), unit(images, 3, 97, seed=1, dtype=dtype)
    order = torch.from_numpy(np.random.default_rng(2).permutation(np.tile(np.arange(images), copies)))
    target = np.random.default_rng(3).integers(len(order), size=23)
    ranks = rank_targets(queries, originals[order], target, chunk=chunk)
    single = rank_targets(queries, originals, order[target])
    assert ranks.tied.tolist() == [copies - 1] * 23 and single.tied.tolist() == [0] * 23
    assert ranks.better.tolist() == (copies * single.better).tolist()


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 70), st.integers(1, 50), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_permuting_the_gallery_changes_nothing(g, n, d, chunk, seed):
    rng = np.random.default_rng(seed)
    queries = unit(5, d, seed=seed)
    targets = unit(g, n, d, seed=seed + 1)[torch.from_numpy(rng.integers(g, size=g))]  # with duplicates
    target, order = rng.integers(g, size=5), rng.permutation(g)
    exclude = rng.integers(g, size=5)
    exclude[exclude == target] = -1
    place = np.argsort(order)
    before = rank_targets(queries, targets, target, exclude, chunk)
    moved = np.where(exclude < 0, -1, place[exclude])
    after = rank_targets(queries, targets[torch.from_numpy(order)], place[target], moved)
    assert as_tuples(before) == as_tuples(after)


def test_a_collapsed_model_ties_with_everything():
    queries, targets = unit(1, 33).expand(4, -1), unit(1, 1, 33, seed=1).expand(101, 2, -1)
    ranks = rank_targets(queries, targets, [0, 1, 50, 100], chunk=13)
    assert ranks.better.tolist() == [0] * 4 and ranks.tied.tolist() == [100] * 4


def test_the_reference_is_not_a_candidate():
    similarity = torch.tensor([[0.9, 0.8, 0.1, 0.8]])
    assert as_tuples(ranks_from_similarity(similarity, [1])) == [(1, 1, 4)]
    assert as_tuples(ranks_from_similarity(similarity, [1], [0])) == [(0, 1, 3)]
    assert as_tuples(ranks_from_similarity(similarity, [1], [3])) == [(1, 0, 3)]
    assert as_tuples(ranks_from_similarity(similarity, [1], [-1])) == [(1, 1, 4)]


def test_no_queries_give_empty_ranks():
    assert as_tuples(rank_targets(torch.zeros(0, 7), unit(5, 2, 7), [])) == []
    values, positions = top_k(torch.zeros(0, 7), unit(5, 2, 7), 2)
    assert values.shape == positions.shape == (0, 2)


# --- broken numbers and indices --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("chunk", [2, 512])
def test_nan_and_inf_are_counted_not_ranked(value, chunk):
    queries, targets = unit(3, 7), unit(5, 2, 7, seed=1)
    broken_target = targets.clone()
    broken_target[4, 0, 3] = value  # the image's other token is finite
    broken_query = queries.clone()
    broken_query[1, 2] = value
    for q, t, count in (
        (queries, broken_target, 3),
        (broken_query, targets, 5),
        (broken_query, broken_target, 7),
    ):
        with pytest.raises(ValueError, match=f"{count} of 15 scores are NaN or infinite"):
            rank_targets(q, t, [0, 1, 2], chunk=chunk)
        with pytest.raises(ValueError, match=f"{count} of 15 scores are NaN or infinite"):
            top_k(q, t, 2, chunk=chunk)


def test_an_all_nan_matrix_is_an_error():
    with pytest.raises(ValueError, match="20 of 20 scores are NaN or infinite"):
        ranks_from_similarity(np.full((4, 5), np.nan), [0] * 4)


def test_scores_beyond_float32_are_an_error():
    with pytest.raises(ValueError, match="1 of 2 scores"):
        rank_targets(torch.full((1, 4), 1e30), torch.tensor([[[1e30] * 4], [[1.0] * 4]]), [0])


@pytest.mark.parametrize(
    "target, exclude, message",
    [
        ([0, 5, 1], None, "target_index of query 1 is 5, outside the gallery of 5 images"),
        ([0, -1, 1], None, "target_index of query 1 is -1, outside"),
        ([0, 1, 2], [1, 2, 5], "exclude_index of query 2 is 5, outside"),
        ([0, 1, 2], [-2, 2, 1], "exclude_index of query 0 is -2, outside"),
        ([0, 1], None, "target_index must hold 3 integers"),
        ([0.0, 1.0, 2.0], None, "target_index must hold 3 integers"),
        ([True, False, True], None, "target_index must hold 3 integers"),
        ([0, 1, 2], [3, 1, 2], r"query 1 excludes its own target \(gallery position 1\).* 2 of 3 queries"),
    ],
)
def test_wrong_indices_are_named(target, exclude, message):
    queries, targets = unit(3, 7), unit(5, 2, 7, seed=1)
    with pytest.raises(ValueError, match=message):
        rank_targets(queries, targets, target, exclude)
    with pytest.raises(ValueError, match=message):
        ranks_from_similarity(max_over_tokens(queries, targets), target, exclude)


def test_chunk_must_be_positive():
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        rank_targets(unit(3, 7), unit(5, 2, 7), [0, 1, 2], chunk=0)


# --- top k ----------------------------------------------------------------------------------------------


@given(st.integers(2, 9), st.integers(1, 5), st.booleans(), st.integers(0, 10**6), st.data())
@settings(max_examples=100, deadline=None)
def test_top_k_is_the_sorted_slow_loop(g, chunk, masked, seed, data):
    b = 3
    queries, targets = grid(b, 3, seed=seed), grid(g, 2, 3, seed=seed + 1, span=1)
    exclude = np.random.default_rng(seed).integers(-1, g, size=b) if masked else np.full(b, -1)
    k = data.draw(st.integers(1, g - int((exclude >= 0).any())))
    values, positions = top_k(queries, targets, k, exclude if masked else None, chunk)
    for row, query in enumerate(queries.tolist()):
        all_scores = [slow_score(query, tokens) for tokens in targets.tolist()]
        order = sorted((x for x in range(g) if x != exclude[row]), key=lambda x: (-all_scores[x], x))[:k]
        assert positions[row].tolist() == order
        assert values[row].tolist() == [all_scores[x] for x in order]


@pytest.mark.parametrize("k, exclude, limit", [(0, None, 5), (6, None, 5), (5, [-1, 2, -1], 4)])
def test_k_lies_between_one_and_the_candidates(k, exclude, limit):
    with pytest.raises(ValueError, match=f"between 1 and the {limit} candidates, got {k}"):
        top_k(unit(3, 7), unit(5, 2, 7, seed=1), k, exclude)


# --- candidate sets per query -----------------------------------------------------------------------------


def recalls(ranks, ks) -> list[float]:
    return [100 * recall_at(ranks.better, ranks.tied, k).mean() for k in ks]


def test_cirr_recall_and_subset_recall_equal_the_released_evaluators(golden):
    data = golden("eval_cirr_recall")
    columns = data["target_index"], data["reference_index"]
    np.testing.assert_allclose(
        recalls(ranks_from_similarity(data["similarity"], *columns), (1, 5, 10, 50)),
        data["recall_at_1_5_10_50_out"],
        atol=1e-3,
    )
    subset = ranks_in_subsets(data["similarity"], columns[0], data["subset_index"], columns[1])
    np.testing.assert_allclose(recalls(subset, (1, 2, 3)), data["subset_recall_at_1_2_3_out"], atol=1e-3)


@pytest.mark.parametrize(("excluded", "chance"), [(True, [20, 40, 60]), (False, [100 / 6, 200 / 6, 50])])
def test_subset_chance_is_a_fifth_only_without_the_reference(excluded, chance):
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(11)[:6] for _ in range(4000)])
    reference = members[:, 2] if excluded else None
    constant = ranks_in_subsets(np.zeros((4000, 11)), members[:, 4], members, reference)
    np.testing.assert_allclose(recalls(constant, (1, 2, 3)), chance)
    drawn = ranks_in_subsets(rng.random((4000, 11)), members[:, 4], members, reference)
    np.testing.assert_allclose(recalls(drawn, (1, 2, 3)), chance, atol=2.5)


def test_reference_that_scores_highest_is_out_of_both_recalls():
    similarity = np.array([[0.9, 0.5, 0.4, 0.3, 0.8]])
    assert recalls(ranks_from_similarity(similarity, [1], [0]), (1,)) == [0]
    assert recalls(ranks_in_subsets(similarity, [1], [[0, 1, 2]], [0]), (1,)) == [100]
    assert recalls(ranks_in_subsets(similarity, [1], [[0, 1, 2]]), (1,)) == [0]


@pytest.mark.parametrize("members", [[[0, 2, 3]], [[1, 2, 2]]])
def test_subset_without_its_target_or_with_repeats_is_refused(members):
    with pytest.raises(ValueError, match="subset of query 0"):
        ranks_in_subsets(np.zeros((1, 5)), [1], members)


# --- both at once, and small sets -----------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("chunk", [3, 512])
def test_ranks_and_best_hits_at_once_are_those_of_each_alone(masked, chunk):
    queries, targets = unit(7, 5), unit(11, 3, 5, seed=1)
    targets[4] = targets[9]
    target, exclude = torch.arange(7), torch.arange(7) + 4 if masked else None
    ranks, values, places = rank_and_top_k(queries, targets, target, 4, exclude, chunk)
    assert as_tuples(ranks) == as_tuples(rank_targets(queries, targets, target, exclude, chunk))
    alone = top_k(queries, targets, 4, exclude, chunk)
    assert torch.equal(values, alone[0]) and torch.equal(places, alone[1])


def test_ranks_among_members_are_those_of_the_slow_loop():
    queries, targets = grid(9, 3, span=1), grid(13, 2, 3, seed=1, span=1)
    members = torch.stack([torch.randperm(13, generator=torch.Generator().manual_seed(i))[:5] for i in range(9)])
    members[3, 4] = members[7, 3:] = -1
    target = members[:, 1]
    ranks = rank_members(queries, targets, target, members)
    expected = []
    for query, own, row in zip(queries.tolist(), target.tolist(), members.tolist(), strict=True):
        values = {m: slow_score(query, targets[m].tolist()) for m in row if m >= 0}
        others = [value for member, value in values.items() if member != own]
        expected.append((sum(v > values[own] for v in others), sum(v == values[own] for v in others), len(values)))
    assert as_tuples(ranks) == expected
    assert any(tied for _, tied, _ in expected)
    blocks = [member_scores(queries, targets, members, chunk=chunk) for chunk in (2, 256)]
    assert torch.equal(*blocks) and torch.isinf(blocks[0]).sum() == 3


@pytest.mark.parametrize(
    ("target", "members", "message"),
    [
        ([0], [[1, 2]], "does not hold its target once"),
        ([1], [[1, 1]], "does not hold its target once"),
        ([1], [[1, 9]], "outside the gallery"),
        ([1], [[1, -2]], "outside the gallery"),
        ([1], [1, 2], "must hold integers"),
        ([1], [[1.0, 2.0]], "must hold integers"),
    ],
)
def test_wrong_members_are_refused(target, members, message):
    with pytest.raises(ValueError, match=message):
        rank_members(unit(1, 5), unit(4, 2, 5), target, members)


def test_member_scores_refuse_what_is_not_finite():
    targets = unit(4, 2, 5)
    targets[2] = math.nan
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        member_scores(unit(1, 5), targets, [[1, 2]])
