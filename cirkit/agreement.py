"""This laboratory beside the papers: the same methods at the same noise rates, and whether both order them alike.

Published tables hold few methods and no seeds, so an agreement is given with what can be known of it: over all orders
of so few methods, how often chance agrees as well, and how far our own seeds and queries move it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from cirkit.data.annotations import DataError
from cirkit.rank_correlation import exact_p, kendall, spearman
from cirkit.records import KEYS

Rows = Mapping[str, Sequence[str]]
Pairs = Mapping[str, Sequence[tuple[str, str]]]
# method of a paper -> rows here, the first by default; ConeSep's are three readings of one paper
ROWS = {
    "SPRC": ("sprc",), "TME": ("tme",), "HABIT": ("habit",), "INTENT": ("intent",), "CLIP4CIR": ("clip4cir",),
    "QuRe": ("qure",), "DQE-CIR": ("dqe",), "ConeSep": ("conesep-adapted", "conesep-released", "conesep-paper"),
}  # fmt: skip
NOT_BUILT = ("SSN", "CALA")  # in ConeSep's tables, with no row here
# our data set -> whose published numbers stand beside it; an embedded world has only the layout in common
BESIDE = {"garments": "FashionIQ", "fashioniq": "FashionIQ", "scenes": "CIRR", "cirr": "CIRR"}
# (our metric, published one): in the papers R@1 of FashionIQ does not exist, here R@10 is nearly full on clean data
PAIRS = {
    "FashionIQ": (("R@1", "Average R@10"), ("R@10", "Average R@10")),
    "CIRR": (("R@1", "R@1"), ("R@5", "R@5"), ("Rs@1", "Rsub@1")),
}
# comparisons within one table only: other tables may have other backbones. DQE-CIR quotes QuRe's own numbers.
TABLES = {
    "ConeSep": ("ConeSep repository",),
    "QuRe and DQE-CIR": ("summary of QuRe", "summary of DQE-CIR"),
}


def laboratory(table: pd.DataFrame, kind: str = "shuffle") -> pd.DataFrame:
    """The rows that stand beside a paper's: means over categories of the reported split, one setting a method.

    Options are the method's defaults, without a gate; of learning rates, protocols and budgets the one with most runs
    counts.

    Args:
        table: tidy metrics (:func:`cirkit.records.tidy`).
        kind: of noise; the papers' is shuffle.
    """
    plain = (table.changed == "none") & (table.gate == "none")
    rows = table[table.reported & (table.category == "mean") & (table.noise_kind == kind) & plain]
    rest = [key for key in KEYS if key not in ("dataset", "method", "noise_kind", "noise_rate")]
    kept = []
    for _, part in rows.groupby(["dataset", "method"], sort=False):
        runs = part.drop_duplicates([*rest, "noise_rate", "noise_seed", "seed"]).groupby(rest, dropna=False).size()
        kept.append(part.set_index(rest).loc[[runs.idxmax()]].reset_index())
    return pd.concat(kept, ignore_index=True) if kept else rows


def published_tables(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of :func:`cirkit.published.load` that form one comparison, with its name (:data:`TABLES`) as ``table``."""
    parts = [table[table.source.str.startswith(sources)].assign(table=name) for name, sources in TABLES.items()]
    keys = ["table", "dataset", "noise", "method", "metric"]
    return pd.concat(parts, ignore_index=True).drop_duplicates(keys, ignore_index=True)


