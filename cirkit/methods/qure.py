"""QuRe (ICML 2025, arXiv 2507.12416): prefer the target to one image from between the two steepest relevance drops.

How it decides what is noise: it does not. Its zone only spares images that score about as high as the target.

Bradley-Terry loss (eq. 3) of the target against one drawn negative; hard negatives are defined anew at some epochs, and
before the first of them drawn from the whole corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from cirkit.backbone import Backbone, TokenBatch
from cirkit.drawn import DrawnNegatives
from cirkit.losses import bradley_terry
from cirkit.methods.base import Batch, Method, TrainingView, check_not_negative, check_positive, fill_switches
from cirkit.mining import Corpus, whole_corpus
from cirkit.scores import max_over_tokens
from cirkit.similarity import own_similarity
from cirkit.two_drops import one_drop, top_k_below, two_drops

# switch -> (released, paper)
SWITCHES = {
    "zone": ("two_drops", "two_drops"),
    "below": ("place", "score"),
    "threshold": (1, 0),
    "keep_steepest": (False, False),
    "corpus": ("by_data", "split"),
    "pool": ("mean", "mean"),
    "temperature_form": ("free", "log"),
    "exclude_reference": (False, False),
}
VARIANTS = ("released", "paper", "adapted")


@dataclass(frozen=True)
class QuReConfig(Method.Config):
    """Options of QuRe. A switch that is None is what the variant says; ``adapted`` starts from the paper's.

    Only ``variant="adapted"`` lets switches be changed: what is changed is neither the paper's nor the released method.

    Args:
        definitions: n_def, how often hard negatives are defined (:func:`cirkit.drawn.definition_epochs`).
        temperature: tau, where the learned temperature starts.
        temperature_form: ``log`` learns its logarithm, so that it stays positive; ``free`` the number itself, without
            bound (released); ``none`` does not divide.
        zone: where negatives come from: between the ``two_drops``, behind the steepest one (``one_drop``), the
            ``top_k`` best below the target, or anywhere (``random``). top_k: how many.
        below: what lies below the target, a lower ``score`` (paper) or a later ``place`` (released: ties stay).
        threshold: how many places, at least, the two drops lie apart, minus 1 (consecutive_threshold of the released
            code, which may discard the steepest drop). keep_steepest: do not discard it, look for a partner.
        corpus: the images negatives come from: the training ``split``, the ``targets`` of the category's triplets, or
            ``by_data``: targets where triplets have categories (FashionIQ), else the split (CIRR), as released.
        pool: composed query from the ``mean`` of the query positions, or from the ``text`` position.
        exclude_reference: never draw the reference.
    """

    definitions: int = 6
    temperature: float = 0.07
    temperature_form: Literal["log", "free", "none"] | None = None
    zone: Literal["two_drops", "one_drop", "top_k", "random"] | None = None
    top_k: int = 50
    below: Literal["score", "place"] | None = None
    threshold: int | None = None
    keep_steepest: bool | None = None
    corpus: Literal["split", "targets", "by_data"] | None = None
    pool: Literal["mean", "text"] | None = None
    exclude_reference: bool | None = None

    def __post_init__(self):
        if self.variant not in VARIANTS:
            return  # refused by its name, with the ones there are
        own = {name: values[self.variant != "released"] for name, values in SWITCHES.items()}
        fill_switches(self, own, "QuRe", 'method "qure" with variant="adapted"')
        check_positive(self, "definitions", "temperature", "top_k")
        check_not_negative(self, "threshold")


class QuRe(Method):
    """QuRe by the paper's formula, or ``adapted`` with switches.

    On a BLIP-2 backbone the paper trains FashionIQ 30 and CIRR 50 epochs in batches of 32. Of the learning rates 1e-4,
    5e-4, 1e-3 and 3e-3, validation R@1 of seed 100, summed over the clean set and shuffle 0.5, was best at 5e-4
    (34.3 + 13.0).
    """

    variants: tuple[str, ...] = ("paper", "adapted")
    lr = 5e-4
    schedule = "cosine"
    published_lr = {"cirr": 1e-5, "fashioniq": 5e-6}
    Config = QuReConfig
    config: QuReConfig

    def __init__(self, backbone: Backbone, config: QuReConfig):
        super().__init__(backbone, config)
        start = math.log(config.temperature) if config.temperature_form == "log" else config.temperature
        learns = config.temperature_form != "none"
        self.learned = nn.Parameter(torch.tensor(start, device=backbone.device)) if learns else None
        choosers = {
            "two_drops": partial(
                two_drops,
                threshold=config.threshold,
                strict=config.below == "score",
                keep_steepest=config.keep_steepest,
            ),
            "one_drop": one_drop,
            "top_k": partial(top_k_below, k=config.top_k),
            "random": whole_corpus,
        }
        corpus: Corpus | None = None if config.corpus == "by_data" else config.corpus
        self.negatives = DrawnNegatives(choosers[config.zone], config.definitions, corpus, config.exclude_reference)

    @property
    def temperature(self) -> Tensor:
        """tau, a scalar; 1 where scores are not divided."""
        if self.learned is None:
            return torch.ones((), device=self.backbone.device)
        return self.learned.exp() if self.config.temperature_form == "log" else self.learned

    def query(self, references: Tensor, texts: Sequence[str] | TokenBatch) -> Tensor:
        return self.backbone.compose(references, texts, pool=self.config.pool)

    def start_epoch(self, view: TrainingView) -> dict[str, float]:
        return self.negatives.start_epoch(self, view)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        query, target = self.query(batch.references, batch.texts), self.target(batch.targets)
        positive = own_similarity(query, target)
        negative = own_similarity(query, self.target(self.negatives.patches(batch.rows)))
        temperature = self.temperature
        with torch.no_grad():
            self.observe(max_over_tokens(query, target), self.config.temperature)
        loss = bradley_terry(positive, negative, temperature)
        return loss, {
            "bradley_terry": loss.item(),
            "s_pos": positive.mean().item(),
            "s_neg": negative.mean().item(),
            "temperature": temperature.item(),
        }


@dataclass(frozen=True)
class ReleasedConfig(QuReConfig):
    """The released code."""

    variant: str = "released"


class QuReReleased(QuRe):
    """QuRe as its released code computes it, except for queries without a hard set, where that code fails or takes the
    places of the query before, or with nothing in it but ties of the target (:func:`cirkit.two_drops.two_drops`)."""

    variants = ("released",)
    Config = ReleasedConfig
