"""Similarities and what makes them: histograms, matrices, tokens, attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL.Image import Image

from cirkit.plots.style import COLOURS, NOISY, blank


def score_histograms(groups: Mapping[str, np.ndarray], xlabel: str, lines: Mapping[str, float] | None = None) -> Figure:
    """Densities of a score, one per group, with named vertical lines."""
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    edges = np.histogram_bin_edges(np.concatenate([np.asarray(v) for v in groups.values()]), 50)
    for (name, values), colour in zip(groups.items(), COLOURS.values(), strict=False):
        style = {"density": True, "histtype": "stepfilled", "color": colour}
        axis.hist(values, edges, alpha=0.35, label=f"{name} (n = {len(values):,})", **style)
        axis.hist(values, edges, linewidth=1.2, **style | {"histtype": "step"})
    for name, value in (lines or {}).items():
        axis.axvline(value, color="black", linestyle="--", linewidth=1)
        axis.text(value, 0.98, f" {name}", transform=axis.get_xaxis_transform(), va="top", fontsize=9)
    axis.set(xlabel=xlabel, ylabel="density")
    axis.legend()
    return figure


def similarity_matrix(similarity: np.ndarray, title: str = "") -> Figure:
    """Heat map of s [query, target] with the diagonal, the true pairs, framed."""
    figure, axis = plt.subplots(figsize=(4.8, 4.2))
    sns.heatmap(similarity, ax=axis, cmap="viridis", square=True, cbar_kws={"label": "similarity"})
    for i in range(min(similarity.shape)):
        axis.add_patch(plt.Rectangle((i, i), 1, 1, fill=False, edgecolor="white", linewidth=1.2))
    axis.set(xlabel="target j", ylabel="query i", title=title)
    return figure


def similarity_pair(before: np.ndarray, after: np.ndarray) -> Figure:
    """Two heat maps of s [query, target] on one scale, before and after training; true pairs framed."""
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.9))
    scale = {"vmin": min(before.min(), after.min()), "vmax": max(before.max(), after.max())}
    panels = ((before, "before training"), (after, "after training"))
    for axis, (similarity, title) in zip(axes, panels, strict=True):
        last = axis is axes[-1]
        sns.heatmap(
            similarity, ax=axis, cmap="viridis", square=True, xticklabels=False, yticklabels=False, cbar=last,
            cbar_kws={"label": "similarity", "shrink": 0.8} if last else None, **scale,
        )  # fmt: skip
        for i in range(min(similarity.shape)):
            axis.add_patch(plt.Rectangle((i, i), 1, 1, fill=False, edgecolor="white", linewidth=0.8))
        axis.set(xlabel="target j", ylabel="query i", title=title)
    return figure


def attention_maps(images: Sequence[Image], maps: Sequence[np.ndarray], heads: Sequence[str]) -> Figure:
    """A row per image: the picture, then one attention map [N,h,w] per query token laid over it."""
    figure, axes = plt.subplots(
        len(images), len(maps[0]) + 1, figsize=(1.7 * (len(maps[0]) + 1), 1.9 * len(images)), squeeze=False
    )
    for row, image, tokens, head in zip(axes, images, maps, heads, strict=True):
        for axis in row:
            blank(axis)
            axis.imshow(image, interpolation="nearest")
        row[0].set_xlabel(head, fontsize=9)
        box = (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
        for n, (axis, weights) in enumerate(zip(row[1:], tokens, strict=True)):
            axis.imshow(weights, cmap="magma", alpha=0.65, extent=box, interpolation="bilinear", vmin=0)
            axis.set_xlabel(f"token {n}, at most {weights.max():.0%}", fontsize=9)
    return figure


def token_scores(scores: np.ndarray, images: Sequence[Image], names: Sequence[str], wins: np.ndarray) -> Figure:
    """Scores [G,N] of each image's tokens, best token framed, under the pictures; shares [N] of wins beside."""
    figure = plt.figure(figsize=(9.4, 3.9))
    grid = figure.add_gridspec(2, len(images) + 3, height_ratios=(1, 1.2))
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        axis = figure.add_subplot(grid[0, i])
        blank(axis)
        axis.imshow(image, interpolation="nearest")
        axis.set_title(name, fontsize=9)
    heat = figure.add_subplot(grid[1, : len(images)])
    sns.heatmap(scores.T, ax=heat, annot=True, fmt=".2f", cmap="viridis", cbar=False, annot_kws={"fontsize": 9})
    for i, n in enumerate(scores.argmax(axis=1)):
        heat.add_patch(plt.Rectangle((i, n), 1, 1, fill=False, edgecolor=NOISY, linewidth=2.5))
    heat.set(ylabel="token", xticks=[])
    bars = figure.add_subplot(grid[:, len(images) :])
    shown = bars.barh(range(len(wins)), 100 * wins, color=COLOURS["blue"])
    bars.bar_label(shown, fmt="%.0f", padding=2, fontsize=9)
    bars.set(yticks=range(len(wins)), xlabel="wins for the target (%)", xlim=(0, 112))
    bars.invert_yaxis()
    bars.grid(False, axis="y")
    return figure


