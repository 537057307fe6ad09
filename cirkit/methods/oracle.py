"""Oracles: the two baselines trained on the truly clean triplets only, for as many gradient steps as all the others.

How they decide what is noise: they are told. No method can know that, so they are the reference that a method for
noisy triplets is measured against: what perfect detection, and nothing else, would bring.
"""

from __future__ import annotations

import numpy as np

from cirkit.losses import infonce, robust_contrastive
from cirkit.methods.base import BatchMethod


class Oracle(BatchMethod):
    """What both oracles share; batches are as large as elsewhere and hold clean rows alone."""

    uses_ledger = True

    def training_rows(self, clean: np.ndarray | None) -> np.ndarray | None:
        return np.flatnonzero(clean)


class OracleInfoNCE(Oracle):
    """InfoNCE on clean rows."""

    objective = staticmethod(infonce)


class OracleRCL(Oracle):
    """Robust contrastive loss on clean rows, at the learning rate of RCL."""

    lr = 1e-3
    objective = staticmethod(robust_contrastive)
