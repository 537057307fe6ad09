"""Figures can be read with any colour vision and without seeing them: palette, colour maps, formats, descriptions.

Colour vision deficiency is simulated by the matrices of Machado, Oliveira & Fernandes (IEEE TVCG 15(6), 2009, table 1,
severity 1.0), on linear RGB. Distances are Delta E of CIELAB (1976), in which about 2 can just be seen side by side.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import seaborn  # noqa: F401 - registers vlag and crest

from cirkit.plots.style import COLOURS, LEVELS

FIGURES = Path(__file__).resolve().parents[1] / "figures"
NAMES = sorted({path.stem for path in FIGURES.iterdir() if path.suffix in (".png", ".svg", ".json")})
VISION = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "usual": np.eye(3).tolist(),
}
every_vision = pytest.mark.parametrize("vision", VISION)
APART = 15.0  # about seven just visible steps
SEQUENTIAL = ("viridis", "magma", "crest", "Blues")
DIVERGING = ("vlag_r",)


def linear(colours: np.ndarray) -> np.ndarray:
    """sRGB [n,3] in [0, 1] to linear RGB (IEC 61966-2-1)."""
    return np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)


def lab(colours: np.ndarray, vision: str = "usual") -> np.ndarray:
    """sRGB [n,3] in [0, 1] as it is seen: L*, a*, b* [n,3], white point of sRGB."""
    seen = np.clip(linear(np.asarray(colours, float)) @ np.array(VISION[vision]).T, 0, 1)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    t = seen @ to_xyz.T / to_xyz.sum(axis=1)
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def rgb(code: str) -> np.ndarray:
    return np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def closest(colours: dict[str, str], vision: str) -> tuple[float, str, str]:
    """The two colours that are hardest to tell apart, and their distance."""
    points = dict(zip(colours, lab([rgb(code) for code in colours.values()], vision), strict=True))
    pairs = itertools.combinations(points, 2)
    return min((float(np.linalg.norm(points[a] - points[b])), a, b) for a, b in pairs)


def test_the_simulation_itself():
    assert np.allclose([np.sum(matrix, axis=1) for matrix in VISION.values()], 1, atol=2e-6)  # greys stay grey
    white, black, red = lab([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    assert np.allclose(white, [100, 0, 0], atol=0.01) and np.allclose(black, 0, atol=0.01)
    assert np.allclose(red, [53.24, 80.09, 67.20], atol=0.02)  # published values of the sRGB primary
    # a red and a green of one lightness, far apart to most, run together where they are known to
    pair = {"red": "#d04030", "green": "#7a7a00"}
    assert closest(pair, "usual")[0] > 60 > 25 > closest(pair, "deuteranopia")[0]


@every_vision
def test_colours_of_the_palette_stay_apart(vision):
    distance, one, other = closest(COLOURS, vision)
    assert distance > APART, f"{one} and {other}: {distance:.1f} with {vision}"
    assert closest(LEVELS, vision)[0] > APART


@every_vision
def test_colour_maps_keep_their_order(vision):
    for name in SEQUENTIAL:
        lightness = lab(matplotlib.colormaps[name](np.linspace(0, 1, 33))[:, :3], vision)[:, 0]
        steps = np.diff(lightness)
        assert (steps > -0.5).all() or (steps < 0.5).all(), name
        assert abs(lightness[-1] - lightness[0]) > 50, name
    for name in DIVERGING:
        ends = lab(matplotlib.colormaps[name]([0.0, 0.5, 1.0])[:, :3], vision)
        assert np.linalg.norm(ends[0] - ends[2]) > 2 * APART and ends[1, 0] > max(ends[0, 0], ends[2, 0]) + 30, name


def test_every_figure_uses_the_palette_or_a_colour_map_that_keeps_its_order():
    known = [rgb(code) for code in COLOURS.values()]
    known += [c[:3] for name in (*SEQUENTIAL, *DIVERGING) for c in matplotlib.colormaps[name](np.arange(256))]
    known, wrong = np.array(known), {}
    for name in NAMES:
        codes = sorted(set(re.findall(r"#[0-9a-f]{6}\b", (FIGURES / f"{name}.svg").read_text(encoding="utf-8"))))
        coloured = np.array([rgb(code) for code in codes if np.ptp(rgb(code)) > 0.05]).reshape(-1, 3)
        far = np.abs(coloured[:, None] - known).max(axis=2).min(axis=1) > 0.035 if len(coloured) else np.zeros(0, bool)
        if far.any():
            wrong[name] = [matplotlib.colors.to_hex(c) for c in coloured[far]]
    assert wrong == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_its_formats_and_a_description(name):
    for suffix in ("png", "svg", "json"):
        assert (FIGURES / f"{name}.{suffix}").stat().st_size > 0
    told = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    assert len(told["see"].split()) >= 4 and len(told["alt"].split()) >= 4
    assert (FIGURES / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (FIGURES / f"{name}.svg").read_text(encoding="utf-8")[:2000]
