"""Draws one garment on a tailor's dummy as a small RGB picture.

Geometry is given in units of the picture's side, x to the right and y down, and is moved by one affine map
per picture (shift, scale, rotation, width) before it reaches the canvas; the canvas is `OVERSAMPLING` times
the wanted size and is box-averaged down, which is all the anti-aliasing there is.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

OVERSAMPLING = 4
RGB = tuple[int, int, int]

BASE_COLOURS: dict[str, RGB] = {
    "red": (208, 28, 38),
    "orange": (246, 128, 22),
    "yellow": (250, 216, 44),
    "green": (48, 150, 52),
    "teal": (0, 168, 168),
    "blue": (38, 76, 212),
    "purple": (124, 44, 168),
    "pink": (250, 138, 190),
    "brown": (118, 68, 32),
    "black": (30, 30, 34),
    "white": (250, 250, 250),
    "grey": (142, 142, 146),
}
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": tuple(BASE_COLOURS),
    "sleeve": ("sleeveless", "short", "long"),
    "pattern": ("solid", "striped", "pinstriped", "checked", "dotted", "floral"),
    "neckline": ("round", "v", "collar", "high"),
    "length": ("short", "long"),
}
CREAM, NAVY, CRIMSON, GOLD = (252, 248, 236), (26, 28, 66), (176, 20, 84), (250, 196, 40)
LINEN, WOOD, OUTLINE = (236, 196, 158), (104, 74, 52), (44, 40, 46)

# Heights, and half-widths of the three silhouettes at them: belted and flared, straight with buttons, tent.
SHOULDER, ARMPIT = 0.20, 0.34
HEM_HEIGHT = {
    "dress": {"short": 0.63, "long": 0.91},
    "shirt": {"short": 0.57, "long": 0.87},
    "toptee": {"short": 0.56, "long": 0.85},
}
HALF_WIDTHS = {  # category: (shoulder, armpit, short hem, long hem)
    "dress": (0.145, 0.125, 0.225, 0.275),
    "shirt": (0.185, 0.180, 0.185, 0.185),
    "toptee": (0.135, 0.145, 0.245, 0.270),
}
WAIST = (0.085, 0.43)  # half-width and height of the dress's waist
SLEEVE_LENGTH, SLEEVE_WIDTH = {"short": 0.16, "long": 0.42}, 0.12
DARK_BASES = {"red", "green", "teal", "blue", "purple", "brown", "black", "grey"}


class Pen:
    """Draws on `image` in unit coordinates moved by the affine map x -> matrix (x - 1/2) + 1/2 + shift."""

    def __init__(self, image: Image.Image, matrix: np.ndarray, shift: np.ndarray):
        self.image, self.matrix, self.shift = image, matrix, shift
        self.draw = ImageDraw.Draw(image)

    def on(self, image: Image.Image) -> Pen:
        return Pen(image, self.matrix, self.shift)

    def pixels(self, points) -> list[tuple[float, float]]:
        moved = (np.asarray(points, dtype=float) - 0.5) @ self.matrix.T + 0.5 + self.shift
        # Whole sixteenths of a pixel: the last bit of sin and cos differs between maths libraries.
        return [tuple(p) for p in (np.round(moved * self.image.width * 16) / 16).tolist()]

    def polygon(self, points, fill: RGB | int) -> None:
        self.draw.polygon(self.pixels(points), fill=fill)

    def line(self, points, fill: RGB, width: float) -> None:
        self.draw.line(self.pixels(points), fill=fill, width=round(width * self.image.width), joint="curve")

    def discs(self, centres, radius: float, fill: RGB) -> None:
        r = round(radius * self.image.width * 16) / 16
        for x, y in self.pixels(centres):
            self.draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def ellipse(x: float, y: float, rx: float, ry: float, start: float = 0.0, stop: float = 1.0) -> np.ndarray:
    """[n, 2] points of an ellipse's arc, in turns clockwise from its right end."""
    angle = 2 * np.pi * np.linspace(start, stop, 33)
    return np.stack([x + rx * np.cos(angle), y + ry * np.sin(angle)], axis=1)