def beside(ours: pd.DataFrame, published: pd.DataFrame, rows: Rows = ROWS, pairs: Pairs = PAIRS) -> pd.DataFrame:
    """Ours and the published value for every published method, noise rate, and pair of metrics, ours NaN where missing.

    Args:
        ours: as of :func:`laboratory`.
        published: as of :func:`cirkit.published.load`, or its corrected form.
        rows: method of a paper -> names of our rows.
        pairs: published data set -> (our metric, published metric).

    Returns:
        table, dataset (ours), beside (the published one), noise, paper (the method), method (ours), metric,
        published_metric, published, value, low, high, seeds. ``low`` and ``high`` are our interval over queries.
    """
    found = []
    for dataset, name in BESIDE.items():
        here = ours[ours.dataset == dataset]
        there = published_tables(published).query("dataset == @name")
        for metric, other in pairs.get(name, ()) if len(here) else ():
            mean = here[here.metric == metric].groupby(["method", "noise_rate"])
            mean = mean.agg(
                value=("value", "mean"), low=("low", "mean"), high=("high", "mean"), seeds=("seed", "nunique")
            )
            for line in there[there.metric == other].itertuples():
                for method in rows.get(line.method, ()):
                    key = (method, line.noise)
                    own = mean.loc[key].to_dict() if key in mean.index else {"value": np.nan, "seeds": 0}
                    found.append(
                        {"table": line.table, "dataset": dataset, "beside": name, "noise": line.noise}
                        | {"paper": line.method, "method": method, "metric": metric, "published_metric": other}
                        | {"published": line.value, **own}
                    )
    columns = ["table", "dataset", "beside", "noise", "paper", "method", "metric", "published_metric", "published"]
    return pd.DataFrame(found, columns=[*columns, "value", "low", "high", "seeds"]).astype({"seeds": int})


def missing(joined: pd.DataFrame) -> pd.DataFrame:
    """Which published methods have no row here, and at which noise rates: one row per data set and method."""
    there = joined.groupby(["dataset", "paper", "method", "noise"], sort=False).value.count()
    gone = there[there == 0].reset_index()
    lines = gone.groupby(["dataset", "paper", "method"], sort=False).noise.agg(lambda x: " ".join(f"{r:g}" for r in x))
    return lines.rename("no row at rate").reset_index()


def draws(part: pd.DataFrame, n: int, rng: np.random.Generator) -> np.ndarray:
    """[n] means of one setting as other seeds and other queries could give them.

    Its seeds are drawn with replacement, and the error from queries is added as a normal deviate of the width of its
    own interval. Methods share their queries, so differences between two of them really move less than this says; few
    seeds on the other hand show less than all of their spread.
    """
    values = part.value.to_numpy()
    error = float((part.high - part.low).mean()) / (2 * 1.96)
    return values[rng.integers(len(values), size=(n, len(values)))].mean(axis=1) + error * rng.standard_normal(n)


