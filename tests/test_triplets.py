"""Columns of triplets: caption forms, selection, what is dropped, and what travels with a result."""

from __future__ import annotations

import dataclasses
import json
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirkit.data.annotations import DataError
from cirkit.data.triplets import CAPTION_FORMS, CAPTION_MODES, Triplet, TripletSet, join_captions

MIRROR = {
    "first_and_second": "second_and_first",
    "second_and_first": "first_and_second",
    "first": "second",
    "second": "first",
}
forms = st.sampled_from(CAPTION_FORMS)
blanks = st.text(" \t\n\u00a0", max_size=3)
captions = st.lists(st.text("xyz \t-", max_size=6), min_size=1, max_size=2)


def make(n: int = 3, **fields) -> TripletSet:
    """n rows in two categories: row i asks for t<i> from r<i>, with captions a<i> and b<i>."""
    defaults = {
        "name": "mini",
        "split": "train",
        "references": tuple(f"r{i}" for i in range(n)),
        "captions": tuple((f"a{i}", f"b{i}") for i in range(n)),
        "targets": tuple(f"t{i}" for i in range(n)),
        "categories": tuple("even" if i % 2 == 0 else "odd" for i in range(n)),
        "galleries": {
            "even": ("x", *(f"t{i}" for i in range(0, n, 2))),
            "odd": ("y", "x", *(f"t{i}" for i in range(1, n, 2))),
        },
    }
    return TripletSet(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("given_captions", "expected"),
    [
        (["a", "b"], ("a and b", "b and a", "a", "b")),
        (["", "b"], ("b", "b", "b", "b")),
        (["a", " \n"], ("a", "a", "a", "a")),
        ([" a ", "b\t"], ("a and b", "b and a", "a", "b")),
        (["a"], ("a", "a", "a", "a")),
        (["", " "], ("", "", "", "")),
    ],
)
def test_caption_forms(given_captions, expected):
    assert tuple(join_captions(given_captions, form) for form in CAPTION_FORMS) == expected


@given(captions, forms)
def test_joined_text_has_no_stray_and(parts, form):
    text = join_captions(parts, form)
    assert text == text.strip()
    assert not text.startswith("and") and not text.endswith("and")
    assert bool(text) == any(part.strip() for part in parts)


@given(captions, blanks, st.integers(0, 2), forms)
def test_blank_parts_never_matter(parts, blank, position, form):
    with_blank = [*parts[:position], blank, *parts[position:]]
    assert join_captions(with_blank, form) == join_captions(parts, form)


@given(captions, forms)
def test_reversed_captions_mirror_the_form(parts, form):
    assert join_captions(parts[::-1], form) == join_captions(parts, MIRROR[form])


def test_unknown_form_is_refused():
    with pytest.raises(DataError, match="'third' is unknown; choose one of first_and_second"):
        join_captions(["a", "b"], "third")


def test_rows_and_texts():
    triplets = make(caption_mode="second_and_first")
    assert len(triplets) == 3
    assert triplets.texts == ("b0 and a0", "b1 and a1", "b2 and a2")
    assert triplets[1] == Triplet("r1", "b1 and a1", "t1", "odd") == list(triplets)[1]
    assert triplets[np.int64(-1)] == triplets[2]
    assert triplets.captions[1] == ("a1", "b1")
    with pytest.raises(IndexError):
        triplets[3]
    with pytest.raises(TypeError, match="select"):
        triplets[0:2]


def test_columns_cannot_change():
    gallery = {"even": ["x"], "odd": ["y"]}
    references = ["r0", "r1", "r2"]
    triplets = make(references=references, galleries=gallery)
    gallery["even"].append("z")
    references[0] = "z"
    assert triplets.galleries == {"even": ("x",), "odd": ("y",)}
    assert triplets.references == ("r0", "r1", "r2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        triplets.references = ()
    assert pickle.loads(pickle.dumps(triplets)) == triplets


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"references": ("r0", "r1")}, "equal lengths"),
        ({"targets": ("t0", 7, "t2")}, r"targets\[1\] is 7"),
        ({"references": ("r0", "r1", None)}, r"references\[2\] is None"),
        ({"captions": ("ab", "cd", "ef")}, r"captions\[0\] is the string 'ab'"),
        ({"caption_mode": "firstandsecond"}, "caption_mode 'firstandsecond' is unknown"),
        ({"caption_mode": "random", "split": "val"}, "'random' is for training only"),
        ({"gallery_rule": "all"}, "gallery_rule 'all' is unknown"),
        ({"galleries": {"even": ("x",)}}, "no gallery for odd"),
    ],
)
def test_bad_columns_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        make(**fields)


def test_select_keeps_columns_together():
    triplets = make(5, ground_truths=tuple((f"t{i}", f"g{i}") for i in range(5)))
    for rows in ([3, 0], np.array([3, 0]), (3, -5)):
        chosen = triplets.select(rows)
        assert list(chosen) == [triplets[3], triplets[0]]
        assert chosen.ground_truths == (("t3", "g3"), ("t0", "g0"))
        assert chosen.galleries == triplets.galleries
    assert triplets.select(np.array([False, True, False, True, False])).references == ("r1", "r3")
    assert triplets.select(slice(3, None)).references == ("r3", "r4")
    assert len(triplets.select([])) == 0
    for bad in ([5], [True, False], [0.5], [[0]]):
        with pytest.raises(IndexError):
            triplets.select(bad)


