"""InfoNCE with one drawn negative more: what the negatives of QuRe and DQE-CIR add to those of the batch.

How it decides what is noise: it does not; every triplet counts as clean.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirkit.backbone import Backbone
from cirkit.drawn import Kind, drawn_negatives
from cirkit.losses import infonce
from cirkit.methods.base import Batch, Method, TrainingView, check_positive
from cirkit.mining import Corpus
from cirkit.scores import max_over_tokens
from cirkit.similarity import own_similarity


class InfoNCERandom(Method):
    """InfoNCE whose softmax holds, beside the batch, one image drawn uniformly for each query: the control."""

    variants = ("ours",)

    @dataclass(frozen=True)
    class Config(Method.Config):
        """``temperature`` is tau; ``negatives`` the kind of zone, as in QuRe (``twodrop``) or DQE-CIR (``midzone``);
        ``definitions`` n_def, and ``corpus`` as in :class:`cirkit.drawn.DrawnNegatives`."""

        variant: str = "ours"
        temperature: float = 0.07
        negatives: Kind = "random"
        definitions: int = 6
        corpus: Corpus | None = None

        def __post_init__(self):
            check_positive(self, "temperature", "definitions")
            if self.negatives != type(self).negatives:
                raise ValueError(
                    f"this method draws {type(self).negatives} negatives; {self.negatives!r} has its own name"
                )

    config: Config

    def __init__(self, backbone: Backbone, config: Config):
        super().__init__(backbone, config)
        self.negatives = drawn_negatives(config.negatives, config.definitions, config.corpus)

    def start_epoch(self, view: TrainingView) -> dict[str, float]:
        return self.negatives.start_epoch(self, view)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        queries, targets = self.query(batch.references, batch.texts), self.target(batch.targets)
        similarity = max_over_tokens(queries, targets)
        self.observe(similarity, self.config.temperature)
        drawn = own_similarity(queries, self.target(self.negatives.patches(batch.rows)))
        loss = infonce(similarity, self.config.temperature, drawn=drawn[:, None])
        own = similarity.detach().diagonal()
        return loss, {"infonce": loss.item(), "s_ii": own.mean().item(), "s_drawn": drawn.mean().item()}


class InfoNCETwoDrop(InfoNCERandom):
    """InfoNCE whose softmax holds one negative more, from between the two steepest drops (QuRe's choice)."""

    @dataclass(frozen=True)
    class Config(InfoNCERandom.Config):
        """As for random negatives."""

        negatives: Kind = "twodrop"

    config: Config


class InfoNCEMidZone(InfoNCERandom):
    """InfoNCE whose softmax holds one negative more, from the target-relative mid zone (DQE-CIR's choice)."""

    @dataclass(frozen=True)
    class Config(InfoNCERandom.Config):
        """As for random negatives."""

        negatives: Kind = "midzone"

    config: Config
