"""Draws a scene as a small RGB picture: one figure and one to three equal companions before a background.

Same canvas and units as `garment_drawing`. Figures and companions come from different families of shapes, so what is
the figure never depends on the order in which a scene is described. The values of `HELD_OUT` occur only in the
CIRCO-style part of the world and in the images of stage 1.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from cirkit.data.garment_drawing import BASE_COLOURS, OVERSAMPLING, RGB, Pen, ellipse, pattern_layer

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "shape": ("circle", "square", "triangle", "diamond", "star"),
    "colour": COLOURS,
    "size": ("small", "large"),
    "relation": ("left", "right", "above", "below"),  # where the figure is, seen from the companions
    "count": ("one", "two", "three"),  # companions
    "other": ("heart", "cross", "ring", "moon"),
    "other_colour": COLOURS,
    "background": ("plain", "striped", "pinstriped", "checked", "dotted"),
}
HELD_OUT: dict[str, tuple[str, ...]] = {
    "shape": ("dome", "arrow", "house"),
    "other": ("flower", "hourglass"),
    "background": ("brick", "zigzag"),
}
ALL_VALUES = {name: values + HELD_OUT.get(name, ()) for name, values in ATTRIBUTES.items()}
INK: RGB = (40, 36, 44)
WALL, LINES = np.array([196.0, 200.0, 204.0]), np.array([138.0, 144.0, 152.0])

RADIUS = {"small": 0.145, "large": 0.218}
OTHER_RADIUS, SPACING, DISTANCE = 0.122, 0.30, 0.235
DIRECTION = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "above": (0.0, -1.0), "below": (0.0, 1.0)}


def turned(n: int, radii: tuple[float, ...] = (1.0,)) -> np.ndarray:
    """[n, 2] points around the origin, the first on top; their distances go through `radii` in turn."""
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.sin(angle), -np.cos(angle)], axis=1) * np.resize(radii, n)[:, None]


def heart() -> np.ndarray:
    t = 2 * np.pi * np.arange(40) / 40
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -y - 2], axis=1) / 15


def moon() -> np.ndarray:
    outer, inner = ellipse(0.0, 0.0, 1.0, 1.05, 0.12, 0.88), ellipse(0.42, 0.0, 0.68, 0.76, 0.88, 0.12)
    return np.concatenate([outer, inner])


BAR = 0.36
OUTLINES: dict[str, np.ndarray] = {  # shape -> [n, 2] points about the origin, within about one unit of it
    "circle": ellipse(0, 0, 0.96, 0.96),
    "square": np.array([(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)]),
    "triangle": np.array([(0, -1.0), (1.05, 0.85), (-1.05, 0.85)]),
    "diamond": turned(4, (1.12, 0.82)),
    "star": turned(10, (1.15, 0.45)) + [0, 0.06],
    "dome": np.concatenate([ellipse(0, 0.55, 1.1, 1.25, 0.5, 1.0)]),
    "arrow": np.array([(0, -1.1), (1, 0), (0.4, 0), (0.4, 1), (-0.4, 1), (-0.4, 0), (-1, 0)]),
    "house": np.array([(0, -1.1), (1.1, -0.25), (0.8, -0.25), (0.8, 0.95), (-0.8, 0.95), (-0.8, -0.25), (-1.1, -0.25)]),
    "heart": heart(),
    "cross": np.array(
        [(-BAR, -1), (BAR, -1), (BAR, -BAR), (1, -BAR), (1, BAR), (BAR, BAR)]
        + [(BAR, 1), (-BAR, 1), (-BAR, BAR), (-1, BAR), (-1, -BAR), (-BAR, -BAR)]
    ),
    "ring": ellipse(0, 0, 1.0, 1.0),
    "moon": moon(),
    "flower": turned(60, tuple(0.88 + 0.22 * np.cos(5 * 2 * np.pi * np.arange(60) / 60))),
    "hourglass": np.array([(-0.9, -1), (0.9, -1), (0.18, 0), (0.9, 1), (-0.9, 1), (-0.18, 0)]),
}
HOLE = 0.45  # radius of the ring's hole


def draw_shape(pen: Pen, shape: str, centre: np.ndarray, radius: float, fill: RGB, ground: Image.Image) -> None:
    outline = OUTLINES[shape] * radius + centre
    pen.polygon(outline, fill)
    edges = [outline]
    if shape == "ring":
        edges.append(ellipse(*centre, HOLE * radius, HOLE * radius))
        mask = Image.new("L", pen.image.size, 0)
        pen.on(mask).polygon(edges[1], 255)
        pen.image.paste(ground, mask=mask)
    elif shape == "flower":
        pen.discs([centre], 0.3 * radius, INK)
    for edge in edges:
        pen.line([*edge, edge[0], edge[1]], INK, 0.02)


def draw_background(pen: Pen, background: str, base: RGB, lines: RGB, phase: np.ndarray, zoom: float) -> Image.Image:
    """The whole canvas as a wall; bricks and zigzags are drawn here, the rest are the garments' patterns."""
    if background not in HELD_OUT["background"]:
        cloth = "solid" if background == "plain" else background
        return pattern_layer(pen, cloth, base, lines, lines, lines, phase, 1.25 * zoom)
    layer = Image.new("RGB", pen.image.size, base)
    wall, period = pen.on(layer), (0.19 if background == "brick" else 0.17) * zoom
    for row in range(-2, int(1 / period) + 3):
        y = (row + phase[1]) * period
        if background == "brick":
            wall.line([(-0.2, y), (1.2, y)], lines, 0.032)
            for column in range(-2, int(0.5 / period) + 3):
                x = (column + phase[0] + 0.5 * (row % 2)) * 2 * period
                wall.line([(x, y), (x, y + period)], lines, 0.032)
        else:
            x = (np.arange(-4, int(2 / period) + 6) + phase[0]) * period * 0.7
            wall.line(np.stack([x, y + np.resize([0.0, 0.62 * period], len(x))], axis=1), lines, 0.045)
    return layer


