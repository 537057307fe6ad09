"""The switches of ConeSep, and what its three variants set them to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from cirkit.anchors import QueryOriented, TargetOriented
from cirkit.boundary import Fidelity, Split
from cirkit.drawn import Kind
from cirkit.methods.base import Method, check_not_negative, check_positive, fill_switches
from cirkit.unlearning import Marginals, Mask, Solver

# switch -> (released, paper, adapted)
SWITCHES = {
    "fidelity": ("released", "monotone", "monotone"),
    "split": ("fraction", "threshold", "threshold"),
    "omega": (0.5, 0.5, 0.2),
    "boundary_from": ("gaussian", "gaussian", "gaussian"),
    "draws": (0, 4, 64),
    "boundary_every": (1, 1, 7),
    "pool": (False, False, True),
    "anchor_prompts": ("learned", "learned", "learned"),
    "prompt_init": ("query", "random", "random"),
    "negate_text": (True, False, False),
    "target_oriented": ("softmax", "logits", "balanced"),
    "query_oriented": ("coordinates", "batch_means", "batch_means"),
    "anchors_train": ("all", "all", "prompts"),
    "rank_loss": ("robust", "robust", "infonce"),
    "rank_rows": ("all", "all", "clean"),
    "negative_block": ("targets", "composed", "composed"),
    "positive_block": ("softmax", "cosine", "cosine"),
    "mask": ("last_column", "own_anchor", "own_anchor"),
    "partial": (0.0, 0.0, 0.0),
    "marginals": ("uniform", "uniform", "labels"),
    "solver": ("released", "pot", "pot"),
    "scale_cost": (True, False, False),
    "resoftmax": (True, False, False),
    "label_temperature": (1.0, 0.07, 0.07),
    "both_directions": (True, False, False),
    "warmup_lr": (1.0, 1.0, 1 / 3),
    "scale_lr": (False, False, True),
    "guards": (False, True, True),
    "kappa": (0.5, 0.5, 0.0),
    "zeta": (0.8, 0.5, 0.5),
}
# those that every variant leaves to the user
NUMBERS = ("omega", "kappa", "zeta", "draws")
VARIANTS = ("released", "paper", "adapted")


@dataclass(frozen=True)
class ConeSepConfig(Method.Config):
    """Options of ConeSep. A switch that is None is what ``start`` says, and stands in the config as that.

    Only ``conesep-adapted`` lets switches be changed: what is changed is no longer the paper's or the released method.

    Numbers (symbols of the paper): ``temperature`` tau; ``omega``, share or threshold of the split; ``kappa``, weight
    of the unlearning loss; ``zeta``, of the query-oriented loss (0.8 in the released code); ``nu``, of the
    target-oriented loss; ``gamma``, share of the plan in the soft labels; ``reg`` of the transport; ``warmup`` N,
    epochs before the split begins.

    GFQ: ``fidelity`` and ``split`` (:mod:`cirkit.boundary`); ``boundary_from``, the ``gaussian`` triplets of a step, a
    ``running`` mean over steps (``momentum`` of the old value), a parameter ``learned`` from the batch's right and
    wrong pairs (:func:`cirkit.boundary.separation`), or ``zero``, no boundary; ``draws`` K, Gaussian images per side, 0
    for as many as the batch holds; ``pairs`` of them; ``boundary_every``, steps between estimates; ``pool``, draw the
    images once and keep them encoded by the frozen tower, or, with ``pool_epochs``, draw others every so many epochs.

    NBL: ``anchor_prompts``, ``learned`` ones or the query tokens themselves (``shared``); ``prompt_init``, negative
    prompts begin as a copy of the ``query`` tokens or at ``random``; ``negate_text``, put "not" or the like before the
    anchor's text; ``target_oriented`` and ``query_oriented`` (:mod:`cirkit.anchors`); ``anchors_train``, whether the
    two losses reach ``all`` parameters or the negative ``prompts`` alone, in which case the unlearning loss does not
    move the anchors either.

    Ranking: ``rank_loss`` (or ``none``) on ``all`` rows or on those that count as ``clean`` (``rank_rows``, after the
    warm-up); ``drawn`` puts one negative more into InfoNCE's softmax, from QuRe's or DQE-CIR's zone
    (:mod:`cirkit.drawn`).

    BTU (:mod:`cirkit.unlearning`): ``negative_block``, anchors against ``composed`` queries or ``targets``;
    ``positive_block``, raw ``cosine`` or ``softmax`` over the batch; ``partial``, rows that an ``omega`` larger by
    this would count as noisy are believed in part (:func:`cirkit.unlearning.transport_mask`); ``mask``, ``marginals``,
    ``solver``, ``scale_cost``, ``resoftmax``, ``both_directions``; ``label_temperature``, of the predictions.

    Learning rate, as a share of the schedule's: ``warmup_lr`` during the warm-up; ``scale_lr``, afterwards the share of
    the batch that counts as clean, since the loss is a mean over that many rows (linear scaling rule).

    ``guards``: fidelity 0 where nothing lies above the boundary, and no unlearning without a noisy row; without them
    both are NaN, as in the released code.
    """

    variant: str = "adapted"
    start: Literal["released", "paper", "adapted"] | None = None
    temperature: float = 0.07
    omega: float | None = None
    kappa: float | None = None
    zeta: float | None = None
    nu: float = 0.5
    gamma: float = 0.7
    reg: float = 0.03
    warmup: int = 2
    fidelity: Fidelity | None = None
    split: Split | None = None
    boundary_from: Literal["gaussian", "running", "learned", "zero"] | None = None
    momentum: float = 0.9
    draws: int | None = None
    pairs: Literal["all", "matched"] = "all"
    boundary_every: int | None = None
    pool: bool | None = None
    pool_epochs: int = 0
    anchor_prompts: Literal["learned", "shared"] | None = None
    prompt_init: Literal["query", "random"] | None = None
    negate_text: bool | None = None
    target_oriented: TargetOriented | None = None
    query_oriented: QueryOriented | None = None
    anchors_train: Literal["all", "prompts"] | None = None
    rank_loss: Literal["robust", "infonce", "none"] | None = None
    rank_rows: Literal["all", "clean"] | None = None
    drawn: Kind | None = None
    negative_block: Literal["composed", "targets"] | None = None
    positive_block: Literal["cosine", "softmax"] | None = None
    mask: Mask | None = None
    partial: float | None = None
    marginals: Marginals | None = None
    solver: Solver | None = None
    scale_cost: bool | None = None
    resoftmax: bool | None = None
    label_temperature: float | None = None
    both_directions: bool | None = None
    warmup_lr: float | None = None
    scale_lr: bool | None = None
    guards: bool | None = None

    def __post_init__(self):
        if self.variant not in VARIANTS:
            return  # refused by its name, with the ones there are
        if self.start is None:
            object.__setattr__(self, "start", self.variant)
        own = {name: values[VARIANTS.index(self.start)] for name, values in SWITCHES.items()}
        fill_switches(self, own, "ConeSep", f"'conesep-adapted' with start={self.start!r}", NUMBERS)
        if self.variant != "adapted" and self.start != self.variant:
            raise ValueError(f"start={self.start!r} is for 'conesep-adapted' alone; this is variant {self.variant!r}")
        check_positive(self, "temperature", "reg", "label_temperature", "boundary_every", "warmup_lr")
        for name in ("omega", "gamma", "partial", "momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        check_not_negative(self, "kappa", "zeta", "nu", "warmup", "draws", "pool_epochs")
        if self.drawn is not None and (self.variant != "adapted" or self.rank_loss != "infonce"):
            raise ValueError("drawn negatives go with 'conesep-adapted' and rank_loss='infonce' alone")
        if self.partial and (self.mask != "own_anchor" or self.split == "boundary"):
            raise ValueError("partial needs mask='own_anchor' and a split by fidelity, 'threshold' or 'fraction'")
        if self.pool and not self.draws:
            raise ValueError("draws must be at least 1 for a pool of Gaussian images")
        if self.pool_epochs and not self.pool:
            raise ValueError("pool_epochs says when to draw the images of a pool anew, and needs pool=True")


@dataclass(frozen=True)
class TwoDropConfig(ConeSepConfig):
    """Adapted, with QuRe's negatives."""

    drawn: Kind | None = "twodrop"


@dataclass(frozen=True)
class MidZoneConfig(ConeSepConfig):
    """Adapted, with DQE-CIR's negatives."""

    drawn: Kind | None = "midzone"


@dataclass(frozen=True)
class PaperConfig(ConeSepConfig):
    """The paper's description."""

    variant: str = "paper"


@dataclass(frozen=True)
class ReleasedConfig(ConeSepConfig):
    """The released code."""

    variant: str = "released"


def changes(start: str = "paper", end: str = "adapted") -> dict[str, tuple]:
    """Switches in which two variants differ: name -> (value in ``start``, value in ``end``)."""
    a, b = VARIANTS.index(start), VARIANTS.index(end)
    return {name: (values[a], values[b]) for name, values in SWITCHES.items() if values[a] != values[b]}


assert set(SWITCHES) <= {f.name for f in dataclasses.fields(ConeSepConfig)}
