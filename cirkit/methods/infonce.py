"""InfoNCE: the plain contrastive baseline, every other target of the batch a negative.

How it decides what is noise: it does not; every triplet counts as clean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.methods.base import Batch, Method
from cirkit.scores import max_over_tokens


def infonce(similarity: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the own target among the batch, query to target.

    ``-(1/B) sum_i log softmax_j(s_ij / tau)_ii``, the objective of CLIP4CIR and of SPRC's L_itc.

    Args:
        similarity: s [B,B], row = query, column = target.
        temperature: tau, greater than 0.

    Raises:
        ValueError: if the matrix is not square.
    """
    if similarity.dim() != 2 or similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must be [B,B], got {tuple(similarity.shape)}")
    labels = torch.arange(len(similarity), device=similarity.device)
    return F.cross_entropy(similarity.float() / temperature, labels)


class InfoNCE(Method):
    """InfoNCE on max-over-token similarity."""

    @dataclass(frozen=True)
    class Config(Method.Config):
        """``temperature`` is tau, constant as in ConeSep (0.07)."""

        temperature: float = 0.07

    config: Config

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        similarity = max_over_tokens(self.query(batch.references, batch.texts), self.target(batch.targets))
        loss = infonce(similarity, self.config.temperature)
        return loss, {"infonce": loss.item(), "s_ii": similarity.diagonal().mean().item()}
