"""Rankings and their drops: curves of scores, what lies in which part of them, and where steep drops fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from cirkit.plots.style import COLOURS, LEVELS

ZONE = COLOURS["blue"]


def line_panels(panels: Mapping[str, pd.DataFrame], xlabel: str, at: float | None = None) -> Figure:
    """A panel per table with a line per column over the index; ``at`` draws a thin vertical line."""
    figure, axes = plt.subplots(1, len(panels), figsize=(1.2 + 3.5 * len(panels), 3.3), squeeze=False)
    styles = ("-", "--", "-.", ":")
    for axis, (title, table) in zip(axes[0], panels.items(), strict=True):
        for name, colour, style in zip(table.columns, COLOURS.values(), styles, strict=False):
            axis.plot(table.index, table[name], color=colour, linestyle=style, label=name)
        if at is not None:
            axis.axvline(at, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel=xlabel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure


def drop_curves(
    rows: Mapping[str, Sequence[tuple[np.ndarray, Sequence[str], int, tuple[int, int]]]], titles: Sequence[str]
) -> Figure:
    """Rankings of some queries, a column each, by some models, a row each, with the zone between two drops.

    The axis of places is stretched at both ends of the ranking.

    Args:
        rows: model -> for each query its scores [G] in descending order, the level of each image (:data:`LEVELS`), the
            target's place, and the zone's first and last place (excluded).
    """
    columns = len(titles)
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(0.8 + 3.7 * columns, 1 + 2.7 * len(rows)), sharey="row", squeeze=False
    )
    for line, (model, curves) in zip(axes, rows.items(), strict=True):
        for axis, (scores, levels, target, (first, last)) in zip(line, curves, strict=True):
            size, levels = len(scores), np.asarray(levels)
            places = (np.arange(size) + 0.5) / size
            edges = np.clip([first / size, last / size], 0.2 / size, 1 - 0.2 / size)
            axis.axvspan(*edges, color=ZONE, alpha=0.13, linewidth=0)
            for place, edge in zip((first, last), edges, strict=True):  # the drop lies between this place and the last
                axis.axvline(edge, color=ZONE, linewidth=0.8, linestyle="--")
                if 0 < place < size:
                    axis.plot([edge] * 2, scores[[place - 1, place]], color=ZONE, linewidth=3, zorder=3)
            axis.plot(places, scores, color="black", linewidth=0.6, zorder=1)
            for level in reversed(LEVELS):
                chosen = levels == level
                axis.scatter(
                    places[chosen], scores[chosen], s=10, color=LEVELS[level], zorder=2, linewidth=0, rasterized=True
                )
            axis.scatter(
                places[target], scores[target], marker="*", s=150, color=COLOURS["green"], edgecolor="black", zorder=4
            )
            # as much room for the last ten images as for the first ten
            axis.set_xscale("logit")
            shown = [k for k in (1, 10, 100, size // 2, size - 99, size - 9, size) if 1 <= k <= size]
            axis.set_xticks([(k - 0.5) / size for k in shown], [str(k) for k in shown], fontsize=8)
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_xlim(0.3 / size, 1 - 0.3 / size)
        line[0].set_ylabel(f"{model}\nscore", fontsize=10)
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("place in the ranking")
    star = plt.Line2D([], [], linestyle="", marker="*", markersize=11, color=COLOURS["green"], label="target")
    handles = [Patch(color=colour, label=level) for level, colour in LEVELS.items()]
    handles += [star, Patch(color=ZONE, alpha=0.3, label="between the two drops")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, frameon=False)
    return figure


def interval_bars(panels: Mapping[str, pd.DataFrame], ylabel: str, level: Mapping[str, float] | None = None) -> Figure:
    """Grouped bars with intervals, a panel per table: columns group, kind, value, low, high.

    Args:
        level: kind -> a value that knows nothing, drawn as a dashed line in the kind's colour.
    """
    table = next(iter(panels.values()))
    groups, kinds = list(dict.fromkeys(table.group)), list(dict.fromkeys(table.kind))
    width = 0.8 / len(kinds)
    figure, axes = plt.subplots(1, len(panels), figsize=(1 + 4.4 * len(panels), 3.6), sharey=True, squeeze=False)
    for axis, (title, table) in zip(axes[0], panels.items(), strict=True):
        for k, (kind, colour) in enumerate(zip(kinds, COLOURS.values(), strict=False)):
            part = table[table.kind == kind].set_index("group").reindex(groups)
            places = np.arange(len(groups)) + (k - (len(kinds) - 1) / 2) * width
            spread = np.abs([part.value - part.low, part.high - part.value])
            bars = axis.bar(places, part.value, width, yerr=spread, color=colour, capsize=2, label=kind)
            axis.bar_label(bars, fmt="%.0f", padding=2, fontsize=8)
            if kind in (level or {}):
                axis.axhline(level[kind], color=colour, linestyle="--", linewidth=1)
        axis.set(title=title, xticks=range(len(groups)), xticklabels=groups)
        axis.tick_params(axis="x", labelsize=9)
        axis.grid(False, axis="x")
    axes[0, 0].set_ylabel(ylabel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure


def drop_histograms(panels: Mapping[str, Mapping[str, np.ndarray]], xlabels: Sequence[str], bins: int = 40) -> Figure:
    """A panel per quantity with the densities of some groups, the first filled and the others as lines."""
    figure, axes = plt.subplots(1, len(panels), figsize=(1 + 3.8 * len(panels), 3.3), squeeze=False)
    for axis, (title, groups), xlabel in zip(axes[0], panels.items(), xlabels, strict=True):
        edges = np.histogram_bin_edges(np.concatenate(list(groups.values())), bins)
        for k, ((name, values), colour) in enumerate(zip(groups.items(), COLOURS.values(), strict=False)):
            style = {"alpha": 0.35, "histtype": "stepfilled"} if k == 0 else {"linewidth": 1.5, "histtype": "step"}
            weights = np.full(len(values), 100 / len(values))
            axis.hist(values, edges, weights=weights, color=colour, label=name, **style)
        axis.set(title=title, xlabel=xlabel)
    axes[0, 0].set_ylabel("share (%)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure
