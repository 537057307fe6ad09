"""Noise in one's own table: a contact sheet to look through, what two looks see, and the precision to expect."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL.Image import Image

from cirkit.plots.style import CLEAN, COLOURS, NOISY, blank


def contact_sheet(rows: Sequence[tuple[Image, str, Image]], reasons: Sequence[str], heads: Sequence[str]) -> Figure:
    """Triplets one a row: reference, text, target, why it is suspected.

    Args:
        rows: (reference, text, target) each.
        reasons: one a row; parts separated by "; " begin on a new line. heads: row number and score, say.

    Raises:
        ValueError: no rows, or unequal numbers.
    """
    if not rows or not len(rows) == len(reasons) == len(heads):
        raise ValueError(f"need as many reasons and heads as rows, got {len(rows)}, {len(reasons)} and {len(heads)}")
    figure, axes = plt.subplots(
        len(rows), 4, figsize=(9.6, 0.3 + 1.25 * len(rows)), width_ratios=(1, 1.7, 1, 3.4), squeeze=False
    )
    for i, ((reference, text, target), reason) in enumerate(zip(rows, reasons, strict=True)):
        for axis in axes[i]:
            blank(axis)
        for axis, image in ((axes[i, 0], reference), (axes[i, 2], target)):
            axis.imshow(image, interpolation="nearest")
        _write(axes[i, 1], 0.5, 0.5, f"“{text}”", 24, 6, ha="center", va="center", fontsize=9)
        axes[i, 3].text(0, 0.98, heads[i], transform=axes[i, 3].transAxes, va="top", fontsize=9, weight="bold")
        why = "\n".join(textwrap.fill(part, 52) for part in reason.split("; "))
        axes[i, 3].text(0, 0.76, why, transform=axes[i, 3].transAxes, va="top", fontsize=8, color=NOISY)
    for axis, title in zip(axes[0], ("reference", "text", "target", "why it is suspected"), strict=True):
        axis.set_title(title, fontsize=10)
    return figure


def look_panels(depths: Mapping[str, Mapping[str, np.ndarray]], reach: float = 4.0) -> Figure:
    """One panel per group of triplets: how far each lies below both thresholds, the flagged in the colour of noise.

    Args:
        depths: group -> "evidence" and "boundary" -> [n], in spreads (`cirkit.suspicion.Looks.depths`). A look that
            there was not (all NaN) is drawn at 0.
        reach: both axes end here; what lies beyond stands at the edge.
    """
    figure, axes = plt.subplots(
        1, len(depths), figsize=(3.1 * len(depths), 3.3), squeeze=False, sharex=True, sharey=True
    )
    for axis, (group, looks) in zip(axes[0], depths.items(), strict=True):
        flagged = (looks["evidence"] > 0) | (looks["boundary"] > 0)
        x, y = (np.nan_to_num(looks[name]).clip(-reach, reach) for name in ("evidence", "boundary"))
        for rows, colour in ((~flagged, CLEAN), (flagged, NOISY)):
            axis.scatter(x[rows], y[rows], s=7, alpha=0.35, color=colour, linewidths=0)
        axis.axvline(0, color=COLOURS["grey"], linewidth=1)
        axis.axhline(0, color=COLOURS["grey"], linewidth=1)
        axis.set(title=f"{group}: {flagged.mean():.0%} flagged", xlabel="below the evidence needed")
    axes[0, 0].set_ylabel("below the boundary")
    return figure


def expected_precision(precisions: pd.DataFrame) -> Figure:
    """Lines over the assumed share of wrong rows, one per kind of noise; a panel per way of flagging.

    Args:
        precisions: of :func:`cirkit.expectation.precision_table`.
    """
    groups = list(precisions.groupby("flags", sort=False))
    figure, axes = plt.subplots(1, max(len(groups), 1), figsize=(4.4 * max(len(groups), 1), 3.3), squeeze=False)
    for axis, (flags, table) in zip(axes[0], groups, strict=False):
        columns = [name for name in table if name.endswith("%")]
        shares = [float(name.rstrip("%")) for name in columns]
        for row in table.to_dict("records"):
            axis.plot(shares, [row[name] for name in columns], marker="o", label=row["kind"])
        axis.set(title=f"flagged by {flags} look{'s' if flags == 'both' else ''}", ylim=(0, 1.03))
        axis.set(xlabel="assumed share of wrong rows (%)", ylabel="share of the flags that are right", xticks=shares)
        axis.set_xlim(0, 1.05 * max(shares))
        axis.legend(title="if the noise is like", fontsize=8, title_fontsize=8, loc="lower right")
    return figure


def _write(axis: plt.Axes, x: float, y: float, text: str, width: int, lines: int, **style) -> None:
    """A text that is cut where it would leave its place."""
    folded = textwrap.wrap(text, width, max_lines=lines, placeholder=" …")
    axis.text(x, y, "\n".join(folded), transform=axis.transAxes, **style)
