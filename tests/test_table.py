"""One's own CSV file: what is read, every bad input as one sentence, and the way into FashionIQ's layout and back."""

from __future__ import annotations

import csv
import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cirkit.data.annotations import DataError
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder, open_rgb
from cirkit.data.picture_tree import PictureTree
from cirkit.data.table import FEWEST_ROWS, read_table
from cirkit.data.table_export import held_out, write_fashioniq, write_world_table

HEADER = ["reference", "text", "target"]


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 7), (shade % 256, 40, 200)).save(path)


@pytest.fixture
def shop(tmp_path) -> Path:
    """A folder of 30 pictures in two folders, without a table."""
    for i in range(30):
        picture(tmp_path / "pictures" / ("shoes" if i % 3 else "bags") / f"{i:04d}.{'png' if i % 2 else 'jpg'}", 8 * i)
    return tmp_path


def rows(count: int = 24) -> list[list[str]]:
    return [[f"{i:04d}", f"is darker {i}, and new", f"{i + 5:04d}"] for i in range(count)]


def write(folder: Path, lines, header=HEADER, encoding="utf-8", delimiter=",") -> Path:
    path = folder / "katalog é.csv"
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *lines])
    return path


def refusal(path: Path, shop: Path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read_table(path, shop / "pictures", progress=False, **options)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_what_spreadsheets_write_is_read(shop, delimiter, encoding):
    header = ["Target", "price", " REFERENCE ", "text", "category", "split"]
    lines = [
        [c, "1,50", a, f" {b}\nsecond line ", "schuhe" if i % 2 else "", "train"] for i, (a, b, c) in enumerate(rows())
    ]
    table = read_table(write(shop, lines, header, encoding, delimiter), shop / "pictures", progress=False)
    assert len(table) == 24 and table.name == "katalog é" and table.world == ""
    assert table.references[:3] == ("bags/0000.jpg", "shoes/0001.png", "shoes/0002.jpg")
    assert table.targets[7] == "bags/0012.jpg" and table.texts[7] == "is darker 7, and new\nsecond line"
    assert table.categories[:2] == ("all", "schuhe") and set(table.splits) == {"train"}
    assert table.columns["price"] == ("1,50",) * 24 and table.columns["text"][7].startswith(" is")
    triplets = table.triplets()
    assert triplets.split == "train" and triplets.texts == table.texts
    used = {
        i
        for r, t, c in zip(table.references, table.targets, table.categories, strict=True)
        if c == "all"
        for i in (r, t)
    }
    assert set(triplets.galleries["all"]) == used


def test_habits_of_spreadsheets_are_no_rows_and_no_columns(shop):
    plain = read_table(write(shop, rows()), shop / "pictures", progress=False)
    wide = [[*row, "", " "] for row in rows()]
    path = write(shop, wide, [*HEADER, "", ""], delimiter=";")
    path.write_text("sep=;\r\n" + path.read_text(encoding="utf-8"), encoding="utf-8", newline="")
    table = read_table(path, shop / "pictures", progress=False)
    assert table.columns == plain.columns and table.separator == ";" and table.header == tuple(HEADER)
    wide[7][2] = "gone"
    path = write(shop, wide, [*HEADER, "", ""], delimiter=";")
    path.write_text("sep=;\n" + path.read_text(encoding="utf-8"), encoding="utf-8", newline="")
    assert "row 9" in refusal(path, shop)  # as the spreadsheet shows it


def test_letters_with_accents_are_equal_however_they_are_encoded(tmp_path):
    for form in ("NFC", "NFD"):
        picture(tmp_path / form / (unicodedata.normalize(form, "Tüll é") + ".png"))
        tree = PictureTree(tmp_path / form)
        assert {tree.find(unicodedata.normalize(other, "Tüll é")) for other in ("NFC", "NFD")} == set(tree.ids)


def test_images_are_named_in_four_ways(shop):
    tree = PictureTree(shop / "pictures")
    for name in ("shoes/0001.png", "shoes/0001", "0001.png", "0001", " shoes\\0001.png ", "./shoes/0001.png"):
        assert tree.find(name) == "shoes/0001.png", name
    assert tree.find("1") is None and tree.find("shoes") is None and tree.find("") is None
    picture(shop / "pictures" / "bags" / "0001.webp")
    picture(shop / "pictures" / ".hidden" / "0002.jpg")
    (shop / "pictures" / "shoes" / "._0004.jpg").write_bytes(b"left by a file manager")
    tree = PictureTree(shop / "pictures")
    assert len(tree.ids) == 31 and tree.find("0002") == "shoes/0002.jpg" and tree.find("0001.png") == "shoes/0001.png"
    with pytest.raises(DataError, match=r"'0001' is the name of 2 images \(bags/0001.webp, shoes/0001.png\)"):
        tree.find("0001")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[3].__setitem__(1, "  "), "row 5 has a blank text."),
        (lambda r: r[3].__setitem__(0, ""), "row 5 has a blank reference."),
        (lambda r: r[3].__setitem__(2, "#NAME?"), "row 5 has a spreadsheet error for its target"),
        (lambda r: r[3].__setitem__(2, "gone"), "row 5 names the target 'gone', and there is no such image: "),
        (lambda r: r[3].append("more"), "row 5 has 4 values for 3 columns; a text with commas in it needs quotes"),
        (lambda r: r[3].pop(), "row 5 has 2 values for 3 columns"),
        (lambda r: r.insert(9, list(r[3])), "row 11 is the same triplet as row 5 (1 such rows)"),
        (lambda r: r.__delitem__(slice(FEWEST_ROWS - 1, None)), f"has {FEWEST_ROWS - 1} rows of triplets, too few"),
        (lambda r: r.clear(), "has 0 rows of triplets"),
    ],
)
def test_a_bad_row_is_named_as_a_spreadsheet_counts(shop, change, message):
    lines = rows()
    change(lines)
    assert message in refusal(write(shop, lines), shop)


