"""One style for every figure, and how a figure is kept."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from cirkit.paths import atomic_path, results_dir

# Okabe and Ito's palette, told apart with any colour vision
COLOURS = {
    "blue": "#0072B2", "orange": "#E69F00", "green": "#009E73", "vermilion": "#D55E00",
    "purple": "#CC79A7", "sky": "#56B4E9", "yellow": "#F0E442", "grey": "#666666",
}  # fmt: skip
CLEAN, NOISY = COLOURS["blue"], COLOURS["vermilion"]
# from the target's twin to what has nothing of what was asked
LEVELS = {
    "twin of the target": COLOURS["vermilion"],
    "all that was asked": COLOURS["orange"],
    "some of it": COLOURS["sky"],
    "nothing of it": COLOURS["grey"],
}


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


def blank(axis: plt.Axes) -> None:
    """An axis without ticks, grid and frame, for a picture."""
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
