"""Exact scores from float32 products: never another number than float64 gives, wherever it could decide."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cirkit import exact_scores
from cirkit.exact_scores import blocks
from cirkit.scores import rank_and_top_k, rank_targets


def unit(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def exactly(queries, targets):
    """Every score in float64, rounded."""
    return torch.einsum("bd,gnd->bgn", queries.double(), targets.double()).amax(dim=2).float()


def close_calls(queries=23, images=301, tokens=3, dims=64):
    """Queries, and images of which many score nearly, but for a few not exactly, alike."""
    asked, some = unit(queries, dims), unit(13, tokens, dims, seed=1)
    noise = 1e-7 * unit(images, tokens, dims, seed=2)
    return asked, some[torch.arange(images) % 13] + noise * (torch.arange(images) % 3)[:, None, None]


def test_work_is_cut_into_blocks_of_queries_and_images():
    queries, targets = unit(11, 7).double(), unit(23, 2, 7, seed=1)
    seen = torch.zeros(11, 23, dtype=torch.long)
    for block in blocks(queries, targets, 4):
        assert block.near.shape[0] <= 4 and block.near.shape[1] <= 4
        seen[block.rows, block.first : block.first + block.near.shape[1]] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize(("scale", "dtype"), [(1, "float32"), (1e-3, "float32"), (300, "float64"), (1, "float16")])
def test_no_score_is_further_off_than_the_slack_says(scale, dtype):
    queries, targets = unit(17, 256), (scale * unit(40, 5, 256, seed=1)).to(getattr(torch, dtype))
    for block in blocks(queries.double(), targets, 16):
        exact = exactly(queries, targets)[block.rows, block.first : block.first + 16]
        off = (block.near - exact).abs()
        assert (off <= block.slack).all() and block.slack.max() < 1e-3 * scale
        needed = torch.rand(off.shape, generator=torch.Generator().manual_seed(3)) < 0.05
        assert torch.equal(block.exact(needed)[needed], exact[needed])


def test_the_slack_is_needed():
    queries, targets = close_calls()
    off = 0
    for block in blocks(queries.double(), targets, 64):
        exact = exactly(queries, targets)[block.rows, block.first : block.first + 64]
        off += int((block.near != exact).sum())
    assert off > 1000  # float32 alone would decide many of these comparisons by its rounding


@pytest.mark.parametrize("chunk", [5, 64, 512])
def test_ranks_and_best_are_those_of_the_whole_float64_matrix(chunk):
    queries, targets = close_calls()
    similarity, own = exactly(queries, targets), torch.arange(23) * 11
    exclude = torch.where(torch.arange(23) % 2 == 0, (own + 13) % 301, -1)
    ranks, values, places = rank_and_top_k(queries, targets, own, 7, exclude, chunk)
    for row in range(23):
        scores, target = similarity[row].clone(), similarity[row, own[row]]
        left = torch.ones(301, dtype=torch.bool)
        left[own[row]] = False
        if exclude[row] >= 0:
            left[exclude[row]] = False
            scores[exclude[row]] = -1e9
        assert ranks.better[row] == (scores[left] > target).sum() and ranks.tied[row] == (scores[left] == target).sum()
        order = sorted(range(301), key=lambda place: (-float(scores[place]), place))[:7]
        assert places[row].tolist() == order and torch.equal(values[row], scores[order])


def test_few_pairs_are_computed_twice(monkeypatch):
    queries, targets = unit(40, 256), unit(600, 4, 256, seed=1)
    asked = []
    exact = exact_scores.Block.exact
    monkeypatch.setattr(exact_scores.Block, "exact", lambda self, needed: asked.append(needed) or exact(self, needed))
    rank_and_top_k(queries, targets, torch.arange(40), 1)
    again, all_pairs = sum(int(needed.sum()) for needed in asked), sum(needed.numel() for needed in asked)
    assert all_pairs == 40 * 600 and 40 <= again < 0.02 * all_pairs


def test_a_collapsed_model_is_computed_in_whole_blocks_and_ties():
    queries, targets = unit(1, 16).expand(9, 16), unit(1, 2, 16, seed=1).expand(50, 2, 16)
    ranks = rank_targets(queries, targets, torch.arange(9), chunk=8)
    assert ranks.better.tolist() == [0] * 9 and ranks.tied.tolist() == [49] * 9


@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e25])
def test_very_short_and_very_long_vectors(scale):
    queries, targets = close_calls(5, 40)
    queries, targets = scale * queries.double(), scale * targets.double()
    own = torch.tensor([3, 1, 30, 8, 2])
    similarity = torch.einsum("bd,gnd->bgn", queries, targets).amax(dim=2).float()
    if not torch.isfinite(similarity).all():
        with pytest.raises(ValueError, match="are NaN or infinite"):
            rank_targets(queries, targets, own)
        return
    ranks = rank_targets(queries, targets, own, chunk=16)
    value = similarity[torch.arange(5), own][:, None]
    assert ranks.better.tolist() == (similarity > value).sum(dim=1).tolist()
    assert ranks.tied.tolist() == ((similarity == value).sum(dim=1) - 1).tolist()


def test_products_in_fewer_bits_are_not_trusted():
    torch.set_float32_matmul_precision("medium")
    try:
        queries, targets = close_calls(5, 40)
        assert all(not block.slack.any() for block in blocks(queries.double(), targets, 16))
    finally:
        torch.set_float32_matmul_precision("highest")
