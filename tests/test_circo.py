"""The CIRCO layout: the real counts, a mini folder with its gallery, and every way a file can be wrong."""

from __future__ import annotations

import json

import pytest
from mini_cirr import write_circo, write_json, write_picture

from cirkit.data import DataError, load_circo
from cirkit.data.circo import circo_images, read_queries


@pytest.fixture
def mini(tmp_path):
    return write_circo(tmp_path)


def test_real_val(shared_data):
    triplets = load_circo(shared_data / "circo", "val", gallery_rule="union")
    sizes = [len(truths) for truths in triplets.ground_truths]
    assert (len(triplets), min(sizes), max(sizes)) == (220, 1, 14)
    assert all(t in truths for t, truths in zip(triplets.targets, triplets.ground_truths, strict=True))
    assert not any(r in truths for r, truths in zip(triplets.references, triplets.ground_truths, strict=True))
    assert all(triplets.aspects) and len(set().union(*triplets.aspects)) == 9
    assert triplets.query_ids[:2] == ("0", "1") and triplets.references[0] == "271520"
    assert triplets[0].text == "shows two people and has a more colorful background"
    assert not triplets.exclude_reference


def test_real_test_has_no_truth(shared_data):
    queries = read_queries(shared_data / "circo" / "annotations" / "test.json")
    assert len(queries.references) == 800 and set(queries.targets) == {None}
    assert set(queries.ground_truths) == set(queries.aspects) == {()}


def test_mini_folder(mini):
    val = load_circo(mini, "val")
    assert (val.name, val.references, val.targets) == ("circo", ("1", "4", "3"), ("2", "5", "1"))
    assert val.ground_truths == (("2", "3"), ("6", "5", "7"), ("1",))
    assert val.aspects == (("addition", "negation"), ("addition",), ("viewpoint",))
    assert val.galleries == {"": tuple("987654321")}
    test = load_circo(mini, "test")
    assert test.ground_truths is test.aspects is None and test.query_ids == ("0", "1")
    with pytest.raises(DataError, match="no public ground truth"):
        test.require_targets()


@pytest.mark.parametrize(
    ("form", "text", "name"),
    [
        ("caption", "has two", "circo"),
        ("concept", "a dog that has two", "circo-concept"),
        ("photo", "a photo of $ that has two", "circo-photo"),
    ],
)
def test_text_forms_travel_with_the_name(mini, form, text, name):
    val = load_circo(mini, "val", text=form)
    assert (val.texts[0], val.protocol()["dataset"]) == (text, name)


def test_missing_info_file_is_one_sentence_that_says_what_to_do(tmp_path):
    write_circo(tmp_path, info=False)
    for split in ("val", "test"):
        with pytest.raises(DataError, match="image_info_unlabeled2017.json.*is missing.*gallery_rule='union'"):
            load_circo(tmp_path, split)
    assert load_circo(tmp_path, "val", gallery_rule="union").galleries == {"": tuple("1234567")}
    with pytest.raises(DataError, match="test.json has no targets, so gallery_rule 'union'"):
        load_circo(tmp_path, "test", gallery_rule="union")


def test_images_are_found_by_the_file_names_of_coco(mini):
    listed = write_picture(mini / "COCO2017_unlabeled" / "unlabeled2017" / "000000000003.jpg", 5)
    flat = write_picture(mini / "images" / "000000000004.jpg", 5)
    images = circo_images(mini)
    assert images.path("3") == listed and images.path("4") == flat and "5" not in images


def entry(**fields) -> list[dict]:
    good = {
        "id": 0, "reference_img_id": 1, "target_img_id": 2, "relative_caption": "a", "shared_concept": "b",
        "gt_img_ids": [2, 3], "semantic_aspects": ["addition"],
    }  # fmt: skip
    return [good | {"id": 7}, {k: v for k, v in (good | fields).items() if v is not ...}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "has no queries"),
        (entry(reference_img_id=...), "entry 1 has no 'reference_img_id'"),
        (entry(id=7), "entry 1 has the id 7 of an earlier entry"),
        (entry(relative_caption=None), "entry 1: a text is nothing"),
        (entry(gt_img_ids=[3]), "entry 1: gt_img_ids lacks the target 2"),
        (entry(gt_img_ids=[2, 2]), "gt_img_ids lists 1 ids more than once"),
        (entry(gt_img_ids=...), "gt_img_ids holds nothing"),
        (entry(target_img_id=...), "entry 1 has no 'target_img_id', but other"),
        (entry(gt_img_ids=[2, 99]), "image_info_unlabeled2017.json lacks 1 images of val.json"),
    ],
)
def test_wrong_annotations_are_named(mini, content, message):
    write_json(mini / "annotations" / "val.json", content)
    with pytest.raises(DataError, match=message):
        load_circo(mini, "val")


@pytest.mark.parametrize("content", [[], {"images": [1]}, {"images": [{"id": 3}]}])
def test_wrong_info_file_is_named(mini, content):
    path = mini / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="image_info_unlabeled2017.json does not hold"):
        load_circo(mini, "val")


def test_wrong_arguments_are_named(mini):
    with pytest.raises(DataError, match="text 'sentence' is unknown"):
        load_circo(mini, "val", text="sentence")
    with pytest.raises(DataError, match="train.json does not exist"):
        load_circo(mini, "train")