def draw_scene(
    shape: str,
    colour: str,
    size: str,
    relation: str,
    count: str,
    other: str,
    other_colour: str,
    background: str,
    rng: np.random.Generator,
    pixels: int = 48,
) -> np.ndarray:
    """Render one scene.

    Everything that is not an attribute (place, scale, turn, sizes, shades, phase and scale of the background's
    pattern, light, grain) is drawn from `rng`, always in the same number of draws.

    Returns:
        uint8 [pixels, pixels, 3].

    Raises:
        ValueError: an unknown attribute value.
    """
    asked = (shape, colour, size, relation, count, other, other_colour, background)
    for (name, known), value in zip(ALL_VALUES.items(), asked, strict=True):
        if value not in known:
            raise ValueError(f"{name} {value!r} is unknown; known are {', '.join(known)}.")
    u = rng.uniform(-1.0, 1.0, 32)
    turn, scale = np.deg2rad(4.0) * u[0], 1.0 + 0.04 * u[1]
    matrix = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    tint = 14.0 * u[2:5]
    base, lines = (tuple(int(c) for c in shade + tint) for shade in (WALL, LINES))
    fills = [
        tuple(int(c) for c in np.clip(np.array(BASE_COLOURS[name]) + np.round(10 * shift), 0, 255))
        for name, shift in ((colour, u[5:8]), (other_colour, u[8:11]))
    ]
    canvas = Image.new("RGB", (pixels * OVERSAMPLING,) * 2)
    pen = Pen(canvas, matrix, 0.03 * u[11:13])
    ground = draw_background(pen, background, base, lines, 0.5 + 0.5 * u[13:15], 1.0 + 0.08 * u[15])
    canvas.paste(ground)

    towards = np.array(DIRECTION[relation])
    across = abs(towards[::-1])
    n = ATTRIBUTES["count"].index(count) + 1
    places = 0.5 - DISTANCE * towards + SPACING * (np.arange(n) - (n - 1) / 2)[:, None] * across
    for place, jitter in zip(places + 0.018 * u[16:22].reshape(3, 2)[:n], u[22:25], strict=False):
        draw_shape(pen, other, place, OTHER_RADIUS * (1 + 0.06 * jitter), fills[1], ground)
    centre = 0.5 + DISTANCE * towards + 0.02 * u[25] * towards + 0.06 * u[26] * across
    draw_shape(pen, shape, centre, RADIUS[size] * (1 + 0.07 * u[27]), fills[0], ground)

    small = np.asarray(canvas.reduce(OVERSAMPLING), dtype=float)
    light = 1.0 + 0.06 * u[28] + 0.05 * np.linspace(u[29], -u[29], pixels)[:, None, None]
    grain = rng.integers(-5, 6, small.shape)
    return np.clip(np.round(small * light + grain), 0, 255).astype(np.uint8)
