"""Negative anchors: what their losses pay for, their band, how they learn, and how a model collapses."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cirkit.plots.style import COLOURS

_STYLES = list(zip(COLOURS.values(), ("-", "--", "-.", ":", "-", "--"), "osD^vP", strict=False))


def loss_ratios(panels: Mapping[str, pd.DataFrame], ylabel: str) -> Figure:
    """Losses along a path, on a logarithmic scale: a panel per path (its name is the x label), a line per column."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.3), sharey=True, squeeze=False)
    for axis, (name, table) in zip(axes[0], panels.items(), strict=True):
        for column, (colour, line, _) in zip(table.columns, _STYLES, strict=False):
            axis.plot(table.index, table[column], color=colour, linestyle=line, linewidth=2, label=column)
        axis.set(yscale="log", xlabel=name)
    axes[0, 0].set_ylabel(ylabel)
    axes[0, 0].legend(fontsize=9)
    return figure


def band_histograms(
    groups: Mapping[str, np.ndarray], bands: Mapping[str, tuple[float, float]], xlabel: str = "similarity"
) -> Figure:
    """Densities of similarities, one per group, over bands that are shaded (narrow ones look like a line)."""
    figure, axis = plt.subplots(figsize=(8.4, 3.4))
    edges = np.histogram_bin_edges(np.concatenate([np.asarray(v) for v in groups.values()]), 50)
    for (name, values), (colour, line, _) in zip(groups.items(), _STYLES, strict=False):
        style = {"density": True, "color": colour}
        axis.hist(values, edges, histtype="stepfilled", alpha=0.3, **style)
        label = f"{name} (n = {len(values):,})"
        axis.hist(values, edges, histtype="step", linewidth=1.5, linestyle=line, label=label, **style)
    for (name, (low, high)), colour in zip(bands.items(), ("yellow", "purple"), strict=False):
        axis.axvspan(low, high, color=COLOURS[colour], alpha=0.35, linewidth=1.5, zorder=0, label=name)
    axis.set(xlabel=xlabel, ylabel="density")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", fontsize=9, frameon=False)
    return figure


def lines_by_step(
    panels: Mapping[str, pd.DataFrame],
    ylabel: str,
    bands: Mapping[str, tuple[float, float]] | None = None,
    share_y: bool = True,
) -> Figure:
    """A panel per table with a line per column over the steps (the index); ``bands`` are shaded in each."""
    figure, axes = plt.subplots(1, len(panels), figsize=(1 + 3.5 * len(panels), 3.7), sharey=share_y, squeeze=False)
    for axis, (name, table) in zip(axes[0], panels.items(), strict=True):
        for column, (colour, line, marker) in zip(table.columns, _STYLES, strict=False):
            axis.plot(
                table.index, table[column], line, color=colour, marker=marker, markersize=5, label=column,
                markevery=max(len(table) // 10, 1),
            )  # fmt: skip
        for label, (low, high) in (bands or {}).items():
            axis.axhspan(low, high, color=COLOURS["yellow"], alpha=0.3, linewidth=0, zorder=0, label=label)
        axis.set(title=name, xlabel="step")
    axes[0, 0].set_ylabel(ylabel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), fontsize=9, frameon=False)
    return figure


def collapse_histories(histories: Mapping[str, pd.DataFrame]) -> Figure:
    """Histories side by side: similarities, what is flagged as noise, and how strongly each loss term pulls.

    Args:
        histories: name of a run -> its history, one row an epoch. Drawn are, as far as they are there, the columns
            s_ii, s_ij, c_g, boundary; flagged, "precision flagged", "recall flagged"; and all "gradient <term>" but
            the total norm. A column that a run lacks is left out.
    """
    terms = dict.fromkeys(c for h in histories.values() for c in h if c.startswith("gradient "))
    names = {"s_ii": "$s_{ii}$", "s_ij": "$s_{ij}$", "c_g": "c·g", "boundary": "boundary"}
    shares = {"flagged": "flagged", "precision flagged": "precision", "recall flagged": "recall"}
    rows = {
        "similarity": names, "share": shares,
        "gradient norm": {name: name.removeprefix("gradient ").replace("_", "-") for name in terms},
    }  # fmt: skip
    figure, axes = plt.subplots(
        len(rows), len(histories), figsize=(1.8 + 3.7 * len(histories), 2.5 * len(rows)), sharex=True, sharey="row",
        squeeze=False,
    )  # fmt: skip
    for line, (ylabel, columns) in zip(axes, rows.items(), strict=True):
        drawn = {}
        for axis, (name, history) in zip(line, histories.items(), strict=True):
            for (column, label), (colour, style, marker) in zip(columns.items(), _STYLES, strict=False):
                if column in history and history[column].notna().any():
                    (curve,) = axis.plot(history.epoch, history[column], style, color=colour, marker=marker)
                    drawn[label] = curve
            if ylabel == "gradient norm":
                axis.set(yscale="log", xlabel="epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if ylabel == "similarity":
                axis.set_title(name)
            if ylabel == "share":
                axis.set_ylim(-0.05, 1.05)
        line[0].set_ylabel(ylabel)
        # an axis of its own would squeeze the panels, so the legend hangs at the last one's right
        line[-1].legend(
            [drawn[label] for label in columns.values() if label in drawn],
            [label for label in columns.values() if label in drawn],
            loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=9, frameon=False,
        )  # fmt: skip
    return figure
