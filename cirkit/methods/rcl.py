"""Robust contrastive learning: push wrong targets away, never pull the given one closer.

How it decides what is noise: it does not; its gradient on a row is bounded, so a pair that the model does not believe
has little pull.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirkit.losses import robust_contrastive
from cirkit.methods.base import Batch, Method, check_positive


class RCL(Method):
    """The robust contrastive loss alone, as in TME and ConeSep, on max-over-token similarity."""

    @dataclass(frozen=True)
    class Config(Method.Config):
        """``temperature`` is tau, constant as in ConeSep (0.07)."""

        temperature: float = 0.07

        def __post_init__(self):
            check_positive(self, "temperature")

    config: Config

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        similarity = self.similarity(batch)
        self.observe(similarity, self.config.temperature)
        loss = robust_contrastive(similarity, self.config.temperature)
        return loss, {"robust_contrastive": loss.item(), "s_ii": similarity.diagonal().mean().item()}
