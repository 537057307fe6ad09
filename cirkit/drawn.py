"""Negatives that a method draws for each triplet: mined at some epochs, used one an epoch in between."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Method, TrainingView
from cirkit.mid_zone import mid_zone
from cirkit.mining import Chooser, Corpus, mine, whole_corpus
from cirkit.two_drops import two_drops

Kind = Literal["random", "twodrop", "midzone"]


def definition_epochs(epochs: int, definitions: int) -> list[int]:
    """Epochs, from 0, before which hard negatives are defined anew: e > 0 with e mod floor(E / n_def) = 0 (QuRe).

    That is not always ``definitions`` times: 30 epochs and 6 give 5, 10, 15, 20, 25.
    """
    interval = max(epochs // definitions, 1)
    return [epoch for epoch in range(1, epochs) if epoch % interval == 0]


class DrawnNegatives(nn.Module):
    """One negative image per triplet and epoch, from a zone of the query's ranking.

    Before the first definition they are uniform over the corpus. Draws are made for a whole period at once, without
    repetition while the zone lasts, and travel with the checkpoint, so that a resumed run goes on with them.

    Args:
        chooser: gives the zone. definitions: n_def. corpus: see :func:`cirkit.mining.corpora`; None for what the
            released code of QuRe takes: ``targets`` where triplets have categories (FashionIQ), else ``split`` (CIRR).
        per_epoch: K, negatives for each triplet in an epoch.
    """

    sized_by_data = ("draws", "since")

    def __init__(
        self,
        chooser: Chooser,
        definitions: int = 6,
        corpus: Corpus | None = None,
        exclude_reference: bool = False,
        per_epoch: int = 1,
    ):
        super().__init__()
        self.per_epoch = per_epoch
        self.chooser, self.definitions, self.corpus = chooser, definitions, corpus
        self.exclude_reference = exclude_reference
        self.register_buffer("draws", None)  # [n, epochs of the period], rows of the store
        self.register_buffer("since", None)  # [1], first epoch of the period
        self._store: FeatureStore | None = None
        self._epoch = 0

    def start_epoch(self, method: Method, view: TrainingView) -> dict[str, float]:
        """Mine if it is time; what was found goes into the history."""
        self._store, self._epoch = view.store, view.epoch
        starts = [0, *definition_epochs(view.epochs, self.definitions), view.epochs]
        if view.epoch not in starts:
            return {}
        chooser = self.chooser if view.epoch else whole_corpus
        count = (min(start for start in starts if start > view.epoch) - view.epoch) * self.per_epoch
        mined = mine(
            method, view.triplets, view.store, chooser, self.corpus or default_corpus(view.triplets), count,
            [view.seed, view.epoch], self.exclude_reference,
        )  # fmt: skip
        self.draws, self.since = mined.draws, torch.tensor([view.epoch])
        sizes = mined.sizes.float()
        return {
            "zone_mean": sizes.mean().item(),
            "zone_min": sizes.min().item(),
            "zone_fallback": (mined.fallback > 0).float().mean().item(),
        }

    def rows(self, triplets: Tensor) -> Tensor:
        """Rows of the feature store [B,K] of these triplets' negatives in this epoch."""
        if self.draws is None:
            raise RuntimeError("start_epoch has to come before the first batch")
        first = (self._epoch - int(self.since)) * self.per_epoch
        return self.draws[triplets.cpu(), first : first + self.per_epoch]

    def patches(self, triplets: Tensor) -> Tensor:
        """Patch tokens [B * K,P,Dv] of these triplets' negatives in this epoch, a triplet's own K in a row, on the
        triplets' device."""
        return self._store.patches(self.rows(triplets).flatten(), triplets.device)


def drawn_negatives(kind: Kind, definitions: int = 6, corpus: Corpus | None = None) -> DrawnNegatives:
    """Negatives of one kind: `random` ones, from QuRe's zone (`twodrop`, as in the paper) or DQE-CIR's (`midzone`).

    Raises:
        ValueError: another kind.
    """
    choosers = {"random": whole_corpus, "twodrop": partial(two_drops, threshold=0), "midzone": mid_zone}
    if kind not in choosers:
        raise ValueError(f"drawn negatives are of kind {', '.join(choosers)}; got {kind!r}")
    return DrawnNegatives(choosers[kind], definitions, corpus)


def default_corpus(triplets: TripletSet) -> Corpus:
    """What the released code of QuRe draws from on data of this kind."""
    return "targets" if any(triplets.categories) else "split"
