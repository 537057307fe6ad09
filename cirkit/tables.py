"""Tables from the tidy metrics of many runs: means over seeds, every seed, paired differences, detection quality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from cirkit.bootstrap import paired_bootstrap
from cirkit.data.annotations import DataError
from cirkit.evaluation import recall_at
from cirkit.paths import results_dir
from cirkit.records import KEYS, at_defaults, changed_files, load_metrics, tidy, up_to_date

HEADLINE = ("R@1", "R@10", "R@50", "Rs@1", "top-1 all")
_SHOWN = ("dataset", "method", "noise_kind", "noise_rate")
_DETECTION = ("AUROC similarity", "AP similarity")
_GATE = ("AUROC evidence", "precision gate", "recall gate", "kept gate", "kept clean")


def collect(folder: Path) -> pd.DataFrame:
    """Tidy metrics of all records ``<folder>/runs/*.json``.

    Raises:
        DataError: no record there, or records that disagree.
    """
    records = sorted((folder / "runs").glob("*.json"))
    if not records:
        raise DataError(f"{folder / 'runs'} holds no record of a finished run; `make study` makes some")
    return tidy(records)


def shown_keys(table: pd.DataFrame) -> list[str]:
    """The keys of a setting that a reader needs: what always counts, and whatever differs within the table.

    All options of a method only where those that were asked for do not tell two settings apart.
    """
    told = table.groupby(["method", "variant", "changed"]).options.nunique().gt(1).any()
    return [key for key in KEYS if key in _SHOWN or (told if key == "options" else table[key].nunique() > 1)]


def reported(table: pd.DataFrame, metrics: tuple[str, ...]) -> pd.DataFrame:
    """Rows of the reported split, averaged over categories, for some metrics."""
    return table[table.reported & table.category.isin(["mean", "all"]) & table.metric.isin(metrics)]


def summarise(table: pd.DataFrame, metrics: tuple[str, ...] = HEADLINE) -> pd.DataFrame:
    """One row per setting, one column per metric: "value [low, high]" of the reported split, mean over seeds.

    Intervals come from resampling queries, averaged over the seeds, which are listed; ± is the standard deviation
    over seeds, where there are at least two.
    """
    rows, shown = reported(table, metrics), shown_keys(table)
    metrics = [metric for metric in metrics if (rows.metric == metric).any()]
    out = []
    for key, part in rows.groupby(KEYS, sort=True):
        row = {name: value for name, value in zip(KEYS, key, strict=True) if name in shown}
        row |= {"seeds": " ".join(map(str, sorted(part.seed.unique()))), "n": int(part.n.max())}
        ranked = part[part.metric.str.startswith("R@")]
        row |= {"gallery": round(ranked.candidates.mean())} if len(ranked) else {}
        for metric in metrics:
            m = part[part.metric == metric]
            spread = f" ±{m.value.std():.1f}" if len(m) > 1 else ""
            cell = f"{m.value.mean():.1f}{spread} [{m.low.mean():.1f}, {m.high.mean():.1f}]"
            row[metric] = cell if len(m) else "–"
        out.append(row)
    return pd.DataFrame(out)


def at_a_glance(table: pd.DataFrame, dataset: str, metric: str = "R@1") -> pd.DataFrame:
    """One row a method, one column a kind and rate of noise: mean over seeds, ± over seeds, and how many (if several).

    Methods with their default options and learning rate only; behind a gate they have a row of their own, below.
    """
    rows = reported(table, (metric,))
    rows = at_defaults(rows[rows.dataset == dataset])
    cells: dict[tuple[bool, str], dict[str, str]] = {}
    for (method, gate, kind, rate), part in rows.groupby(["method", "gate", "noise_kind", "noise_rate"], sort=True):
        several = f" ±{part.value.std():.1f} ({len(part)})" if len(part) > 1 else ""
        name = method if gate == "none" else f"{method}, gate {gate}"
        column = "clean" if rate == 0 else f"{kind} {rate:g}"
        cells.setdefault((gate != "none", name), {})[column] = f"{part.value.mean():.1f}{several}"
    columns = sorted({c for row in cells.values() for c in row}, key=lambda c: (c != "clean", "shuffle" not in c, c))
    lines = [{"method": key[1]} | {c: row.get(c, "–") for c in columns} for key, row in sorted(cells.items())]
    return pd.DataFrame(lines)


def attribute_table(table: pd.DataFrame) -> pd.DataFrame:
    """As :func:`summarise`, with the share of first hits that have the target's colour, sleeve, ... (worlds only)."""
    names = [name for name in dict.fromkeys(table.metric) if name.startswith("top-1 ")]
    parts = []
    for _, part in table.groupby("dataset", sort=True):
        own = tuple(name for name in names if (part.metric == name).any())
        parts += [summarise(part, own)] if own else []
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def every_seed(table: pd.DataFrame, metric: str = "R@1") -> pd.DataFrame:
    """One row per setting, one column per seed."""
    rows = reported(table, (metric,))
    shown = shown_keys(table) + (["noise_seed"] if rows.groupby("seed").noise_seed.nunique().gt(1).any() else [])
    wide = rows.pivot_table(index=shown, columns="seed", values="value")
    return wide.round(1).astype(object).where(wide.notna(), "").add_prefix("seed ").reset_index()


def detection_table(table: pd.DataFrame) -> pd.DataFrame:
    """AUROC and average precision of s_ii after training for every noise kind, mean over seeds; ± over seeds.

    ``chance`` is the share of noisy rows, which is what average precision is to be read against; AUROC has 0.5.

    Where runs have a gate, more columns follow: AUROC of the evidence before training, precision and recall of the rows
    dropped as noisy, and the share of all and of clean rows kept (:func:`cirkit.gate.gate_quality`); with a gate
    clean runs have a row too, for what they lose.
    """
    own = table.metric.isin([*_DETECTION, *_GATE[:3]]) & (table.category == table.noise_kind.replace("mixed", "all"))
    rows = table[own | (table.metric == "kept gate")]
    rows = rows.assign(metric=rows.metric.where(rows.category != "clean", "kept clean"))
    columns = [*_DETECTION, *(name for name in _GATE if (rows.metric == name).any())]
    out = []
    for key, part in rows.groupby(KEYS, sort=True):
        row = {name: value for name, value in zip(KEYS, key, strict=True) if name in shown_keys(table)}
        for metric in columns:
            m = part[part.metric == metric]
            spread = f" ±{m.value.std():.3f}" if len(m) > 1 else ""
            row[metric] = f"{m.value.mean():.3f}{spread}" if len(m) else "–"
        judged = part[part.metric.isin(_DETECTION)]
        chance = f"{(judged.n_noisy / judged.n).mean():.3f}" if len(judged) else "–"
        out.append(row | {"chance": chance, "seeds": part.seed.nunique()})
    return pd.DataFrame(out)


def compare(table: pd.DataFrame, reference: pd.DataFrame, metric: str = "R@1") -> pd.DataFrame:
    """Obtained beside expected for every setting, noise seed and seed that both tables hold.

    Raises:
        DataError: a reference whose rows do not say all that makes a setting, as those of an older version. Only the
            gate and options of methods are filled in (:func:`cirkit.records.up_to_date`).
    """
    reference = up_to_date(reference)
    keys = [*KEYS, "noise_seed", "seed", "split", "category", "metric"]
    if lacking := [key for key in keys if key not in reference]:
        raise DataError(f"the committed record is of an older version (no {', '.join(lacking)}); nothing is compared.")
    both = table.merge(reference, on=keys, suffixes=("", "_expected"))
    both = both[(both.metric == metric) & (both.category == "mean") & both.reported]
    both = both[[*keys, "value", "value_expected"]]
    return both.assign(difference=both.value - both.value_expected)


def paired(
    table: pd.DataFrame,
    baseline: str = "infonce",
    k: int = 1,
    runs: Path | None = None,
    shown: list[str] | None = None,
) -> pd.DataFrame:
    """Difference in R@k between each method and a baseline on the same queries, noise and seeds.

    Within a seed the queries' differences are resampled (95 % interval, macro average over categories). The row of
    seed "mean" does so with each query's mean over the seeds that both have, and ``sd`` is the standard deviation of
    the difference over these ``seeds``: the first says how far other queries could move it, the second how far other
    seeds could.

    Args:
        table: tidy metrics.
        baseline: a method, without a gate; where it comes with several learning rates, the one with most runs.
        runs: folder of the runs, with their ranks per query; ``<results>/runs`` by default. Runs without are left out.
        shown: the keys of a setting that become columns; those of :func:`shown_keys` by default.
    """
    runs = results_dir() / "runs" if runs is None else runs
    own = ["method", "variant", "changed", "options", "gate", "lr"]
    settings = [key for key in KEYS if key not in own]
    columns = [*own, *settings, "noise_seed", "seed", "run_id", "split"]
    rows = table[table.reported & (table.metric == f"R@{k}") & (table.category == "mean")][columns]
    hits = {(r.run_id, r.split): query_hits(runs / r.run_id / f"ranks_{r.split}.csv", k) for r in rows.itertuples()}
    rows = rows[[len(hits[r.run_id, r.split]) > 0 for r in rows.itertuples()]]
    base = rows[(rows.method == baseline) & (rows.gate == "none")]
    base = base[base.lr == base.lr.mode().max()] if len(base) else base
    both = rows.drop(index=base.index).merge(
        base, on=[*settings, "noise_seed", "seed", "split"], suffixes=("", "_baseline")
    )
    if both.duplicated([*own, *settings, "noise_seed", "seed", "split"]).any():
        raise DataError(f"there are several runs of {baseline} for one setting and seed; name one as the baseline.")
    out, shown = [], shown_keys(table) if shown is None else shown
    for key, part in both.groupby([*own, *settings], sort=True):
        named = {name: value for name, value in zip([*own, *settings], key, strict=True) if name in shown}
        seeds = " ".join(map(str, sorted(part.seed)))
        a, b = ([hits[i, s] for i, s in zip(part[c], part.split, strict=True)] for c in ("run_id", "run_id_baseline"))
        groups = a[0].index
        differences = []
        for seed, ours, theirs in zip(part.seed, a, b, strict=True):
            interval = paired_bootstrap(ours.to_numpy(), theirs.to_numpy(), groups)
            differences.append(interval.value)
            out.append(named | {"against": baseline, "seed": str(seed), **_cells(interval)})
        interval = paired_bootstrap(np.mean(a, axis=0), np.mean(b, axis=0), groups)
        sd = float(np.std(differences, ddof=1)) if len(differences) > 1 else np.nan
        out.append(named | {"against": baseline, "seed": "mean", **_cells(interval), "sd": sd, "seeds": seeds})
    return pd.DataFrame(out)


def _cells(interval) -> dict[str, float]:
    return {"difference": interval.value, "low": interval.low, "high": interval.high, "n": interval.n}


def query_hits(path: Path, k: int) -> pd.Series:
    """Recall at k of each query in percent, index category; empty where there is no such file.

    Raises:
        DataError: the file is not what the run beside it wrote.
    """
    if not path.is_file():
        return pd.Series(dtype=float)
    run = path.parent
    if (run / "metrics.json").is_file() and changed_files(run, load_metrics(run), [path.name]):
        raise DataError(f"{path} is not what its run wrote; delete {run} and train that run again")
    ranks = pd.read_csv(path, usecols=["category", "better", "tied"], keep_default_na=False)
    return pd.Series(100 * recall_at(ranks.better, ranks.tied, k), index=ranks.category)
