"""The spectrum mix against the released numbers, a slow transform, and what it must leave as it is."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from golden_tensors import tensors

from cirkit.spectrum import centred_window, spectrum_mix


@pytest.mark.parametrize("form", ["full", "half"])
def test_both_outputs_of_the_released_code(golden, form):
    g = tensors(golden("intent_spectrum_mix"))
    first, second, ratio = g["image1"], g["image2"], float(g[f"ratio_{form}"])
    for own, other, name in ((first, second, "mixed1"), (second, first, "mixed2")):
        mixed = spectrum_mix(own, other, g[f"lambda_{form}"], ratio)
        torch.testing.assert_close(mixed, g[f"{name}_{form}_out"], rtol=0, atol=1e-5)


def test_of_normalised_pixels_it_leaves_mostly_black_and_white_as_released(golden):
    g = tensors(golden("intent_spectrum_mix"))
    mixed = spectrum_mix(g["normalised_image1"], g["normalised_image2"], g["lambda_full"])
    torch.testing.assert_close(mixed, g["normalised_mixed1_out"], rtol=0, atol=1e-5)
    black, white = (mixed == 0).float().mean().item(), (mixed == 1).float().mean().item()
    assert 0.4 < black < 0.5 and 0.2 < white < 0.3
    sane = spectrum_mix(g["image1"], g["image2"], g["lambda_full"])
    assert ((sane == 0) | (sane == 1)).float().mean() < 0.1


def test_it_equals_a_slow_transform():
    own, other = torch.rand(2, 1, 1, 5, 4, dtype=torch.float64)
    height, width, ratio, strength = 5, 4, 0.5, 0.7

    def transform(image, sign, scale):
        def at(u, v):
            terms = (
                complex(image[y][x]) * cmath.exp(sign * 2j * math.pi * (u * y / height + v * x / width))
                for y in range(height)
                for x in range(width)
            )
            return sum(terms) / scale

        return [[at(u, v) for v in range(width)] for u in range(height)]

    first, second = (transform(image[0, 0].tolist(), -1, 1) for image in (own, other))
    high, wide = int(height * math.sqrt(ratio)), int(width * math.sqrt(ratio))
    for u in range(height):
        for v in range(width):
            row, column = (u + height // 2) % height, (v + width // 2) % width  # zero frequency to the centre
            low = 0 <= row - (height // 2 - high // 2) < high and 0 <= column - (width // 2 - wide // 2) < wide
            amount = abs(first[u][v]) + (strength * (abs(second[u][v]) - abs(first[u][v])) if low else 0)
            first[u][v] = cmath.rect(amount, cmath.phase(first[u][v]))
    expected = [[min(max(z.real, 0.0), 1.0) for z in row] for row in transform(first, 1, height * width)]
    mixed = spectrum_mix(own, other, torch.tensor([strength]), ratio)[0, 0]
    torch.testing.assert_close(mixed, torch.tensor(expected, dtype=torch.float64))


def test_the_window_is_centred_on_the_zero_frequency():
    assert centred_window(6, 8, 1.0).all()
    window = centred_window(6, 8, 0.25)
    assert window.sum() == 3 * 4 and window[0, 0]
    assert torch.fft.fftshift(window).nonzero().amin(dim=0).tolist() == [2, 2]


def test_what_stays_and_what_changes():
    own, other = torch.rand(2, 3, 3, 8, 6)
    same = spectrum_mix(own, other, torch.zeros(3))
    torch.testing.assert_close(same, own, rtol=0, atol=1e-5)
    torch.testing.assert_close(spectrum_mix(own, own, torch.ones(3)), own, rtol=0, atol=1e-5)
    one = spectrum_mix(own, other, torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(one[[0, 2]], own[[0, 2]], rtol=0, atol=1e-5)
    assert (one[1] - own[1]).abs().mean() > 0.02
    # all amplitudes of the other: among them its mean colour, up to what the clamp takes
    flat, bright = torch.full((1, 3, 8, 6), 0.2), torch.full((1, 3, 8, 6), 0.7)
    torch.testing.assert_close(spectrum_mix(flat, bright, torch.tensor([0.5])), torch.full((1, 3, 8, 6), 0.45))


def test_half_precision_is_computed_in_full():
    own, other = torch.rand(2, 2, 3, 8, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = spectrum_mix(own, other, torch.tensor([0.3, 0.8]).bfloat16())
    assert mixed.dtype == torch.float32 and mixed.isfinite().all()


def test_shapes_that_do_not_fit_are_refused():
    for shapes in (((2, 3, 8, 8), (2, 3, 8, 6), 2), ((3, 8, 8), (3, 8, 8), 3), ((2, 3, 8, 8), (2, 3, 8, 8), 3)):
        with pytest.raises(ValueError, match="one strength each"):
            spectrum_mix(torch.rand(shapes[0]), torch.rand(shapes[1]), torch.rand(shapes[2]))
