"""The FashionIQ layout: real annotation numbers, a mini folder, and every way a file can be wrong."""

from __future__ import annotations

import json

import pytest
from mini_fashioniq import PARTS, write_annotations

from cirkit.data import load_fashioniq
from cirkit.data.annotations import DataError, read_json
from cirkit.data.fashioniq import caption_files, read_entries, read_gallery
from cirkit.data.triplets import CAPTION_FORMS


@pytest.fixture(scope="session")
def fashioniq(shared_data):
    return shared_data / "fashioniq"


@pytest.fixture
def mini(tmp_path):
    return write_annotations(tmp_path / "data")


def by_category(triplets) -> dict[str, int]:
    return {category: triplets.categories.count(category) for category in triplets.galleries}


def test_sizes_of_the_real_files(fashioniq):
    train = load_fashioniq(fashioniq, "train")
    assert len(train) == 18_000
    assert by_category(train) == {"dress": 5985, "shirt": 5988, "toptee": 6027}
    full = load_fashioniq(fashioniq, "val")
    assert by_category(full) == {"dress": 2017, "shirt": 2038, "toptee": 1961}
    assert full.protocol()["gallery_sizes"] == {"dress": 3817, "shirt": 6346, "toptee": 5373}
    union = load_fashioniq(fashioniq, "val", gallery_rule="union")
    assert union.protocol()["gallery_sizes"] == {"dress": 2628, "shirt": 3089, "toptee": 2902}
    assert union.targets == full.targets
    everything = {image for split in ("train", "val", "test") for image in load_fashioniq(fashioniq, split).image_ids()}
    assert len(everything) == 74_381


def test_real_test_split_has_no_targets(fashioniq):
    test = load_fashioniq(fashioniq, "test")
    assert len(test) == 6_118 and set(test.targets) == {None}
    with pytest.raises(DataError, match="no public ground truth for split 'test'"):
        test.require_targets()


@pytest.mark.parametrize(
    ("category", "split", "entry", "reference", "text"),
    [
        ("toptee", "val", 676, "B00A13DXIW", "is an off the shoulder top"),
        ("toptee", "train", 3999, "B00EE0BA3I", "is casual and plaid"),
    ],
)
def test_real_blank_captions_leave_no_and(fashioniq, category, split, entry, reference, text):
    triplets = load_fashioniq(fashioniq, split, categories=[category])
    assert triplets.references[entry] == reference
    assert "" in triplets.captions[entry]
    for form in CAPTION_FORMS:
        assert triplets.replace(caption_mode=form).texts[entry] == text


def test_real_leaks_can_be_left_out(fashioniq):
    val, train = (load_fashioniq(fashioniq, split) for split in ("val", "train"))
    clean_val = load_fashioniq(fashioniq, "val", exclude_leaks=True)
    trained = set(train.references) | set(train.targets)
    expected = [row for row in val if row.reference not in trained and row.target not in trained]
    assert list(clean_val) == expected
    assert len(val) - len(clean_val) == clean_val.dropped_queries == 248
    assert clean_val.protocol()["exclude_leaks"] and not clean_val.comparable
    assert clean_val.galleries == val.galleries
    clean_train = load_fashioniq(fashioniq, "train", exclude_leaks=True)
    test = load_fashioniq(fashioniq, "test")
    used = {*val.references, *val.targets, *test.references}
    assert 0 < len(clean_train) < len(train)
    assert not used.intersection(clean_train.references + clean_train.targets)


def test_mini_folder(mini):
    train = load_fashioniq(mini, "train")
    assert train.name == "data"  # not the categories of FashionIQ, so not its name
    assert train.references == ("d1", "d2", "d3", "s1")
    assert train.targets == ("d2", "0123", "d1", "s2")
    assert train.categories == ("dress", "dress", "dress", "t.shirt")
    assert train.texts == ("is red and has sleeves", "is long", "n/a and is blue", "is plain and is white")
    assert train.captions[1] == ("", "is long")
    val = load_fashioniq(mini, "val")
    assert val.galleries == {"dress": ("d7", "d6", "d5", "d8", "d9"), "t.shirt": ("s4", "s3", "s1")}
    assert val.texts[-1] == ""
    assert not val.exclude_reference and val.gallery_rule == "split" and val.caption_mode == "first_and_second"
    assert load_fashioniq(mini, "val", exclude_reference=True).exclude_reference


def test_union_gallery_keeps_file_order(mini):
    val = load_fashioniq(mini, "val", gallery_rule="union")
    assert val.galleries == {"dress": ("d7", "d6", "d5"), "t.shirt": ("s4", "s3", "s1")}
    with pytest.raises(DataError, match=r"cap.t.shirt.test.json has no targets, so gallery_rule 'union'"):
        load_fashioniq(mini, "test", gallery_rule="union")


