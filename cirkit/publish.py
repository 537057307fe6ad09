"""Write what a study found: tables, figures and their index; and make a study the committed record.

``python -m cirkit.publish results/study`` writes the tables of a study and compares them with the committed ones;
``--reference`` makes a study the committed record: results/reference/, figures/ and the tables in README.md. ``--add``
joins its runs to that record instead, in the place of those with the same setting and seed; executed notebooks and
their figures stay as they are.
"""

from __future__ import annotations

import argparse
import html
import json
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from cirkit.data.annotations import DataError
from cirkit.joined import combine, joined_pairs
from cirkit.paths import atomic_path, project_root, resolve
from cirkit.plots import recall_by_epochs, recall_by_rate, recall_panels, save, set_style
from cirkit.tables import (
    at_a_glance,
    attribute_table,
    collect,
    compare,
    detection_table,
    every_seed,
    paired,
    reported,
    shown_keys,
    summarise,
)

BEGIN, END = "<!-- results: written by make reference -->", "<!-- end of results -->"
# of the figures that every training run draws, those of these runs are shown
SHOWN_RUNS = ("infonce-garments-clean", "infonce-garments-shuffle-0.5", "infonce-garments-hard-0.5")
# method that negatives are added to -> what its extended forms are compared with
DRAWN = {"infonce": "infonce+random", "conesep-adapted": "conesep-adapted"}
DRAWN_HERE = ("07_recall_by_rate", "08_budgets")  # figures of the tables, not of a notebook
PAIRS = ("qure", "dqe")  # one drawn negative and nothing of the batch
TABLES = (
    "results.csv", "summary.md", "seeds.md", "seeds_r10.md", "attributes.md", "paired.csv", "paired.md", "detection.md",
)  # fmt: skip


def write_tables(folder: Path, add: bool = False) -> pd.DataFrame:
    """The files named in ``TABLES``, the figures and, where a reference is committed, ``difference.csv``.

    Args:
        folder: a study, with its runs/.
        add: the tables are those of the committed record and the study together.

    Returns:
        The tidy metrics that the tables are of.
    """
    own = table = collect(folder)
    reference = project_root() / "results" / "reference" / "results.csv"
    if add:
        table = combine(_read_csv(reference), own).drop(columns="origin")
    summary = summarise(table)
    _write_csv(table, folder / "results.csv")
    shown = shown_keys(table)
    # ranks per query are with those who trained a run, so pairs of others are taken as they were committed
    differences = paired(table, shown=shown)
    if (table.method == "rcl").any():
        rest = table[~table.method.str.contains("infonce") & ~table.method.str.startswith("oracle")]
        differences = pd.concat([differences, paired(rest, "rcl", shown=shown)], ignore_index=True)
    # what the zone of a drawn negative adds, beyond one negative more or the split
    for plain, control in DRAWN.items():
        rest = table[table.method.str.startswith(f"{plain}+") | (table.method == control)]
        if (rest.method == control).any():
            differences = pd.concat([differences, paired(rest, control, shown=shown)], ignore_index=True)
    if add:
        differences = joined_pairs(differences, _read_csv(reference.with_name("paired.csv")))
    _write_csv(differences, folder / "paired.csv")
    means = differences[differences.seed == "mean"].drop(columns="seed") if len(differences) else differences
    places = dict.fromkeys(("difference", "low", "high", "sd"), 1)
    _write_markdown(means.round(places), folder / "paired.md")
    _write_markdown(summary, folder / "summary.md")
    _write_markdown(every_seed(table), folder / "seeds.md")
    _write_markdown(every_seed(table, "R@10"), folder / "seeds_r10.md")
    _write_markdown(attribute_table(table), folder / "attributes.md")
    _write_markdown(detection_table(table), folder / "detection.md")
    print(summary.to_string(index=False))
    if table.groupby("method").code.nunique().gt(1).any():
        print("Note: these runs were made by different versions of the code; `make clean` starts afresh.")
    if reference.is_file():
        _compare(own, reference, folder / "difference.csv")
    set_style()
    for dataset, part in table[table.reported].groupby("dataset", sort=False):
        name = "07_recall_by_rate" if dataset == "garments" else f"07_recall_by_rate_{dataset}"
        drawn = part.method.str.contains("+", regex=False)
        alone = part.method.isin([*DRAWN, *PAIRS])
        for suffix, rows, see in (
            ("", part[~drawn], "How fast R@1 falls as more training triplets are wrong."),
            (
                "_drawn",
                part[(drawn | alone) & drawn.any() & (part.noise_kind == "shuffle")],
                "One drawn negative a query, alone or beside the batch.",
            ),
        ):
            if len(rows):
                figure = recall_by_rate(rows) if suffix else recall_panels(rows)
                save(figure, name + suffix, see, folder=folder / "figures")
                plt.close(figure)
    budgets = reference.with_name("budgets.csv")
    if budgets.is_file():
        figure = recall_by_epochs(pd.read_csv(budgets))
        save(figure, "08_budgets", "What longer trainings of the pair objectives bring.", folder=folder / "figures")
        plt.close(figure)
    write_index(folder / "figures")
    return table


