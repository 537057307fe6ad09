"""One style for every figure. Functions take arrays or a DataFrame and return a matplotlib Figure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL.Image import Image

from cirkit.paths import atomic_path, results_dir

# Okabe and Ito's palette, told apart with any colour vision
COLOURS = {
    "blue": "#0072B2", "orange": "#E69F00", "green": "#009E73", "vermilion": "#D55E00",
    "purple": "#CC79A7", "sky": "#56B4E9", "yellow": "#F0E442", "grey": "#666666",
}  # fmt: skip
CLEAN, NOISY = COLOURS["blue"], COLOURS["vermilion"]


def set_style() -> None:
    """Make every following figure look like the study's others."""
    sns.set_theme(context="notebook", style="whitegrid", palette=list(COLOURS.values()))
    plt.rcParams |= {
        "figure.dpi": 110, "savefig.dpi": 160, "savefig.bbox": "tight", "axes.spines.top": False,
        "axes.spines.right": False, "axes.titlesize": "medium", "axes.titleweight": "bold", "grid.alpha": 0.5,
        "svg.hashsalt": "cirkit", "figure.constrained_layout.use": True,
    }  # fmt: skip


def save(figure: Figure, name: str, see: str, alt: str = "", folder: str | Path | None = None) -> Figure:
    """Write ``name.png`` and ``name.svg``, and one line on what to see for the figure index.

    Args:
        see: one sentence: what a reader should notice.
        alt: description for people who do not see the picture; ``see`` if empty.
        folder: ``<results>/study/figures`` by default.
    """
    folder = results_dir() / "study" / "figures" if folder is None else Path(folder)
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        with atomic_path(folder / f"{name}{suffix}") as path:
            figure.savefig(path, format=suffix[1:], metadata=metadata)
    with atomic_path(folder / f"{name}.json") as path:
        path.write_text(json.dumps({"see": see, "alt": alt or see}, indent=1) + "\n")
    return figure


def _blank(axis: plt.Axes) -> None:
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def triplet_grid(rows: Sequence[tuple[Image, str, Image]], titles: Sequence[str] | None = None) -> Figure:
    """Triplets one a row: reference picture, modification text, target picture."""
    figure, axes = plt.subplots(len(rows), 3, figsize=(7.2, 1.5 * len(rows)), width_ratios=(1, 2.2, 1), squeeze=False)
    for i, (reference, text, target) in enumerate(rows):
        for axis, image in ((axes[i, 0], reference), (axes[i, 2], target)):
            axis.imshow(image, interpolation="nearest")
        head = f"{titles[i]}\n" if titles else ""
        axes[i, 1].text(0.5, 0.5, f"{head}“{text}”", ha="center", va="center", wrap=True, fontsize=11)
        for axis in axes[i]:
            _blank(axis)
    for axis, title in zip(axes[0], ("reference", "modification text", "target"), strict=True):
        axis.set_title(title)
    return figure


def image_strip(
    rows: Sequence[Sequence[Image]], captions: Sequence[Sequence[str]], heads: Sequence[str],
    marks: Sequence[Sequence[bool]] | None = None,
) -> Figure:  # fmt: skip
    """Rows of pictures with a caption under each; ``marks`` frames a picture (the target among the hits, say)."""
    columns = max(map(len, rows))
    figure, axes = plt.subplots(len(rows), columns, figsize=(1.5 * columns, 1.95 * len(rows)), squeeze=False)
    for i, row in enumerate(rows):
        for j in range(columns):
            axis = axes[i, j]
            _blank(axis)
            if j >= len(row):
                axis.set_axis_off()
                continue
            axis.imshow(row[j], interpolation="nearest")
            axis.set_xlabel(captions[i][j], fontsize=8)
            if marks is not None and marks[i][j]:
                for spine in axis.spines.values():
                    spine.set(visible=True, color=COLOURS["green"], linewidth=3)
        # a title wider than its picture would push the columns apart; an empty one keeps the height
        axes[i, 0].set_title(" ", fontsize=9)
        head = axes[i, 0].text(0, 1.05, heads[i], transform=axes[i, 0].transAxes, fontsize=9, weight="bold")
        head.set_in_layout(False)
    return figure


def score_histograms(groups: Mapping[str, np.ndarray], xlabel: str, lines: Mapping[str, float] | None = None) -> Figure:
    """Densities of a score, one per group, with named vertical lines."""
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    edges = np.histogram_bin_edges(np.concatenate([np.asarray(v) for v in groups.values()]), 50)
    for (name, values), colour in zip(groups.items(), COLOURS.values(), strict=False):
        axis.hist(values, edges, density=True, alpha=0.55, label=f"{name} (n = {len(values):,})", color=colour)
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


def probe_bars(accuracy: Mapping[str, float], chance: Mapping[str, float], needed: float = 80.0) -> Figure:
    """Accuracy in percent per attribute beside chance and the accuracy needed."""
    figure, axis = plt.subplots(figsize=(6.4, 3.2))
    names = list(accuracy)
    bars = axis.bar(names, [accuracy[n] for n in names], color=COLOURS["blue"], label="probe, held-out images")
    axis.bar_label(bars, fmt="%.0f", padding=2)
    axis.bar(names, [chance[n] for n in names], color=COLOURS["grey"], label="most frequent value")
    axis.axhline(needed, color=COLOURS["vermilion"], linestyle="--", linewidth=1, label=f"needed: {needed:.0f}")
    axis.set(ylabel="accuracy (%)", ylim=(0, 112))
    axis.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
    return figure


