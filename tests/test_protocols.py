"""From files to numbers and submission files through a real, small model: CIRR, CIRCO and HP-FashionIQ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mini_cirr import FOLDERS, MEMBERS, write_circo, write_cirr, write_hp, write_picture

from cirkit import submission
from cirkit.data import DataError, load_circo, load_cirr, load_hp_fashioniq
from cirkit.data.circo import circo_images
from cirkit.data.cirr import cirr_images
from cirkit.data.hp_fashioniq import judged_triplets
from cirkit.data.images import ImageFolder
from cirkit.evaluation import precision_table, preference_table, recall_table
from cirkit.features import build_store
from cirkit.methods import build_method
from cirkit.retrieval import rank_queries, retrieve, score_sets


@pytest.fixture
def method(small_backbone):
    return build_method("infonce", small_backbone())


def store_of(method, images, triplets):
    return build_store(method.backbone, images, triplets.image_ids(), progress=False)


def test_cirr_from_files_to_a_table_and_a_submission(tmp_path, method, monkeypatch):
    root = write_cirr(tmp_path)
    for split, folder in FOLDERS.items():
        for shade, name in enumerate((f"{split}-x", *MEMBERS[split])):
            write_picture(root / folder / f"{name}.png", 30 * shade)
    images, val, test = cirr_images(root), load_cirr(root, "val"), load_cirr(root, "test1")
    ranks = rank_queries(method, val, store_of(method, images, val))  # one text is blank
    assert (ranks["candidates"] == 6).all() and (ranks["subset_candidates"] == 5).all()
    assert set(recall_table(ranks, ks=(1,), n=5)["metric"]) == {"R@1", "Rs@1", "Rs@2", "Rs@3"}
    store = store_of(method, images, test)
    with pytest.raises(DataError, match="write a submission file"):
        rank_queries(method, test, store)
    monkeypatch.setattr(submission, "CIRR_SIZES", {"recall": 6, "recall_subset": 3})
    for metric, within in (("recall", "gallery"), ("recall_subset", "subset")):
        k = submission.CIRR_SIZES[metric]
        path = submission.write_cirr_submission(
            tmp_path / f"{metric}.json", test, metric, retrieve(method, test, store, k, within)
        )
        assert set(submission.read_cirr_submission(path)[1]) == {"21", "22"}


def test_circo_from_files_to_a_table_and_a_submission(tmp_path, method, monkeypatch):
    root = write_circo(tmp_path)
    for i in range(1, 10):
        write_picture(root / "COCO2017_unlabeled" / "unlabeled2017" / f"{i:012d}.jpg", 25 * i)
    val, test = load_circo(root, "val"), load_circo(root, "test")
    store = store_of(method, circo_images(root), val)
    ranks = rank_queries(method, val, store)
    assert (ranks["candidates"] == 9).all() and ranks["AP@50"].between(0, 1, inclusive="right").all()
    table = precision_table(ranks, val.aspects, n=5)
    assert set(table["aspect"]) == {"all", "addition", "negation", "viewpoint"}
    monkeypatch.setattr(submission, "CIRCO_SIZE", 4)
    path = submission.write_circo_submission(tmp_path / "test.json", test, retrieve(method, test, store, 4))
    assert {key: len(ids) for key, ids in json.loads(path.read_text()).items()} == {"0": 4, "1": 4}


def test_judged_pairs_from_files_to_a_ratio(tmp_path, method):
    judged = load_hp_fashioniq(write_hp(tmp_path))
    for category in ("shirt", "toptee"):
        for shade, name in enumerate(("r-0", "r-1", "r-2", "a", "b", "c")):
            write_picture(tmp_path / "image_data" / category / f"{name}.jpg", 40 * shade)
    triplets = judged_triplets(judged)
    store = store_of(method, ImageFolder(tmp_path), triplets)
    one, two = (score_sets(method, triplets, store, judged[name]) for name in ("set1", "set2"))
    assert one.shape == two.shape == (5,) and np.isfinite(one - two).all() and (one != two).any()
    table = preference_table(one, two, judged["preferred"], n=5)
    assert table["n"].iloc[-1] == 5