def test_replace_refuses_unknown_columns():
    triplets = make()
    assert triplets.texts[0] == "a0 and b0"
    assert triplets.replace(caption_mode="second").texts[0] == "b0"
    with pytest.raises(TypeError):
        triplets.replace(refs=())


@pytest.mark.parametrize("mode", [mode for mode in CAPTION_MODES if mode != "random"])
def test_fixed_modes_are_the_same_in_every_epoch(mode):
    triplets = make(caption_mode=mode)
    assert triplets.epoch_texts(0, seed=0) == triplets.epoch_texts(5, seed=3) == triplets.texts


def test_random_mode_draws_the_four_forms_evenly_and_repeatably():
    n = 4000
    triplets = make(n, caption_mode="random")
    texts = triplets.epoch_texts(epoch=2, seed=7)
    options = [{join_captions(row, form): k for k, form in enumerate(CAPTION_FORMS)} for row in triplets.captions]
    drawn = np.bincount([option[text] for option, text in zip(options, texts, strict=True)], minlength=4)
    # Five standard deviations of a binomial count with p = 1/4.
    assert np.abs(drawn - n / 4).max() < 5 * np.sqrt(n * 3 / 16)
    random.seed(1)
    np.random.seed(1)
    assert triplets.epoch_texts(epoch=2, seed=7) == texts
    assert triplets.epoch_texts(epoch=3, seed=7) != texts
    assert triplets.epoch_texts(epoch=2, seed=8) != texts
    assert triplets.texts[0] == "a0 and b0"


def test_image_ids_and_groups():
    triplets = make(subsets=(("t0", "u"), ("v",), ()), ground_truths=(("t0", "w"), (), ()))
    assert triplets.image_ids() == ("r0", "r1", "r2", "t0", "t1", "t2", "u", "v", "w", "x", "y")
    assert triplets.image_groups() == {
        "even train": ("r0", "r2", "t0", "t2", "u", "w", "x"),
        "odd train": ("r1", "t1", "v", "x", "y"),
    }


def test_metrics_need_targets():
    known = make()
    assert known.has_targets
    known.require_targets()
    hidden = make(split="test", targets=(None, None, "t2"))
    assert not hidden.has_targets and hidden[0].target is None
    with pytest.raises(DataError, match=r"no public ground truth for split 'test' \(2 of 3 .* use val, or write"):
        hidden.require_targets()


@given(st.sets(st.sampled_from(["r0", "r1", "r4", "t1", "t2", "x", "y", "u", "elsewhere"])))
def test_without_images_against_a_loop(missing):
    triplets = make(5, subsets=(("u", "t0"),) * 5)
    expected = [row for row in range(5) if f"r{row}" not in missing and f"t{row}" not in missing]
    kept = triplets.without_images(missing)
    assert list(kept) == [triplets[row] for row in expected]
    assert not missing.intersection(kept.image_ids())
    for category, gallery in triplets.galleries.items():
        assert kept.galleries[category] == tuple(image for image in gallery if image not in missing)
    needed = missing - {"elsewhere"}
    assert (kept.dropped_queries, kept.dropped_images) == (5 - len(expected), len(needed))
    assert kept.comparable == (not needed) == kept.protocol()["comparable"]
    assert needed or kept is triplets


def test_dropping_adds_up_and_never_empties():
    once = make().without_images(["r0", "x"])
    twice = once.without_images(["x", "t1"])
    assert (once.dropped_queries, once.dropped_images) == (1, 2)
    assert (twice.dropped_queries, twice.dropped_images) == (2, 3)
    with pytest.raises(DataError, match="no query of mini train is left without the 3 missing images"):
        make().without_images(["r0", "t1", "r2"])


def test_protocol_is_json_and_names_what_changes_a_number():
    protocol = make(caption_mode="both", exclude_reference=True).protocol()
    assert json.loads(json.dumps(protocol)) == {
        "dataset": "mini",
        "split": "train",
        "caption_mode": "both",
        "gallery_rule": "split",
        "exclude_reference": True,
        "exclude_leaks": False,
        "gallery_sizes": {"even": 3, "odd": 3},
        "dropped_queries": 0,
        "dropped_images": 0,
        "comparable": True,
    }


def test_query_ids_and_aspects_are_columns():
    triplets = make(query_ids=("7", "8", "9"), aspects=(("addition",), (), ("negation",)))
    assert triplets.select([2, 0]).query_ids == ("9", "7")
    assert triplets.select([2, 0]).aspects == (("negation",), ("addition",))
    with pytest.raises(DataError, match="equal lengths"):
        make(query_ids=("7",))


def test_category_called_mean_is_refused():
    with pytest.raises(DataError, match='a category called "mean"'):
        make(2, categories=("mean", "mean"), galleries={"mean": ("t0", "t1")})


@pytest.mark.parametrize("split", ["val", "test1"])
def test_reference_as_target_is_refused_where_it_is_taken_out_of_the_ranking(split):
    same = {"targets": ("r0", "t1", "r2"), "split": split}
    assert len(make(**same)) == 3
    with pytest.raises(DataError, match=rf"2 queries of mini {split} .*\(r0, r2\).*exclude_reference=False"):
        make(**same, exclude_reference=True)
    # noise may do this to training rows, which are not ranked
    assert make(**(same | {"split": "train"}), exclude_reference=True).targets[0] == "r0"
