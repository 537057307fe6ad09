"""The CIRR layout: the real counts, a mini folder, where images lie, and every way a file can be wrong."""

from __future__ import annotations

import json

import pytest
from mini_cirr import FOLDERS, MEMBERS, cirr_entry, write_cirr, write_json, write_picture

from cirkit.data import DataError, load_cirr
from cirkit.data.cirr import cirr_folder, cirr_images, read_queries


@pytest.fixture
def mini(tmp_path):
    return write_cirr(tmp_path / "data")


@pytest.mark.parametrize(("split", "queries", "images"), [("val", 4181, 2297), ("test1", 4148, 2315)])
def test_real_counts(shared_data, split, queries, images):
    triplets = load_cirr(shared_data / "cirr", split)
    assert (len(triplets), len(triplets.galleries[""])) == (queries, images)
    assert triplets.name == "cirr" and triplets.exclude_reference and triplets.comparable
    assert {len(members) for members in triplets.subsets} == {6} == {len(set(m)) for m in triplets.subsets}
    assert all(r in members for r, members in zip(triplets.references, triplets.subsets, strict=True))
    assert len(set(triplets.query_ids)) == queries and all(isinstance(pair, str) for pair in triplets.query_ids)
    gallery = set(triplets.galleries[""])
    never = gallery.difference(triplets.references)
    if split == "val":
        assert all(t in members for t, members in zip(triplets.targets, triplets.subsets, strict=True))
        assert (len(never), len(never.difference(triplets.targets))) == (132, 32)
    else:
        assert set(triplets.targets) == {None} and len(never) == 137


def test_real_blank_query_is_kept(shared_data):
    triplets = load_cirr(shared_data / "cirr", "test1")
    row = triplets.query_ids.index("27098")
    assert triplets.captions[row] == (" ",) and triplets[row].text == ""


def test_real_images_are_not_shared_between_splits(shared_data):
    names = [set(load_cirr(shared_data / "cirr", split).image_ids()) for split in ("val", "test1")]
    assert not names[0] & names[1]


def test_mini_folder(mini):
    val = load_cirr(mini, "val")
    assert (val.name, val.split, val.categories) == ("cirr", "val", ("", ""))
    assert (val.references, val.targets) == (("val-0", "val-3"), ("val-1", "val-2"))
    assert val.texts == ("is red", "") and val.query_ids == ("11", "12")
    assert val.subsets == (MEMBERS["val"],) * 2
    assert val.galleries == {"": ("val-x", *MEMBERS["val"])}
    assert list(val.image_groups()) == ["val"]
    assert val.protocol()["exclude_reference"] is True
    assert load_cirr(mini, "train", caption_mode="random").epoch_texts(3, 0)[0] == "add a dog"
    union = load_cirr(mini, "val", gallery_rule="union", exclude_reference=False)
    assert union.galleries == {"": ("val-0", "val-1", "val-2", "val-3")} and not union.exclude_reference


def test_names_come_from_the_folder_or_the_call(mini):
    write_json(mini / "dataset.json", {"name": "scenes"})
    assert load_cirr(mini, "val").name == "scenes"
    assert load_cirr(mini, "val", name="mine").name == "mine"


def test_test1_without_targets_loads_and_refuses_a_metric(mini):
    test = load_cirr(mini, "test1")
    assert test.targets == (None, None) and test.subsets == (MEMBERS["test1"],) * 2
    with pytest.raises(DataError, match="no public ground truth for split 'test1'.*write a submission file"):
        test.require_targets()
    with pytest.raises(DataError, match="cap.rc2.test1.json has no targets, so gallery_rule 'union'"):
        load_cirr(mini, "test1", gallery_rule="union")


def test_test1_may_have_targets(mini):
    entries = [cirr_entry("test1", 21, 4, 3, "is closer")]
    write_json(mini / "captions" / "cap.rc2.test1.json", entries)
    assert load_cirr(mini, "test1").targets == ("test1-3",)


@pytest.mark.parametrize("folder", ["", "cirr", "CIRR", "cirr_dataset", "data/cirr"])
def test_annotations_are_found_below_the_root(tmp_path, folder):
    write_cirr(tmp_path, folder=folder)
    assert len(load_cirr(tmp_path, "val")) == 2
    assert cirr_folder(tmp_path).samefile(tmp_path / folder)


def test_no_annotations_lists_the_places_and_the_branch(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_cirr(tmp_path / "none", "val")
    with pytest.raises(DataError, match="branch cirr_dataset") as error:
        load_cirr(tmp_path, "val")
    assert str(tmp_path / "cirr") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dev",), r"no caption file for split 'dev' \(it has test1, train, val\)"),
        (("val", "both"), "caption_mode 'both' needs two captions"),
        (("val", "random"), "for training only"),
        (("val", "first", "all"), "gallery_rule 'all' is unknown"),
    ],
)
def test_wrong_arguments_are_named(mini, arguments, message):
    with pytest.raises(DataError, match=message):
        load_cirr(mini, *arguments)


