"""Figures of a state that a reader chooses with sliders (notebooks 03, 04 and 06)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cirkit.plots.style import CLEAN, COLOURS, NOISY
from cirkit.plots.transports import _short, _two_blocks

if TYPE_CHECKING:
    from cirkit.what_if import Draws, Flags


def flag_panels(
    clean: tuple[np.ndarray, np.ndarray],
    noisy: tuple[np.ndarray, np.ndarray],
    boundary: float,
    flags: Flags,
) -> Figure:
    """The cone of a mixture, what is flagged in it shaded, and the histogram of s_ii beside it.

    Args:
        clean, noisy: (x, y) of each group, [n] each, as in :func:`cirkit.plots.cone_histograms`.
        flags: of :func:`cirkit.what_if.flags_at`, whose rows are drawn.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.4), sharey=True, width_ratios=(1.25, 1))
    values = np.concatenate([clean[1], noisy[1]])
    edges = np.linspace(values.min() - 0.02, values.max() + 0.02, 51)
    groups = (("clean", clean, flags.clean, CLEAN, "o"), ("noisy", noisy, flags.noisy, NOISY, "^"))
    for name, (x, y), rows, colour, marker in groups:
        left.scatter(x[rows], y[rows], s=9, marker=marker, color=colour, alpha=0.35, linewidth=0, rasterized=True)
        style = {"bins": edges, "orientation": "horizontal", "color": colour}
        right.hist(y[rows], histtype="stepfilled", alpha=0.35, **style)
        line = "-" if name == "clean" else "--"
        right.hist(y[rows], histtype="step", linestyle=line, label=f"{name} (n = {len(rows):,})", **style)
    for axis in (left, right):
        axis.axhspan(edges[0], max(flags.cut, edges[0]), color=COLOURS["grey"], alpha=0.15, linewidth=0)
        axis.axhline(flags.cut, color="black", linewidth=1.4, label="flagged below")
        axis.axhline(boundary, color="black", linewidth=1.2, linestyle=":", label="boundary")
    # the same axes whatever the state, so that pictures can be compared
    x = np.concatenate([clean[0], noisy[0]])
    left.set(
        xlim=(x.min() - 0.02, x.max() + 0.02), ylim=edges[[0, -1]], xlabel="s(ref, tar)", ylabel="s(composed, tar)"
    )
    most = max(np.histogram(group[1], edges)[0].max() for group in (clean, noisy))
    right.set(xlabel="triplets", xlim=(0, 1.05 * most))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle(
        f"kept {_percent(flags.kept)}, of which noisy {_percent(flags.wrong)}; flagged: precision"
        f" {_percent(flags.precision)}, recall {_percent(flags.recall)}",
        fontsize=11,
    )
    return figure


def boundary_panel(clean: np.ndarray, noisy: np.ndarray, block: np.ndarray, draws: Draws) -> Figure:
    """The similarities s_ii [n] and [m] of a training set, the drawn Gaussian triplets below, and their boundary.

    Args:
        block: similarities [R,T,G] that were drawn from. draws: of :func:`cirkit.what_if.boundary_draws`.
    """
    count, pool, both = len(draws.similarity), float(block.mean()), np.concatenate([clean, noisy])
    low, high = min(both.min(), block.min()) - 0.02, max(both.max(), block.max()) + 0.02
    figure, (above, below) = plt.subplots(2, 1, figsize=(8.4, 4.2), sharex=True, height_ratios=(4, 1))
    edges = np.linspace(low, high, 81)
    for name, values, colour, line in (("clean", clean, CLEAN, "-"), ("noisy", noisy, NOISY, "--")):
        above.hist(values, edges, histtype="stepfilled", alpha=0.3, color=colour)
        label = f"{name}, {_share(values <= draws.boundary)} at or below it"
        above.hist(values, edges, histtype="step", linewidth=1.3, linestyle=line, color=colour, label=label)
    # a row of marks per query, so that one query's pairs are seen to lie together
    height = np.broadcast_to(((np.arange(count) + 0.5) / count)[:, None], draws.used.shape)
    style = {"marker": "|", "color": COLOURS["purple"], "linewidth": 1.2, "rasterized": True}
    below.scatter(draws.similarity[draws.used], height[draws.used], s=float(np.clip(800 / count, 12, 200)), **style)
    for axis in (above, below):
        axis.axvline(draws.boundary, color="black", linewidth=1.6, label="boundary of this draw")
        axis.axvline(pool, color="black", linewidth=1.2, linestyle=":", label="mean of the whole pool")
    above.set(ylabel="triplets", xlim=(low, high))
    above.legend(fontsize=9, loc="upper left")
    below.set(xlabel="similarity", ylabel="queries", yticks=[], ylim=(0, 1))
    between = (both > min(draws.boundary, pool)) & (both <= max(draws.boundary, pool))
    figure.suptitle(
        f"K = {count}, {draws.used.sum()} pairs: boundary {draws.boundary:.3f}; {_share(between)} of the triplets stand"
        " on another side than by the pool",
        fontsize=11,
    )
    return figure


