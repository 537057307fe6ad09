"""What a method found one epoch ago (HABIT): by training row, or by place in the epoch as the released code has it.

Everything is in main memory and travels with the checkpoint, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cirkit.scores import max_over_tokens


class Past(NamedTuple):
    """One epoch ago: ``known`` bool [B], similarity [K,K] among the K known rows, labels [B], NaN where not known."""

    known: Tensor
    similarity: Tensor
    labels: Tensor


class History(nn.Module):
    """What the steps of the epoch before found. Each step first recalls its rows and then records them anew."""

    sized_by_data: tuple[str, ...] = ()

    def __init__(self):
        super().__init__()
        self.start(0, afresh=True)

    def start(self, size: int, afresh: bool) -> None:
        """Before each epoch, with the size of the training set; nothing is kept before the first call."""
        self.size, self.place, self.first = size, 0, afresh
        if afresh:
            for name in self.sized_by_data:
                self.register_buffer(name, None)

    def record(self, rows: Tensor, composed: Tensor, targets: Tensor, similarity: Tensor, labels: Tensor) -> None:
        """Note a step: ``rows`` [B], composed [B,D], target tokens [B,N,D], s [B,B] and labels [B] as estimated."""
        if not self.size:
            return
        if self.labels is None:
            self.make_room(len(rows), composed, targets)
        self.write(rows, composed, targets, similarity, labels.float().cpu())

    def recall(self, rows: Tensor) -> Past | None:
        """What is known of a batch, on its device; None if that is nothing, and throughout the first epoch."""
        if self.first or self.labels is None:
            return None
        labels = self.labels[self.index(rows)].to(rows.device)
        known = ~labels.isnan()
        return Past(known, self.similarity_of(rows[known]).to(rows.device), labels) if known.any() else None


class RowHistory(History):
    """By training row: composed query [n,D], target tokens [n,N,D], in half precision, and label [n].

    A row that stood in no batch of the last epoch keeps what is older; one that stands in several batches of an epoch,
    because a gate left few rows to draw from, finds what the last of them recorded.
    """

    sized_by_data = ("composed", "targets", "labels")

    def index(self, rows: Tensor) -> Tensor:
        return rows.cpu()

    def similarity_of(self, rows: Tensor) -> Tensor:
        at = self.index(rows)
        return max_over_tokens(self.composed[at].to(rows.device), self.targets[at].to(rows.device))

    def make_room(self, batch: int, composed: Tensor, targets: Tensor) -> None:
        self.composed = torch.zeros(self.size, *composed.shape[1:], dtype=torch.float16)
        self.targets = torch.zeros(self.size, *targets.shape[1:], dtype=torch.float16)
        self.labels = torch.full((self.size,), math.nan)

    def write(self, rows: Tensor, composed: Tensor, targets: Tensor, similarity: Tensor, labels: Tensor) -> None:
        at = self.index(rows)
        self.composed[at] = composed.detach().half().cpu()
        self.targets[at] = targets.detach().half().cpu()
        self.labels[at] = labels


class PositionHistory(History):
    """By place in the epoch: similarity [steps,B,B] and labels [steps,B] of the batch that stood there (released)."""

    sized_by_data = ("similarities", "labels")

    def index(self, rows: Tensor) -> int:
        return self.place

    def similarity_of(self, rows: Tensor) -> Tensor:
        return self.similarities[self.place]

    def make_room(self, batch: int, composed: Tensor, targets: Tensor) -> None:
        steps = max(self.size // batch, 1)
        self.similarities = torch.zeros(steps, batch, batch)
        self.labels = torch.full((steps, batch), math.nan)

    def write(self, rows: Tensor, composed: Tensor, targets: Tensor, similarity: Tensor, labels: Tensor) -> None:
        self.similarities[self.place] = similarity.detach().float().cpu()
        self.labels[self.place] = labels
        self.place = (self.place + 1) % len(self.labels)
