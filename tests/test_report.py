"""The data report: the known numbers of the real files, a mini folder with every finding, and the command."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mini_cirr import FOLDERS, MEMBERS, cirr_entry, write_cirr, write_json, write_picture
from mini_fashioniq import ALL_IDS, PARTS, write_annotations, write_images

from cirkit.__main__ import main
from cirkit.data.annotations import DataError
from cirkit.data.findings import caption_kind
from cirkit.data.report import data_report


@pytest.fixture(scope="module")
def real(shared_data):
    return data_report(shared_data / "fashioniq", progress=False)


def table(frame, *columns) -> list[tuple]:
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_real_counts(real):
    rows = {(row.category, row.split): row for row in real.counts.itertuples()}
    assert [rows[category, "train"].triplets for category in ("dress", "shirt", "toptee")] == [
        5985,
        5988,
        6027,
    ]
    assert [rows[category, "val"].gallery for category in ("dress", "shirt", "toptee")] == [3817, 6346, 5373]
    assert [rows[category, "val"].union for category in ("dress", "shirt", "toptee")] == [2628, 3089, 2902]
    assert sum(row.triplets for key, row in rows.items() if key[1] == "test") == 6118
    assert {row.with_target for key, row in rows.items() if key[1] == "test"} == {0}
    assert not real.counts[["reference_outside", "target_outside"]].to_numpy().any()


def test_real_listings_explain_the_file_count(real):
    assert (real.listings, real.distinct) == (77_683, 74_381)
    names = {(row.category, row.other_category) for row in real.overlaps[real.overlaps["ids"] > 0].itertuples()}
    assert names == {("shirt", "toptee")}
    assert real.overlaps["ids"].sum() == 3_302
    text = real.to_text()
    assert "77,683 ids, 74,381 of them distinct; the 3,302 repeats are all between shirt and toptee." in text
    assert "74,381 image files are the full FashionIQ." in text


def test_real_blank_captions(real):
    blank = real.captions[real.captions["kind"] == "blank"]
    assert blank.groupby(["category", "split"]).size().to_dict() == {
        ("shirt", "val"): 1,
        ("shirt", "test"): 1,
        ("toptee", "train"): 12,
        ("toptee", "val"): 2,
    }
    second = blank[blank["slot"] == "second"]
    assert table(second, "category", "split", "entry") == [("toptee", "train", 3999)]
    assert ("toptee", "val", 676, "first", "B00A13DXIW") in table(
        blank, "category", "split", "entry", "slot", "reference"
    )
    assert not blank["whole_query"].any()


def test_real_placeholders(real):
    found = real.captions[real.captions["kind"] == "placeholder"]
    said = found["caption"].str.strip().str.lower()
    named = found[said.isin(["na", "n/a", "none", ".", "2", "4"])]
    entries = named.groupby(["category", "split"])["entry"].nunique().to_dict()
    assert entries == {
        ("dress", "train"): 16,
        ("dress", "val"): 10,
        ("dress", "test"): 6,
        ("shirt", "train"): 6,
        ("shirt", "val"): 1,
        ("shirt", "test"): 3,
        ("toptee", "train"): 4,
    }
    # One more digit stands alone, where the other caption is real.
    rest = found.drop(named.index)
    assert table(rest, "category", "split", "entry", "caption") == [("dress", "train", 4851, "3")]


def test_real_leaks(real):
    columns = ("category", "split", "other_category", "other_split", "ids", "pairs")
    assert set(table(real.leaks, *columns)) == {
        ("shirt", "train", "toptee", "val", 392, 0),
        ("shirt", "val", "toptee", "train", 419, 3),
        ("shirt", "test", "toptee", "train", 410, 0),
        ("shirt", "train", "toptee", "test", 393, 0),
    }
    seen = {row.category: row.seen_in_training for row in real.seen.itertuples() if row.split == "val"}
    assert seen == {"dress": 0, "shirt": 115, "toptee": 97}
    repeated = real.duplicates[real.duplicates["kind"] == "pair in two categories"]
    assert repeated.groupby("split").size().to_dict() == {"train": 23, "val": 2}
    assert not real.duplicates["kind"].isin(["repeated pair", "reference is target"]).any()


def test_real_files_without_images(real):
    assert not real.usable and len(real.problems) == 1
    assert real.problems[0].startswith("no images at hand: 74,381 of 74,381 images are missing; looked for images/<id>")
    assert "No images at hand: 74,381 files expected" in real.to_text()
    assert len(real.gaps) == 74_381 and set(real.gaps["state"]) == {"missing"}


def test_complete_mini_folder_is_usable(tmp_path):
    report = data_report(write_images(write_annotations(tmp_path)), progress=False)
    assert report.usable and report.gaps.empty
    assert table(report.images, "category", "split", "expected", "missing", "broken") == [
        ("dress", "train", 5, 0, 0),
        ("dress", "val", 5, 0, 0),
        ("t.shirt", "train", 3, 0, 0),
        ("t.shirt", "val", 3, 0, 0),
        ("t.shirt", "test", 2, 0, 0),
    ]
    assert (report.listings, report.distinct) == (18, len(ALL_IDS)) == (18, 16)
    assert table(report.overlaps, "category", "split", "other_category", "other_split", "ids", "pairs") == [
        ("dress", "val", "t.shirt", "train", 1, 0),
        ("t.shirt", "train", "t.shirt", "val", 1, 0),
    ]
    assert table(report.seen, "category", "split", "query_images", "seen_in_training", "affected_queries") == [
        ("dress", "val", 3, 0, 0),
        ("t.shirt", "val", 3, 1, 1),
        ("t.shirt", "test", 1, 0, 0),
    ]
    assert table(report.captions, "category", "split", "entry", "slot", "kind", "whole_query") == [
        ("dress", "train", 1, "first", "blank", False),
        ("dress", "train", 2, "first", "placeholder", False),
        ("dress", "val", 1, "second", "blank", False),
        ("t.shirt", "val", 1, "first", "blank", True),
        ("t.shirt", "val", 1, "second", "blank", True),
    ]
    text = report.to_text()
    assert "The data can be used." in text and "queries with no other text: 1" in text
    assert "the 2 repeats are all between dress and t.shirt, within t.shirt." in text
    assert "full FashionIQ" not in text


def test_missing_and_broken_images_are_counted(tmp_path):
    root = write_images(write_annotations(tmp_path / "annotations"), "image_data/any/{image}.jpg", kind="JPEG")
    folder = root / "image_data" / "any"
    (folder / "d9.jpg").unlink()
    (folder / "s5.jpg").write_bytes((folder / "s5.jpg").read_bytes()[:-40])
    report = data_report(root, progress=False)
    assert table(report.gaps, "image", "state") == [("d9", "missing"), ("s5", "broken")]
    assert "truncated" in report.gaps["reason"][1]
    counts = {(row.category, row.split): (row.missing, row.broken) for row in report.images.itertuples()}
    assert counts["dress", "val"] == (1, 0) == counts["t.shirt", "train"]
    assert counts["t.shirt", "test"] == (0, 1)
    assert report.problems[0].startswith("1 of 16 images are missing; looked for")
    assert report.problems[1].startswith("1 of 16 images under") and not report.usable
    assert "1 missing: d9" in report.to_text() and "1 broken: s5" in report.to_text()
    assert len(data_report(root, decode=False).problems) == 1
    only_annotations = data_report(root, annotations_only=True)
    assert only_annotations.usable and "not looked for" in only_annotations.to_text()
    elsewhere = data_report(root, images=tmp_path / "elsewhere")
    assert elsewhere.problems == (f"the image folder {tmp_path / 'elsewhere'} does not exist.",)


def test_repeats_and_gaps_among_triplets(tmp_path):
    parts = {
        ("a", "train"): (
            [
                ("1", "2", ["x", "y"]),
                ("1", "2", ["x", "z"]),
                ("1", "3", ["x", "y"]),
                ("3", "3", ["x", "y"]),
                ("9", "8", ["x", "y"]),
            ],
            ["1", "2", "3"],
        ),
        ("b", "train"): ([("1", "2", ["x", "y"])], ["1", "2"]),
        ("b", "val"): ([("1", "2", ["x", "y"])], ["1", "2"]),
    }
    report = data_report(write_annotations(tmp_path, parts), annotations_only=True)
    assert table(report.duplicates, "kind", "category", "split", "entry") == [
        ("repeated query", "a", "train", 2),
        ("repeated pair", "a", "train", 1),
        ("pair in two categories", "b", "train", 0),
        ("reference is target", "a", "train", 3),
    ]
    assert table(report.leaks, "category", "split", "other_category", "other_split", "ids", "pairs") == [
        ("a", "train", "b", "val", 2, 1),
        ("b", "train", "b", "val", 2, 1),
    ]
    assert table(report.counts, "reference_outside", "target_outside")[0] == (1, 1)
    assert (
        len(report.problems) == 1
        and "split.a.train.json lacks 1 targets of the a train queries (8)" in report.problems[0]
    )
    with_images = data_report(write_images(tmp_path, ids=["1", "2", "3"]), progress=False)
    assert table(with_images.gaps, "image", "state") == [("8", "missing"), ("9", "missing")]


def test_broken_files_are_collected_not_raised(tmp_path):
    write_annotations(tmp_path)
    (tmp_path / "captions" / "cap.dress.val.json").write_text("")
    (tmp_path / "captions" / "cap.dress.train.json").write_text('{"a": 1}')
    (tmp_path / "image_splits" / "split.t.shirt.val.json").unlink()
    (tmp_path / "dataset.json").write_text("[]")
    report = data_report(tmp_path, annotations_only=True)
    for part in (
        "cap.dress.val.json is empty",
        "cap.dress.train.json holds an object",
        "split.t.shirt.val.json does not",
    ):
        assert sum(part in problem for problem in report.problems) == 1
    assert len(report.problems) == 4 and report.name == "unnamed data"
    assert "- " + report.problems[0] in report.to_text()
    for path in (tmp_path / "image_splits").iterdir():
        path.unlink()
    assert "has no file split.<category>.<split>.json" in " ".join(
        data_report(tmp_path, annotations_only=True).problems
    )


@pytest.mark.parametrize("keep", [("t.shirt", "test"), ("dress", "val"), ("dress", "train")])
def test_any_single_file_gives_a_report(tmp_path, keep):
    report = data_report(write_annotations(tmp_path, {keep: PARTS[keep]}), annotations_only=True)
    assert report.usable and report.overlaps.empty and report.leaks.empty
    assert keep[0] in report.to_text()


def test_nothing_readable_still_gives_a_report(tmp_path):
    write_annotations(tmp_path, {("a", "val"): ([], [])})
    for path in (*(tmp_path / "captions").iterdir(), *(tmp_path / "image_splits").iterdir()):
        path.write_text("?")
    report = data_report(tmp_path)
    assert len(report.problems) == 2 and report.listings == 0
    assert "is not valid JSON" in report.to_text()


def test_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        data_report(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("caption", "kind"),
    [
        ("", "blank"),
        (" \u00a0\n", "blank"),
        ("N/A", "placeholder"),
        ("none.", "placeholder"),
        (".", "placeholder"),
        (" 2", "placeholder"),
        ("------------------", "placeholder"),
        ("is none", ""),
        ("nan's dress", ""),
        ("\u7ea2\u8272", ""),
        ("3/4 sleeve", ""),
    ],
)
def test_caption_kinds(caption, kind):
    assert caption_kind(caption) == kind


def test_command(tmp_path, capsys):
    root = write_images(write_annotations(tmp_path / "data with space \u00e9"))
    assert main(["check", str(root)]) == 0
    assert "The data can be used." in capsys.readouterr().out
    (root / "images" / "d1.png").unlink()
    assert main(["check", str(root), "--quick"]) == 1
    assert "1 of 16 images are missing" in capsys.readouterr().out
    assert main(["check", str(root), "--annotations-only"]) == 0
    images = write_images(tmp_path / "elsewhere", "resized_image/x/{image}.jpg", kind="JPEG")
    assert main(["check", str(root), "--images", str(images)]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "nowhere")]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == f"the data folder {tmp_path / 'nowhere'} does not exist.\n"


def test_module_runs_as_a_command(tmp_path):
    root = write_annotations(tmp_path)
    command = [sys.executable, "-m", "cirkit", "check", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no images at hand: 16 of 16 images are missing" in done.stdout and done.stderr == ""


# --- CIRR -----------------------------------------------------------------------------------------------


@pytest.fixture
def cirr(tmp_path):
    root = write_cirr(tmp_path / "data")
    for split, folder in FOLDERS.items():
        for name in (f"{split}-x", *MEMBERS[split]):
            write_picture(root / folder / f"{name}.png", 9)
    return root


def test_real_cirr(shared_data):
    report = data_report(shared_data / "cirr", annotations_only=True)
    assert report.usable and report.name == "cirr"
    columns = ("split", "triplets", "with_target", "gallery", "union")
    assert table(report.counts, *columns)[1:] == [("val", 4181, 4181, 2297, 2265), ("test1", 4148, 0, 2315, 2178)]
    assert table(report.subsets, "split", "queries", "smallest", "largest") == [
        ("test1", 4148, 6, 6),
        ("val", 4181, 6, 6),
    ]
    assert table(report.captions, "split", "kind", "whole_query") == [("test1", "blank", True)]
    assert not report.seen["seen_in_training"].any() and report.overlaps.empty
    text = report.to_text()
    assert "blank in test1: entry 1387 (first)" in text and "queries with no other text: 1" in text
    assert "The full CIRR" not in text


def test_mini_cirr(cirr):
    report = data_report(cirr, progress=False)
    assert report.usable and table(report.images, "split", "expected", "missing") == [
        ("train", 7, 0),
        ("val", 7, 0),
        ("test1", 7, 0),
    ]
    assert table(report.captions, "split", "entry") == [("val", 1)]
    text = report.to_text()
    assert "Subsets (members with the reference" in text
    assert "The full CIRR val has 4,181 queries and 2,297 images" in text
    assert main(["check", str(cirr)]) == 0


def test_cirr_problems_are_collected(cirr, capsys):
    (cirr / "dev" / "val-3.png").unlink()
    entry = cirr_entry("test1", 21, 4, None, "is closer")
    entry["img_set"]["members"][4] = "other"
    write_json(cirr / "captions" / "cap.rc2.test1.json", [entry])
    (cirr / "image_splits" / "split.rc2.train.json").write_text('{"train-0": "./train/34/train-0.png"}')
    report = data_report(cirr, progress=False)
    problems = "\n".join(report.problems)
    assert len(report.problems) == 3
    assert "cap.rc2.test1.json, entry 0: img_set.members lacks test1-4" in problems
    assert "split.rc2.train.json lacks 5 images of the train queries" in problems
    assert "1 of" in problems and "val-3" in report.gaps["image"].tolist()
    assert main(["check", str(cirr), "--quick"]) == 1
    assert "img_set.members lacks test1-4" in capsys.readouterr().out


def test_fashioniq_report_has_no_subsets(tmp_path):
    report = data_report(write_annotations(tmp_path), annotations_only=True)
    assert report.subsets.empty and "Subsets" not in report.to_text()


def test_gallery_without_captions_is_a_problem(tmp_path):
    root = write_annotations(tmp_path)
    (root / "captions" / "cap.dress.val.json").unlink()
    report = data_report(root, annotations_only=True)
    assert any("no caption file for dress in split 'val'" in problem for problem in report.problems)