def training_history(history: pd.DataFrame, recall: Sequence[str]) -> Figure:
    """Loss and validation recall over the epochs of one run; ``recall`` names the columns to draw."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2))
    left.plot(history.epoch, history.loss, marker="o", color=COLOURS["blue"])
    left.set(xlabel="epoch", ylabel="training loss", title="loss")
    for name, colour in zip(recall, COLOURS.values(), strict=False):
        values = history[["epoch", name]].dropna()
        right.plot(values.epoch, values[name], marker="o", label=name.replace("_", " "), color=colour)
    right.set(xlabel="epoch", ylabel="recall (%)", ylim=(0, 101), title="validation")
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(loc="lower right")
    return figure


def recall_by_rate(table: pd.DataFrame, metric: str = "R@1") -> Figure:
    """Recall against noise rate: a line per method and noise kind, intervals as bars, single seeds as dots.

    Args:
        table: tidy rows of one data set and split with method, noise_kind, noise_rate, metric, category, value, low,
            high and candidates (see :func:`cirkit.runs.tidy`).
    """
    figure, axis = plt.subplots(figsize=(6.4, 3.8))
    rows = table[(table.metric == metric) & (table.category == "mean")]
    lines = rows.groupby(["method", "noise_kind"], sort=False)
    for ((method, kind), part), colour in zip(lines, COLOURS.values(), strict=False):
        mean = part.groupby("noise_rate")[["value", "low", "high"]].mean()
        spread = [mean.value - mean.low, mean.high - mean.value]
        axis.errorbar(
            mean.index, mean.value, yerr=spread, marker="o", capsize=3, color=colour, label=f"{method}, {kind}"
        )
        axis.plot(part.noise_rate, part.value, ".", color=colour, alpha=0.5)
    chance = 100 * int(metric.split("@")[1]) / rows.candidates.mean()
    axis.axhline(chance, color=COLOURS["grey"], linestyle=":", label=f"chance ({chance:.2f})")
    axis.set(xlabel="share of training triplets selected as noise", ylabel=f"{metric} (%), {rows.split.iloc[0]}")
    axis.set(ylim=(0, 101))
    axis.legend()
    return figure


def triplet_pairs(
    clean: Sequence[tuple[Image, str, Image]], noisy: Sequence[tuple[Image, str, Image]], slots: Sequence[str]
) -> Figure:
    """Each row a triplet as it was (left) and as it is (right); the component named in ``slots`` is marked.

    Args:
        clean, noisy: (reference, text, target) a row.
        slots: "reference", "text" or "target" a row: what was exchanged.
    """
    parts = ("reference", "text", "target")
    figure, axes = plt.subplots(
        len(clean), 7, figsize=(9.6, 0.3 + 1.25 * len(clean)), width_ratios=(1, 1.4, 1, 0.3, 1, 1.4, 1),
        squeeze=False,
    )  # fmt: skip
    for axis in axes.flat:
        _blank(axis)
    for row, slot in enumerate(slots):
        for start, triplet in ((0, clean[row]), (4, noisy[row])):
            for axis, name, part in zip(axes[row, start : start + 3], parts, triplet, strict=True):
                wrong = start > 0 and name == slot
                if name == "text":
                    style = {"color": NOISY, "weight": "bold"} if wrong else {}
                    lines = textwrap.fill(f"“{part}”", 20)
                    axis.text(0.5, 0.5, lines, ha="center", va="center", fontsize=9, **style)
                    continue
                axis.imshow(part, interpolation="nearest")
                for spine in axis.spines.values():
                    spine.set(visible=wrong, color=NOISY, linewidth=3)
        axes[row, 3].text(0.5, 0.5, "→", ha="center", va="center", fontsize=18)
        axes[row, 0].set_ylabel(f"wrong {slot}", fontsize=9)
    for start, state in ((0, "clean"), (4, "noisy")):
        for axis, name in zip(axes[0, start : start + 3], parts, strict=True):
            axis.set_title(f"{state}:\n{name}" if name == "reference" else name, fontsize=10)
    return figure


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


def attribute_bars(table: pd.DataFrame, chance: Mapping[str, float]) -> Figure:
    """Agreement of the first hit with the target in percent, with intervals, beside chance.

    Args:
        table: columns attribute, value, low, high; if it has a column ``model``, one bar per model.
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    parts = list(table.groupby("model", sort=False)) if "model" in table else [("first hit", table)]
    width, names = 0.8 / len(parts), list(dict.fromkeys(table.attribute))
    for i, ((model, part), colour) in enumerate(zip(parts, COLOURS.values(), strict=False)):
        part = part.set_index("attribute").loc[names]
        x = np.arange(len(names)) + (i - (len(parts) - 1) / 2) * width
        spread = [part.value - part.low, part.high - part.value]
        bars = axis.bar(x, part.value, width, yerr=spread, capsize=2, color=colour, label=model)
        axis.bar_label(bars, fmt="%.0f", padding=2, fontsize=9)
    for i, name in enumerate(names):
        label = "chance" if i == 0 else None
        axis.hlines(chance[name], i - 0.45, i + 0.45, color="black", linestyle="--", linewidth=1.2, label=label)
    axis.set(ylabel="agrees with the target (%)", ylim=(0, 112), xticks=range(len(names)), xticklabels=names)
    axis.grid(False, axis="x")
    axis.legend(ncols=len(parts) + 1, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    return figure


def attention_maps(images: Sequence[Image], maps: Sequence[np.ndarray], heads: Sequence[str]) -> Figure:
    """A row per image: the picture, then one attention map [N,h,w] per query token laid over it."""
    figure, axes = plt.subplots(
        len(images), len(maps[0]) + 1, figsize=(1.7 * (len(maps[0]) + 1), 1.9 * len(images)), squeeze=False
    )
    for row, image, tokens, head in zip(axes, images, maps, heads, strict=True):
        for axis in row:
            _blank(axis)
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
        _blank(axis)
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
