"""One's own triplets: a folder of images and a CSV file with the columns reference, text, target.

``category`` and ``split`` may stand beside them, and any other column, which is carried along. Everything that cannot
be used is told in one sentence that names the file and the row, as a spreadsheet counts rows: the header is row 1.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from cirkit.data.annotations import DataError, file_bytes, first_ids, stored_name
from cirkit.data.picture_tree import PictureTree, check_pictures
from cirkit.data.triplets import TripletSet

NEEDED = ("reference", "text", "target")
OPTIONAL = ("category", "split")
FEWEST_ROWS = 20
SPLITS = ("train", "val")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_SHEETS = {b"PK\x03\x04": "an Excel or OpenDocument file", b"\xd0\xcf\x11\xe0": "an old Excel file"}
_ERRORS = ("#NAME?", "#REF!", "#VALUE!", "#N/A", "#DIV/0!", "#NULL!", "#NUM!")


@dataclass(frozen=True, eq=False)
class Table:
    """A CSV file of n triplets whose images are there.

    Attributes:
        path: the file. images: the folder.
        columns: column -> n strings as they stand in the file, in its order.
        references, targets: n image ids of `images`. texts: n texts without outer blanks.
        categories, splits: n strings; "all" and "" where the file does not say.
        separator, header: between the values of a row, and the first row, as they stand in the file.
    """

    path: Path
    images: PictureTree
    columns: dict[str, tuple[str, ...]] = field(repr=False)
    references: tuple[str, ...] = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)
    targets: tuple[str, ...] = field(repr=False)
    categories: tuple[str, ...] = field(repr=False)
    splits: tuple[str, ...] = field(repr=False)
    separator: str = ","
    header: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.references)

    @property
    def name(self) -> str:
        """The file's name without extension."""
        return self.path.stem

    @property
    def world(self) -> str:
        """Name of the embedded world that the table was written from, "" for anybody's own data."""
        return stored_name(self.path.parent) or ""

    def image_ids(self) -> tuple[str, ...]:
        """Every image of a triplet, sorted and distinct."""
        return tuple(sorted({*self.references, *self.targets}))

    def triplets(self) -> TripletSet:
        """All rows as training triplets, in order; the gallery of a category are the images of its rows."""
        galleries: dict[str, dict[str, None]] = {}
        for reference, target, category in zip(self.references, self.targets, self.categories, strict=True):
            galleries.setdefault(category, {}).update({reference: None, target: None})
        return TripletSet(
            name=self.name,
            split="train",
            references=self.references,
            captions=tuple((text,) for text in self.texts),
            targets=self.targets,
            categories=self.categories,
            galleries={category: tuple(sorted(images)) for category, images in galleries.items()},
        )


def sheet_row(row: int) -> int:
    """Row of a table, from 0, as a spreadsheet numbers it."""
    return row + 2


def read_table(
    path: str | Path, images: str | Path = "", keep_duplicates: bool = False, check: bool = True, progress: bool = True
) -> Table:
    """Read a CSV file of triplets and find its images.

    Separated by commas, semicolons or tabs, whichever makes the header; UTF-8 with or without a byte order mark. Image
    names are looked up by :meth:`PictureTree.find`.

    Args:
        images: the folder with the images, at any depth; "" for the one that the CSV file is in.
        keep_duplicates: let the same triplet stand in several rows; the noise report then flags the later ones.
        check: decode every image once.

    Raises:
        DataError: one sentence naming the file, and the row where there is one.
    """
    path = Path(path).expanduser()
    separator, header, columns = _columns(path, _text(path))
    count = len(columns["reference"])
    for name in NEEDED:
        _refuse(path, [row for row in range(count) if not columns[name][row].strip()], f"has a blank {name}")
        broken = [row for row in range(count) if columns[name][row].strip() in _ERRORS]
        _refuse(path, broken, f"has a spreadsheet error for its {name}; repair the formula and export again")
    if count < FEWEST_ROWS:
        raise DataError(
            f"{path} has {count} rows of triplets, too few to tell right from wrong: {FEWEST_ROWS} at least."
        )
    splits = tuple(value.strip() for value in columns.get("split", ("",) * count))
    strange = [row for row in range(count) if splits[row] not in ("", *SPLITS)]
    _refuse(path, strange, f"has a split other than {' or '.join(SPLITS)}, or nothing")
    tree = PictureTree(Path(images).expanduser() if str(images) else path.parent)
    references, targets = (_find(path, columns[name], name, tree) for name in ("reference", "target"))
    texts = tuple(text.strip() for text in columns["text"])
    if not keep_duplicates:
        _refuse_duplicates(path, list(zip(references, texts, targets, strict=True)))
    categories = tuple(value.strip() or "all" for value in columns.get("category", ("all",) * count))
    table = Table(path, tree, columns, references, texts, targets, categories, splits, separator, header)
    if check:
        check_images(table, progress)
    return table


