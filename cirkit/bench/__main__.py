"""``python -m cirkit.bench``: every benchmark, printed; ``--reference`` also writes results/bench."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cirkit.bench import cost, mining, scoring, step, store
from cirkit.bench.timing import peak_memory, side_by_side
from cirkit.paths import atomic_path, project_root
from cirkit.provenance import provenance
from cirkit.scores import rank_targets

GROWTH = {"queries": 800, "tokens": 8, "dims": 64}
LARGEST = 123_403  # images of CIRCO's gallery


def steps(rounds: int, backbones: list[str]) -> pd.DataFrame:
    return pd.DataFrame([row for size in step.sizes() for row in step.measure(size, rounds)])


def evaluation(rounds: int, backbones: list[str]) -> pd.DataFrame:
    """Time and memory of both protocols, in blocks, by whole matrices, and by LAVIS's product."""
    table = []
    for name, size in scoring.SIZES.items():
        case = scoring.made(**size)
        works = {"blocks": partial(scoring.in_blocks, case), "matrices": partial(scoring.by_matrices, case)}
        seconds, found = side_by_side(works, min(rounds, 3))
        scoring.compare(found["blocks"], found["matrices"])
        few = case._replace(queries=case.queries[:2])
        lavis = side_by_side({"": partial(scoring.as_lavis, few)}, 3)[0][""] / 2 * size["queries"]
        bytes_held = {whole: peak_memory("evaluation", whole=whole, size=name) for whole in (False, True)}
        table.append({
            "protocol": name, "queries": size["queries"], "images": size["images"], "blocks, s": seconds["blocks"],
            "matrices, s": seconds["matrices"], "LAVIS's product, s": lavis,
            "faster than matrices": seconds["matrices"] / seconds["blocks"],
            "faster than LAVIS's product": lavis / seconds["blocks"],
            "blocks, MB": bytes_held[False] / 1e6, "matrices, MB": bytes_held[True] / 1e6,
            "of the memory": bytes_held[False] / bytes_held[True],
        })  # fmt: skip
    return pd.DataFrame(table)


def mines(rounds: int, backbones: list[str], queries: int = 1024, looped: int = 64) -> pd.DataFrame:
    """Milliseconds a query for QuRe's zones and one draw, from scores of a category and of a whole training set."""
    table = []
    for corpus in (6_000, 17_000):
        (scores, own), rng = mining.made_scores(queries, corpus), np.random.default_rng(0)
        few = scores[:looped], own[:looped]
        works: dict[str, Callable] = {
            name: partial(mining.looped, *few, order, rng) for name, order in mining.ORDERS.items()
        }
        works["cirkit"] = partial(mining.choose, scores, own, mining.RELEASED, 1, rng)
        seconds, found = side_by_side(works, rounds)
        for name in mining.ORDERS:
            assert [size for size, _ in found[name]] == mining.zone_sizes(*few)
        each = {name: 1e3 * value / (queries if name == "cirkit" else looped) for name, value in seconds.items()}
        best = min(each[name] for name in mining.ORDERS)
        row = {"corpus": corpus} | {f"{name}, ms a query": value for name, value in each.items()}
        table.append(row | {"times faster": best / each["cirkit"]})
    return pd.DataFrame(table)


def growth(rounds: int, backbones: list[str]) -> pd.DataFrame:
    """Seconds and memory beyond the features, as the gallery grows; 8 tokens of 64 numbers an image."""
    table = []
    for images in (7_713, 30_851, LARGEST):
        case = scoring.made(images=images, **GROWTH)
        works = {
            "evaluation": partial(rank_targets, case.queries, case.tokens, case.target),
            "mining": partial(mining.mined, case.queries, case.tokens, case.target),
        }
        seconds, _ = side_by_side(works, min(rounds, 3))
        held = {"evaluation": peak_memory("evaluation", whole=False, images=images, **GROWTH),
                "mining": peak_memory("mining", images=images, **GROWTH)}  # fmt: skip
        row = {"images": images, "queries": GROWTH["queries"], "features, MB": case.tokens.nbytes / 1e6}
        for name in works:
            row |= {f"{name}, s": seconds[name], f"{name}, MB": held[name] / 1e6}
        table.append(row)
    return pd.DataFrame(table)


def features(rounds: int, backbones: list[str]) -> pd.DataFrame:
    return pd.DataFrame(store.measure(rounds=rounds))


def costs(rounds: int, backbones: list[str]) -> pd.DataFrame:
    return pd.DataFrame([row for name in backbones for row in cost.measure(name, rounds=rounds)])


# file -> (what it holds, its table)
TABLES: dict[str, tuple[str, Callable[[int, list[str]], pd.DataFrame]]] = {
    "steps": (
        "A training step of ConeSep: features stored, Gaussian images kept encoded, keys and values shared, against the"
        " frozen tower in every step; `no pool` stores features only. Equal losses.",
        steps,
    ),
    "evaluation": (
        "Ranks of 32 tokens of 256 numbers an image, block by block, against matrices of all scores, sorted, and names"
        " compared; the time of LAVIS's product is that of two queries, scaled. Equal ranks.",
        evaluation,
    ),
    "mining": ("Zones of QuRe and one draw, against the released procedure query by query. Equal zones.", mines),
    "growth": ("Evaluation and mining as the gallery grows: memory beyond the features.", growth),
    "store": ("The feature store at the size of ViT-g's patch tokens.", features),
    "cost": ("What a step costs on a preset, counted, beside what `cirkit.sizing` predicts.", costs),
}


def report(tables: dict[str, pd.DataFrame]) -> str:
    """The tables as a page."""
    made = provenance()
    text = (
        f"# Benchmarks\n\n`make bench` on {made['machine']}, one thread, float32, torch {made['versions']['torch']}.\n"
    )
    for name, table in tables.items():
        shown = _rounded(table).to_markdown(index=False, disable_numparse=True)
        text += f"\n## {name}\n\n{TABLES[name][0]} [{name}.csv]({name}.csv)\n\n{shown}\n"
    return text


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    return table.map(lambda value: f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else
                     f"{value:,.0f}" if isinstance(value, float) else value)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES), help="these tables alone")
    parser.add_argument("--rounds", type=int, default=5, help="times that each work is done")
    parser.add_argument("--backbones", nargs="+", default=["tiny"], help="presets for the table of costs")
    parser.add_argument("--reference", action="store_true", help="write results/bench, the committed record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = {}
    for name in options.only:
        tables[name] = TABLES[name][1](options.rounds, options.backbones)
        print(f"{name}: {TABLES[name][0]}\n{_rounded(tables[name]).to_string(index=False)}\n", flush=True)
    if options.reference:
        write(tables, project_root() / "results" / "bench")


def write(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """The tables as CSV files and one page; of tables that were not measured now the page shows the ones there are."""
    for name, table in tables.items():
        with atomic_path(folder / f"{name}.csv") as path:
            table.to_csv(path, index=False)
    found = {name: pd.read_csv(folder / f"{name}.csv") for name in TABLES if (folder / f"{name}.csv").is_file()}
    with atomic_path(folder / "README.md") as path:
        path.write_text(report(found), encoding="utf-8")


if __name__ == "__main__":
    main()
