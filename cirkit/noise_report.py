"""The noise report on one's own table: what looks wrong and why, as pictures, a page and a CSV file.

``python -m cirkit report TRIPLETS.csv --images FOLDER`` writes them to a folder; notebook 13 walks through the same
steps. The input is never altered.
"""

from __future__ import annotations

import base64
import csv
import html
import io
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from cirkit.backbone import Backbone
from cirkit.data.annotations import DataError
from cirkit.data.images import open_rgb
from cirkit.data.table import Table, check_images, read_table
from cirkit.data.table_export import write_fashioniq
from cirkit.expectation import injected, precision_table, recall_table
from cirkit.features import build_store
from cirkit.paths import atomic_path, check_writable
from cirkit.presets import load_backbone
from cirkit.row_reasons import findings, found_counts, unflagged, worst_first
from cirkit.suspicion import Looks, Suspicion, check_reads

ADDED = ("score", "flag", "reason")
MOST_ROWS = 500  # on the page
BLIND = 1.25  # noise put in has to be flagged so many times as often as the table's own rows
_BLIND = (
    "THE FLAGS MEAN NOTHING. Noise that was put in is flagged hardly more often than the rows as they are: this"
    " backbone does not understand these pictures and texts, or nearly all rows are wrong. "
)
_SIDE = 112  # pixels of a picture on the page
ASSUMED = (
    "Recall was measured on noise that was put in; wrong rows of your own may be of other kinds, easier or harder to"
    " find. Precision depends on how many rows are wrong, which nobody knows: look through a random sample of the flags"
    " and see which column your table resembles. Right rows that ask for little, or for what the backbone cannot see,"
    " are flagged, too."
)


RECALLS = "Share of rows flagged, from 0 to 1"
PRECISIONS = "Precision to expect, from 0 to 1, by the share of wrong rows you assume"
LEGEND = (
    "evidence, boundary: by each of the models' two looks. any: by one of them or both, low and high its 95 % interval."
    " both: by both. at most: the largest share of wrong rows that so few flags allow. –: such a look or share is not"
    " possible here."
)


@dataclass(frozen=True, eq=False)
class NoiseReport:
    """Findings per row (`cirkit.row_reasons`), recall and precision to expect, and the looks they come from."""

    table: Table
    findings: pd.DataFrame
    recalls: pd.DataFrame
    precisions: pd.DataFrame
    own: Looks
    noise: dict[str, Looks | str]
    backbone: str

    def summary(self) -> str:
        """One paragraph: a warning if the flags mean nothing; how many rows, how many flagged, by whom."""
        flagged, n = int(self.findings.flag.sum()), len(self.findings)
        head = f"{self.table.path.name}: {flagged:,} of {n:,} rows are flagged ({flagged / n:.0%})"
        by = "; ".join(f"{row.rows:,} by {row.found_by}" for row in found_counts(self.findings).itertuples())
        return f"{_BLIND if self.blind else ''}{head}{': ' + by if by else ''}. Backbone {self.backbone}."

    @property
    def blind(self) -> bool:
        """Whether noise that was put in is flagged hardly more often than the rows as they are."""
        recalls = self.recalls.set_index("kind")["any"]
        return not recalls.drop("own table").max() > BLIND * recalls["own table"]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Title -> table, without the precision of flags that mean nothing."""
        return {RECALLS: self.recalls} | ({} if self.blind else {PRECISIONS: self.precisions})


def make_report(
    table: Table, backbone: str | Backbone = "small", device: str = "auto", epochs: int = 4, seed: int = 0,
    rate: float = 0.2, batch_size: int = 64, lr: float = 0.0, progress: bool = True,
) -> NoiseReport:  # fmt: skip
    """Look at every row of a table, and measure what the looks are worth on noise of known kinds.

    Args:
        backbone: a preset, hub id or folder, loaded to ``device``; or one that is loaded.
        epochs: of the short training (`cirkit.suspicion`); 0 leaves it out. rate: see `cirkit.expectation.injected`.

    Raises:
        ValueError, DataError: one sentence naming what is wrong, before any long work.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"the rate of noise to put in must lie above 0 and not above 1, got {rate}")
    check_columns(table)
    model = load_backbone(backbone, device) if isinstance(backbone, str) else backbone
    check_reads(model, table)
    store = build_store(model, table.images, table.image_ids(), progress=progress)
    suspicion = Suspicion(model, table, store, epochs, seed, batch_size, lr, progress)
    own = suspicion.own
    noise = injected(suspicion, rate, seed)
    recalls = recall_table(own, noise)
    name = model.config.name
    return NoiseReport(table, findings(table, own), recalls, precision_table(recalls), own, noise, name)