def test_categories_are_found_and_chosen(mini):
    assert list(caption_files(mini)) == sorted(PARTS)
    assert set(load_fashioniq(mini, "test").categories) == {"t.shirt"}
    chosen = load_fashioniq(mini, "val", categories=["t.shirt", "dress"])
    assert chosen.categories == ("t.shirt", "t.shirt", "dress", "dress")
    assert load_fashioniq(mini, "val", categories="dress").references == ("d5", "d7")
    with pytest.raises(DataError, match=r"categories \['shoe'\] of split 'val' in .*; it has dress, t.shirt"):
        load_fashioniq(mini, "val", categories=["dress", "shoe"])
    with pytest.raises(DataError, match=r"no caption file for split 'dev' \(it has test, train, val\)"):
        load_fashioniq(mini, "dev")


def test_name_comes_from_the_folder(mini):
    (mini / "dataset.json").write_text('{"name": "garments", "seed": 3}')
    assert load_fashioniq(mini, "val").name == "garments"
    assert load_fashioniq(mini, "val", name="mine").name == "mine"
    (mini / "dataset.json").write_text('{"title": "garments"}')
    with pytest.raises(DataError, match="dataset.json does not hold"):
        load_fashioniq(mini, "val")


def test_caption_modes(mini):
    both = load_fashioniq(mini, "val", caption_mode="both")
    assert both.texts == (
        *("is green and is shorter", "is shorter and is green"),
        *("is dotted", "is dotted"),
        *("is loose and is grey", "is grey and is loose"),
        *("", ""),
    )
    assert both.references == ("d5", "d5", "d7", "d7", "s3", "s3", "s4", "s4")
    assert load_fashioniq(mini, "train", caption_mode="random").epoch_texts(0, 0)
    with pytest.raises(DataError, match="'random' is for training only, not for split 'val'"):
        load_fashioniq(mini, "val", caption_mode="random")
    with pytest.raises(DataError, match="'ab' is unknown"):
        load_fashioniq(mini, "val", caption_mode="ab")
    with pytest.raises(DataError, match="gallery_rule 'full' is unknown"):
        load_fashioniq(mini, "val", gallery_rule="full")


def test_leaks_are_kept_unless_asked(mini):
    assert len(load_fashioniq(mini, "val")) == 4
    clean = load_fashioniq(mini, "val", exclude_leaks=True)
    assert clean.references == ("d5", "d7", "s3")
    assert clean.dropped_queries == 1
    assert load_fashioniq(mini, "val", exclude_leaks=True, caption_mode="both").dropped_queries == 2
    assert load_fashioniq(mini, "train", exclude_leaks=True).references == ("d1", "d2", "d3")
    for split in ("dress.train", "t.shirt.train"):
        (mini / "captions" / f"cap.{split}.json").unlink()
    with pytest.raises(DataError, match="exclude_leaks needs the train caption files"):
        load_fashioniq(mini, "val", exclude_leaks=True)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BROKEN_FILES = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "only white space": (b"\xef\xbb\xbf \n", "is empty"),
    "a key twice": (
        b'[{"target": "d5", "candidate": "d6", "target": "d7"}]',
        "the key 'target' stands twice in one object",
    ),
    "half of a character": (b'["d5", "d\\ud83d"]', r"has half of a character after .*d5"),
    "pointer": (POINTER.encode(), "is a git-lfs pointer, not data"),
    "web page": (b"\n<!DOCTYPE html><html></html>", "is a web page or XML, not JSON"),
    "cut off": (b'[{"candidate": "d5", "capt', "is not valid JSON .* cut off"),
    "other encoding": ('[{"candidate": "d\u00e9"}]'.encode("latin-1"), r"is not UTF-8 text \(byte 17\)"),
    "huge number": (b"[" + b"7" * 5000 + b"]", "is not an annotation file"),
    "deep": (b"[" * 100_000, "is not an annotation file|is not valid JSON"),
}
WRONG_SHAPES = {
    "object": ({"a": 1}, "holds an object, not a list of triplets"),
    "string": ("d5", "holds a string, not a list"),
    "entry not an object": ([["d5", "d6"]], r"entry 0 is a list, not an object"),
    "no candidate": (
        [{"target": "d6", "captions": ["a"]}],
        r"entry 0 has no 'candidate' \(keys: target, captions\)",
    ),
    "CIRR": ([{"pairid": 1, "reference": "x"}], "this looks like CIRR"),
    "no captions": ([{"candidate": "d5", "target": "d6"}], "'captions' is nothing, not a list of strings"),
    "captions a string": ([{"candidate": "d5", "target": "d6", "captions": "red"}], "'captions' is a string"),
    "caption a number": (
        [{"candidate": "d5", "target": "d6", "captions": ["a", 2]}],
        "not a list of strings",
    ),
    "no caption": ([{"candidate": "d5", "target": "d6", "captions": []}], "has 0 captions; .* one or two"),
    "three captions": ([{"candidate": "d5", "target": "d6", "captions": ["a"] * 3}], "has 3 captions"),
    "float id": (
        [{"candidate": 1.5, "target": "d6", "captions": ["a"]}],
        "candidate is 1.5, not an image id",
    ),
    "null id": ([{"candidate": None, "target": "d6", "captions": ["a"]}], "candidate is None"),
    "empty id": ([{"candidate": "d5", "target": "", "captions": ["a"]}], "target is ''"),
    "true id": ([{"candidate": True, "target": "d6", "captions": ["a"]}], "candidate is True"),
    "some without target": (
        [{"candidate": "d5", "target": "d6", "captions": ["a"]}, {"candidate": "d5", "captions": ["a"]}],
        "entry 1 has no 'target', but other entries have one",
    ),
}


