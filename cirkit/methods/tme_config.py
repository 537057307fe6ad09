"""The switches of TME, and what its two variants set them to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cirkit.methods.base import Method, check_not_negative, check_positive, fill_switches
from cirkit.mixture import Rule, Value

# switch -> (released, adapted)
SWITCHES = {
    "score_all": (False, True),
    "fixed_order": (False, True),
    "fixed_texts": (False, True),
    "flip_similarity": (False, True),
    "masked_caption_mean": (False, True),
}
VARIANTS = ("released", "adapted")
PHASES = ("qformer", "proj", "last", "main")
LOWEST_TEMPERATURE = 0.01


@dataclass(frozen=True)
class TMEConfig(Method.Config):
    """Options of TME. A switch that is None is what the variant says; only ``adapted`` lets switches be changed.

    Loss: L_rm + ``prompt_weight`` L_pm + ``alignment_weight`` L_sa + ``beta`` L_rd.

    Args:
        temperature: where the learned temperature starts; it is kept at 0.01 or above.
        beta: 0.1 as for FashionIQ; 0.2 for CIRR.
        clean_loss, noisy_loss, trade_off: w times the one on clean rows plus 1 - w times the other on noisy rows;
            ``rcl`` is the robust contrastive loss, with w = 1 and ``none`` noisy rows are no queries, only negatives.
        alignment: ``mse`` or ``smooth_l1``, for L_sa.
        qformer_epochs, proj_epochs, last_epochs: length of the warm-up's phases, in which all rows count as clean:
            L_rm alone; the other three, training nothing but the prompts and the difference layer; all four. 3, 2 and 1
            of the 30 epochs of the released code, 1 each in the 8 of this study.
        partition, threshold, partition_by: how rows are called clean, see :func:`cirkit.mixture.clean_rows`.
        partition_batch: rows that share one softmax when losses are taken for the partition.
        score_all: take the losses of all rows. Without it (defect 1), those that make no full batch keep the loss 0, so
            that they always count as clean.
        fixed_order, fixed_texts: the same batches, drawn once, and one form of the captions before every epoch. Without
            them (defect 2) a row's loss depends on who happens to share its batch, and on which form was drawn.
        flip_similarity: low similarity means noise for ``direct`` and ``percent``. Without it (defect 4), clean.
        masked_caption_mean: the caption's mean in L_sa is over its own tokens. Without it (defect 5), over all
            ``text_length`` positions, padding included.
    """

    variant: str = "adapted"
    temperature: float = 0.07
    prompt_weight: float = 1.0
    alignment_weight: float = 1.0
    beta: float = 0.1
    clean_loss: Literal["rcl", "infonce"] = "rcl"
    noisy_loss: Literal["none", "rcl", "infonce"] = "none"
    trade_off: float = 1.0
    alignment: Literal["mse", "smooth_l1"] = "mse"
    qformer_epochs: int = 1
    proj_epochs: int = 1
    last_epochs: int = 1
    partition: Rule = "mixture"
    partition_by: Value = "loss"
    threshold: float = 0.5
    partition_batch: int = 128
    score_all: bool | None = None
    fixed_order: bool | None = None
    fixed_texts: bool | None = None
    flip_similarity: bool | None = None
    masked_caption_mean: bool | None = None

    def __post_init__(self):
        if self.variant not in VARIANTS:
            return  # refused by its name, with the ones there are
        own = {name: values[VARIANTS.index(self.variant)] for name, values in SWITCHES.items()}
        fill_switches(self, own, "TME", 'method "tme"')
        check_positive(self, "temperature")
        if self.temperature < LOWEST_TEMPERATURE:
            raise ValueError(f"temperature must be at least {LOWEST_TEMPERATURE}, got {self.temperature}")
        check_not_negative(
            self, "prompt_weight", "alignment_weight", "beta", "qformer_epochs", "proj_epochs", "last_epochs"
        )
        for name in ("trade_off", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.partition_batch < 2:
            raise ValueError(f"partition_batch must be at least 2, got {self.partition_batch}")

    def phase(self, epoch: int) -> str:
        """Which of ``PHASES`` an epoch, from 0, belongs to."""
        for name in PHASES[:-1]:
            epoch -= getattr(self, f"{name}_epochs")
            if epoch < 0:
                return name
        return "main"


@dataclass(frozen=True)
class ReleasedConfig(TMEConfig):
    """The released code."""

    variant: str = "released"
