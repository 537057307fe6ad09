"""Files for the servers of CIRR and CIRCO: their form, and what the servers would refuse."""

from __future__ import annotations

import json

import pytest
from mini_cirr import write_circo, write_cirr, write_json

from cirkit import submission
from cirkit.data import DataError, TripletSet, load_circo, load_cirr
from cirkit.submission import (
    check_circo_submission,
    check_cirr_submission,
    read_circo_submission,
    read_cirr_submission,
    write_circo_submission,
    write_cirr_submission,
)

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


# --- files that somebody else made --------------------------------------------------------------------------


def cirr_file(tmp_path, kind="recall", **changes):
    """A good file of the set `cirr`, with keys changed, or removed where the value is ...."""
    lists = GOOD if kind == "recall" else GOOD_SUBSETS
    content = {"version": "rc2", "metric": kind, "12063": list(lists[0]), "12064": list(lists[1])} | changes
    return write_json(tmp_path / "theirs.json", {key: value for key, value in content.items() if value is not ...})


@pytest.mark.parametrize(("metric", "lists"), [("recall", GOOD), ("recall_subset", GOOD_SUBSETS)])
def test_what_we_write_passes_the_check_and_so_does_another_order_of_keys(tmp_path, metric, lists):
    path = write_cirr_submission(tmp_path / "ours.json", cirr(), metric, lists)
    read = check_cirr_submission(path, cirr())
    assert read == (metric, {"12063": tuple(lists[0]), "12064": tuple(lists[1])})
    content = json.loads(path.read_text())
    assert check_cirr_submission(write_json(path, dict(reversed(content.items()))), cirr()) == read


@pytest.mark.parametrize(
    ("metric", "changes", "message"),
    [
        ("recall", {"version": ...}, "has no version rc2 and metric recall or recall_subset"),
        ("recall", {"version": "RC2"}, "has no version rc2"),
        ("recall", {"metric": "Recall"}, "has no version rc2 and metric"),
        ("recall", {"metric": ["recall"]}, "has no version rc2 and metric"),
        ("recall", {"metric": {}}, "has no version rc2 and metric"),
        ("recall", {"metric": "recall_subset"}, "query 12063 needs 3 distinct names, got 50"),
        ("recall", {"12064": ...}, r"theirs.json lacks 1 queries \(12064\)"),
        ("recall", {"12065": list(GOOD[0])}, r"answers 1 queries \(12065\), which cirr test1 does not ask"),
        ("recall", {"12064": "n1"}, "theirs.json, query 12064 holds a string, not a list"),
        ("recall", {"12064": [*GOOD[1][:49], 7]}, "query 12064 names 7, and the server takes strings"),
        ("recall", {"12064": list(GOOD[1][:49])}, "needs 50 distinct names, got 49 distinct of 49"),
        ("recall", {"12064": [*GOOD[1][:49], "n10"]}, "got 49 distinct of 50"),
        ("recall", {"12063": list(NAMES[:50])}, "names its own reference n0"),
        ("recall", {"12063": [*GOOD[0][:49], "val-1"]}, "names val-1, which it cannot be ranked among"),
        ("recall_subset", {"12064": ["n4", "n9", "n1"]}, "query 12064 names n1"),
    ],
)
def test_a_file_that_cirrs_server_refuses_is_refused(tmp_path, metric, changes, message):
    check_cirr_submission(cirr_file(tmp_path, metric), cirr())  # it is good without the change
    with pytest.raises(DataError, match=message) as error:
        check_cirr_submission(cirr_file(tmp_path, metric, **changes), cirr())
    assert "\n" not in str(error.value)