def plan_panel(plan: np.ndarray, noisy: np.ndarray, opened: np.ndarray | None, reg: float) -> Figure:
    """A plan as an annotated map, where each row sends its mass at the right, and what each column receives above.

    Args:
        plan: [B,2B] in shares of a row's mass, of :func:`cirkit.what_if.plan_at`.
        noisy: bool [B]. opened: bool [B,2B] or None; closed entries are crossed. reg: only written.
    """
    size = len(noisy)
    figure, axes = plt.subplots(
        2, 2, figsize=(9.8, 1.9 + 0.36 * size), width_ratios=(3, 1), height_ratios=(1, 0.24 * size), sharex="col"
    )
    (above, corner), (map_, side) = axes
    corner.set_axis_off()
    marks = np.vectorize(_short)(plan)
    if opened is not None:
        marks = np.where(opened, marks, "×")
    _two_blocks(map_, "", plan, marks, [f"c{i}" for i in range(size)], "Blues", 1.0)
    for label, wrong in zip(map_.get_yticklabels(), noisy, strict=True):
        label.set(color=NOISY if wrong else "black", weight="bold" if wrong else "normal")
    own = {"own target": np.diag(plan[:, :size]), "own anchor": np.diag(plan[:, size:])}
    rows = own | {"elsewhere": plan.sum(axis=1) - sum(own.values())}
    _stacked(side, rows, ("blue", "orange", "grey"), "barh")
    side.set(xlabel="row sum", yticks=[], ylim=map_.get_ylim(), xlim=(0, 1.05))
    columns = {"from clean rows": plan[~noisy].sum(axis=0), "from noisy rows": plan[noisy].sum(axis=0)}
    _stacked(above, columns, ("sky", "vermilion"), "bar")
    above.set(ylabel="column sum", ylim=(0, 1.05 * max(1.0, plan.sum(axis=0).max())))
    above.axvline(size, color="black", linewidth=1.8)
    above.tick_params(axis="x", length=0, labelbottom=False)
    above.grid(False, axis="x")
    side.grid(False, axis="y")
    figure.legend(loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    anchors = plan[:, size:].sum(axis=1)
    figure.suptitle(
        f"mask {'off' if opened is None else 'on'}, ε = {reg:g}: mass on anchors, clean rows"
        f" {_share(anchors[~noisy])}, noisy rows {_share(anchors[noisy])}",
        fontsize=11,
    )
    return figure


def _stacked(axis: Axes, parts: dict[str, np.ndarray], colours: Sequence[str], draw: Literal["bar", "barh"]) -> None:
    """Stacked bars in the middle of a heat map's cells."""
    start = np.zeros(len(next(iter(parts.values()))))
    places = np.arange(len(start)) + 0.5
    for (name, values), colour in zip(parts.items(), colours, strict=True):
        base = {"bottom" if draw == "bar" else "left": start}
        getattr(axis, draw)(places, values, 0.75, color=COLOURS[colour], label=name, **base)
        start = start + values


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.0f} %"


def _share(values: np.ndarray) -> str:
    return _percent(float(np.mean(values)) if len(values) else float("nan"))
