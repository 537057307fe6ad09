"""Oracles: the two baselines trained on the truly clean triplets only, for as many gradient steps as all the others.

How they decide what is noise: they are told. No method can know that, so they are the reference that a method for
noisy triplets is measured against: what perfect detection, and nothing else, would bring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cirkit.losses import infonce, robust_contrastive
from cirkit.methods.base import Batch, Method, check_positive


class Oracle(Method):
    """What both oracles share; batches are as large as elsewhere and hold clean rows alone."""

    uses_ledger = True
    objective: Callable[[Tensor, float], Tensor]

    @dataclass(frozen=True)
    class Config(Method.Config):
        """``temperature`` is tau, constant as in ConeSep (0.07)."""

        temperature: float = 0.07

        def __post_init__(self):
            check_positive(self, "temperature")

    config: Config

    def training_rows(self, clean: np.ndarray | None) -> np.ndarray | None:
        return np.flatnonzero(clean)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        similarity = self.similarity(batch)
        self.observe(similarity, self.config.temperature)
        loss = self.objective(similarity, self.config.temperature)
        return loss, {self.objective.__name__: loss.item(), "s_ii": similarity.diagonal().mean().item()}


class OracleInfoNCE(Oracle):
    """InfoNCE on clean rows."""

    objective = staticmethod(infonce)


class OracleRCL(Oracle):
    """Robust contrastive loss on clean rows, at the learning rate of RCL."""

    lr = 1e-3
    objective = staticmethod(robust_contrastive)
