"""The noise boundary of GFQ: fidelity curves, how sure the boundary is, where it lies, what it finds."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cirkit.plots.style import COLOURS

_LINES = ("-", "--", "-.", ":")


def fidelity_curves(own: np.ndarray, curves: Mapping[str, np.ndarray], boundary: float) -> Figure:
    """A panel per form of the fidelity over s_ii [n]; boundary dashed, the largest values of each curve drawn thick."""
    figure, axes = plt.subplots(1, len(curves), figsize=(3.1 * len(curves), 2.9), sharex=True, squeeze=False)
    for axis, (name, values), colour in zip(axes[0], curves.items(), COLOURS.values(), strict=False):
        values = np.asarray(values)
        best = np.where(values >= values.max() - 1e-3 * np.ptp(values), values, np.nan)
        axis.plot(own, values, color=colour)
        axis.plot(own, best, color="black", linewidth=5, solid_capstyle="round", label="largest fidelity")
        axis.axvline(boundary, color="black", linestyle="--", linewidth=1, label="boundary")
        axis.set(title=name, xlabel="$s_{ii}$")
    axes[0, 0].set_ylabel("fidelity")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def boundary_intervals(table: pd.DataFrame) -> Figure:
    """How far single estimates of the boundary lie from their mean, over K: a panel per moment, on one scale.

    Args:
        table: columns moment, pairs, K, low, high (ends of an interval of the deviations).
    """
    moments, counts = list(dict.fromkeys(table.moment)), sorted(set(table.K))
    figure, axes = plt.subplots(
        1, len(moments), figsize=(3.3 * len(moments), 3.3), sharex=True, sharey=True, squeeze=False
    )
    for axis, moment in zip(axes[0], moments, strict=True):
        part = table[table.moment == moment]
        for (pairs, rows), colour, shift in zip(
            part.groupby("pairs", sort=False), COLOURS.values(), (-0.15, 0.15), strict=False
        ):
            places = np.searchsorted(counts, rows.K) + shift
            axis.vlines(places, rows.low, rows.high, color=colour, linewidth=5, label=f"{pairs} pairs")
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set(title=moment, xlabel="draws K per side", xticks=range(len(counts)), xticklabels=counts)
        axis.grid(False, axis="x")
    axes[0, 0].set_ylabel("boundary − its mean")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def variance_shares(shares: pd.DataFrame) -> Figure:
    """Stacked bars of percentages: a bar per row, a colour per column."""
    figure, axis = plt.subplots(figsize=(7.2, 1.3 + 0.45 * len(shares)))
    left = np.zeros(len(shares))
    for name, colour, hatch in zip(shares.columns, COLOURS.values(), ("", "//", "..", "xx", "--"), strict=False):
        axis.barh(
            shares.index, shares[name], left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=name
        )
        left += shares[name].to_numpy()
    axis.invert_yaxis()
    axis.set(xlabel="share of the variance (%)", xlim=(0, 100))
    axis.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=len(shares.columns), frameon=False, fontsize=9)
    return figure


def boundaries_by_batch(table: pd.DataFrame) -> Figure:
    """Boundary of each kind of batch with its interval: a panel per moment, each with a scale of its own.

    Args:
        table: columns moment, batch, value, low, high.
    """
    moments, batches = list(dict.fromkeys(table.moment)), list(dict.fromkeys(table.batch))
    figure, axes = plt.subplots(
        1, len(moments), figsize=(1.4 + 2.7 * len(moments), 1.2 + 0.35 * len(batches)), sharey=True, squeeze=False
    )
    for axis, moment in zip(axes[0], moments, strict=True):
        rows = table[table.moment == moment].set_index("batch").loc[batches]
        spread = [rows.value - rows.low, rows.high - rows.value]
        axis.errorbar(rows.value, range(len(rows)), xerr=spread, fmt="o", color=COLOURS["blue"], capsize=3)
        axis.set(title=moment, xlabel="boundary", yticks=range(len(batches)), yticklabels=batches)
    axes[0, 0].invert_yaxis()
    return figure


def where_noise_lies(
    groups: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]], boundaries: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Densities of similarities beside the boundary: a row per moment, a column per kind of noise.

    Args:
        groups: moment -> kind -> group (clean, noisy, mismatched pairs ...) -> similarities [n].
        boundaries: moment -> kind -> the boundary of the model of that panel.
    """
    figure, axes = _panels(groups, 2.0)
    values = [v for kinds in groups.values() for parts in kinds.values() for v in parts.values()]
    edges = np.linspace(min(v.min() for v in values), max(v.max() for v in values), 61)
    palette = [COLOURS[name] for name in ("blue", "vermilion", "grey", "green")]
    for (moment, kind), axis in axes.items():
        for (name, part), colour, line in zip(groups[moment][kind].items(), palette, _LINES, strict=False):
            style = {"density": True, "color": colour}
            axis.hist(part, edges, histtype="stepfilled", alpha=0.3, **style)
            axis.hist(part, edges, histtype="step", linewidth=1.4, linestyle=line, label=name, **style)
        axis.axvline(boundaries[moment][kind], color="black", linewidth=1.4, label="boundary")
        axis.set_yticks([])
    _finish(figure, axes, "similarity", "{}\ndensity")
    return figure


def roc_panels(curves: Mapping[str, Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]]) -> Figure:
    """ROC curves of several scores: a row per moment, a column per kind of noise.

    Args:
        curves: moment -> kind -> score -> (share of clean flagged [m], share of noisy flagged [m]).
    """
    figure, axes = _panels(curves, 2.5)
    for (moment, kind), axis in axes.items():
        for (name, (false, true)), colour, line in zip(
            curves[moment][kind].items(), COLOURS.values(), _LINES, strict=False
        ):
            axis.plot(false, true, color=colour, linestyle=line, linewidth=1.8, label=name)
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="chance")
        axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    _finish(figure, axes, "clean flagged", "{}\nnoisy flagged")
    return figure


def _panels(content: Mapping[str, Mapping], height: float) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    columns = list(next(iter(content.values())))
    figure, grid = plt.subplots(
        len(content), len(columns), figsize=(1 + 2.7 * len(columns), 1 + height * len(content)), sharex=True,
        squeeze=False,
    )  # fmt: skip
    names = [(row, column) for row in content for column in columns]
    return figure, dict(zip(names, grid.flat, strict=True))


def _finish(figure: Figure, axes: Mapping[tuple[str, str], Axes], xlabel: str, ylabel: str) -> None:
    """Titles above, labels at the left and below, and one legend for all panels."""
    (first_row, first_column), (last_row, _) = next(iter(axes)), list(axes)[-1]
    for (row, column), axis in axes.items():
        if row == first_row:
            axis.set_title(column)
        if row == last_row:
            axis.set_xlabel(xlabel)
        if column == first_column:
            axis.set_ylabel(ylabel.format(row), fontsize=10)
    handles, labels = axes[first_row, first_column].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
