"""What is in the data: counts, combinations, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cirkit.plots.style import COLOURS


def combination_map(
    grid: np.ndarray, names: Sequence[str], rows: Sequence[str], columns: Sequence[str], xlabel: str = "",
    ylabel: str = "",
) -> Figure:  # fmt: skip
    """Which group each combination belongs to, one cell a combination.

    Args:
        grid: [R, C] int, position in ``names``; -1 for cells that belong to none (left white).
        rows, columns: names of the outer attribute; R and C are multiples of their lengths.
    """
    colours = [COLOURS[name] for name in ("blue", "orange", "vermilion", "green", "purple")][: len(names)]
    figure, axis = plt.subplots(figsize=(9.0, 6.4))
    shown = np.ma.masked_less(grid, 0)
    colormap, top = ListedColormap(colours), len(names) - 0.5
    axis.pcolormesh(shown, cmap=colormap, vmin=-0.5, vmax=top, edgecolors="white", linewidth=0.6)
    for labels, size, set_ticks, line in (
        (rows, grid.shape[0], axis.set_yticks, axis.axhline),
        (columns, grid.shape[1], axis.set_xticks, axis.axvline),
    ):
        step = size // len(labels)
        set_ticks([(i + 0.5) * step for i in range(len(labels))], labels)
        for i in range(1, len(labels)):
            line(i * step, color="black", linewidth=0.8)
    axis.grid(False)
    axis.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, grid.shape[1]), ylim=(grid.shape[0], 0))
    counts = [int((grid == i).sum()) for i in range(len(names))]
    handles = [Patch(color=c, label=f"{n} ({k:,})") for c, n, k in zip(colours, names, counts, strict=True)]
    rest = f"in none ({int((grid < 0).sum()):,})"
    handles.append(Patch(facecolor="white", edgecolor="grey", label=rest))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def stacked_counts(table: pd.DataFrame, xlabel: str) -> Figure:
    """Horizontal bars, one per row of ``table``, made of the columns' counts; NaN where there is none."""
    figure, axis = plt.subplots(figsize=(7.6, 1.3 + 0.5 * len(table)))
    left = np.zeros(len(table))
    for name, colour in zip(table.columns, ("grey", "sky", "green", "purple"), strict=False):
        values = table[name].fillna(0.0).to_numpy()
        bars = axis.barh(table.index, values, left=left, color=COLOURS[colour], label=name, height=0.6)
        texts = [f"{value:,.0f}" if value > 0 else "" for value in values]
        ink = "white" if colour == "grey" else "black"
        axis.bar_label(bars, texts, label_type="center", fontsize=10, color=ink)
        left += values
    axis.set(xlabel=xlabel, xlim=(0, left.max()))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=len(table.columns), frameon=False)
    return figure


def text_statistics(lengths: Mapping[str, np.ndarray], words: pd.DataFrame) -> Figure:
    """Left: share of texts by their number of words; right: the most frequent words.

    Args:
        lengths: name -> [n] words per text.
        words: index word, one column per name: share of texts with the word, in percent.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 0.9 + 0.24 * max(len(words), 12)))
    longest = max(int(np.max(values)) for values in lengths.values())
    edges = np.arange(-0.5, min(longest, 40) + 1.5)
    for (name, values), colour in zip(lengths.items(), COLOURS.values(), strict=False):
        shares = np.full(len(values), 100 / max(len(values), 1))
        label = f"{name} (n = {len(values):,})"
        left.hist(np.minimum(values, 40), edges, weights=shares, alpha=0.55, color=colour, label=label)
    left.set(xlabel="words per text" + (" (40 stands for more)" if longest > 40 else ""), ylabel="texts (%)")
    left.margins(y=0.16)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(fontsize=9, loc="upper right")
    places, height = np.arange(len(words)), 0.8 / len(words.columns)
    for j, (name, colour) in enumerate(zip(words.columns, COLOURS.values(), strict=False)):
        right.barh(places + (j - (len(words.columns) - 1) / 2) * height, words[name], height, color=colour)
    right.set(yticks=places, yticklabels=words.index, xlabel="texts with the word (%)")
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    return figure


def count_matrix(table: pd.DataFrame, title: str = "") -> Figure:
    """Annotated heat map of counts, shading logarithmic, zeros left empty: ids shared by two lists, say."""
    figure, axis = plt.subplots(figsize=(1.6 + 0.78 * len(table.columns), 1.2 + 0.5 * len(table)))
    values = table.to_numpy(dtype=float)
    labels = np.where(values > 0, np.char.mod("%d", values), "")
    sns.heatmap(
        np.log10(values + 1), mask=values == 0, annot=labels, fmt="", cmap="crest", cbar=False, ax=axis,
        xticklabels=table.columns, yticklabels=table.index, linewidths=0.5, annot_kws={"fontsize": 9},
    )  # fmt: skip
    axis.grid(False)
    axis.tick_params(axis="x", rotation=45)
    axis.tick_params(axis="y", rotation=0)
    for spine in axis.spines.values():
        spine.set(visible=True, color=COLOURS["grey"])
    axis.set_title(title)
    return figure
