"""Negatives and their zones: whom the loss pushes, where a zone lies, what it holds, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL.Image import Image

from cirkit.plots.style import COLOURS, LEVELS, blank


def share_bars(panels: Mapping[str, pd.DataFrame], xlabel: str) -> Figure:
    """Stacked horizontal bars of shares: a panel per table, a bar per row, columns as in :data:`LEVELS`."""
    rows = max(len(table) for table in panels.values())
    figure, axes = plt.subplots(
        1, len(panels), figsize=(1.6 + 3.9 * len(panels), 1.4 + 0.42 * rows), sharey=True, squeeze=False
    )
    for axis, (title, table) in zip(axes[0], panels.items(), strict=True):
        left = np.zeros(len(table))
        for level, colour in LEVELS.items():
            values = 100 * table[level].to_numpy()
            axis.barh(table.index, values, left=left, color=colour, label=level)
            for y, (start, value) in enumerate(zip(left, values, strict=True)):
                if value >= 6:
                    ink = "white" if level == "nothing of it" else "black"
                    axis.text(start + value / 2, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color=ink)
            left += values
        axis.set(title=title, xlabel=xlabel, xlim=(0, 100))
        axis.grid(False, axis="y")
    axes[0, 0].invert_yaxis()
    _levels_below(figure)
    return figure


def zone_curves(
    curves: Sequence[tuple[np.ndarray, Sequence[str], int]],
    zones: Sequence[Mapping[str, tuple[int, int]]],
    titles: Sequence[str],
) -> Figure:
    """A panel per query: its scores in descending order, the target, and below them zones and levels by place.

    Args:
        curves: scores [G] in descending order, the level of each (:data:`LEVELS`), and the target's place.
        zones: name -> (first, last) place, last excluded, for each query.
    """
    figure, axes = plt.subplots(
        2, len(curves), figsize=(1.4 + 3.5 * len(curves), 4.6), sharex="col", sharey="row", height_ratios=(2, 1.2),
        squeeze=False,
    )  # fmt: skip
    names = list(zones[0])
    shades = dict(zip(names, (COLOURS["blue"], COLOURS["purple"], COLOURS["yellow"]), strict=False))
    shown = [level for level in LEVELS if level != "nothing of it"]
    for (upper, lower), (scores, levels, target), spans, title in zip(axes.T, curves, zones, titles, strict=True):
        places, levels = np.arange(1, len(scores) + 1), np.asarray(levels)
        upper.plot(places, scores, color="black", linewidth=1.5)
        upper.scatter([target + 1], [scores[target]], marker="*", s=160, color=COLOURS["green"], ec="black", zorder=3)
        for k, name in enumerate(names):
            first, last = spans[name]
            upper.axvspan(first + 1, last, color=shades[name], alpha=0.12, linewidth=0)
            lower.barh(k, last - first, left=first + 0.5, height=0.7, color=shades[name])
        for k, level in enumerate(shown, start=len(names)):
            where = places[(levels == level) & (places != target + 1)]
            lower.eventplot(where, lineoffsets=k, linelengths=0.7, linewidths=0.6, color=LEVELS[level])
        lower.set(xlabel="place in the ranking", yticks=range(len(names) + len(shown)))
        lower.set_yticklabels([*(f"zone, {name}" for name in names), *shown], fontsize=9)
        lower.grid(False)
        upper.set_title(title)
    axes[1, 0].invert_yaxis()
    axes[0, 0].set_ylabel("score")
    return figure


def shares_by_delta(panels: Mapping[tuple[str, str], pd.DataFrame], band: tuple[float, float]) -> Figure:
    """Stacked bars of :data:`LEVELS` over bins of the scaled difference; panels by (row, column), the band framed.

    Args:
        panels: tables with the upper edge of each bin as index, one column a level: shares of the candidates in it.
    """
    rows, columns = (list(dict.fromkeys(key[k] for key in panels)) for k in (0, 1))
    figure, axes = plt.subplots(
        len(rows), len(columns), figsize=(1 + 3.9 * len(columns), 1 + 2.1 * len(rows)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for (row, column), table in panels.items():
        axis, edges = axes[rows.index(row), columns.index(column)], table.index.to_numpy(dtype=float)
        width, bottom = edges[1] - edges[0], np.zeros(len(table))
        for level, colour in LEVELS.items():
            values = 100 * table[level].to_numpy()
            axis.bar(edges - width / 2, values, 0.9 * width, bottom, color=colour)
            bottom += np.nan_to_num(values)
        for edge in band:
            axis.axvline(edge, color="black", linestyle="--", linewidth=1.2)
        axis.set(title=f"{row}, {column}", ylim=(0, 100))
        axis.grid(False, axis="x")
    for axis in axes[-1]:
        axis.set_xlabel("scaled difference Δ'")
    for axis in axes[:, 0]:
        axis.set_ylabel("candidates (%)")
    _levels_below(figure)
    return figure


def history_panels(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """A panel per table with a line per column over the epochs (the index); gaps in a column are bridged."""
    figure, axes = plt.subplots(1, len(panels), figsize=(0.6 + 2.9 * len(panels), 3.4), squeeze=False)
    for axis, (title, table) in zip(axes[0], panels.items(), strict=True):
        for name, colour, marker in zip(table.columns, COLOURS.values(), "os^Dv", strict=False):
            values = table[name].dropna()
            axis.plot(values.index, values, marker=marker, markersize=5, color=colour, label=name)
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)
    return figure


def intent_bars(table: pd.DataFrame) -> Figure:
    """Grouped bars with intervals, a panel per attribute: columns attribute, model, kind, value, low, high."""
    attributes, kinds, models = (list(dict.fromkeys(table[c])) for c in ("attribute", "kind", "model"))
    figure, axes = plt.subplots(
        1, len(attributes), figsize=(1 + 2.9 * len(attributes), 3.6), sharey=True, squeeze=False
    )
    width = 0.8 / len(kinds)
    for axis, attribute in zip(axes[0], attributes, strict=True):
        for k, (kind, colour) in enumerate(zip(kinds, COLOURS.values(), strict=False)):
            part = table[(table.kind == kind) & (table.attribute == attribute)].set_index("model").loc[models]
            places = np.arange(len(models)) + (k - (len(kinds) - 1) / 2) * width
            spread = np.abs([part.value - part.low, part.high - part.value])
            axis.bar(places, part.value, width, yerr=spread, color=colour, capsize=3, label=kind)
        axis.set(xticks=range(len(models)), xticklabels=models, title=attribute)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.grid(False, axis="x")
    axes[0, 0].set_ylabel("cosine of two queries")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(kinds), fontsize=9, frameon=False)
    return figure


def accuracy_maps(panels: Mapping[str, pd.DataFrame]) -> Figure:
    """Heat maps of accuracies in percent with the same colours: rows are features, columns attributes."""
    panels = {title: table.dropna(axis=1, how="all") for title, table in panels.items()}
    widths = [table.shape[1] for table in panels.values()]
    rows = max(len(table) for table in panels.values())
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2.4 + 0.8 * sum(widths), 1.4 + 0.42 * rows), sharey=True, squeeze=False,
        width_ratios=widths,
    )  # fmt: skip
    for axis, (title, table) in zip(axes[0], panels.items(), strict=True):
        sns.heatmap(table, ax=axis, annot=True, fmt=".0f", vmin=0, vmax=100, cmap="viridis", cbar=False)
        axis.set(title=title, xlabel="", ylabel="")
        axis.tick_params(axis="x", rotation=0, labelsize=9)
        axis.tick_params(axis="y", rotation=0, labelsize=9)
    return figure


def pass_maps(
    images: Sequence[Image],
    maps: Sequence[Sequence[np.ndarray]],
    passes: Sequence[str],
    heads: Sequence[str],
    regions: Sequence[Sequence[np.ndarray]],
) -> Figure:
    """A row per model: the reference, and the attention map [h,w] of each pass over it.

    Args:
        regions: like ``maps``, masks [H,W] of the picture whose outlines are drawn into the maps.
    """
    figure, axes = plt.subplots(
        len(images), len(passes) + 1, figsize=(1.75 * (len(passes) + 1), 1.85 * len(images) + 0.3), squeeze=False
    )
    for row, image, shown, head, masks in zip(axes, images, maps, heads, regions, strict=True):
        box = (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
        for axis in row:
            blank(axis)
            axis.imshow(image, interpolation="nearest")
        for axis, weights, mask in zip(row[1:], shown, masks, strict=True):
            axis.imshow(weights, cmap="magma", alpha=0.65, extent=box, interpolation="bilinear", vmin=0)
            axis.contour(mask, [0.5], colors="white", linewidths=1)
        row[0].set_ylabel(head, fontsize=10)
    for axis, name in zip(axes[0], ("reference", *passes), strict=True):
        axis.set_title(name, fontsize=9)
    return figure


def zone_panels(
    panels: Mapping[str, Mapping[str, pd.DataFrame]], xlabels: Sequence[str], logarithmic: Sequence[str] = ()
) -> Figure:
    """A row per quantity, a column per way of moving the zone: lines per reading over the zone's parameter.

    Args:
        panels: quantity -> {how the zone moves -> table with the parameter as index and a column per reading}.
        logarithmic: quantities on a logarithmic axis.
    """
    moves = list(next(iter(panels.values())))
    figure, axes = plt.subplots(
        len(panels), len(moves), figsize=(1 + 3.7 * len(moves), 1 + 1.9 * len(panels)), sharey="row", sharex="col",
        squeeze=False,
    )  # fmt: skip
    for row, (quantity, tables) in zip(axes, panels.items(), strict=True):
        for axis, move in zip(row, moves, strict=True):
            for name, colour, marker in zip(tables[move].columns, COLOURS.values(), "os^", strict=False):
                axis.plot(tables[move].index, tables[move][name], marker=marker, color=colour, label=name)
        row[0].set_ylabel(quantity)
        if quantity in logarithmic:
            row[0].set_yscale("log")
    for column, move, xlabel in zip(axes.T, moves, xlabels, strict=True):
        column[0].set_title(move)
        column[-1].set_xlabel(xlabel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure


def _levels_below(figure: Figure) -> None:
    handles = [Patch(color=colour, label=level) for level, colour in LEVELS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
