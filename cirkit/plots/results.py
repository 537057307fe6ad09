"""What came out: probes, training, recall, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cirkit.plots.style import COLOURS
from cirkit.records import KEYS, at_defaults


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
    """Recall against noise rate: a line per setting, intervals as bars, single seeds as dots.

    Colour and dashes are the method, the marker is the kind of noise. Settings that differ in anything but the rate are
    never joined; the legend names whatever differs within a method.

    Args:
        table: tidy rows of one data set and split with the columns of :data:`cirkit.records.KEYS`, metric, category,
            value, low, high and candidates (see :func:`cirkit.records.tidy`).
    """
    figure, axis = plt.subplots(figsize=(8.4, 4.2))
    rows = table[(table.metric == metric) & (table.category == "mean")]
    keys = [key for key in KEYS if key not in ("dataset", "noise_rate")]
    # what tells a method's own lines apart; all its options only where those that are not defaults do not
    differs = rows.groupby("method")[keys].nunique().gt(1)
    differs["options"] &= ~differs["changed"]
    methods, kinds = list(dict.fromkeys(rows.method)), list(dict.fromkeys(rows.noise_kind))
    palette = list(COLOURS.values())
    for key, part in rows.groupby(keys, sort=False):
        values = dict(zip(keys, key, strict=True))
        number = methods.index(values["method"])
        colour, line = palette[number % len(palette)], ("-", "--", ":")[number // len(palette) % 3]
        marker = "osD^vP"[kinds.index(values["noise_kind"]) % 6]
        mean = part.groupby("noise_rate")[["value", "low", "high"]].mean()
        spread = [mean.value - mean.low, mean.high - mean.value]
        label = ", ".join([values["method"], *(str(values[key]) for key in keys if differs[key][values["method"]])])
        axis.errorbar(
            mean.index, mean.value, yerr=spread, marker=marker, linestyle=line, capsize=3, color=colour, label=label
        )
        axis.plot(part.noise_rate, part.value, ".", color=colour, alpha=0.5)
    chance = 100 * int(metric.split("@")[1]) / rows.candidates.mean()
    axis.axhline(chance, color=COLOURS["grey"], linestyle=":", label=f"chance ({chance:.2f})")
    axis.set(xlabel="share of training triplets selected as noise", ylabel=f"{metric} (%), {rows.split.iloc[0]}")
    axis.set(ylim=(0, 101))
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def recall_panels(
    table: pd.DataFrame, metric: str = "R@1", behind: Sequence[str] = ("infonce", "oracle-infonce")
) -> Figure:
    """Recall against noise rate, a panel a method: shuffled noise as a line, other kinds as points beside it.

    Points are hollow where a gate stood in front; the methods named in ``behind`` are grey lines in every panel.

    Args:
        table: as for :func:`recall_by_rate`; of a method's settings those without changed options and at its most
            frequent learning rate are drawn.
    """
    rows = at_defaults(table[(table.metric == metric) & (table.category == "mean")])
    mean = rows.groupby(["method", "gate", "noise_kind", "noise_rate"])[["value", "low", "high"]].mean()
    mean = mean.reset_index("noise_rate").sort_index()
    kinds = ["shuffle", *sorted(set(rows.noise_kind) - {"shuffle"})]
    look = {kind: {"color": c, "marker": m} for kind, c, m in zip(kinds, COLOURS.values(), "osD^vP", strict=False)}
    grey = {
        name: {"color": COLOURS["grey"], "linestyle": line} for name, line in zip(behind, ("-", "--"), strict=False)
    }
    methods = list(dict.fromkeys(rows.method))
    columns = min(5, len(methods))
    lines = -(-len(methods) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(max(1.9 * columns, 4.8), 0.6 + 2 * lines), sharex=True, sharey=True, squeeze=False
    )
    for axis, method in zip(axes.flat, methods, strict=False):
        for other, style in grey.items():
            if (key := (other, "none", "shuffle")) in mean.index:
                axis.plot(mean.loc[[key], "noise_rate"], mean.loc[[key], "value"], linewidth=1, **style)
        for (gate, kind), part in mean.loc[method].groupby(["gate", "noise_kind"]):
            beside = 0.03 * kinds.index(kind)
            spread = [part.value - part.low, part.high - part.value]
            axis.errorbar(
                part.noise_rate + beside, part.value, yerr=spread, capsize=2, markersize=5, **look[kind],
                linestyle="-" if kind == "shuffle" and gate == "none" else "none",
                markerfacecolor=look[kind]["color"] if gate == "none" else "white",
            )  # fmt: skip
        axis.set_title(method, fontsize=10)
        axis.set(ylim=(0, 100), xlim=(-0.05, 0.9), xticks=[0, 0.2, 0.5, 0.8])
    for axis in list(axes.flat)[len(methods) :]:
        axis.set_axis_off()
    signs = {kind: style | {"linestyle": "-" if kind == "shuffle" else "none"} for kind, style in look.items()}
    if (rows.gate != "none").any():
        signs["behind a gate"] = {"color": "black", "marker": "s", "markerfacecolor": "white", "linestyle": "none"}
    signs |= {name: style for name, style in grey.items() if (name, "none", "shuffle") in mean.index}
    handles = [plt.Line2D([], [], **style) for style in signs.values()]
    figure.legend(handles, list(signs), loc="outside upper center", ncols=3 if columns < 4 else 6, frameon=False)
    figure.supxlabel("share of training triplets selected as noise", fontsize=10)
    figure.supylabel(f"{metric} (%), {rows.split.iloc[0]}", fontsize=10)
    return figure


def recall_by_epochs(table: pd.DataFrame, metric: str = "R@1") -> Figure:
    """Recall on validation against the length of the training, a line per method; columns method, epochs, metric."""
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    for (method, part), colour in zip(table.groupby("method", sort=False), COLOURS.values(), strict=False):
        part = part.sort_values("epochs")
        axis.plot(part.epochs, part[metric], marker="o", color=colour, label=method)
    axis.set(xscale="log", xlabel="epochs, each with its own full schedule", ylabel=f"{metric} (%), validation")
    axis.set(ylim=(0, 101), xticks=sorted(table.epochs.unique()))
    axis.set_xticklabels(sorted(table.epochs.unique()))
    axis.minorticks_off()
    figure.legend(loc="outside right upper", frameon=False)
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
