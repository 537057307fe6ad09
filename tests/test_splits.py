"""Which split is chosen on and which is reported, on complete, public and damaged data."""

from __future__ import annotations

import pytest
from mini_fashioniq import PARTS, write_annotations

from cirkit.data import DataError
from cirkit.data.splits import load_data


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
    with pytest.raises(DataError, match="needs data_root"):
        load_data("fashioniq")
    folder(tmp_path, ("train",))
    with pytest.raises(DataError, match="val"):
        load_data("fashioniq", tmp_path)
