"""Ours beside the published: recall by noise rate, places; and differences, detection and cost of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from cirkit.plots.style import COLOURS

OURS, THEIRS = COLOURS["vermilion"], COLOURS["blue"]
_COLOURS = [COLOURS[name] for name in ("vermilion", "orange", "purple", "green", "sky", "grey")]
_MARKERS = "osD^vP"
_INKS = [colour for name, colour in COLOURS.items() if name != "yellow"]  # for thin lines and small points


def recall_beside(table: pd.DataFrame, published: str, ours: str, columns: int = 4) -> Figure:
    """Recall against noise rate, a panel per published method: its published values, and each of our rows.

    Args:
        table: columns paper (the panel), noise, ``published``, method (our row), value, low, high; ``published`` or
            ``value`` is NaN where there is none, and method is empty where we have no row at all.
        published, ours: what the two are, for the legend.
    """
    panels = list(dict.fromkeys(table.paper))
    wide = min(columns, len(panels))
    deep = -(-len(panels) // wide)
    figure, axes = plt.subplots(
        deep, wide, figsize=(0.8 + 2.3 * wide, 0.9 + 2.2 * deep), sharex=True, sharey=True, squeeze=False
    )
    for axis, name in zip(axes.flat, panels, strict=False):
        part = table[table.paper == name]
        printed = part.dropna(subset=["published"]).drop_duplicates("noise").sort_values("noise")
        axis.plot(printed.noise, printed.published, "o--", color=THEIRS, mfc="white", label=published)
        here = part.dropna(subset=["value"])
        rows = list(dict.fromkeys(here.method))
        for method, colour, marker in zip(rows, _COLOURS, _MARKERS, strict=False):
            line = here[here.method == method].sort_values("noise")
            spread = np.clip([line.value - line.low, line.high - line.value], 0, None)
            axis.errorbar(line.noise, line.value, yerr=spread, color=colour, marker=marker, capsize=2, label=method)
        if not rows:
            axis.text(
                0.5, 0.06, "no row here yet", transform=axis.transAxes, ha="center", color=COLOURS["grey"], size=9
            )
        elif len(rows) > 1:
            handles = axis.get_legend_handles_labels()[0]
            axis.legend(handles[-len(rows) :], rows, fontsize=7, loc="upper right", frameon=False, handlelength=1.2)
        axis.set(title=name, ylim=(0, 101), xticks=(0, 0.2, 0.5, 0.8), xlim=(-0.06, 0.86))
        axis.tick_params(labelbottom=True)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("recall (%)")
    figure.supxlabel("share of training triplets selected as noise", fontsize=10)
    handles = [
        plt.Line2D([], [], color=THEIRS, marker="o", mfc="white", linestyle="--", label=published),
        plt.Line2D([], [], color=OURS, marker="o", label=ours),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return figure


def rank_panels(table: pd.DataFrame, titles: Mapping[tuple, str], panel: Sequence[str], columns: int = 4) -> Figure:
    """Our place against the published place, a panel per comparison; on the line both agree.

    Args:
        table: columns paper, published_place, place, low and high, and those named in ``panel``.
        titles: values of the ``panel`` columns -> title of the panel.
        panel: columns that tell the comparisons apart.
    """
    groups = [(key, part) for key, part in table.groupby(list(panel), sort=False)]
    wide = min(columns, len(groups))
    deep = -(-len(groups) // wide)
    figure, axes = plt.subplots(deep, wide, figsize=(0.8 + 2.9 * wide, 0.7 + 2.75 * deep), squeeze=False)
    names = list(dict.fromkeys(table.paper))
    colours = dict(zip(names, _INKS * 2, strict=False))
    for axis, (key, part) in zip(axes.flat, groups, strict=False):
        most = len(part) + 0.5
        axis.plot([0.5, most], [0.5, most], color=COLOURS["grey"], linewidth=1, linestyle=":")
        for line in part.itertuples():
            spread = [[line.place - line.low], [line.high - line.place]]
            axis.errorbar(line.published_place, line.place, yerr=np.clip(spread, 0, None), fmt="o", capsize=2,
                          color=colours[line.paper], markersize=7)  # fmt: skip
            axis.annotate(
                line.paper, (line.published_place, line.place), (6, 5), textcoords="offset points", fontsize=8
            )
        ticks = range(1, len(part) + 1)
        axis.set(
            title=titles[key], xlim=(0.5, most + 0.45), ylim=(most, 0.5), xticks=ticks, yticks=ticks, aspect="equal"
        )
        axis.title.set_fontsize(9)
    for axis in list(axes.flat)[len(groups) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("our place")
    figure.supxlabel("published place (1 is best)", fontsize=10)
    return figure


def difference_map(differences: pd.DataFrame, beyond_doubt: pd.DataFrame, label: str = "points") -> Figure:
    """Row minus column, in colour and numbers; pale numbers where the interval holds 0.

    Args:
        differences: square, the same names as index and columns; NaN on the diagonal.
        beyond_doubt: of the same shape, whether the interval leaves out 0.
    """
    size = len(differences)
    figure, axis = plt.subplots(figsize=(2.6 + 0.85 * size, 1.5 + 0.52 * size))
    values = differences.to_numpy(dtype=float)
    most = np.nanmax(np.abs(values)) if np.isfinite(values).any() else 1.0
    shown = np.where(beyond_doubt.to_numpy(dtype=bool), values, 0.0)
    sns.heatmap(
        np.where(np.isfinite(values), shown, np.nan), cmap="vlag_r", center=0, vmin=-most, vmax=most, ax=axis,
        xticklabels=differences.columns, yticklabels=differences.index, linewidths=0.6, cbar_kws={"label": label},
    )  # fmt: skip
    for i, j in zip(*np.nonzero(np.isfinite(values)), strict=True):
        sure = bool(beyond_doubt.iat[i, j])
        ink = "white" if sure and abs(values[i, j]) > 0.6 * most else "black" if sure else COLOURS["grey"]
        axis.text(j + 0.5, i + 0.5, f"{values[i, j]:+.1f}", ha="center", va="center", fontsize=9, color=ink)
    axis.grid(False)
    axis.tick_params(axis="x", rotation=35)
    axis.tick_params(axis="y", rotation=0)
    for text in axis.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    return figure


def detection_curves(panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray, float]]]) -> Figure:
    """ROC of finding noise, a panel per kind of noise and a line per method, its area in the legend.

    Args:
        panels: kind -> method -> (share of clean rows flagged [m], share of noisy rows flagged [m], AUROC).
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(0.8 + 4.1 * len(panels), 4.9), squeeze=False, sharey=True)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    lines = ("-", "--", "-.", ":")
    for axis, (kind, curves) in zip(axes[0], panels.items(), strict=True):
        for name, (false, true, area) in curves.items():
            i = names.index(name)
            style = {"color": _INKS[i % len(_INKS)], "linestyle": lines[(i // 2) % 4]}
            axis.plot(false, true, linewidth=1.8, label=f"{name}  {area:.2f}", **style)
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
        axis.set(title=kind, xlim=(0, 1), ylim=(0, 1), xlabel="clean flagged", aspect="equal")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    axes[0, 0].set_ylabel("noisy flagged")
    return figure


def cost_panels(table: pd.DataFrame, panels: Mapping[str, str], limit: float | None = None) -> Figure:
    """Horizontal bars per method (the index of the table), a panel per measure, sorted by the first.

    Args:
        panels: column -> title.
        limit: a line at this value in every panel, such as 1 for what the plain loss costs.
    """
    table = table.sort_values(next(iter(panels)), ascending=False)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(2.2 + 2.4 * len(panels), 1.0 + 0.27 * len(table)), sharey=True, squeeze=False
    )
    for axis, (name, title), colour in zip(axes[0], panels.items(), COLOURS.values(), strict=False):
        bars = axis.barh(table.index, table[name], color=colour, height=0.7)
        axis.bar_label(bars, fmt="%.2g", padding=2, fontsize=8)
        if limit is not None:
            axis.axvline(limit, color="black", linestyle="--", linewidth=1)
        axis.set(xlim=(0, 1.18 * table[name].max()))
        axis.set_title(title, fontsize=9)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", labelsize=9)
    return figure
