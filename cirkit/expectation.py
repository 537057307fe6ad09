"""What the flags are worth on one's own data: known noise is put into it, and the same models look at it.

The models of `cirkit.suspicion` stay as they are. Of each kind of noise a share of the rows is corrupted
(`cirkit.noise.corrupt`), and each corrupted row is judged by the model that was not trained on the row it came from.
The share that is flagged is the *recall* to expect of that kind. What precision follows depends on how much noise there
is, which nobody knows: it is shown for assumed shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from cirkit.noise import corrupt
from cirkit.row_reasons import flags_of
from cirkit.similarity import similarity_function
from cirkit.suspicion import Looks, Suspicion

KINDS = ("shuffle", "hard", "partial")
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)


def injected(
    suspicion: Suspicion, rate: float = 0.2, seed: int = 0, kinds: Sequence[str] = KINDS
) -> dict[str, Looks | str]:
    """Looks at the corrupted rows, kind -> those whose triplet really changed; or why a kind could not be made.

    Args:
        rate: share of the table's rows that each kind corrupts, on its own; rows are drawn by `seed`.
    """
    similarity = similarity_function(suspicion.backbone, suspicion.store)
    found: dict[str, Looks | str] = {}
    for kind in kinds:
        try:
            noisy = corrupt(suspicion.triplets, rate, kind, seed, similarity=similarity)
        except ValueError as error:  # too few texts of several clauses, a category of two images
            found[kind] = str(error)
            continue
        rows = np.flatnonzero(noisy.ledger.changed)
        found[kind] = suspicion.look(noisy.triplets.select(rows), rows) if len(rows) else "no row was changed"
    return found


def recall_table(own: Looks, noise: dict[str, Looks | str]) -> pd.DataFrame:
    """Share flagged by each look, of the table as it is and of the noise that was put into it.

    One row per kind, "own table" first: kind, n, evidence, boundary, any of both with its 95 % interval low and high
    (Wilson's), both, note (why a kind could not be made).
    """
    rows = []
    for kind, looks in {"own table": own, **noise}.items():
        if isinstance(looks, str):
            rows.append({"kind": kind, "n": 0, "note": looks})
            continue
        found = {name: depth > 0 for name, depth in looks.depths.items() if not np.isnan(depth).all()}
        flagged = flags_of(looks)
        # Wilson's, as a share of 1 among few rows is not certain
        interval = binomtest(int(flagged.sum()), len(flagged)).proportion_ci(method="wilson")
        shares = {name: float(flags.mean()) for name, flags in found.items()}
        if len(found) > 1:
            shares["both"] = float(np.logical_and.reduce(list(found.values())).mean())
        shares |= {"any": float(flagged.mean()), "low": interval.low, "high": interval.high}
        rows.append({"kind": kind, "n": len(looks.evidence), **shares, "note": ""})
    return pd.DataFrame(rows, columns=["kind", "n", "evidence", "boundary", "any", "low", "high", "both", "note"])


def precision_table(recalls: pd.DataFrame, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """Precision to expect of the flags, for rows that any look flags and for those that both do.

    If a share p of the table is wrong, in the way of one kind, then p times its recall R of all rows are rightly
    flagged; F of all rows are flagged; so p R / F of the flags are right. Columns: flags, kind, one per assumed share
    p; NaN where p R exceeds F, as with so much noise more rows would have been flagged than were; ``at most``, the
    largest share that the flags allow, F / R, beside sampling error.

    Args:
        recalls: of :func:`recall_table`.
    """
    table, rows = recalls.set_index("kind"), []
    for flags in ("any", "both"):
        flagged = table.loc["own table", flags]
        for kind, recall in table[flags].drop("own table").dropna().items():
            right = {f"{p:.0%}": p * recall / flagged if 0 < p * recall <= flagged else np.nan for p in shares}
            rows.append(
                {"flags": flags, "kind": kind, **right, "at most": min(flagged / recall, 1.0) if recall else np.nan}
            )
    return pd.DataFrame(rows, columns=["flags", "kind", *(f"{p:.0%}" for p in shares), "at most"])
