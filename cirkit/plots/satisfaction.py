"""Beyond recall: one measure beside the other, and the orders of methods that they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cirkit.plots.style import COLOURS

MARKERS = "osD^vP"


def interval_panels(
    table: pd.DataFrame, panel: str, row: str, colour: str, xlabel: str = "", lines: Mapping[str, float] | None = None,
    columns: int = 3, share_x: bool = False,
) -> Figure:  # fmt: skip
    """Values with their intervals: a panel per measure, a line per row, a colour and a marker per group.

    Args:
        table: columns value, low, high, and those named by `panel`, `row` and `colour`; NaN is left out.
        lines: panel -> place of a vertical line there, such as no difference or chance.
        columns: panels beside each other.
        share_x: one scale for all panels.
    """
    panels, rows, groups = (list(dict.fromkeys(table[name])) for name in (panel, row, colour))
    wide = min(columns, len(panels))
    deep = -(-len(panels) // wide)
    height = 0.75 + len(rows) * max(0.3, 0.17 * len(groups))
    size = (1.4 + max(2.9 * wide, 5.2), 0.5 + height * deep)
    figure, axes = plt.subplots(deep, wide, figsize=size, sharex=share_x, sharey=True, squeeze=False)
    for axis, name in zip(axes.flat, panels, strict=False):
        for i, group in enumerate(groups):
            part = table[(table[panel] == name) & (table[colour] == group)].dropna(subset=["value"])
            y = part[row].map(rows.index).to_numpy() + (i - (len(groups) - 1) / 2) * 0.6 / max(len(groups), 2)
            axis.errorbar(
                part.value, y, xerr=[part.value - part.low, part.high - part.value], fmt=MARKERS[i % len(MARKERS)],
                color=list(COLOURS.values())[i], markersize=5, capsize=2, linewidth=1.2, label=group,
            )  # fmt: skip
        if lines and name in lines:
            axis.axvline(lines[name], color="black", linestyle="--", linewidth=1)
        axis.set(title=name, yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.5), xlabel=xlabel)
        axis.grid(axis="y", visible=False)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    if len(groups) > 1:
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(groups), frameon=False)
    return figure


def order_slopes(values: pd.DataFrame, xlabel: str = "") -> Figure:
    """The order in which each measure puts the methods: a line per method, 1 on top; crossing lines disagree.

    Args:
        values: one row per method (the index), one column per measure, larger is better.
    """
    places = values.rank(ascending=False, method="average")
    figure, axis = plt.subplots(figsize=(2.6 + 1.5 * len(values.columns), 1.2 + 0.42 * len(values)))
    x = np.arange(len(values.columns))
    for i, (method, row) in enumerate(places.iterrows()):
        colour = list(COLOURS.values())[i % len(COLOURS)]
        axis.plot(x, row, marker=MARKERS[i % len(MARKERS)], color=colour, linewidth=2, markersize=8)
        for place, side, gap in ((0, "right", -0.12), (len(x) - 1, "left", 0.12)):
            # methods of equal value share a place, and their names a line
            same = places.index[places.iloc[:, place] == row.iloc[place]]
            if same[0] == method:
                axis.text(x[place] + gap, row.iloc[place], ", ".join(same), ha=side, va="center", fontsize=10)
    axis.set(xticks=x, xticklabels=values.columns, yticks=range(1, len(values) + 1), ylabel="place", xlabel=xlabel)
    axis.set(xlim=(-1.4, len(x) + 0.3), ylim=(len(values) + 0.4, 0.6))
    axis.grid(axis="x", visible=False)
    return figure


def shares_in_top(
    shares: pd.DataFrame, xlabel: str, names: Sequence[str] = ("grey", "sky", "orange", "green")
) -> Figure:
    """Horizontal bars of shares in percent that add up to 100, one bar per row, a colour per column."""
    figure, axis = plt.subplots(figsize=(8.6, 1.2 + 0.36 * len(shares)))
    left = np.zeros(len(shares))
    for name, colour in zip(shares.columns, names, strict=False):
        values = shares[name].to_numpy()
        bars = axis.barh(shares.index, values, left=left, color=COLOURS[colour], label=name, height=0.7)
        ink = "white" if colour in ("grey", "green") else "black"
        texts = [f"{value:.0f}" if value >= 3 else "" for value in values]
        axis.bar_label(bars, texts, label_type="center", fontsize=9, color=ink)
        left += values
    axis.set(xlabel=xlabel, xlim=(0, 100))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=len(shares.columns), frameon=False)
    return figure
