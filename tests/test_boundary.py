"""GFQ: the boundary and the three fidelities, against the released code's numbers, slow loops, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch
from golden_tensors import tensors

from cirkit.boundary import fidelity, gaussian_patches, gaussian_triplets, noise_boundary, noisy_rows, separation
from cirkit.scores import max_over_tokens

TOLERANCE = {"rtol": 0, "atol": 1e-5}
OWN = torch.tensor([0.1, 0.9, 0.2, 0.3, 0.5, 0.3])


def test_boundary_of_the_released_code(golden):
    g = tensors(golden("conesep_boundary"))
    composed, targets = g["gaussian_composed"], g["gaussian_target_tokens"]
    torch.testing.assert_close(max_over_tokens(composed, targets), g["pair_similarity_out"], **TOLERANCE)
    assert noise_boundary(composed, targets).item() == pytest.approx(g["boundary_out"].item(), abs=1e-5)


@pytest.mark.parametrize("case", range(3))
def test_fidelity_of_the_released_code(golden, case):
    g = tensors(golden("conesep_fidelity"))
    own = g["similarity"][case].diagonal()
    for guard in (True, False):
        value = fidelity(own, g["boundary"][case].item(), "released", guard)
        torch.testing.assert_close(value, g["fidelity_out"][case], **TOLERANCE)


def test_nothing_above_the_boundary_is_nan_in_the_released_code_and_0_with_guard(golden):
    g = tensors(golden("conesep_fidelity"))
    own, boundary = g["degenerate_similarity"].diagonal(), g["degenerate_boundary"].item()
    assert g["degenerate_fidelity_out"].isnan().all()
    assert fidelity(own, boundary, "released", guard=False).isnan().all()
    for form in ("released", "monotone", "literal"):
        assert (fidelity(own, boundary, form) == 0).all()


def test_boundary_equals_a_slow_loop():
    composed, targets = torch.randn(3, 7), torch.randn(5, 2, 7)
    best = [[max(float(token @ c) for token in target) for target in targets] for c in composed]
    assert noise_boundary(composed, targets).item() == pytest.approx(sum(map(sum, best)) / 15, abs=1e-5)
    matched = noise_boundary(composed, targets[:3], "matched").item()
    assert matched == pytest.approx(sum(best[i][i] for i in range(3)) / 3, abs=1e-5)
    with pytest.raises(ValueError, match=r"as many references as targets, got \(3, 5\)"):
        noise_boundary(composed, targets, "matched")


@pytest.mark.parametrize("boundary", [-0.2, 0.25, 0.85])
def test_fidelities_equal_a_slow_loop(boundary):
    above = [max(s - boundary, 0.0) for s in OWN.tolist()]
    scaled = [r / max(above) for r in above]
    expected = {
        "monotone": scaled,
        "released": [x**2 * (1 - x**2) for x in scaled],
        "literal": [r**2 * (r - 1) for r in above],
    }
    for form, values in expected.items():
        torch.testing.assert_close(fidelity(OWN, torch.tensor(boundary), form), torch.tensor(values), **TOLERANCE)


def test_the_printed_formula_is_never_above_0_and_largest_for_the_worst_rows():
    own = torch.linspace(-1, 1, 401)
    values = fidelity(own, 0.0, "literal")
    assert values.max() == 0 and (values[own <= 0] == 0).all() and (values[(own > 0) & (own < 1)] < 0).all()
    assert own[values.argmin()].item() == pytest.approx(2 / 3, abs=0.005)


def test_only_monotone_grows_with_the_similarity():
    own = torch.linspace(-0.5, 1, 50)
    for form, rising in (("monotone", True), ("released", False), ("literal", False)):
        assert bool((fidelity(own, 0.1, form).diff() >= 0).all()) is rising, form
    values = fidelity(own, 0.1)
    assert values.min() == 0 and values.max() == 1


def test_the_released_fidelity_flags_the_best_row():
    values = fidelity(OWN, 0.0, "released")
    assert values[OWN.argmax()] == 0
    assert noisy_rows(OWN, 0.0, values, "fraction", 0.2).tolist() == (OWN == OWN.max()).tolist()
    assert not noisy_rows(OWN, 0.0, fidelity(OWN, 0.0), "fraction", 0.2)[OWN.argmax()]


def test_ties_of_fidelity_go_by_the_margin():
    """Three rows at or below the boundary and the best one all have fidelity 0."""
    values = fidelity(OWN, 0.3, "released")
    assert (values == 0).sum() == 5
    for share, lowest in ((0.17, [0]), (0.34, [0, 2]), (0.67, [0, 2, 3, 5]), (0.84, [0, 1, 2, 3, 5])):
        assert noisy_rows(OWN, 0.3, values, "fraction", share).nonzero().flatten().tolist() == lowest


def test_three_ways_to_split():
    values = fidelity(OWN, 0.1)
    assert noisy_rows(OWN, 0.3, values, "boundary").tolist() == [True, False, True, True, False, True]
    assert noisy_rows(OWN, 0.1, values, "threshold", 0.25).tolist() == [True, False, True, False, False, False]
    for share, count in ((0.0, 0), (0.16, 0), (0.5, 3), (0.99, 5), (1.0, 6)):
        assert noisy_rows(OWN, 0.1, values, "fraction", share).sum() == count, "the floor of the share"


def test_unknown_forms_are_one_sentence():
    with pytest.raises(ValueError, match="'released', 'literal' or 'monotone', got 'rising'"):
        fidelity(OWN, 0.0, "rising")
    with pytest.raises(ValueError, match="'fraction', 'threshold' or 'boundary', got 'half'"):
        noisy_rows(OWN, 0.0, OWN, "half")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["released", "literal", "monotone"])
def test_half_precision_and_a_batch_of_one_stay_finite(dtype, form):
    for own in (OWN.to(dtype), OWN[:1].to(dtype), torch.full((4,), -1.0, dtype=dtype)):
        values = fidelity(own, torch.tensor(0.1), form)
        assert values.dtype == torch.float32 and values.isfinite().all()
        for split in ("fraction", "threshold", "boundary"):
            assert noisy_rows(own, torch.tensor(0.1), values, split).shape == own.shape


def test_gaussian_patches_are_standard_pixels_behind_the_tower(small_backbone):
    backbone, seen = small_backbone(), []
    tower = backbone.vision_model.forward
    backbone.vision_model.forward = lambda pixels: seen.append(pixels) or tower(pixels)
    patches = gaussian_patches(backbone, 131, torch.Generator().manual_seed(3))
    pixels = torch.cat(seen)
    assert pixels.shape == (131, 3, 48, 48) and not patches.requires_grad
    assert abs(pixels.mean()) < 0.01 and abs(pixels.std() - 1) < 0.01
    torch.testing.assert_close(patches, tower(pixels))  # in parts or at once
    assert torch.equal(patches, gaussian_patches(backbone, 131, torch.Generator().manual_seed(3)))
    assert not torch.equal(patches[:5], gaussian_patches(backbone, 5, torch.Generator().manual_seed(4)))


def test_random_triplets_take_texts_of_the_batch_with_replacement(small_backbone):
    backbone = small_backbone()
    texts = backbone.tokenize(["is red", "is long and blue", "x"])
    references, targets = gaussian_patches(backbone, 20), gaussian_patches(backbone, 5)
    composed, tokens = gaussian_triplets(backbone, references, targets, texts)
    assert composed.shape == (20, 7) and tokens.shape == (5, 3, 7)
    assert not composed.requires_grad and not tokens.requires_grad
    torch.testing.assert_close(tokens, backbone.encode_target(targets))
    used = set()
    for i in range(20):
        each = [backbone.compose(references[i : i + 1], texts.rows(torch.tensor([k])))[0] for k in range(3)]
        used |= {k for k in range(3) if torch.allclose(each[k], composed[i], atol=1e-5)}
    assert used == {0, 1, 2}


def test_the_loss_of_a_learned_boundary_is_smallest_where_right_and_wrong_pairs_part():
    s = (torch.rand(5, 5) * 0.2).fill_diagonal_(0.8)
    losses = {b: separation(s, torch.tensor(b)).item() for b in (0.1, 0.3, 0.5, 0.7, 0.9)}
    assert min(losses, key=losses.get) == 0.5
    by_hand = sum(math.log1p(math.exp(-(0.8 - 0.3) / 0.07)) for _ in range(5)) / 5
    others = [s[i, j].item() for i in range(5) for j in range(5) if i != j]
    by_hand += sum(math.log1p(math.exp((value - 0.3) / 0.07)) for value in others) / 20
    assert losses[0.3] == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 4])
def test_a_learned_boundary_takes_all_the_gradient_there_is(dtype, size):
    s, boundary = torch.rand(size, size, dtype=dtype, requires_grad=True), torch.tensor(0.3, requires_grad=True)
    loss = separation(s, boundary)
    loss.backward()
    assert s.grad is None and boundary.grad.isfinite() and boundary.grad != 0 and loss.shape == ()
