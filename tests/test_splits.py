"""Which split is chosen on and which is reported, on complete, public and damaged data."""

from __future__ import annotations

import pytest
from mini_cirr import cirr_entry, write_cirr, write_json
from mini_fashioniq import PARTS, write_annotations

from cirkit.data import DataError
from cirkit.data.listed_images import ListedImages
from cirkit.data.splits import DATASETS, SOURCES, load_data


def folder(root, keep=("train", "val", "test")):
    return write_annotations(root, {key: part for key, part in PARTS.items() if key[1] in keep})


def test_targets_of_the_test_split_make_it_the_reported_one(mini_world):
    data = load_data("fashioniq", mini_world)
    assert (data.choose.split, data.report.split) == ("val", "test")
    assert list(data.splits) == ["val", "test"] and data.attributes is None


@pytest.mark.parametrize("keep", [("train", "val", "test"), ("train", "val")])
def test_without_public_targets_val_serves_for_both(tmp_path, keep):
    data = load_data("fashioniq", folder(tmp_path, keep), gallery_rule="split")
    assert data.report.split == data.choose.split == "val" and list(data.splits) == ["val"]
    assert load_data("fashioniq", tmp_path, gallery_rule="union").report.split == "val"


def test_damaged_test_file_is_an_error_and_not_a_missing_split(tmp_path):
    folder(tmp_path)
    path = next((tmp_path / "captions").glob("*.test.json"))
    path.write_text("[")
    with pytest.raises(DataError, match=path.name):
        load_data("fashioniq", tmp_path)


def test_random_captions_are_for_training_only(tmp_path):
    data = load_data("fashioniq", folder(tmp_path), caption_mode="random")
    assert (data.train.caption_mode, data.choose.caption_mode) == ("random", "first_and_second")


def test_what_is_missing_or_unknown_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="unknown dataset 'fashon'"):
        load_data("fashon", tmp_path)
    with pytest.raises(DataError, match=r"needs data_root \(DATA_ROOT\)"):
        load_data("fashioniq")
    folder(tmp_path, ("train",))
    with pytest.raises(DataError, match="val"):
        load_data("fashioniq", tmp_path)


# --- the reference's place, CIRR, categories ---------------------------------------------------------------


def test_reference_is_ranked_or_not_by_the_default_of_the_data_set(tmp_path, mini_world):
    cirr = write_cirr(tmp_path / "cirr")
    for dataset, root, default in (("fashioniq", mini_world, False), ("cirr", cirr, True)):
        assert SOURCES[dataset].exclude_reference is default
        for given, expected in ((None, default), (True, True), (False, False)):
            data = load_data(dataset, root, exclude_reference=given)
            assert [t.exclude_reference for t in (data.train, data.choose, data.report)] == [expected] * 3
    assert set(DATASETS) >= {"garments", "fashioniq", "cirr"}


def test_cirr_reports_on_val_until_test1_has_targets(tmp_path):
    write_cirr(tmp_path)
    data = load_data("cirr", tmp_path, caption_mode="random")
    assert (data.train.split, data.choose.split, data.report.split) == ("train", "val", "val")
    assert data.train.caption_mode == "random" and isinstance(data.images, ListedImages)
    write_json(tmp_path / "captions" / "cap.rc2.test1.json", [cirr_entry("test1", 21, 4, 3, "is closer")])
    data = load_data("cirr", tmp_path, gallery_rule="union")
    assert list(data.splits) == ["val", "test1"] and data.report.galleries == {"": ("test1-3", "test1-4")}


def test_category_without_test_captions_is_not_silently_left_out_of_the_mean(tmp_path):
    parts = {
        (category, split): ([(f"{split}1", f"{split}2", ["is red"])], [f"{split}1", f"{split}2"])
        for category in ("coat", "hat") for split in ("train", "val", "test")
    }  # fmt: skip
    write_annotations(tmp_path, parts)
    assert load_data("fashioniq", tmp_path).report.split == "test"
    captions = tmp_path / "captions" / "cap.hat.test.json"
    captions.unlink()
    with pytest.raises(DataError, match=r"a gallery but no caption file for hat in split 'test'.*\(coat\)"):
        load_data("fashioniq", tmp_path)
    (tmp_path / "image_splits" / "split.hat.test.json").unlink()
    with pytest.raises(DataError, match="has hat in val but not in test"):
        load_data("fashioniq", tmp_path)


def test_category_called_mean_is_one_early_sentence(tmp_path):
    parts = {("mean", split): ([("a", "b", ["is red"])], ["a", "b"]) for split in ("train", "val")}
    with pytest.raises(DataError, match='a category called "mean"'):
        load_data("fashioniq", write_annotations(tmp_path, parts))


def test_reference_as_target_is_one_early_sentence_where_it_is_taken_out(tmp_path):
    parts = {("coat", split): ([("a", "a", ["is red"]), ("a", "b", ["x"])], ["a", "b"]) for split in ("train", "val")}
    write_annotations(tmp_path, parts)
    assert load_data("fashioniq", tmp_path).choose.split == "val"
    with pytest.raises(DataError, match=r"1 queries of .* val have their reference as target \(a\)"):
        load_data("fashioniq", tmp_path, exclude_reference=True)