def check_images(table: Table, progress: bool = True) -> None:
    """Decode every image of a table once.

    Raises:
        DataError: images that cannot be decoded; it names the first, and its row.
    """
    where: dict[str, str] = {}
    for row, pair in enumerate(zip(table.references, table.targets, strict=True)):
        for image in pair:
            where.setdefault(image, f"{table.path}, row {sheet_row(row)}")
    check_pictures(table.images, table.image_ids(), where, progress)


def _text(path: Path) -> str:
    content = file_bytes(path, f"; it should be a CSV file with {', '.join(NEEDED)}")
    for start, kind in _SHEETS.items():
        if content.startswith(start):
            raise DataError(f"{path} is {kind}, not CSV: save it from the spreadsheet as 'CSV UTF-8'.")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16 text, as 'Unicode text' of a spreadsheet: save it as 'CSV UTF-8'.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, row {row} is not UTF-8 text: save it from the spreadsheet as 'CSV UTF-8'.") from None


def _columns(path: Path, text: str) -> tuple[str, tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Separator, header as it stands in the file, and the columns; those without a name or a value are left out."""
    first, _, rest = text.partition("\n")
    if re.fullmatch(r"sep=.\r?", first):  # how spreadsheets are told the separator; they do not count it as a row
        text = rest
    separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    try:
        rows.extend(reader)
    except csv.Error as error:
        where = f"row {len(rows) + 1}, is not CSV separated by {_SEPARATORS[separator]}"
        raise DataError(f"{path}, {where}: {error}; is a quote left open?") from None
    while rows and not any(value.strip() for value in rows[-1]):
        rows.pop()
    if not rows:
        raise DataError(f"{path} is empty; its first row should be {','.join(NEEDED)}.")
    while len(rows[0]) > 1 and not any("".join(row[len(rows[0]) - 1 :]).strip() for row in rows):
        rows = [row[: len(rows[0]) - 1] for row in rows]
    names = [name.strip().lower() if name.strip().lower() in (*NEEDED, *OPTIONAL) else name for name in rows[0]]
    if lacking := [name for name in NEEDED if name not in names]:
        raise DataError(
            f"{path}, row 1 lacks the column {' and '.join(lacking)}; it has {first_ids(map(repr, names), 8)}, read as"
            f" separated by {_SEPARATORS[separator]}."
        )
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise DataError(f"{path}, row 1 names the column {twice[0]!r} more than once.")
    for number, row in enumerate(rows[1:], 2):
        if not any(value.strip() for value in row):
            raise DataError(f"{path}, row {number} is empty: delete it.")
        if len(row) != len(names):
            raise DataError(
                f"{path}, row {number} has {len(row)} values for {len(names)} columns; a text with"
                f" {_SEPARATORS[separator]} in it needs quotes around it."
            )
    return separator, tuple(rows[0]), {n: tuple(row[place] for row in rows[1:]) for place, n in enumerate(names)}


def _refuse(path: Path, rows: list[int], what: str) -> None:
    if rows:
        others = f" ({len(rows)} rows do: {first_ids(str(sheet_row(row)) for row in rows)})" if len(rows) > 1 else ""
        raise DataError(f"{path}, row {sheet_row(rows[0])} {what}{others}.")


def _find(path: Path, names: tuple[str, ...], column: str, tree: PictureTree) -> tuple[str, ...]:
    found: dict[str, str | None] = {}
    for row, name in enumerate(names):
        if name not in found:
            try:
                found[name] = tree.find(name)
            except DataError as error:
                raise DataError(f"{path}, row {sheet_row(row)}, {column}: {error}.") from None
    unknown = [row for row, name in enumerate(names) if found[name] is None]
    if unknown:
        what = f"names the {column} {names[unknown[0]]!r}, and there is no such image"
        _refuse(path, unknown, f"{what}: {tree.tried()}; say where the images are if this is not it")
    return tuple(found[name] for name in names)


def _refuse_duplicates(path: Path, rows: list[tuple[str, str, str]]) -> None:
    first: dict[tuple[str, str, str], int] = {}
    for row, triplet in enumerate(rows):
        if first.setdefault(triplet, row) != row:
            raise DataError(
                f"{path}, row {sheet_row(row)} is the same triplet as row {sheet_row(first[triplet])}"
                f" ({len(rows) - len(set(rows))} such rows): take it out, or let the report flag them with"
                " --keep-duplicates (in Python keep_duplicates=True)."
            )
