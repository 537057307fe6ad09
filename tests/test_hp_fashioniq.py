"""HP-FashionIQ: the real counts, value types, paths, and every way the file can be wrong."""

from __future__ import annotations

import pytest
from mini_cirr import hp_questions, write_hp

from cirkit.data import DataError, load_hp_fashioniq
from cirkit.data.hp_fashioniq import judged_triplets, relative_path
from cirkit.evaluation import preference_table


def test_real_counts(shared_data):
    path = shared_data / "hp_fashioniq" / "hpfiq.json"
    before = path.read_bytes()
    judged = load_hp_fashioniq(shared_data / "hp_fashioniq")
    assert path.read_bytes() == before
    assert len(judged) == 3050 and judged["user"].nunique() == 61
    assert judged["preferred"].value_counts().to_dict() == {1: 1641, 2: 1409}
    assert judged["category"].value_counts().to_dict() == {"shirt": 1800, "toptee": 1250}
    assert set(judged["set1"].map(len)) | set(judged["set2"].map(len)) == {5}
    assert {judged["score1"].dtype.kind, judged["score2"].dtype.kind, judged["preferred"].dtype.kind} == {"i"}
    assert int(judged["caption"].str.contains("-").sum()) == 147
    assert not judged["reference"].str.contains("/").any()
    assert len(load_hp_fashioniq(shared_data / "hp_fashioniq", ["toptee"])) == 1250


def test_users_own_scores_as_model_reach_the_oracle(shared_data):
    judged = load_hp_fashioniq(shared_data / "hp_fashioniq")
    table = preference_table(judged["score1"], judged["score2"], judged["preferred"], n=20).set_index("metric")
    assert table.loc["ratio", "n"] == 1149
    assert table.loc["ratio", "value"] == pytest.approx(1134 / 1149)
    assert table.loc["set 1", "value"] == pytest.approx(1641 / 3050)
    assert table.loc["agreement", "n"] == 3050 - table.loc["agreement", "ties"]


def test_mini_file(tmp_path):
    judged = load_hp_fashioniq(write_hp(tmp_path))
    assert judged["preferred"].tolist() == [1, 2, 1, 1, 2]
    first = judged.iloc[0]
    assert (first.user, first.question_set, first.question) == ("user_1", "question_set_1", 0)
    assert (first.category, first.reference, first.target) == ("shirt", "r-0", "t0")
    assert first.caption == "is a t-shirt and has - on it"
    assert (first.set1, first.set2, first.score1, first.score2) == (("a", "b"), ("b", "c"), 5, 3)
    assert load_hp_fashioniq(tmp_path, "toptee")["user"].tolist() == ["user_2"] * 2


def test_queries_become_a_triplet_set_without_targets(tmp_path):
    triplets = judged_triplets(load_hp_fashioniq(write_hp(tmp_path)))
    assert triplets.references[:2] == ("r-0", "r-1") and triplets.categories == ("shirt",) * 3 + ("toptee",) * 2
    assert triplets.subsets[0] == ("a", "b", "c") and triplets.galleries["toptee"] == ("a", "b", "c")
    with pytest.raises(DataError, match="no public ground truth"):
        triplets.require_targets()


@pytest.mark.parametrize(
    ("stored", "path"),
    [
        ("/-/image_data/shirt/B000LUIBH8.jpg", "image_data/shirt/B000LUIBH8.jpg"),
        ("image_data/shirt/a-/-/b.jpg", "image_data/shirt/a-/-/b.jpg"),
    ],
)
def test_only_the_leading_placeholder_is_rewritten(stored, path):
    assert relative_path(stored) == path


def test_dress_and_missing_file_are_one_sentence(tmp_path):
    with pytest.raises(DataError, match="hpfiq.json is missing"):
        load_hp_fashioniq(tmp_path)
    write_hp(tmp_path)
    with pytest.raises(DataError, match="dress: none in this set; it has shirt, toptee"):
        load_hp_fashioniq(tmp_path, ["shirt", "dress"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preferred set": ["1", "3"]}, "question 1, preferred set is '3', none of 1, 2"),
        ({"preferred set": ["1", True]}, "preferred set is True"),
        ({"preferred set": ["1"]}, "the lists need equal lengths"),
        ({"preferred_set": 3, "preferred set": None}, "has no list 'preferred set'"),
        ({"ref_img_paths": ["x.jpg"] * 2}, "'x.jpg' is no path"),
        ({"sentences": ["a", 2]}, "question 1: the sentence is a number"),
        ({"retrieved_set1": [{"img_path": [], "user_score": "5"}] * 2}, "no list 'img_path'"),
        ({"retrieved_set2": [{"img_path": ["s/a.jpg"] * 2, "user_score": "5"}] * 2}, "shows an image twice"),
        ({"retrieved_set2": [{"img_path": ["s/a.jpg"], "user_score": "6"}] * 2}, "user_score is '6'"),
    ],
)
def test_wrong_values_are_named(tmp_path, changes, message):
    write_hp(tmp_path, {"user_9": {"question_set_2": hp_questions() | changes}})
    with pytest.raises(DataError, match=message) as error:
        load_hp_fashioniq(tmp_path)
    assert "hpfiq.json, user_9, question_set_2" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [[], {"user_1": []}, {"user_1": {"a": 3}}])
def test_other_files_are_refused(tmp_path, content):
    write_hp(tmp_path, content)
    with pytest.raises(DataError, match="hpfiq.json"):
        load_hp_fashioniq(tmp_path)