def mirrored(right: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The closed outline whose right side, from top to bottom, is `right` given as (half-width, height)."""
    return [(0.5 + w, y) for w, y in right] + [(0.5 - w, y) for w, y in reversed(right)]


def body_outline(category: str, sleeve: str, length: str) -> list[tuple[float, float]]:
    shoulder, armpit, short_hem, long_hem = HALF_WIDTHS[category]
    hem, y = {"short": short_hem, "long": long_hem}[length], HEM_HEIGHT[category][length]
    if sleeve == "sleeveless":
        side = [(0.06, 0.175), (shoulder - 0.045, 0.195), (armpit - 0.045, 0.27), (armpit, ARMPIT)]
    else:
        side = [(0.06, 0.175), (shoulder - 0.01, SHOULDER), (shoulder, 0.235), (armpit, ARMPIT)]
    if category == "dress":
        flare = (WAIST[0] + 0.55 * (hem - WAIST[0]), WAIST[1] + 0.4 * (y - WAIST[1]))
        side += [WAIST, flare, (hem, y - 0.02), (0.5 * hem, y + 0.01)]
    elif category == "toptee":
        side += [(hem, y - 0.035), (0.62 * hem, y)]
    else:
        side += [(hem, y)]
    return mirrored(side)


def sleeve_outlines(category: str, sleeve: str, angle: float) -> list[np.ndarray]:
    """One quadrilateral [4, 2] an arm: shoulder, cuff outside and inside, armpit; none if sleeveless."""
    if sleeve == "sleeveless":
        return []
    along = np.array([np.sin(angle), np.cos(angle)])
    across = np.array([along[1], -along[0]])
    root = np.array([HALF_WIDTHS[category][0] - 0.045, SHOULDER + 0.055])
    cuff = root + along * (SLEEVE_LENGTH[sleeve] + 0.05)
    wide, narrow = across * SLEEVE_WIDTH / 2, across * SLEEVE_WIDTH / 2 * 0.95
    right = np.stack([root + wide, cuff + narrow, cuff - narrow, root - wide])
    return [right + [0.5, 0.0], right * [-1.0, 1.0] + [0.5, 0.0]]


def draw_dummy(pen: Pen) -> None:
    pen.polygon(mirrored([(0.016, 0.5), (0.016, 0.95)]), WOOD)
    pen.polygon(ellipse(0.5, 0.955, 0.12, 0.02), WOOD)
    torso = [
        (0.055, 0.05),
        (0.055, 0.165),
        (0.13, 0.195),
        (0.155, 0.24),
        (0.13, 0.33),
        (0.10, 0.43),
        (0.145, 0.56),
        (0.13, 0.63),
    ]
    pen.polygon(mirrored(torso), LINEN)
    pen.line([*mirrored(torso), mirrored(torso)[0]], OUTLINE, 0.012)
    pen.polygon(ellipse(0.5, 0.05, 0.062, 0.022), WOOD)


def pattern_layer(
    pen: Pen, pattern: str, base: RGB, ink: RGB, petal: RGB, heart: RGB, phase: np.ndarray, zoom: float
) -> Image.Image:
    """The whole canvas as cloth: `pattern` in `ink`, or flowers of `petal` and `heart`, on `base`."""
    layer = Image.new("RGB", pen.image.size, base)
    cloth = pen.on(layer)

    def grid(period: float, stagger: bool) -> np.ndarray:
        steps = np.arange(-1, int(1 / period) + 3)
        x, y = np.meshgrid(steps + phase[0], steps + phase[1])
        if stagger:
            x[::2] += 0.5
        return np.stack([x, y], axis=-1).reshape(-1, 2) * period

    def bands(period: float, width: float, vertical: bool) -> None:
        for start in (np.arange(-1, int(1 / period) + 2) + phase[int(vertical)]) * period:
            band = np.array([(-0.2, start), (1.2, start), (1.2, start + width), (-0.2, start + width)])
            cloth.polygon(band[:, ::-1] if vertical else band, ink)

    if pattern == "striped":
        bands(0.135 * zoom, 0.056 * zoom, False)
    elif pattern == "pinstriped":
        bands(0.085 * zoom, 0.024 * zoom, True)
    elif pattern == "checked":
        bands(0.125 * zoom, 0.036 * zoom, False)
        bands(0.125 * zoom, 0.036 * zoom, True)
    elif pattern == "dotted":
        cloth.discs(grid(0.098 * zoom, True), 0.028 * zoom, ink)
    elif pattern == "floral":
        centres = grid(0.21 * zoom, True)
        for turn in 2 * np.pi * (np.arange(5) / 5 + phase[0]):
            cloth.discs(centres + 0.043 * zoom * np.array([np.cos(turn), np.sin(turn)]), 0.032 * zoom, petal)
        cloth.discs(centres, 0.028 * zoom, heart)
    return layer


def draw_neckline(pen: Pen, neckline: str, base: RGB, trim: RGB) -> None:
    if neckline == "round":
        opening = ellipse(0.5, 0.19, 0.098, 0.095, 0.0, 0.5)
        pen.polygon([(0.402, 0.16), *opening[::-1], (0.598, 0.16)], LINEN)
        pen.line([(0.598, 0.165), *opening, (0.402, 0.165)], OUTLINE, 0.046)
        pen.line([(0.598, 0.165), *opening, (0.402, 0.165)], trim, 0.03)
    elif neckline == "v":
        edge = [(0.415, 0.165), (0.5, 0.385), (0.585, 0.165)]
        pen.polygon(edge, LINEN)
        pen.line(edge, OUTLINE, 0.046)
        pen.line(edge, trim, 0.03)
    elif neckline == "collar":
        for side in (-1, 1):
            flap = np.array([(0.06, 0.125), (0.005, 0.215), (0.075, 0.315), (0.135, 0.2)])
            flap = flap * [side, 1] + [0.5, 0]
            pen.polygon(flap, trim)
            pen.line([*flap, flap[0]], OUTLINE, 0.016)
    else:
        tube = mirrored([(0.072, 0.065), (0.082, 0.19)])
        pen.polygon(tube, base)
        pen.line([*tube, tube[0]], OUTLINE, 0.016)
        pen.line([(0.428, 0.075), (0.572, 0.075)], trim, 0.04)


def draw_garment(
    category: str,
    colour: str,
    sleeve: str,
    pattern: str,
    neckline: str,
    length: str,
    rng: np.random.Generator,
    size: int = 48,
) -> np.ndarray:
    """Render one garment.

    Everything that is not an attribute (place, scale, rotation, width, arm angle, shade, phase and scale of
    the pattern, background, light, grain) is drawn from `rng`, always in the same number of draws.

    Returns:
        uint8 [size, size, 3].

    Raises:
        ValueError: an unknown category or attribute value.
    """
    known = {"category": tuple(HALF_WIDTHS), **ATTRIBUTES}
    for name, value in zip(known, (category, colour, sleeve, pattern, neckline, length), strict=True):
        if value not in known[name]:
            raise ValueError(f"{name} {value!r} is unknown; known are {', '.join(known[name])}.")
    u = rng.uniform(-1.0, 1.0, 16)
    turn, scale, width = np.deg2rad(5.0) * u[0], 1.0 + 0.06 * u[1], 1.0 + 0.06 * u[2]
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = scale * rotation @ np.diag([width, 1.0])
    wall = np.array([218.0, 216.0, 214.0]) + 26.0 * u[3:6]
    base = tuple(int(c) for c in np.clip(np.array(BASE_COLOURS[colour]) + np.round(10 * u[6:9]), 0, 255))
    dark = colour in DARK_BASES
    ink = trim = CREAM if dark else NAVY
    petal, heart = (CREAM, GOLD) if dark else (CRIMSON, CREAM)

    canvas = Image.new("RGB", (size * OVERSAMPLING,) * 2, tuple(int(c) for c in wall))
    pen = Pen(canvas, matrix, 0.03 * u[9:11])
    pen.polygon([(-0.5, 0.88), (1.5, 0.88), (1.5, 1.6), (-0.5, 1.6)], tuple(int(c) for c in 0.88 * wall))
    draw_dummy(pen)

    cloth = pattern_layer(pen, pattern, base, ink, petal, heart, 0.5 + 0.5 * u[11:13], 1.0 + 0.08 * u[13])
    body = body_outline(category, sleeve, length)
    sleeves = sleeve_outlines(category, sleeve, np.deg2rad(37.0 + 5.0 * u[14]))
    for outline in [*sleeves, np.array(body)]:
        mask = Image.new("L", canvas.size, 0)
        pen.on(mask).polygon(outline, 255)
        canvas.paste(cloth, mask=mask)
        pen.line([*outline, outline[0]], OUTLINE, 0.018)
    for _, outside, inside, _ in sleeves:
        pen.line([outside, inside], OUTLINE, 0.05)
        pen.line([outside, inside], trim, 0.032)
    if category == "dress":
        pen.line([(0.5 - WAIST[0] - 0.008, WAIST[1]), (0.5 + WAIST[0] + 0.008, WAIST[1])], OUTLINE, 0.045)
    elif category == "shirt":
        hem = HEM_HEIGHT[category][length]
        pen.line([(0.5, 0.30), (0.5, hem)], OUTLINE, 0.016)
        pen.discs([(0.5, y) for y in np.arange(0.40, hem - 0.03, 0.11)], 0.018, trim)
    draw_neckline(pen, neckline, base, trim)

    pixels = np.asarray(canvas.reduce(OVERSAMPLING), dtype=float)
    light = 1.0 + 0.06 * u[15] + 0.05 * np.linspace(1.0, -1.0, size)[:, None, None]
    grain = rng.integers(-5, 6, pixels.shape)
    return np.clip(np.round(pixels * light + grain), 0, 255).astype(np.uint8)
