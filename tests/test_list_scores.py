"""Scores of lists read back: the golden evaluator, a model's own ranks, and lists that do not fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from mini_cirr import write_circo, write_picture

from cirkit.data import DataError, TripletSet, load_circo
from cirkit.data.circo import circo_images
from cirkit.features import build_store
from cirkit.list_scores import circo_table, ranks_of_lists
from cirkit.methods import build_method
from cirkit.retrieval import rank_queries, retrieve


@pytest.fixture
def circo(golden):
    """The released evaluator's own input as a split, and its predictions by query id."""
    data = golden("eval_circo")
    text = [[str(i) for i in row] for row in data["predictions"]]
    truths = [
        tuple(map(str, ids[:count]))
        for ids, count in zip(data["ground_truth_ids"], data["ground_truth_count"], strict=True)
    ]
    carried = [
        tuple(name for name, has in zip(data["semantic_aspect_names"].tolist(), row, strict=True) if has)
        for row in data["semantic_aspect_matrix"]
    ]
    n = len(text)
    gallery = {*map(str, data["target_id"])}.union(*text, *truths, {"reference"})
    split = TripletSet(
        name="circo", split="val", references=("reference",) * n, captions=(("a",),) * n,
        targets=tuple(map(str, data["target_id"])), categories=("",) * n, galleries={"": tuple(sorted(gallery))},
        ground_truths=tuple(truths), query_ids=tuple(map(str, range(n))), aspects=tuple(carried),
    )  # fmt: skip
    return data, split, dict(zip(split.query_ids, text, strict=True))


@pytest.mark.parametrize(("length", "suffix"), [(50, "_out"), (10, "_with_only_10_predictions_out")])
def test_one_table_holds_all_that_the_released_evaluator_gives(circo, length, suffix):
    data, split, lists = circo
    ranks = ranks_of_lists(split, {query: images[:length] for query, images in lists.items()})
    table = circo_table(split, ranks, n=10).set_index(["metric", "aspect"])["value"]
    for column, k in enumerate(data["ranks"]):
        assert table[f"mAP@{k}", "all"] == pytest.approx(100 * data[f"map_at_k{suffix}"][column])
        assert table[f"R@{k}", "all"] == pytest.approx(100 * data[f"recall_at_k{suffix}"][column])
    if length == 50:
        for name, value in zip(data["semantic_aspect_names"].tolist(), data["semantic_map_at_10_out"], strict=True):
            # an aspect that no query carries is NaN in the released table and has no row in ours
            assert ("mAP@10", name) not in table.index if np.isnan(value) else True
            if not np.isnan(value):
                assert table["mAP@10", name] == pytest.approx(100 * value)


def test_lists_that_were_written_and_read_give_the_ranks_of_the_model(tmp_path, small_backbone):
    root = write_circo(tmp_path)
    for i in range(1, 10):
        write_picture(root / "COCO2017_unlabeled" / "unlabeled2017" / f"{i:012d}.jpg", 25 * i)
    for exclude in (False, True):
        val = load_circo(root, "val", exclude_reference=exclude)
        method = build_method("infonce", small_backbone(3))
        store = build_store(method.backbone, circo_images(root), val.image_ids(), progress=False)
        ranks = rank_queries(method, val, store)
        assert (ranks["tied"] == 0).all()
        ranked = retrieve(method, val, store, 9 - exclude)  # all candidates
        again = ranks_of_lists(val, dict(zip(val.query_ids, ranked, strict=True)))
        pd.testing.assert_frame_equal(again, ranks[again.columns], check_dtype=False)


def test_a_target_that_is_not_listed_counts_as_the_last(circo):
    _, split, lists = circo
    lists = {query: [image for image in images if image != target]
             for (query, images), target in zip(lists.items(), split.targets, strict=True)}  # fmt: skip
    ranks = ranks_of_lists(split, lists)
    assert (ranks["better"] == ranks["candidates"] - 1).all() and (ranks["candidates"] > 50).all()
    table = circo_table(split, ranks, n=5)
    assert (table[table["metric"] == "R@50"]["value"] == 0).all()


def test_missing_and_repeated_answers_are_refused(circo):
    _, split, lists = circo
    with pytest.raises(DataError, match=r"the set of lists lacks 1 queries \(7\)"):
        ranks_of_lists(split, {query: images for query, images in lists.items() if query != "7"})
    with pytest.raises(ValueError, match="query 7 name an image twice"):
        ranks_of_lists(split, lists | {"7": [*lists["7"][:9], lists["7"][0]]})