def check_columns(table: Table) -> None:
    """Raises DataError if the table has a column of a name that the report adds."""
    if taken := [name for name in ADDED if name in table.columns]:
        raise DataError(f"{table.path}, row 1 has a column {taken[0]!r} already: rename it, as the report adds one.")


def write_cleaned(table: Table, found: pd.DataFrame, path: str | Path) -> Path:
    """Write the table's rows and columns as they are, in their order, with score, flag (yes, no) and reason beside.

    UTF-8 with a byte order mark, by which spreadsheets know it, separated as the table is.

    Raises:
        DataError: the file is the input, or the input has such columns already.
    """
    path = Path(path)
    if path.resolve() == table.path.resolve():
        raise DataError(f"{path} is the table itself, which is never altered: name another file.")
    check_columns(table)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=table.separator, lineterminator="\n")
        writer.writerow([*(table.header or table.columns), *ADDED])
        for *values, score, flag, reason in zip(
            *table.columns.values(), found.score, found.flag, found.reason, strict=True
        ):
            writer.writerow([*values, f"{score:.4f}", "yes" if flag else "no", reason])
    return path


def write_page(report: NoiseReport, path: str | Path) -> Path:
    """Write the report as one HTML file with its pictures in it: flagged rows, worst first, at most `MOST_ROWS`."""
    worst = worst_first(report.findings)
    cells = []
    for row in worst.head(MOST_ROWS).itertuples():
        pictures = [_picture(report.table, image) for image in (row.reference, row.target)]
        why = "<br>".join(html.escape(part) for part in row.reason.split("; "))
        cells.append(
            f"<tr><td>{row.row}<td>{pictures[0]}<td>{html.escape(row.text)}<td>{pictures[1]}<td>{row.score:.2f}"
            f"<td>{why}"
        )
    left_out = len(worst) - len(cells)
    note = f"<p>{left_out:,} more are in the CSV file.</p>" if left_out else ""
    tables = "".join(
        f"<h2>{title}</h2>{frame.to_html(index=False, na_rep='–', float_format=lambda v: f'{v:.2f}', border=0)}"
        for title, frame in report.tables().items()
    )
    content = (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Noise report</title><style>"
        "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:68em;padding:0 1em}td,th{padding:.3em .8em;"
        "text-align:left;vertical-align:top;border-bottom:1px solid #ddd}table{border-collapse:collapse}"
        f"</style><h1>Noise report</h1><p>{html.escape(report.summary())}</p><p>{html.escape(ASSUMED)}</p>{tables}"
        f"<p>{html.escape(LEGEND)}</p>"
        f"<h2>Rows to look at, worst first</h2>{note}<table><tr><th>row<th>reference<th>text<th>target<th>score<th>why"
        f"{''.join(cells)}</table></html>\n"
    )
    with atomic_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return Path(path)


def write_report(report: NoiseReport, folder: str | Path) -> list[Path]:
    """Write report.html and cleaned.csv into a folder; returns both."""
    folder = Path(folder)
    return [
        write_page(report, folder / "report.html"),
        write_cleaned(report.table, report.findings, folder / "cleaned.csv"),
    ]


def report_command(options) -> int:
    """``python -m cirkit report``: everything is checked before any long work. Returns the exit code."""
    if options.seed < 0:
        raise ValueError(f"--seed must be 0 or more, got {options.seed}")
    folder = Path(options.out)
    for name, place in (("--out", folder), ("--layout", options.layout)):
        if place and Path(place).is_file():
            raise ValueError(f"{name} must name a folder, but {place} is a file")
        if place:
            check_writable(place)
    table = read_table(options.table, options.images or "", options.keep_duplicates, check=False)
    model = load_backbone(options.backbone, options.device)  # before all pictures are opened, in case it is not there
    check_images(table)
    report = make_report(table, model, epochs=options.epochs, seed=options.seed)
    written = write_report(report, folder)  # before anything is printed, which may be cut short
    parts = [
        f"{t}:\n{x.to_string(index=False, na_rep='–', float_format='{:.2f}'.format)}"
        for t, x in report.tables().items()
    ]
    print(report.summary(), *parts, LEGEND, ASSUMED, sep="\n\n")
    print(*(f"wrote {path}" for path in written), sep="\n")
    if options.layout:
        print(f"wrote {write_fashioniq(table, options.layout, unflagged(report.findings))}")
    return 0


def _picture(table: Table, image: str) -> str:
    """A small copy of an image as an HTML element that holds it."""
    picture = open_rgb(table.images.path(image))
    if max(picture.size) > _SIDE:
        picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img width='{_SIDE}' alt='{html.escape(image)}' src='data:image/jpeg;base64,{data}'>"