def test_a_file_that_is_too_large_empty_or_gone_is_refused(tmp_path, monkeypatch):
    path = cirr_file(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(submission, "SIZE_LIMIT", 100)
        with pytest.raises(DataError, match=r"theirs.json has [\d,]+ bytes, and the server takes up to 100"):
            check_cirr_submission(path, cirr())
    path.write_text("")
    for check in (check_cirr_submission, check_circo_submission):
        with pytest.raises(DataError, match="theirs.json is empty"):
            check(path, cirr())
        with pytest.raises(DataError, match="gone.json does not exist"):
            check(tmp_path / "gone.json", cirr())


def circo_file(tmp_path, **changes):
    content = {"0": list(range(100, 150)), "1": list(range(105, 155))} | changes
    return write_json(tmp_path / "theirs.json", {key: value for key, value in content.items() if value is not ...})


def test_a_good_circo_file_is_read_as_ids(tmp_path):
    lists = check_circo_submission(circo_file(tmp_path), circo())
    assert lists == read_circo_submission(tmp_path / "theirs.json") and lists["1"][:2] == ("105", "106")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1": ...}, r"lacks 1 queries \(1\)"),
        ({"2": list(range(100, 150))}, r"answers 1 queries \(2\), which cirr test1 does not ask"),
        ({"version": "rc2"}, "has version among its query ids, which are numbers in CIRCO"),
        ({"1": [str(i) for i in range(105, 155)]}, "query 1 names '105', and the server takes integers"),
        ({"1": [*range(105, 154), 1.0]}, "query 1 names 1.0, and the server takes integers"),
        ({"1": [*range(105, 154), True]}, "query 1 names True, and the server takes integers"),
        ({"1": list(range(105, 154))}, "query 1 needs 50 distinct names, got 49"),
        ({"1": [*range(105, 154), 105]}, "got 49 distinct of 50"),
        ({"1": [*range(105, 154), 7]}, "query 1 names 7, which it cannot be ranked among"),
        ({"1": {"a": 1}}, "query 1 holds an object, not a list"),
        ({"1": [*range(105, 154), -1]}, "query 1 of .* names -1, which are no numbers of COCO"),
        ({"1": [*range(105, 154), 10**30]}, "which are no numbers of COCO"),
    ],
)
def test_a_file_that_circos_server_refuses_is_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        check_circo_submission(circo_file(tmp_path, **changes), circo())


def test_a_circo_file_is_an_object(tmp_path):
    with pytest.raises(DataError, match="holds a list, not an object of query ids"):
        read_circo_submission(write_json(tmp_path / "x.json", [1]))


# --- command line --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "split", "said"),
    [
        ("cirr/test1_pred_ranks_recall.json", None, "CIRR test1, recall: 4,148 queries of 50 names; good."),
        ("cirr/test1_pred_ranks_recall_subset.json", None, "recall_subset: 4,148 queries of 3 names; good."),
        ("circo/submission_examples/submission_test.json", None, "CIRCO test: 800 queries of 50 images; good."),
        ("circo/submission_examples/submission_val.json", "val", "mAP@50"),
    ],
)
def test_published_examples_pass_on_the_command_line(shared_data, capsys, file, split, said):
    arguments = [str(shared_data / file), str(shared_data / file.partition("/")[0])]
    assert submission.main([*arguments, *(["--split", split] if split else [])]) == 0
    assert said in capsys.readouterr().out


def test_the_command_line_refuses_with_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(submission, "CIRR_SIZES", {"recall": 3, "recall_subset": 2})
    root = write_cirr(tmp_path)
    lists = {"21": ["test1-1", "test1-2", "test1-x"], "22": ["test1-0", "test1-1", "test1-2"]}
    path = write_json(tmp_path / "file.json", {"version": "rc2", "metric": "recall"} | lists)
    assert submission.main([str(path), str(root)]) == 0
    assert "2 queries of 3 names; good" in capsys.readouterr().out
    assert submission.main([str(path), str(root), "--split", "val"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "lacks 2 queries (11, 12)" in shown.err
    answered = {"11": ["val-1", "val-2", "val-x"], "12": ["val-1", "val-0", "val-2"]}
    path = write_json(tmp_path / "file.json", {"version": "rc2", "metric": "recall"} | answered)
    assert submission.main([str(path), str(root), "--split", "val"]) == 0
    assert "R@1" in capsys.readouterr().out  # val has public targets


@pytest.mark.parametrize("info", [True, False])
def test_without_cocos_list_the_command_line_says_what_it_did_not_check(tmp_path, capsys, monkeypatch, info):
    monkeypatch.setattr(submission, "CIRCO_SIZE", 3)
    root = write_circo(tmp_path, info=info)
    path = write_json(tmp_path / "file.json", {"0": [1, 2, 3], "1": [4, 5, 99]})
    assert submission.main([str(path), str(root)]) == int(info)  # 99 is no image of the gallery
    shown = capsys.readouterr()
    assert ("Not checked" in shown.out) is not info and ("names 99" in shown.err) is info
