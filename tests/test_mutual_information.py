"""Histogram mutual information and the soft labels made of it, against the released numbers and a slow loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from golden_tensors import tensors

from cirkit.mutual_information import binned, mutual_information, soft_labels, transition_rates


def close(obtained, expected):
    torch.testing.assert_close(obtained.double(), expected.double(), rtol=0, atol=1e-5)


def test_the_released_estimates_rates_and_labels(golden):
    g = tensors(golden("habit_mutual_information"))
    fused, targets, bins = g["composed_tokens"], g["target_tokens"], int(g["bins"])
    every_pair = mutual_information(fused.flatten(1)[:, None], targets.flatten(1), bins)
    close(every_pair, g["mutual_information_out"])
    rates = transition_rates(fused, targets, g["anchor_index"], bins)
    close(rates, g["transition_rates_out"])
    close(soft_labels(rates), g["soft_label_out"])


def slow(first: list[float], second: list[float], bins: int) -> float:
    def places(values):
        low, high = min(values), max(values)
        return [min(int((v - low) / (high - low) * bins), bins - 1) for v in values]

    pairs, n = list(zip(places(first), places(second), strict=True)), len(first)
    total = 0.0
    for x in range(bins):
        for y in range(bins):
            joint = sum(pair == (x, y) for pair in pairs) / n
            own = sum(a == x for a, _ in pairs) / n * (sum(b == y for _, b in pairs) / n)
            if joint:
                total += joint * math.log(joint / own)
    return total


def test_it_equals_a_slow_loop_over_pairs_and_bins():
    first, second = torch.randn(3, 21), torch.randn(5, 21)
    fast = mutual_information(first[:, None], second, bins=4)
    assert fast.shape == (3, 5)
    for i in range(3):
        for j in range(5):
            assert fast[i, j].item() == pytest.approx(slow(first[i].tolist(), second[j].tolist(), 4), abs=1e-5)


def test_bins_are_those_of_numpy():
    values = torch.cat([torch.randn(200), torch.tensor([-9.0, 9.0])])
    counts = np.histogram(values.numpy(), bins=7)[0]
    assert binned(values, 7).sum(dim=0).tolist() == counts.tolist()
    edges = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    assert binned(edges, 4).sum(dim=0).tolist() == [1, 1, 1, 2]


def test_what_says_nothing_and_what_says_all():
    independent = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert mutual_information(*independent, 2).item() == pytest.approx(0, abs=1e-6)
    ramp = torch.arange(100.0)
    assert mutual_information(ramp, -3 * ramp, 10).item() == pytest.approx(math.log(10), abs=1e-5)
    assert mutual_information(ramp, torch.full((100,), 0.3), 10).item() == pytest.approx(0, abs=1e-6)


def test_rates_are_by_hand_and_without_gradient():
    fused, targets = torch.randn(3, 4, 7, requires_grad=True), torch.randn(3, 4, 7)
    rates = transition_rates(fused, targets, 1, bins=5)
    assert rates.shape == (3, 3) and not rates.requires_grad
    m = mutual_information(fused.flatten(1)[:, None], targets.flatten(1), 5)
    for i in range(3):
        expected = [abs(m[1, 1] - other) / m[1, 1] for other in (m[i, i], m[1, i], m[i, 1])]
        assert rates[i].tolist() == pytest.approx([e.item() for e in expected], abs=1e-6)
    labels = soft_labels(rates)
    assert labels[1] == 1 and (labels > 0).all() and (labels < 1).sum() == 2
    swapped = transition_rates(targets, fused, 1, bins=5)
    assert (swapped[:, 1:] - rates[:, 1:]).abs().max() > 1e-3  # so the order of the two sides matters


def test_labels_are_finite_where_nothing_is_known_of_anything():
    constant = torch.ones(2, 3, 7)
    assert soft_labels(transition_rates(constant, constant, 0)).tolist() == [1, 1]
    assert soft_labels(transition_rates(torch.randn(2, 3, 7), constant, 0)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_counted_in_full(dtype):
    fused, targets = torch.randn(2, 3, 2, 7).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rates = transition_rates(fused, targets, 2)
    assert rates.dtype == torch.float32
    torch.testing.assert_close(rates, transition_rates(fused.float(), targets.float(), 2))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="got 7 and 5"):
        mutual_information(torch.randn(3, 7), torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"\(3, 4, 7\) and \(3, 5, 7\)"):
        transition_rates(torch.randn(3, 4, 7), torch.randn(3, 5, 7), 0)