def one_sentence_naming(path, error) -> bool:
    message = str(error.value)
    return str(path) in message and "\n" not in message and message.endswith(".")


@pytest.mark.parametrize("folder", ["captions/cap", "image_splits/split"])
@pytest.mark.parametrize("case", BROKEN_FILES)
def test_unreadable_files_are_named(mini, folder, case):
    content, message = BROKEN_FILES[case]
    path = mini / f"{folder}.dress.val.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load_fashioniq(mini, "val")
    assert one_sentence_naming(path, error)


@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_wrong_caption_files_are_named(mini, case):
    content, message = WRONG_SHAPES[case]
    path = mini / "captions" / "cap.dress.val.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as error:
        load_fashioniq(mini, "val")
    assert one_sentence_naming(path, error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"dev-1": "./dev/dev-1.png"}, "holds an object, not a list of image ids; this looks like CIRR"),
        (["d5", "d6", ["d7"]], r"entry 2 is \['d7'\], not an image id"),
        (["d5", "d6", "d7", "d6", "d5"], r"lists 2 ids more than once \(d5, d6\)"),
        (["d5", "d7"], r"lacks 1 targets of cap.dress.val.json \(d6\)"),
    ],
)
def test_wrong_split_files_are_named(mini, content, message):
    path = mini / "image_splits" / "split.dress.val.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as error:
        load_fashioniq(mini, "val")
    assert one_sentence_naming(path, error)


def test_union_rule_includes_what_the_split_file_lacks(mini):
    (mini / "image_splits" / "split.dress.val.json").write_text('["d8", "d7"]')
    assert load_fashioniq(mini, "val", gallery_rule="union").galleries["dress"] == ("d7", "d5", "d6")


def test_missing_folders_and_files_are_named(tmp_path, mini):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_fashioniq(tmp_path / "nowhere", "val")
    with pytest.raises(DataError, match="has no folder captions/"):
        load_fashioniq(tmp_path, "val")
    (mini / "image_splits" / "split.dress.val.json").unlink()
    with pytest.raises(DataError, match=r"split.dress.val.json does not exist"):
        load_fashioniq(mini, "val")
    for path in (mini / "captions").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="has no file cap.<category>.<split>.json"):
        load_fashioniq(mini, "val")


def test_empty_lists_are_refused_unless_others_have_triplets(mini):
    (mini / "captions" / "cap.dress.val.json").write_text("[]")
    assert load_fashioniq(mini, "val").references == ("s3", "s4")
    with pytest.raises(DataError, match="has no val triplets of dress: the lists are empty"):
        load_fashioniq(mini, "val", categories="dress")


def test_number_ids_become_their_digits(tmp_path):
    captions, gallery = tmp_path / "captions.json", tmp_path / "gallery.json"
    captions.write_text('[{"candidate": 123, "target": "0123", "captions": ["a"]}]')
    gallery.write_text('[123, "0123", 12345678901234567890123]')
    entries = read_entries(captions)
    assert (entries.references, entries.targets) == (("123",), ("0123",))
    assert read_gallery(gallery) == ("123", "0123", "12345678901234567890123")


def test_byte_order_mark_and_other_scripts_are_read(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(b"\xef\xbb\xbf" + '["\u00e9t\u00e9"]'.encode())
    assert read_json(path) == ["\u00e9t\u00e9"]
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path)


# --- names ----------------------------------------------------------------------------------------------


def test_own_data_are_not_called_fashioniq(tmp_path):
    part = ([("a", "b", ["is red"])], ["a", "b"])
    own = write_annotations(tmp_path / "furniture", {("chair", "val"): part})
    assert load_fashioniq(own, "val").name == "furniture"
    real = write_annotations(tmp_path / "fiq", {("dress", "val"): part})
    assert load_fashioniq(real, "val").name == "fashioniq"
    (own / "dataset.json").write_text('{"name": "chairs"}')
    assert load_fashioniq(own, "val").name == "chairs"
    assert load_fashioniq(own, "val", name="mine").name == "mine"


def test_category_with_a_gallery_but_no_captions_is_named(mini):
    (mini / "captions" / "cap.dress.val.json").unlink()
    with pytest.raises(DataError, match=r"no caption file for dress in split 'val'.*\(t.shirt\)"):
        load_fashioniq(mini, "val")
    assert set(load_fashioniq(mini, "val", ["t.shirt"]).galleries) == {"t.shirt"}
