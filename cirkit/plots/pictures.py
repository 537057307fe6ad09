"""Pictures: triplets, retrieved images, what was exchanged in a noisy triplet."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL.Image import Image

from cirkit.plots.style import COLOURS, NOISY, blank


def triplet_grid(rows: Sequence[tuple[Image, str, Image]], titles: Sequence[str] | None = None) -> Figure:
    """Triplets one a row: reference picture, modification text, target picture."""
    figure, axes = plt.subplots(len(rows), 3, figsize=(7.2, 1.5 * len(rows)), width_ratios=(1, 2.2, 1), squeeze=False)
    for i, (reference, text, target) in enumerate(rows):
        for axis, image in ((axes[i, 0], reference), (axes[i, 2], target)):
            axis.imshow(image, interpolation="nearest")
        head = f"{titles[i]}\n" if titles else ""
        axes[i, 1].text(0.5, 0.5, f"{head}“{text}”", ha="center", va="center", wrap=True, fontsize=11)
        for axis in axes[i]:
            blank(axis)
    for axis, title in zip(axes[0], ("reference", "modification text", "target"), strict=True):
        axis.set_title(title)
    return figure


def image_strip(
    rows: Sequence[Sequence[Image]], captions: Sequence[Sequence[str]], heads: Sequence[str],
    marks: Sequence[Sequence[bool]] | None = None,
) -> Figure:  # fmt: skip
    """Rows of pictures with a caption under each; ``marks`` frames a picture (the target among the hits, say)."""
    columns = max(map(len, rows))
    figure, axes = plt.subplots(len(rows), columns, figsize=(1.5 * columns, 1.95 * len(rows)), squeeze=False)
    for i, row in enumerate(rows):
        for j in range(columns):
            axis = axes[i, j]
            blank(axis)
            if j >= len(row):
                axis.set_axis_off()
                continue
            axis.imshow(row[j], interpolation="nearest")
            axis.set_xlabel(captions[i][j], fontsize=8)
            if marks is not None and marks[i][j]:
                for spine in axis.spines.values():
                    spine.set(visible=True, color=COLOURS["green"], linewidth=3)
        # a title wider than its picture would push the columns apart; an empty one keeps the height
        axes[i, 0].set_title(" ", fontsize=9)
        head = axes[i, 0].text(0, 1.05, heads[i], transform=axes[i, 0].transAxes, fontsize=9, weight="bold")
        head.set_in_layout(False)
    return figure


def triplet_pairs(
    clean: Sequence[tuple[Image, str, Image]],
    noisy: Sequence[tuple[Image, str, Image]],
    slots: Sequence[str],
    names: Sequence[str] | None = None,
) -> Figure:
    """Each row a triplet as it was (left) and as it is (right); the component named in ``slots`` is marked.

    Args:
        clean, noisy: (reference, text, target) a row.
        slots: "reference", "text" or "target" a row: what was exchanged.
        names: label of each row; "wrong <slot>" by default.
    """
    parts = ("reference", "text", "target")
    figure, axes = plt.subplots(
        len(clean), 7, figsize=(9.6, 0.3 + 1.25 * len(clean)), width_ratios=(1, 1.4, 1, 0.3, 1, 1.4, 1),
        squeeze=False,
    )  # fmt: skip
    for axis in axes.flat:
        blank(axis)
    for row, slot in enumerate(slots):
        for start, triplet in ((0, clean[row]), (4, noisy[row])):
            for axis, name, part in zip(axes[row, start : start + 3], parts, triplet, strict=True):
                wrong = start > 0 and name == slot
                if name == "text":
                    style = {"color": NOISY, "weight": "bold"} if wrong else {}
                    lines = textwrap.fill(f"“{part}”", 20)
                    axis.text(0.5, 0.5, lines, ha="center", va="center", fontsize=9, **style)
                    continue
                axis.imshow(part, interpolation="nearest")
                for spine in axis.spines.values():
                    spine.set(visible=wrong, color=NOISY, linewidth=3)
        axes[row, 3].text(0.5, 0.5, "→", ha="center", va="center", fontsize=18)
        axes[row, 0].set_ylabel(names[row] if names else f"wrong {slot}", fontsize=9)
    for start, state in ((0, "clean"), (4, "noisy")):
        for axis, name in zip(axes[0, start : start + 3], parts, strict=True):
            axis.set_title(f"{state}:\n{name}" if name == "reference" else name, fontsize=10)
    return figure