def rank_agreement(
    ours: pd.DataFrame, published: pd.DataFrame, rows: Rows = ROWS, pairs: Pairs = PAIRS, n: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Do we order the methods as the papers do? Per published table, data set, metric, noise rate and row of ConeSep.

    Arguments are those of :func:`beside`; ``n`` resamples (:func:`draws`).

    Returns:
        ``methods`` (n of them, at least two) in the published order, best first; ``tau`` and ``rho``; ``tau_low``,
        ``tau_high``, ``rho_low`` and ``rho_high``, 95 % of what our seeds and queries allow, the published order being
        taken as it is; ``p_tau`` and ``p_rho`` (:func:`exact_p`); ``smallest_p``, what perfect agreement would give
        (2/n! without ties): where it is above 0.05, no agreement could be told from chance; ``seeds``, the fewest that
        a method has.
    """
    joined, found = beside(ours, published, rows, pairs).dropna(subset=["value"]), []
    for key, reading, part in _comparisons(joined):
        part = part.sort_values("published", ascending=False, kind="stable")
        if len(part) < 2:
            continue
        x, y = part.published.to_numpy(), part.value.to_numpy()
        drawn = _drawn(ours, part, n, seed)
        line = {**key, "conesep": reading, "methods": " > ".join(part.method), "n": len(part)}
        for name, statistic in (("tau", kendall), ("rho", spearman)):
            low, high = np.nanquantile(statistic(x, drawn), [0.025, 0.975])
            line |= {name: float(statistic(x, y)), f"{name}_low": low, f"{name}_high": high}
            line |= {f"p_{name}": exact_p(x, y, statistic)}
        found.append(line | {"smallest_p": exact_p(x, np.arange(len(x))[::-1]), "seeds": int(part.seeds.min())})
    return pd.DataFrame(found)


def places(
    ours: pd.DataFrame, published: pd.DataFrame, rows: Rows = ROWS, pairs: Pairs = PAIRS, n: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Published and own place (1 is best) of each method in the comparisons of :func:`rank_agreement`.

    Returns:
        The comparison's columns, paper, method, ``published_place``, ``place``, and ``low`` and ``high`` of our place
        over seeds and queries.
    """
    joined, found = beside(ours, published, rows, pairs).dropna(subset=["value"]), []
    for key, reading, part in _comparisons(joined):
        if len(part) < 2:
            continue
        drawn = _drawn(ours, part, n, seed)
        low, high = np.quantile(rankdata(-drawn, axis=1), [0.025, 0.975], axis=0)
        places_of = {name: rankdata(-part[c]) for name, c in (("published_place", "published"), ("place", "value"))}
        columns = {**key, "conesep": reading, **places_of, "low": low, "high": high}
        found.append(part[["paper", "method"]].assign(**columns))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def relative_drop(
    ours: pd.DataFrame, published: pd.DataFrame, rows: Rows = ROWS, pairs: Pairs = PAIRS, n: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """How much of its clean recall each method loses, in percent of it, here and in the papers.

    Returns:
        The columns of :func:`beside` with ``published`` and ``value`` as such shares, for rates above 0, and ``low``
        and ``high`` by :func:`draws` of both recalls. NaN where a row is missing, and where a model is no better than
        twice chance on clean data, since nothing is left to lose.
    """
    joined = beside(ours, published, rows, pairs)
    keys = ["table", "dataset", "paper", "method", "metric", "published_metric"]
    clean = joined[joined.noise == 0].set_index(keys)
    noisy = joined[joined.noise > 0].copy()
    for line in noisy.itertuples():
        start = clean.loc[tuple(getattr(line, key) for key in keys)]
        noisy.loc[line.Index, "published"] = 100 * (1 - line.published / start.published)
        low = high = value = np.nan
        if np.isfinite([start.value, line.value]).all() and start.value > 2 * _chance(ours, line):
            rng = np.random.default_rng(seed)
            first, then = (draws(_seeds(ours, line, rate), n, rng) for rate in (0.0, line.noise))
            value = 100 * (1 - line.value / start.value)
            low, high = np.quantile(100 * (1 - then / first), [0.025, 0.975])
        noisy.loc[line.Index, ["value", "low", "high"]] = value, low, high
    return noisy.reset_index(drop=True)


def _comparisons(joined: pd.DataFrame) -> Iterator[tuple[dict[str, object], str, pd.DataFrame]]:
    """Each set of methods that stand in one published column, once per row that a paper's method has here."""
    names = ["table", "dataset", "beside", "metric", "published_metric", "noise"]
    for key, part in joined.groupby(names, sort=False):
        alone = part[~part.duplicated("paper", keep=False)]
        several = part[part.duplicated("paper", keep=False)]
        if several.paper.nunique() > 1:
            raise DataError(f"only one method may have several rows; {', '.join(several.paper.unique())} have.")
        for method in list(several.method) or [None]:
            chosen = pd.concat([alone, several[several.method == method]]).sort_index()
            readings = chosen.method[chosen.paper == "ConeSep"].tolist()
            yield dict(zip(names, key, strict=True)), (readings or ["–"])[0], chosen


def _drawn(ours: pd.DataFrame, part: pd.DataFrame, n: int, seed: int) -> np.ndarray:
    """[n,m] draws of the m methods of a comparison."""
    rng = np.random.default_rng(seed)
    return np.stack([draws(_seeds(ours, line), n, rng) for line in part.itertuples()], axis=1)


def _seeds(ours: pd.DataFrame, line, rate: float | None = None) -> pd.DataFrame:
    rate = line.noise if rate is None else rate
    own = (ours.dataset == line.dataset) & (ours.method == line.method) & (ours.metric == line.metric)
    return ours[own & (ours.noise_rate == rate)]


def _chance(ours: pd.DataFrame, line) -> float:
    candidates = _seeds(ours, line, 0.0).candidates.mean()
    return 100 * int(line.metric.split("@")[1]) / candidates
