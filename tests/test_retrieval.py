"""Ranks through a model whose scores are known: masking, galleries and truth follow the set's own protocol."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from cirkit import retrieval
from cirkit.data import DataError, TripletSet
from cirkit.evaluation import recall_table
from cirkit.retrieval import encode_images, rank_queries, retrieve, score_sets

SCORES = {"a": 1.0, "b": 0.9, "c": 0.8, "d": 0.1}


class Known(torch.nn.Module):
    """Scores an image by its entry in SCORES whatever is asked."""

    def __init__(self):
        super().__init__()
        tokenize = lambda texts: types.SimpleNamespace(rows=lambda rows: rows)  # noqa: E731
        self.backbone = types.SimpleNamespace(tokenize=tokenize, device=torch.device("cpu"))

    def query(self, references, texts):
        return torch.ones(len(references), 1)

    def target(self, patches):
        return patches


class Store:
    def rows(self, ids):
        return np.array([list(SCORES).index(i) for i in ids])

    def patches(self, rows, device="cpu"):
        return torch.tensor(list(SCORES.values()))[torch.as_tensor(rows)][:, None, None]


def asked(exclude: bool, gallery=("d", "b", "a", "c"), targets=("b", "c")) -> TripletSet:
    return TripletSet(
        name="x", split="val", references=("a", "a"), captions=(("is red",), ("is blue",)), targets=targets,
        categories=("k", "k"), galleries={"k": gallery}, exclude_reference=exclude,
    )  # fmt: skip


@pytest.mark.parametrize(("exclude", "better", "best", "candidates"), [(False, [1, 2], "a", 4), (True, [0, 1], "b", 3)])
def test_reference_is_ranked_or_masked_as_the_protocol_says(exclude, better, best, candidates):
    ranks = rank_queries(Known(), asked(exclude), Store())
    assert ranks.better.tolist() == better and ranks.tied.tolist() == [0, 0]
    assert set(ranks.best) == {best} and set(ranks.candidates) == {candidates}


def test_reference_outside_the_gallery_takes_no_place_in_it():
    ranks = rank_queries(Known(), asked(True, gallery=("d", "b", "c")), Store())
    assert ranks.better.tolist() == [0, 1] and set(ranks.candidates) == {3}


def test_split_without_targets_is_refused():
    with pytest.raises(DataError, match="val"):
        rank_queries(Known(), asked(False, targets=(None, None)), Store())


# --- subsets, several right answers, ranked lists ---------------------------------------------------------

SIX = ("a", "b", "c", "d", "e", "f")


@pytest.fixture
def six(monkeypatch):
    monkeypatch.setattr(f"{__name__}.SCORES", {"a": 1.0, "b": 0.9, "c": 0.8, "d": 0.8, "e": 0.7, "f": 0.1})


def with_subsets(**fields) -> TripletSet:
    """Three queries whose reference a scores highest; e is in subsets alone, not in the gallery."""
    defaults = {
        "name": "x", "split": "val", "references": ("a", "a", "b"), "captions": (("is red",),) * 3,
        "targets": ("b", "d", "f"), "categories": ("",) * 3, "galleries": {"": ("f", "d", "b", "a", "c")},
        "exclude_reference": True, "subsets": (SIX, SIX, ("f", "e", "b")),
    }  # fmt: skip
    return TripletSet(**(defaults | fields))


def test_subset_ranks_leave_the_reference_out(six):
    ranks = rank_queries(Known(), with_subsets(), Store())
    assert ranks.better.tolist() == [0, 1, 3] and ranks.tied.tolist() == [0, 1, 0]
    assert ranks.candidates.tolist() == [4, 4, 4]
    # d ties with c behind b; f stands behind e alone, as b is its reference
    assert ranks.subset_better.tolist() == [0, 1, 1] and ranks.subset_tied.tolist() == [0, 1, 0]
    assert ranks.subset_candidates.tolist() == [5, 5, 2]
    table = recall_table(ranks, ks=(1, 5), n=20).query("category == 'mean'").set_index("metric")
    assert table.index.tolist() == ["R@1", "R@5", "Rs@1", "Rs@2", "Rs@3"]
    np.testing.assert_allclose(table["value"], [100 / 3, 100, 100 / 3, (1 + 0.5 + 1) / 3 * 100, 100])
    assert table.loc["Rs@1", "candidates"] == 4 and (table["n"] == 3).all()


def test_reference_is_out_of_the_subset_also_where_it_is_ranked(six):
    ranks = rank_queries(Known(), with_subsets(exclude_reference=False), Store())
    assert ranks.better.tolist() == [1, 2, 4] and ranks.subset_better.tolist() == [0, 1, 1]


def test_reference_in_the_subset_but_outside_the_gallery_takes_no_place(six):
    ranks = rank_queries(Known(), with_subsets(galleries={"": ("f", "d", "b", "c")}), Store())
    # b is out for the third query alone, which has b as reference
    assert ranks.candidates.tolist() == [4, 4, 3] and ranks.better.tolist() == [0, 1, 2]
    assert ranks.subset_candidates.tolist() == [5, 5, 2]


def test_random_scores_reach_the_chance_level_of_subsets(six, monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"i{n}" for n in range(200)]
    monkeypatch.setattr(f"{__name__}.SCORES", dict(zip(names, rng.random(200).tolist(), strict=True)))
    subsets = [tuple(rng.choice(names, 6, replace=False).tolist()) for _ in range(3000)]
    triplets = with_subsets(
        references=tuple(s[0] for s in subsets), targets=tuple(s[1] for s in subsets), subsets=tuple(subsets),
        captions=(("is red",),) * 3000, categories=("",) * 3000, galleries={"": tuple(names)},
    )  # fmt: skip
    table = recall_table(rank_queries(Known(), triplets, Store()), ks=(1,), n=20).query("category == 'mean'")
    np.testing.assert_allclose(table.set_index("metric").loc[["Rs@1", "Rs@2", "Rs@3"], "value"], [20, 40, 60], atol=3)


def test_dropped_images_make_subsets_of_unequal_size(six):
    triplets = with_subsets().without_images(["c"])
    ranks = rank_queries(Known(), triplets, Store())
    assert ranks.subset_candidates.tolist() == [4, 4, 2] and ranks.subset_tied.tolist() == [0, 0, 0]


def test_average_precision_of_several_right_answers(six):
    truths = (("b", "d"), ("d", "f", "b"), ("f",))
    ranks = rank_queries(Known(), with_subsets(subsets=None, ground_truths=truths), Store())
    # candidates in order: b, then c before the right d of equal score, then f; without a, or with it for query 3
    assert "subset_better" not in ranks
    np.testing.assert_allclose(ranks["AP@5"], [(1 + 2 / 3) / 2, (1 + 2 / 3 + 3 / 4) / 3, 1 / 4])
    np.testing.assert_allclose(ranks["AP@50"], ranks["AP@5"])
    shuffled = with_subsets(subsets=None, ground_truths=truths, galleries={"": ("c", "b", "f", "a", "d")})
    assert rank_queries(Known(), shuffled, Store())["AP@10"].tolist() == ranks["AP@10"].tolist()


@pytest.mark.parametrize("targets", [("b", "d", "f"), (None, None, None)])
def test_ranked_lists_need_no_targets(six, targets):
    triplets = with_subsets(targets=targets)
    assert retrieve(Known(), triplets, Store(), 3) == [("b", "d", "c"), ("b", "d", "c"), ("a", "d", "c")]
    expected = [("b", "c"), ("b", "c"), ("e", "f")]
    assert retrieve(Known(), triplets, Store(), 2, within="subset") == expected
    kept = triplets.replace(exclude_reference=False)
    assert retrieve(Known(), kept, Store(), 1) == [("a",)] * 3
    assert retrieve(Known(), kept, Store(), 2, within="subset") == expected


def test_ranked_lists_of_several_categories_keep_the_order_of_the_set(six):
    triplets = with_subsets(subsets=None, categories=("k", "l", "k"), galleries={"l": ("d", "a"), "k": ("f", "b", "a")})
    assert retrieve(Known(), triplets, Store(), 1) == [("b",), ("d",), ("a",)]


def test_what_cannot_be_retrieved_is_refused(six):
    with pytest.raises(ValueError, match="between 1 and the 4 candidates, got 50"):
        retrieve(Known(), with_subsets(), Store())
    with pytest.raises(ValueError, match="the 2 members of the smallest subset, got 3"):
        retrieve(Known(), with_subsets(), Store(), 3, within="subset")
    for within, subsets in (("subset", None), ("world", (SIX,) * 3)):
        with pytest.raises(DataError, match=within):
            retrieve(Known(), with_subsets(subsets=subsets), Store(), 1, within=within)


def test_result_sets_are_scored_by_their_mean(six):
    triplets = with_subsets(subsets=None)
    scores = score_sets(Known(), triplets, Store(), [("a", "f"), ("c", "b"), ("f", "e")])
    np.testing.assert_allclose(scores, [0.55, 0.85, 0.4], atol=1e-7)
    with pytest.raises(ValueError, match="one result set per query, got 1 for 3"):
        score_sets(Known(), triplets, Store(), [("a", "f")])


def test_similarities_of_the_gallery_are_computed_once(six, monkeypatch):
    calls = []
    scan = retrieval.rank_and_top_k
    monkeypatch.setattr(retrieval, "rank_and_top_k", lambda *args: calls.append(1) or scan(*args))
    for name in ("rank_targets", "top_k"):
        monkeypatch.setattr(retrieval, name, lambda *args: pytest.fail("scores computed twice"))
    rank_queries(Known(), with_subsets(), Store())
    assert calls == [1]


def test_batches_are_written_into_one_tensor(six, monkeypatch):
    monkeypatch.setattr(torch, "cat", lambda *args, **kwargs: pytest.fail("a second copy of all tokens"))
    encoded = encode_images(Known(), SIX, Store(), batch_size=4)
    assert encoded.shape == (6, 1, 1) and encoded.flatten().tolist() == pytest.approx(list(SCORES.values()))
    with pytest.raises(ValueError, match="nothing to encode"):
        encode_images(Known(), [], Store())


@pytest.mark.parametrize("encode", ["queries", "targets"])
def test_the_model_is_in_eval_mode_while_it_encodes(encode):
    """Dropout must not take part in choosing a model or in its numbers."""
    modes = []

    class Watched(Known):
        def query(self, references, texts):
            modes.append(("queries", self.training))
            return super().query(references, texts)

        def target(self, patches):
            modes.append(("targets", self.training))
            return super().target(patches)

    rank_queries(Watched().train(), asked(False), Store())
    seen = [training for what, training in modes if what == encode]
    assert seen and not any(seen)