def cone_histograms(
    stages: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], levels: Mapping[str, float] | None = None
) -> Figure:
    """The cone: a row per stage of training, a 2-D histogram per group of triplets, all with the same axes and bins.

    The dashed line is x = y: above it, the text brings the query closer to the target than the reference alone is.

    Args:
        stages: name -> group -> (x, y), each [n]: x = s(ref, tar), how alike the two images are without the text;
            y = s(composed, tar), how well the composed query meets the target.
        levels: stage -> a level of y to draw as a dotted line, such as the noise boundary.
    """
    columns = max(map(len, stages.values()))
    figure, axes = plt.subplots(
        len(stages), columns, figsize=(1.2 + 2.4 * columns, 0.8 + 2.2 * len(stages)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    pairs = [pair for groups in stages.values() for pair in groups.values()]
    edges = []
    for i in (0, 1):
        values = np.concatenate([np.asarray(pair[i]) for pair in pairs])
        edges.append(np.linspace(values.min() - 0.02, values.max() + 0.02, 41))
    low, high = max(e[0] for e in edges), min(e[-1] for e in edges)
    for axis, name in zip(axes[0], next(iter(stages.values())), strict=False):
        axis.set_title(f"{name} (n = {len(next(iter(stages.values()))[name][0]):,})", fontsize=10)
    for row, (stage, groups) in zip(axes, stages.items(), strict=True):
        for axis, (x, y) in zip(row, groups.values(), strict=False):
            counts = np.histogram2d(x, y, bins=edges)[0].T
            shares = np.ma.masked_equal(100 * counts / max(len(x), 1), 0)
            image = axis.pcolormesh(*edges, shares, cmap="viridis", norm="log", vmin=0.02, vmax=5, rasterized=True)
            axis.plot([low, high], [low, high], color=NOISY, linewidth=1, linestyle="--")
            if stage in (levels or {}):
                axis.axhline(levels[stage], color="black", linewidth=1.2, linestyle=":")
        row[0].set_ylabel(f"{stage}\ns(composed, tar)", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("s(ref, tar)", fontsize=9)
    figure.colorbar(image, ax=axes, label="triplets of the group (%)", extend="both", shrink=0.5, aspect=30)
    return figure


def lines_by_epoch(table: pd.DataFrame, ylabel: str, chance: float | None = None) -> Figure:
    """A line per column over the epochs (the index); ``chance`` draws the level of a score that knows nothing."""
    figure, axis = plt.subplots(figsize=(6.8, 3.4))
    for name, colour, marker in zip(table.columns, COLOURS.values(), "osD^vPX*", strict=False):
        axis.plot(table.index, table[name], marker=marker, color=colour, label=name)
    if chance is not None:
        axis.axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
    axis.set(xlabel="epoch", ylabel=ylabel)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def suppression_bars(table: pd.DataFrame) -> Figure:
    """How s_ii moves when the text is taken away or exchanged: a group of bars per kind of triplet.

    Args:
        table: columns kind, text ("blank", "exchanged"), change (mean of s_ii with that text minus s_ii), low, high.
    """
    figure, axis = plt.subplots(figsize=(6.8, 3.4))
    kinds, texts = list(dict.fromkeys(table.kind)), list(dict.fromkeys(table.text))
    width = 0.8 / len(texts)
    for j, (text, colour) in enumerate(zip(texts, COLOURS.values(), strict=False)):
        part = table[table.text == text].set_index("kind").loc[kinds]
        places = np.arange(len(kinds)) + (j - (len(texts) - 1) / 2) * width
        spread = [part.change - part.low, part.high - part.change]
        axis.bar(places, part.change, width, yerr=spread, color=colour, label=f"text {text}", capsize=3)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set(xticks=range(len(kinds)), xticklabels=kinds, ylabel="change of $s_{ii}$")
    axis.grid(False, axis="x")
    axis.legend()
    return figure
