"""Tables and the figure index, made from the records of runs.

``python -m cirkit.tables results/study`` writes the tables of a study and compares them with the committed ones;
``--publish`` makes a study the committed record: results/reference/, figures/ and the table in README.md.
"""

from __future__ import annotations

import argparse
import html
import json
import shutil
from pathlib import Path

import pandas as pd

from cirkit.data.triplets import DataError
from cirkit.paths import atomic_path, project_root, resolve
from cirkit.plots import recall_by_rate, save, set_style
from cirkit.runs import tidy

BEGIN, END = "<!-- results: written by make reference -->", "<!-- end of results -->"
KEYS = ["dataset", "method", "variant", "backbone", "noise_kind", "noise_rate"]


def collect(folder: Path) -> pd.DataFrame:
    """Tidy metrics of all records ``<folder>/runs/*.json``.

    Raises:
        DataError: no record there.
    """
    records = sorted((folder / "runs").glob("*.json"))
    if not records:
        raise DataError(f"{folder / 'runs'} holds no record of a finished run; `make study` makes some")
    return tidy(records)


def summarise(table: pd.DataFrame, metrics: tuple[str, ...] = ("R@1", "R@10", "top-1 all")) -> pd.DataFrame:
    """One row per setting, one column per metric: "value [low, high]" of the reported split, mean over seeds.

    Intervals come from resampling queries, averaged over the seeds; ``seeds`` says how many there are.
    """
    rows = table[table.reported & table.category.isin(["mean", "all"]) & table.metric.isin(metrics)]
    out = []
    for key, part in rows.groupby(KEYS, sort=True):
        row = dict(zip(KEYS, key, strict=True)) | {"seeds": part.seed.nunique(), "n": int(part.n.max())}
        for metric in metrics:
            m = part[part.metric == metric]
            row[metric] = f"{m.value.mean():.1f} [{m.low.mean():.1f}, {m.high.mean():.1f}]" if len(m) else "–"
        out.append(row)
    return pd.DataFrame(out)


def compare(table: pd.DataFrame, reference: pd.DataFrame, metric: str = "R@1") -> pd.DataFrame:
    """Obtained beside expected for every setting, noise seed and seed that both tables hold."""
    keys = [*KEYS, "noise_seed", "seed", "split", "category", "metric"]
    both = table.merge(reference, on=keys, suffixes=("", "_expected"))
    both = both[(both.metric == metric) & (both.category == "mean") & both.reported]
    both = both[[*keys, "value", "value_expected"]]
    return both.assign(difference=both.value - both.value_expected)


def write_tables(folder: Path) -> None:
    """``results.csv``, ``summary.md`` and, where a reference is committed, ``difference.csv`` in ``folder``."""
    table = collect(folder)
    summary = summarise(table)
    with atomic_path(folder / "results.csv") as path:
        table.to_csv(path, index=False, lineterminator="\n")
    with atomic_path(folder / "summary.md") as path:
        path.write_text(summary.to_markdown(index=False) + "\n")
    print(summary.to_string(index=False))
    if table.code.nunique() > 1:
        print("Note: these runs were made by different versions of the code; `make clean` starts afresh.")
    reference = project_root() / "results" / "reference" / "results.csv"
    if reference.is_file():
        difference = compare(table, pd.read_csv(reference))
        with atomic_path(folder / "difference.csv") as path:
            difference.to_csv(path, index=False, lineterminator="\n")
        print("\nR@1, test, obtained beside the committed reference:")
        for row in difference.itertuples():
            print(
                f"  {row.method:10s} {row.noise_kind} {row.noise_rate:<4g} seed {row.seed}: {row.value:6.2f}  "
                f"expected {row.value_expected:6.2f}  difference {row.difference:+.2f}"
            )
    set_style()
    figure = recall_by_rate(table[table.reported & (table.dataset == table.dataset.iloc[0])])
    save(
        figure,
        "07_recall_by_rate",
        see="How fast R@1 falls as more training triplets are wrong.",
        folder=folder / "figures",
    )
    write_index(folder / "figures")


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


def publish(folder: Path) -> None:
    """Make a study the committed record: tables, executed notebooks, figures, and the table in README.md."""
    root = project_root()
    reference = root / "results" / "reference"
    reference.mkdir(parents=True, exist_ok=True)
    summary = summarise(collect(folder))
    for source, target in ((folder / "notebooks", reference / "notebooks"), (folder / "figures", root / "figures")):
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
    for name in ("results.csv", "summary.md"):
        shutil.copy(folder / name, reference / name)
    readme = (root / "README.md").read_text()
    if BEGIN not in readme or END not in readme:
        raise DataError(f"README.md lacks the lines {BEGIN!r} and {END!r}, between which the table goes")
    head, rest = readme.split(BEGIN)
    tail = rest.split(END)[1]
    with atomic_path(root / "README.md") as path:
        path.write_text(f"{head}{BEGIN}\n\n{summary.to_markdown(index=False)}\n\n{END}{tail}")


def main(arguments: list[str] | None = None) -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.tables", description=__doc__)
    parser.add_argument("folder", help="a study: the folder with runs/, notebooks/ and figures/")
    parser.add_argument("--publish", action="store_true", help="make it the committed record")
    options = parser.parse_args(arguments)
    folder = resolve(options.folder)
    write_tables(folder)
    if options.publish:
        publish(folder)


if __name__ == "__main__":
    main()
