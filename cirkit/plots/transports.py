"""Targeted unlearning: transports and labels as annotated maps, where the mass goes, what forgetting costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cirkit.plots.style import COLOURS, NOISY

_LINES = ("blue", "vermilion", "orange", "green", "purple", "sky", "grey")


def transport_maps(panels: Mapping[str, np.ndarray], noisy: Sequence[bool], title: str = "") -> Figure:
    """Annotated maps [B,2B], two a row: left of the bar the B targets t, right of it the B negative anchors g.

    Numbers are written without the leading zero, and not at all where they round to 0. A panel of bool is a mask:
    closed entries are dark and crossed. Rows of noisy queries are named in red.
    """
    size = len(noisy)
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(12.6, 0.5 + 0.375 * size * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, values) in zip(axes.flat, panels.items(), strict=False):
        values = np.asarray(values)
        if values.dtype == bool:
            marks, shade, cmap, top = np.where(values, "", "×"), (~values).astype(float), "Greys", 1.4
        else:
            marks, shade, cmap = np.vectorize(_short)(values), values.astype(float), "Blues"
            top = max(1.0, float(values.max()))
        _two_blocks(axis, name, shade, marks, [f"c{i}" for i in range(size)], cmap, top)
        for label, wrong in zip(axis.get_yticklabels(), noisy, strict=True):
            label.set(color=NOISY if wrong else "black", weight="bold" if wrong else "normal")
        for side in ("top", "right", "left", "bottom"):
            axis.spines[side].set(visible=True, color=COLOURS["grey"])
    figure.suptitle(title, fontsize=11)
    return figure


def _two_blocks(
    axis: Axes, title: str, values: np.ndarray, marks: np.ndarray, rows: Sequence[str], cmap: str, top: float
) -> None:
    """A heat map of [R,2B] with its marks: targets, a line, anchors."""
    size = values.shape[1] // 2
    names = [f"t{j}" for j in range(size)] + [f"g{j}" for j in range(size)]
    sns.heatmap(
        values, ax=axis, annot=marks, fmt="", cmap=cmap, cbar=False, vmin=0.0, vmax=top, linewidths=0.4,
        linecolor="white", annot_kws={"fontsize": 8}, xticklabels=names, yticklabels=rows,
    )  # fmt: skip
    axis.axvline(size, color="black", linewidth=1.8)
    axis.set_title(title, fontsize=10)
    axis.tick_params(axis="both", labelsize=8, length=0, pad=1)
    axis.tick_params(axis="y", rotation=0)
    axis.grid(False)


def _short(value: float) -> str:
    text = f"{value:.2f}"
    return "" if text in ("0.00", "-0.00") else text.replace("0.", ".", 1) if abs(value) < 1 else text


def mass_on_anchors(table: pd.DataFrame) -> Figure:
    """Share of the mass that lands on anchors against the batch's noise rate, of clean and of noisy rows.

    Args:
        table: columns marginals, rate, clean, noisy (shares from 0 to 1; NaN where there is no such row).
    """
    kinds = list(dict.fromkeys(table.marginals))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4.4 * len(kinds), 3.3), sharey=True, squeeze=False)
    rates = np.linspace(0, 0.5, 51)
    for axis, kind in zip(axes[0], kinds, strict=True):
        part = table[table.marginals == kind]
        if kind == "uniform":
            axis.plot(100 * rates, 100 * (0.5 - rates) / (1 - rates), ":", color="black", label="least possible, clean")
        axis.plot(100 * part.rate, 100 * part.clean, "o-", color=COLOURS["blue"], label="clean rows")
        axis.plot(100 * part.rate, 100 * part.noisy, "s-", color=NOISY, label="noisy rows")
        axis.set(xlabel="noisy rows in the batch (%)", title=f"column marginals: {kind}", ylim=(-4, 104))
    axes[0, 0].set_ylabel("mass on anchors (%)")
    axes[0, 0].legend(fontsize=9)
    return figure


def label_strips(strips: Mapping[str, Mapping[str, np.ndarray]], ylabels: Sequence[str]) -> Figure:
    """Labels [2B] of one row of a batch, stacked over the values of a setting: targets | anchors.

    Args:
        strips: row of panels (a setting) -> panel (a query) -> [V,2B] with V values of the setting.
        ylabels: one per panel row: "name of the setting: value, value, …" is written as its V tick labels.
    """
    rows, columns = len(strips), max(map(len, strips.values()))
    figure, axes = plt.subplots(rows, columns, figsize=(6.2 * columns, 2.3 * rows), squeeze=False)
    for line, (setting, panels), values in zip(axes, strips.items(), ylabels, strict=True):
        for axis, (name, strip) in zip(line, panels.items(), strict=True):
            _two_blocks(axis, name, strip, np.vectorize(_short)(strip), values.split(", "), "Blues", 1.0)
        line[0].set_ylabel(setting, fontsize=10)
    return figure


def forgetting_curves(table: pd.DataFrame, ylabel: str, amount: float | None = None) -> Figure:
    """What is lost against what it costs: a panel per group of clean triplets, a line per way to unlearn.

    Args:
        table: columns arm, group, step, forgotten (mean fall of s_ii of noisy triplets), value, low, high.
        amount: forgetting at which the arms are compared, drawn as a line.
    """
    groups, arms = list(dict.fromkeys(table.group)), list(dict.fromkeys(table.arm))
    figure, axes = plt.subplots(1, len(groups), figsize=(4.6 * len(groups), 4.0), sharey=True, squeeze=False)
    for axis, group in zip(axes[0], groups, strict=True):
        for arm, name, marker in zip(arms, _LINES, "osD^vP*", strict=False):
            part = table[(table.group == group) & (table.arm == arm)]
            spread = [part.value - part.low, part.high - part.value]
            axis.errorbar(
                part.forgotten, part.value, yerr=spread, marker=marker, markersize=5, color=COLOURS[name], capsize=2,
                elinewidth=0.8, label=arm,
            )  # fmt: skip
        axis.axhline(0, color="black", linewidth=0.8)
        if amount is not None:
            axis.axvline(amount, color="black", linestyle=":", linewidth=1)
        axis.set(title=group, xlabel="$s_{ii}$ that noisy triplets lost")
    axes[0, 0].set_ylabel(ylabel)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
    )
    return figure