def test_several_bad_rows_are_counted(shop):
    lines = rows()
    for row in (2, 3, 9):
        lines[row][1] = ""
    assert "row 4 has a blank text (3 rows do: 4, 5, 11)." in refusal(write(shop, lines), shop)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            ["reference", "caption", "goal"],
            "row 1 lacks the column text and target; it has 'reference', 'caption', 'goal'",
        ),
        (["reference", "text", "Text"], "row 1 lacks the column target"),
        (["target", "reference", "text", "text"], "row 1 names the column 'text' more than once"),
    ],
)
def test_a_bad_header_is_named(shop, header, message):
    assert message in refusal(write(shop, rows(), header), shop)


def test_files_that_are_no_csv_are_told_by_what_they_are(shop):
    path = shop / "table.csv"
    for content, message in (
        (b"PK\x03\x04rest", "is an Excel or OpenDocument file, not CSV"),
        (b"\xd0\xcf\x11\xe0rest", "is an old Excel file"),
        ("reference\ttext".encode("utf-16"), "is UTF-16 text"),
        (b"reference,text,target\na,b,c\nd,caf\xe9,f\n", "row 3 is not UTF-8 text"),
        (b"\xef\xbb\xbf\n ,\n", "is empty"),
        (b"", "is empty"),
        (b'reference,text,target\na,"b"b,c\n', "row 2, is not CSV separated by commas"),
        (b'reference,text,target\na,b,c\na,"b,c\nd,e,f\n', "is a quote left open?"),
        (b"reference,text,target\na,b,c\n,,\nd,e,f\n", "row 3 is empty: delete it"),
    ):
        path.write_bytes(content)
        assert message in refusal(path, shop)
    assert "does not exist" in refusal(shop / "other.csv", shop)


def test_other_splits_a_missing_folder_and_a_damaged_picture_are_named(shop):
    lines = [[*row, "train" if i else "test"] for i, row in enumerate(rows())]
    path = write(shop, lines, [*HEADER, "split"])
    assert "row 2 has a split other than train or val" in refusal(path, shop)
    path = write(shop, rows())
    with pytest.raises(DataError, match="nowhere does not exist"):
        read_table(path, shop / "nowhere")
    broken = shop / "pictures" / "shoes" / "0007.png"
    broken.write_bytes(broken.read_bytes()[:-30])
    message = refusal(path, shop)
    assert "row 4: " in message and "0007.png is not a usable image" in message  # the target of the third triplet
    assert len(read_table(path, shop / "pictures", check=False)) == 24


def test_an_ambiguous_image_is_named_with_its_row(shop):
    picture(shop / "pictures" / "bags" / "0010.png")
    message = refusal(write(shop, rows()), shop)
    assert "row 12, reference: '0010' is the name of 2 images" in message


def test_duplicates_are_kept_on_request(shop):
    lines = [*rows(), rows()[3]]
    assert len(read_table(write(shop, lines), shop / "pictures", keep_duplicates=True, progress=False)) == 25


# --- into other forms -------------------------------------------------------------------------------------------------


