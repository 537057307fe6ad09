"""What is lost where something is left out, and curves over a method's numbers."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cirkit.plots.style import COLOURS


def difference_rows(table: pd.DataFrame, published: pd.DataFrame | None = None, metric: str = "R@1") -> Figure:
    """A line per row, its difference to the method as it is as a dot with interval, a colour per noise rate.

    Args:
        table: columns row, noise_rate, difference, low, high in points.
        published: columns row, source, difference in points; drawn as open marks, one shape a source.
        metric: named on the axis.
    """
    names = list(dict.fromkeys(table.row))
    figure, axis = plt.subplots(figsize=(8.2, 0.9 + 0.36 * len(names)))
    rates = sorted(table.noise_rate.unique())
    place = {name: len(names) - 1 - number for number, name in enumerate(names)}
    for number, (rate, colour) in enumerate(zip(rates, COLOURS.values(), strict=False)):
        part = table[table.noise_rate == rate]
        y = [place[name] + 0.14 * ((len(rates) - 1) / 2 - number) for name in part.row]
        spread = [part.difference - part.low, part.high - part.difference]
        axis.errorbar(
            part.difference, y, xerr=spread, fmt="o", color=colour, capsize=2, label=f"ours, noise rate {rate:g}"
        )
    if published is not None:
        published = published[published.row.isin(names)]
        for (source, part), marker in zip(published.groupby("source", sort=False), "DsP^", strict=False):
            axis.scatter(
                part.difference, [place[name] for name in part.row], marker=marker, facecolors="none",
                edgecolors="black", label=source, zorder=3,
            )  # fmt: skip
    axis.axvline(0, color=COLOURS["grey"], linewidth=1)
    axis.set(
        yticks=list(place.values()), yticklabels=list(place), xlabel=f"difference to the method as it is, {metric}"
    )
    axis.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def value_curves(table: pd.DataFrame, own: Mapping[str, float], metric: str = "R@1") -> Figure:
    """Recall against the value of one number at a time: a panel per number, a line per noise rate.

    Args:
        table: columns name, value, noise_rate and the metric; one line each.
        own: the method's own value of each name, marked by a vertical line.
    """
    names = list(dict.fromkeys(table.name))
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(2.6 * columns, 2.5 * lines), sharey=True, squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        part = table[table.name == name]
        values = sorted(part.value.unique())
        places = {value: number for number, value in enumerate(values)}
        for (rate, line), colour in zip(part.groupby("noise_rate"), COLOURS.values(), strict=False):
            line = line.groupby("value")[metric].mean()
            label = f"noise rate {rate:g}" if axis is axes.flat[0] else None
            axis.plot([places[value] for value in line.index], line, marker="o", color=colour, label=label)
        axis.axvline(places[own[name]], color=COLOURS["grey"], linestyle=":", linewidth=1.5)
        axis.set(title=name, xticks=range(len(values)), xticklabels=[f"{value:g}" for value in values])
        axis.set_ylim(0, max(5.0, 1.1 * float(np.nanmax(table[metric]))))
    for axis in axes[:, 0]:
        axis.set_ylabel(f"{metric} (%)")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
