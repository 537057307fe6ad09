"""Records of finished runs: read them, and put their metrics into one table whose rows carry what made them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cirkit.data.annotations import DataError

# what two rows must agree on before they are seeds of one setting
KEYS = [
    "dataset", "method", "variant", "changed", "options", "gate", "backbone", "noise_kind", "noise_rate",
    "caption_mode", "gallery_rule", "exclude_reference", "epochs", "batch_size", "accumulation", "lr",
    "mixed_precision", "comparable",
]  # fmt: skip
_FROM_PARAMETERS = (
    "method", "noise_kind", "noise_rate", "noise_seed", "seed", "caption_mode", "gallery_rule", "epochs", "batch_size",
    "mixed_precision",
)  # fmt: skip
_FROM_PROVENANCE = ("commit", "dirty", "threads", "accelerator")


def load_metrics(folder: str | Path) -> dict:
    """``metrics.json`` of a run folder, or a copy of one.

    Raises:
        ValueError: missing, unreadable or incomplete, naming the file.
    """
    path = Path(folder)
    path = path / "metrics.json" if path.is_dir() else path
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not record["metrics"] or not record["run_id"]:
            raise ValueError("it has no metrics")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a finished run's record: {error}") from None
    return record


def file_digest(path: Path) -> str:
    """16 hex digits of what a file holds; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def changed_files(folder: Path, record: dict, names: Sequence[str] | None = None) -> list[str]:
    """Those files of a finished run that are gone or no longer what its record says they were.

    Args:
        record: of :func:`load_metrics`; those older than digests say nothing of any file.
        names: the files to look at; None for all.
    """
    written = record.get("files", {})
    return [n for n, digest in written.items() if (names is None or n in names) and file_digest(folder / n) != digest]


def up_to_date(table: pd.DataFrame) -> pd.DataFrame:
    """A tidy table of an older version as this one writes it: what there was no choice of then stands at its default.

    That is the gate, accumulation, and options of methods that came later. Methods that are no longer there are left as
    they are.
    """
    from cirkit.methods import REGISTRY  # not above: plots read KEYS and shall not load torch for that

    for name, value in (("gate", "none"), ("accumulation", 1)):
        if name not in table:
            table = table.assign(**{name: value})
    if not {"method", "options"} <= set(table):
        return table
    now = {}
    for method, options in table[["method", "options"]].drop_duplicates().itertuples(index=False):
        own = _defaults(method) if method in REGISTRY else {}
        now[method, options] = json.dumps(own | json.loads(options), sort_keys=True)
    filled = [now[pair] for pair in zip(table.method, table.options, strict=True)]
    return table.assign(options=filled)


def at_defaults(rows: pd.DataFrame) -> pd.DataFrame:
    """Those rows of a tidy table whose methods have no changed options, and their most frequent epochs and learning
    rate."""
    rows = rows[rows.changed == "none"]
    for name in ("epochs", "lr"):
        rows = rows[rows[name] == rows.groupby("method")[name].transform(lambda values: values.mode().iloc[0])]
    return rows


def _defaults(method: str) -> dict:
    """Options of a method as it is, as JSON values, without the variant."""
    from cirkit.methods import method_config  # as above

    own = json.loads(json.dumps(dataclasses.asdict(method_config(method))))
    return {name: value for name, value in own.items() if name != "variant"}


def tidy(records: Sequence[str | Path]) -> pd.DataFrame:
    """Metrics of finished runs (their folders or records) as one table; every row carries what it was made with.

    A clean run is the same whichever kind of noise was not applied, and is trained once: each record names the kind
    it was asked for. ``options`` are all options of the method without the variant, as JSON; ``changed`` are those that
    are not the method's defaults. An option that came after a record was made stands at its default, which has to be
    what was computed before there was a choice. ``gate`` is "none", as for records older than gates, or the name of the
    evidence and, where it is not the default, the factor.

    Raises:
        DataError: two records of one setting and seed with different numbers.
    """
    # not above: plots read KEYS and shall not load torch for that
    from cirkit.gate import FACTOR

    frames, made = [], {}
    for record in records:
        run = load_metrics(record)
        made[run["run_id"]] = f"{record}, of {run['provenance'].get('time', 'an unknown time')}"
        frame = pd.DataFrame(run["metrics"])
        p, effective, origin = run["parameters"], run["effective"], run["provenance"]
        for name in _FROM_PARAMETERS:
            frame[name] = p[name]
        frame["accumulation"] = p.get("accumulation", 1)
        factor = p.get("gate_factor", FACTOR)
        frame["gate"] = (p.get("gate") or "none") + (f" {factor:g}" if p.get("gate") and factor != FACTOR else "")
        protocol, options = effective["protocols"][-1], dict(effective["method_config"])
        frame["dataset"], frame["exclude_reference"] = protocol["dataset"], protocol["exclude_reference"]
        frame["backbone"], frame["lr"] = effective["backbone"], effective["train_config"]["lr"]
        frame["variant"] = options.pop("variant")
        own = _defaults(p["method"])
        options = own | options
        other = [f"{k}={v:.4g}" if type(v) is float else f"{k}={v}" for k, v in options.items() if own.get(k) != v]
        frame["changed"] = ", ".join(sorted(other)) or "none"
        frame["options"] = json.dumps(options, sort_keys=True)
        frame["realised_rate"] = run["noise"]["realised"]
        frame["reported"] = frame.split == run["report_on"]
        frame["comparable"] = run["comparable"]
        frame["run_id"] = run["run_id"]
        frame["code"] = effective["code"]
        for name in _FROM_PROVENANCE:
            frame[name] = origin.get(name)
        frame["versions"] = json.dumps(origin["versions"])
        frames.append(frame)
    if not frames:
        return pd.DataFrame()
    table = pd.concat(frames, ignore_index=True)
    unique = [*KEYS, "noise_seed", "seed", "split", "category", "metric"]
    table = table.drop_duplicates([*unique, "value"], ignore_index=True)
    twice = table[table.duplicated(unique)]
    if len(twice):
        row, rivals = twice.iloc[0], sorted(table[table.duplicated(unique, keep=False)].run_id.unique())
        raise DataError(
            f"two records disagree about {row.method} on {row.dataset} with {row.noise_kind} {row.noise_rate:g}, seed"
            f" {row.seed} ({'; '.join(made[i] for i in rivals[:2])}); remove the older one."
        )
    return table