def changed(**fields) -> list[dict]:
    entry = cirr_entry("val", 11, 0, 1, "is red")
    return [cirr_entry("val", 10, 2, 3, "is blue"), {k: v for k, v in (entry | fields).items() if v is not ...}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "holds an object, not a list of entries"),
        ([], "has no queries"),
        ([1], "entry 0 is a number, not an object"),
        ([{"candidate": "d1", "captions": ["a"]}], "entry 0 has no 'pairid'.*another data set"),
        (changed(pairid=10), "entry 1 has the pairid 10 of an earlier entry"),
        (changed(pairid=1.5), "entry 1, pairid is 1.5"),
        (changed(reference=None), "entry 1, reference is None"),
        (changed(caption=["is red"]), "entry 1: 'caption' is a list"),
        (changed(target_hard=...), "entry 1 has no 'target_hard', but other entries have one"),
        (changed(img_set={"members": ["val-0", "val-2"]}), "entry 1: img_set.members lacks val-1"),
        (changed(img_set={"members": ["val-1", "val-2"]}), "entry 1: img_set.members lacks val-0"),
        (changed(img_set={"members": ["val-0", "val-1", "val-1"]}), "lists 1 ids more than once"),
        (changed(img_set={}), "img_set.members holds nothing"),
        (changed(reference="val-1"), "1 queries of cirr val have their reference as target"),
    ],
)
def test_wrong_captions_are_named(mini, content, message):
    path = write_json(mini / "captions" / "cap.rc2.val.json", content)
    with pytest.raises(DataError, match=message) as error:
        load_cirr(mini, "val")
    assert "\n" not in str(error.value)
    assert path.name in str(error.value) or "cirr val" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git-lfs pointer"),
        ('["val-0"]', "not an object of image id and path"),
        ('{"val-0": 3}', "not an object of image id and path"),
        ('{"val-0": "./dev/val-0.png"}', r"lacks 5 images of cap.rc2.val.json \(val-1, val-2"),
    ],
)
def test_wrong_split_files_are_named(mini, text, message):
    path = mini / "image_splits" / "split.rc2.val.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        load_cirr(mini, "val")
    assert path.name in str(error.value)
    path.unlink()
    with pytest.raises(DataError, match="split.rc2.val.json does not exist"):
        load_cirr(mini, "val")


def test_queries_without_targets_are_none_everywhere(mini):
    queries = read_queries(mini / "captions" / "cap.rc2.test1.json")
    assert queries.targets == (None, None) and queries.captions == (("is closer",), ("is farther",))


# --- images ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["{listed}/{name}.png", "img_raw/{listed}/{name}.png", "images/{listed}/{name}.jpg", "images/{name}.PNG"]
)  # fmt: skip
def test_images_are_found_in_each_layout(mini, form):
    for split, folder in FOLDERS.items():
        for name in MEMBERS[split]:
            write_picture(mini / form.format(listed=folder, name=name), 7)
    images = cirr_images(mini)
    val = load_cirr(mini, "val")
    assert images.missing(val.image_ids()) == ["val-x"]
    assert images.load("train-0").size == (4, 3)


def test_listed_path_goes_before_a_file_of_the_same_name(tmp_path):
    root = write_cirr(tmp_path / "annotations")
    other = tmp_path / "pictures"
    for folder in ("images", "test1"):
        write_picture(other / folder / "val-0.png", 1)
    listed = write_picture(other / "dev" / "val-0.png", 2)
    images = cirr_images(root, other)
    assert images.path("val-0") == listed
    with pytest.raises(DataError, match="image val-1 is missing: looked for listed paths.*dev/.*found [12] images"):
        images.path("val-1")


def test_same_file_name_in_two_splits_is_told_apart_by_its_path(tmp_path):
    root = write_cirr(tmp_path)
    paths = {"a": "./dev/1.png", "b": "test1/1.png"}
    (root / "image_splits" / "split.rc2.val.json").write_text(json.dumps(paths))
    written = {image: write_picture(root / path, 3) for image, path in paths.items()}
    images = cirr_images(root)
    assert {image: images.path(image) for image in paths} == written
    for path in written.values():
        path.unlink()
    write_picture(root / "images" / "1.png", 3)
    # the name alone does not say which of the two it is
    assert cirr_images(root).missing(paths) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ("version https://git-lfs.github.com/spec/v1", "git-lfs")]
)
def test_empty_caption_files_and_pointers_are_named(mini, text, message):
    path = mini / "captions" / "cap.rc2.train.json"
    path.write_text(text)
    with pytest.raises(DataError, match=f"{path.name} .*{message}"):
        load_cirr(mini, "train")