def _compare(table: pd.DataFrame, reference: Path, target: Path) -> None:
    try:
        difference = compare(table, _read_csv(reference))
    except DataError as error:
        print(f"Note: {error}")
        return
    _write_csv(difference, target)
    print("\nR@1 obtained beside the committed reference:")
    for row in difference.itertuples():
        print(
            f"  {row.dataset} {row.method:14s} {row.noise_kind} {row.noise_rate:<4g} seed {row.seed}:"
            f" {row.value:6.2f}  expected {row.value_expected:6.2f}  difference {row.difference:+.2f}"
        )
    if difference.empty:
        print("  none of these settings is in it")


def _read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"seeds": str})


def _write_csv(table: pd.DataFrame, target: Path) -> None:
    with atomic_path(target) as path:
        table.to_csv(path, index=False, lineterminator="\n")


def _write_markdown(table: pd.DataFrame, target: Path) -> None:
    with atomic_path(target) as path:
        path.write_text((table.to_markdown(index=False) if len(table) else "No such rows.") + "\n", encoding="utf-8")


def write_index(folder: Path) -> None:
    """``index.html``: every figure of a folder with one line on what to see."""
    cards = []
    for picture in sorted(folder.glob("*.png")):
        note = json.loads(picture.with_suffix(".json").read_text())
        cards.append(
            f'<figure><a href="{picture.stem}.svg"><img src="{picture.name}" alt="{html.escape(note["alt"])}"></a>'
            f"<figcaption><b>{html.escape(picture.stem)}</b> {html.escape(note['see'])}</figcaption></figure>"
        )
    if not cards:
        return
    style = (
        ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;"
        "padding:0 1rem}figure{margin:2rem 0}img{max-width:100%;height:auto;background:#fff}"
        "figcaption{margin-top:.5rem}"
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cirkit: figures</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head><body>'
        f"<h1>Figures</h1><p>Written by the notebooks; each with what to see.</p>{''.join(cards)}</body></html>\n"
    )
    with atomic_path(folder / "index.html") as path:
        path.write_text(page)


def publish(folder: Path, table: pd.DataFrame, add: bool = False) -> None:
    """Make a study the committed record: tables, executed notebooks, figures, and the table in README.md.

    Of notebook 07 only the executed copies of seed 0 are kept, and of its figures those of ``SHOWN_RUNS``; all others
    show the same page with other numbers, which stand in the tables.

    Args:
        table: of :func:`write_tables`.
        add: as there; tables and the figures drawn from them alone are then replaced.
    """
    root = project_root()
    reference = root / "results" / "reference"
    reference.mkdir(parents=True, exist_ok=True)
    readme = (root / "README.md").read_text(encoding="utf-8")
    if BEGIN not in readme or END not in readme:
        raise DataError(f"README.md lacks the lines {BEGIN!r} and {END!r}, between which the table goes")
    parts = []
    for dataset, gallery in reported(table, ("R@1",)).groupby("dataset").candidates.mean().items():
        cells = at_a_glance(table, dataset).to_markdown(index=False, disable_numparse=True)
        parts.append(f"R@1 on *{dataset}*, chance {100 / gallery:.2g}:\n\n{cells}")
    records = {f"07_training-{path.stem}.ipynb" for path in (folder / "runs").glob("*-seed0.json")}
    for source, target, wanted in (
        (folder / "notebooks", reference / "notebooks", lambda name: name in records),
        (folder / "figures", root / "figures", _shown),
    ):
        if source.is_dir():
            if not add:
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir()
            for path in sorted(source.iterdir()):
                if not path.is_file() or path.name.startswith("."):
                    continue
                if path.name.startswith(DRAWN_HERE) or not add and (path.name[:3] != "07_" or wanted(path.name)):
                    shutil.copyfile(path, target / path.name)
    write_index(root / "figures")
    for name in TABLES:
        shutil.copyfile(folder / name, reference / name)
    head, rest = readme.split(BEGIN)
    tail = rest.split(END)[1]
    with atomic_path(root / "README.md") as path:
        path.write_text("\n\n".join([f"{head}{BEGIN}", *parts, f"{END}{tail}"]), encoding="utf-8")


def _shown(name: str) -> bool:
    return name.startswith(DRAWN_HERE) or ("-s0." in name and any(f"_{run}-" in name for run in SHOWN_RUNS))


def main(arguments: list[str] | None = None) -> int:
    """Command line of this module; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.publish", description=__doc__)
    parser.add_argument("folder", help="a study: the folder with runs/, notebooks/ and figures/")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--reference", action="store_true", help="make it the committed record")
    how.add_argument("--add", action="store_true", help="join its runs to the committed record")
    options = parser.parse_args(arguments)
    folder = resolve(options.folder)
    try:
        table = write_tables(folder, options.add)
        if options.reference or options.add:
            publish(folder, table, options.add)
    except (ValueError, OSError) as error:
        print(f"cirkit: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
