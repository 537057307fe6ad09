"""Files for the servers of CIRR and CIRCO: their form, and what the servers would refuse."""

from __future__ import annotations

import json

import pytest

from cirkit import submission
from cirkit.data import DataError, TripletSet, load_circo, load_cirr
from cirkit.submission import read_cirr_submission, write_circo_submission, write_cirr_submission

NAMES = tuple(f"n{i}" for i in range(60))


def cirr(**fields) -> TripletSet:
    defaults = {
        "name": "cirr", "split": "test1", "references": ("n0", "n7"), "captions": (("is red",), ("is blue",)),
        "targets": (None, None), "categories": ("", ""), "galleries": {"": NAMES}, "exclude_reference": True,
        "subsets": (NAMES[:6], NAMES[4:10]), "query_ids": ("12063", "12064"),
    }  # fmt: skip
    return TripletSet(**(defaults | fields))


GOOD = (NAMES[1:51], NAMES[10:60])
GOOD_SUBSETS = (("n5", "n1", "n3"), ("n4", "n9", "n8"))


def test_cirr_files_have_the_servers_form_and_read_back(tmp_path):
    path = write_cirr_submission(tmp_path / "new" / "recall.json", cirr(), "recall", GOOD)
    content = json.loads(path.read_text())
    assert list(content) == ["version", "metric", "12063", "12064"]
    assert (content["version"], content["metric"]) == ("rc2", "recall")
    assert content["12063"] == list(NAMES[1:51])
    assert read_cirr_submission(path) == ("recall", {"12063": GOOD[0], "12064": GOOD[1]})
    path = write_cirr_submission(tmp_path / "subset.json", cirr(), "recall_subset", GOOD_SUBSETS)
    assert json.loads(path.read_text()) == {
        "version": "rc2", "metric": "recall_subset", "12063": ["n5", "n1", "n3"], "12064": ["n4", "n9", "n8"],
    }  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "subset.json"]


@pytest.mark.parametrize("metric", ["recall", "recall_subset"])
def test_the_published_example_passes(shared_data, tmp_path, metric):
    example = shared_data / "cirr" / f"test1_pred_ranks_{metric}.json"
    triplets = load_cirr(shared_data / "cirr", "test1")
    read_metric, lists = read_cirr_submission(example)
    assert read_metric == metric and set(lists) == set(triplets.query_ids)
    ranked = [lists[pair] for pair in triplets.query_ids]
    path = write_cirr_submission(tmp_path / "mine.json", triplets, metric, ranked)
    assert json.loads(path.read_text()) == json.loads(example.read_text())


@pytest.mark.parametrize(
    ("metric", "ranked", "message"),
    [
        ("recall", (GOOD[0][:49], GOOD[1]), "query 12063 needs 50 distinct names, got 49 distinct of 49"),
        ("recall", (GOOD[0], (*GOOD[1][:49], "n10")), "query 12064 needs 50 distinct names, got 49 distinct of 50"),
        ("recall", (NAMES[:50], GOOD[1]), "query 12063 names its own reference n0"),
        ("recall", ((*NAMES[1:50], "nowhere"), GOOD[1]), "names nowhere, which it cannot be ranked among"),
        ("recall", GOOD[:1], "need one list per query, got 1 lists for 2 queries"),
        ("recall", ("abc", GOOD[1]), "got a string"),
        ("recall_subset", (GOOD_SUBSETS[0], ("n4", "n9", "n1")), "query 12064 names n1, which it cannot"),
        ("recall_subset", (("n0", "n1", "n2"), GOOD_SUBSETS[1]), "its own reference n0"),
        ("recall_subset", GOOD, "needs 3 distinct names"),
        ("map", GOOD, "metric 'map' is unknown"),
    ],
)
def test_what_the_server_refuses_is_not_written(tmp_path, metric, ranked, message):
    with pytest.raises(DataError, match=message):
        write_cirr_submission(tmp_path / "x.json", cirr(), metric, ranked)
    assert not any(tmp_path.iterdir())


def test_incomplete_sets_and_large_files_are_not_written(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no query ids"):
        write_cirr_submission(tmp_path / "x.json", cirr(query_ids=None), "recall", GOOD)
    with pytest.raises(DataError, match="no subsets"):
        write_cirr_submission(tmp_path / "x.json", cirr(subsets=None), "recall_subset", GOOD_SUBSETS)
    with pytest.raises(DataError, match="1 queries and 2 images of cirr were left out"):
        write_cirr_submission(tmp_path / "x.json", cirr(dropped_queries=1, dropped_images=2), "recall", GOOD)
    monkeypatch.setattr(submission, "SIZE_LIMIT", 100)
    with pytest.raises(DataError, match="the server takes up to 100"):
        write_cirr_submission(tmp_path / "x.json", cirr(), "recall", GOOD)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", [[], {}, {"version": "rc2", "metric": "map"}, {"version": "rc1", "metric": "recall"}]
)
def test_other_files_are_not_read_as_submissions(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="x.json has no version rc2 and metric recall or recall_subset"):
        read_cirr_submission(path)


def circo(**fields) -> TripletSet:
    numbers = tuple(str(i) for i in range(100, 160))
    return cirr(**({"references": ("100", "101"), "galleries": {"": numbers}, "query_ids": ("0", "1")} | fields))


def test_circo_file_holds_integers_and_may_hold_the_reference(tmp_path):
    triplets = circo()
    gallery = triplets.galleries[""]
    path = write_circo_submission(tmp_path / "test.json", triplets, (gallery[:50], gallery[5:55]))
    assert json.loads(path.read_text()) == {"0": list(range(100, 150)), "1": list(range(105, 155))}


def test_circo_file_has_the_form_of_the_published_example(shared_data):
    example = json.loads((shared_data / "circo" / "submission_examples" / "submission_val.json").read_text())
    val = load_circo(shared_data / "circo", "val", gallery_rule="union")
    assert tuple(example) == val.query_ids
    assert {len(ids) for ids in example.values()} == {submission.CIRCO_SIZE}
    assert {type(i) for ids in example.values() for i in ids} == {int}


def test_circo_refuses_names_that_are_no_numbers_and_wrong_lengths(tmp_path):
    with pytest.raises(DataError, match="takes numbers of COCO, not n0, n1"):
        write_circo_submission(tmp_path / "x.json", circo(galleries={"": NAMES}), (NAMES[:50], NAMES[:50]))
    with pytest.raises(DataError, match="needs 50 distinct names"):
        write_circo_submission(tmp_path / "x.json", circo(), (("100",), ("101",)))
