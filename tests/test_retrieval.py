"""Ranks through a model whose scores are known: masking, galleries and truth follow the set's own protocol."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from cirkit.data import DataError, TripletSet
from cirkit.retrieval import rank_queries

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