def test_the_layout_of_fashioniq_reads_back(shop):
    lines = [[*row, "bag & shoe" if i % 4 else "hat", "val" if i % 6 == 5 else "train"] for i, row in enumerate(rows())]
    table = read_table(write(shop, lines, [*HEADER, "category", "split"]), shop / "pictures", progress=False)
    keep = np.ones(24, dtype=bool)
    keep[[1, 8, 11]] = False
    folder = write_fashioniq(table, shop / "out", keep)
    assert folder.parent == shop / "out" and write_fashioniq(table, shop / "out", keep) == folder
    assert write_fashioniq(table, shop / "out") != folder and len(list((shop / "out").iterdir())) == 2
    back = {split: load_fashioniq(folder, split) for split in ("train", "val")}
    expected = {
        split: {(table.references[i].replace("/", "__"), table.texts[i], table.targets[i].replace("/", "__"))
                for i in range(24) if keep[i] and table.splits[i] == split}
        for split in back
    }  # fmt: skip
    assert {split: {t[:3] for t in triplets} for split, triplets in back.items()} == expected
    assert sum(map(len, back.values())) == 21 and back["train"].name == "katalog é"
    assert set(back["val"].galleries) == {"bag_shoe", "hat"}
    images = ImageFolder(folder)
    assert not images.missing(back["train"].image_ids())
    mine = table.images.load("shoes/0011.png")
    assert images.load("shoes__0011.png").tobytes() == mine.tobytes()


def test_held_out_rows_follow_the_column_else_the_reference(shop):
    lines = [["0003", f"text {i}", f"{i + 5:04d}"] for i in range(12)] + rows(12)
    table = read_table(write(shop, lines), shop / "pictures", progress=False)
    val = held_out(table)
    assert len(set(val[:12].tolist())) == 1
    again = read_table(write(shop, lines[::-1]), shop / "pictures", progress=False)
    assert held_out(again).tolist() == val[::-1].tolist()
    named = [[*row, "val" if i % 5 else ""] for i, row in enumerate(rows())]
    table = read_table(write(shop, named, [*HEADER, "split"]), shop / "pictures", progress=False)
    assert held_out(table)[[i % 5 > 0 for i in range(24)]].all()


def test_what_the_layout_cannot_hold_is_refused(shop):
    lines = [[*row, "train"] for row in rows()]
    table = read_table(write(shop, lines, [*HEADER, "split"]), shop / "pictures", progress=False)
    with pytest.raises(DataError, match="no row is for val; name rows"):
        write_fashioniq(table, shop / "out")
    lines = [[*row, "a b" if i % 2 else "a&b", "val" if i % 3 else "train"] for i, row in enumerate(rows())]
    table = read_table(write(shop, lines, [*HEADER, "category", "split"]), shop / "pictures", progress=False)
    with pytest.raises(DataError, match="two categories get one name"):
        write_fashioniq(table, shop / "out")
    picture(shop / "pictures" / "shoes__0001.png")
    lines = [["shoes__0001.png", *row[1:], "val" if i % 3 else "train"] for i, row in enumerate(rows())]
    lines[5][2] = "shoes/0001.png"
    table = read_table(write(shop, lines, [*HEADER, "split"]), shop / "pictures", progress=False)
    with pytest.raises(DataError, match="two images get one name"):
        write_fashioniq(table, shop / "out")
    assert not (shop / "out").exists()


def test_pictures_are_copied_where_they_cannot_be_linked(shop, monkeypatch):
    table = read_table(write(shop, rows()), shop / "pictures", progress=False)

    def refuse(*_):
        raise OSError("another disk")

    linked = write_fashioniq(table, shop / "linked")
    monkeypatch.setattr(os, "link", refuse)
    copied = write_fashioniq(table, shop / "copied")
    names = sorted(path.name for path in (linked / "images").iterdir())
    assert names == sorted(path.name for path in (copied / "images").iterdir()) and len(names) == 29
    assert all((linked / "images" / n).read_bytes() == (copied / "images" / n).read_bytes() for n in names)


def test_a_world_becomes_a_table_that_says_where_it_is_from(mini_world, tmp_path):
    triplets = load_fashioniq(mini_world, "train")
    path = write_world_table(triplets, ImageFolder(mini_world), tmp_path / "own", "garments")
    table = read_table(path, path.parent / "images", progress=False)
    assert table.world == "garments" and table.texts == triplets.texts and table.categories == triplets.categories
    assert table.references == tuple(f"{image}.png" for image in triplets.references)
    assert json.loads((path.parent / "dataset.json").read_text()) == {"name": "garments"}
    assert open_rgb(table.images.path(table.targets[5])).size == (48, 48)
