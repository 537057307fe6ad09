"""Flags and reasons, one row per triplet of a table, worst first: what each look found, in words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pandas as pd

from cirkit.data.table import Table, sheet_row
from cirkit.suspicion import Looks

ALIKE_QUANTILE = 0.9  # a pair of images is called alike if this share of the table's pairs is less so


def table_reasons(table: Table) -> list[list[str]]:
    """What the table says against each row, [n] lists: no model is asked.

    One picture (the same bytes) as reference and target; the same triplet as an earlier row, whatever its capitals and
    blanks; the same reference and text as other rows, with another target.
    """
    digest = {image: hashlib.sha256(table.images.path(image).read_bytes()).hexdigest() for image in table.image_ids()}
    texts = [" ".join(text.lower().split()) for text in table.texts]
    references, targets = ([digest[i] for i in column] for column in (table.references, table.targets))
    questions: dict[tuple[str, str], dict[str, int]] = {}
    for row, (reference, text, target) in enumerate(zip(references, texts, targets, strict=True)):
        questions.setdefault((reference, text), {}).setdefault(target, row)
    reasons: list[list[str]] = []
    for row, (reference, text, target) in enumerate(zip(references, texts, targets, strict=True)):
        found, answers = [], questions[reference, text]
        if reference == target:
            found.append("reference and target are one picture")
        if answers[target] != row:
            found.append(f"the same pictures and text as row {sheet_row(answers[target])}")
        if others := [sheet_row(first) for other, first in answers.items() if other != target]:
            found.append(f"the same reference and text as row {others[0]}, with another target")
        reasons.append(found)
    return reasons


def model_reasons(looks: Looks) -> list[list[str]]:
    """What the models say against each row, [n] lists; the numbers in the words are those of `looks`."""
    alike = np.quantile(looks.alike, ALIKE_QUANTILE)
    depths = looks.depths
    reasons: list[list[str]] = []
    for row, evidence in enumerate(looks.evidence):
        found = []
        if depths["evidence"][row] > 0:
            what = "the text fits the reference better" if evidence < 0 else "the text hardly speaks for the target"
            if looks.alike[row] > alike:
                what = f"the target looks like the reference, and {what}"
            found.append(f"{what} (evidence {evidence:.2f}, needs more than {looks.threshold:.2f})")
        if depths["boundary"][row] > 0:
            numbers = f"similarity {looks.similarity[row]:.2f}, boundary {looks.boundary[row]:.2f}"
            found.append(f"reference and text lead elsewhere ({numbers})")
        reasons.append(found)
    return reasons


def findings(table: Table, looks: Looks) -> pd.DataFrame:
    """One row per triplet of the table, in its order.

    Columns: row (as a spreadsheet counts), reference, text, target, score, flag, reason, found_by (names joined by
    " + " of evidence, boundary, table), evidence, alike, similarity, boundary. ``score`` is the sum of the depths below
    the thresholds, in spreads, each at least -1 (`Looks.depths`), so that what two looks suspect stands before what one
    does, plus 1 for each reason of the table itself. ``flag`` is true where any look found a reason.
    """
    depths, own = looks.depths, table_reasons(table)
    score = sum(np.nan_to_num(depth, nan=0.0).clip(min=-1) for depth in depths.values())
    score = score + np.array([len(reasons) for reasons in own])
    by = {name: depth > 0 for name, depth in depths.items()} | {"table": np.array([bool(r) for r in own])}
    reasons = [a + b for a, b in zip(own, model_reasons(looks), strict=True)]
    return pd.DataFrame(
        {
            "row": [sheet_row(row) for row in range(len(table))],
            "reference": table.references,
            "text": table.texts,
            "target": table.targets,
            "score": score,
            "flag": np.logical_or.reduce(list(by.values())),
            "reason": ["; ".join(found) for found in reasons],
            "found_by": [" + ".join(name for name in by if by[name][row]) for row in range(len(table))],
            "evidence": looks.evidence,
            "alike": looks.alike,
            "similarity": looks.similarity,
            "boundary": looks.boundary,
        }
    )


def worst_first(found: pd.DataFrame) -> pd.DataFrame:
    """The flagged rows, highest score first; of equal scores the first row of the file first."""
    return found[found.flag].sort_values(["score", "row"], ascending=[False, True], ignore_index=True)


def found_counts(found: pd.DataFrame) -> pd.DataFrame:
    """How many rows each look found, alone and with others: columns found_by, rows, share."""
    counts = found.loc[found.flag, "found_by"].value_counts(sort=True)
    return pd.DataFrame({"found_by": counts.index, "rows": counts.to_numpy(), "share": counts.to_numpy() / len(found)})


def flags_of(looks: Looks) -> np.ndarray:
    """Whether any of the models' looks flags a triplet, bool [n]."""
    return np.logical_or.reduce([depth > 0 for depth in looks.depths.values()])


def unflagged(found: pd.DataFrame, rows: Iterable[int] = ()) -> np.ndarray:
    """Rows to go on with, bool [n]: those not flagged, and those of these file rows that somebody found right."""
    return (~found.flag | found.row.isin(list(rows))).to_numpy()
