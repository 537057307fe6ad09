"""What every method has in common: how it encodes, and the loss it owes to training."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cirkit.backbone import Backbone, TokenBatch
from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.losses import row_losses
from cirkit.presets import load_state
from cirkit.qformer import ImageMemory
from cirkit.scores import max_over_tokens


class Batch(NamedTuple):
    """One step's triplets: ``rows`` [B] in the training set, patch tokens [B,P,Dv] and modification texts.

    The pixels [B,3,S,S], normalised as the tower takes them, are there for methods that declare ``uses_pixels``.
    """

    rows: Tensor
    references: Tensor
    texts: TokenBatch
    targets: Tensor
    reference_pixels: Tensor | None = None
    target_pixels: Tensor | None = None


@dataclass(frozen=True)
class TrainingView:
    """Read access to the whole training set, for hooks that partition or mine.

    ``clean`` [n] is the truth about the noise; it is None unless the method declares ``uses_ledger``. ``rows`` [m] are
    the rows that batches are drawn from, int64; None means all. A partition of the whole set should be one
    of these rows: the others were kept out by a gate, or by the method itself.
    """

    triplets: TripletSet
    store: FeatureStore
    epoch: int
    epochs: int
    seed: int
    clean: Tensor | None = None
    rows: Tensor | None = None


def check_positive(config: object, *names: str) -> None:
    """Raises ValueError for an option that is not greater than 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be greater than 0, got {getattr(config, name)}")


def check_not_negative(config: object, *names: str) -> None:
    """Raises ValueError for an option that is less than 0."""
    for name in names:
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(config, name)}")


def fill_switches(
    config: Method.Config, own: Mapping[str, object], method: str, take: str, free: Container[str] = ()
) -> None:
    """Give each switch of a frozen config that is None the value of its variant.

    Args:
        own: switch -> the variant's value. free: switches that may have another value in every variant.
        method, take: what it would no longer be, and what to take instead, for the message.

    Raises:
        ValueError: another value in a variant other than ``adapted``.
    """
    for name, value in own.items():
        if getattr(config, name) is None:
            object.__setattr__(config, name, value)
        elif config.variant != "adapted" and name not in free and getattr(config, name) != value:
            given = f"{name}={getattr(config, name)!r}"
            raise ValueError(f"{given} would no longer be the {config.variant} variant of {method}; take {take}")


class Method(nn.Module):
    """A backbone, the method's own parameters, and a loss.

    Subclasses define a frozen dataclass ``Config`` with typed, documented options and implement :meth:`loss`.
    ``uses_ledger`` marks the oracle methods, the only ones that are shown which triplets are noisy. ``lr`` is the peak
    learning rate that a run takes if it names none; what suits one loss can ruin another, so each was chosen for the
    small presets on validation, with a seed that is not reported (see the class).
    """

    uses_ledger = False
    needs_query_tokens = False  # the method prompts the Q-Former or looks at its query positions
    uses_pixels = False  # to be given each batch's images; an instance may switch it off when it needs them no longer
    lr = 3e-3
    schedule = "one_cycle"  # see `cirkit.training.SCHEDULES`
    # on a backbone with the tower of a large pretrained model, by data set: ConeSep's, at which papers fine-tune BLIP-2
    published_lr = {"cirr": 1e-5, "fashioniq": 2e-5}
    lr_scale = 1.0  # what the schedule's rate is multiplied by; a method may change it at every step

    @dataclass(frozen=True)
    class Config:
        """Options of the method; ``variant`` names what is computed."""

        variant: str = "paper"

    def __init__(self, backbone: Backbone, config: Config):
        super().__init__()
        self.check_backbone(backbone, config)
        self.backbone = backbone
        self.config = config
        self.observed: dict[str, Tensor] = {}
        self.terms: dict[str, Tensor] = {}

    @classmethod
    def check_backbone(cls, backbone: Backbone, config: Config) -> None:
        """Raises ValueError if the method, with these options, needs query tokens and the backbone has none."""
        asked = [option for option, value in (("pool", "mean"), ("sub_queries", "tokens"))
                 if getattr(config, option, None) == value]  # fmt: skip
        if not backbone.has_query_tokens and (cls.needs_query_tokens or asked):
            why = f"its option {asked[0]} {getattr(config, asked[0])!r} needs" if asked else "it needs"
            name = backbone.config.name
            raise ValueError(f"{cls.__name__} cannot use the backbone {name!r}: {why} query tokens, and BLIP has none")

    @property
    def needs_pixels(self) -> bool:
        """Whether a training has to bring the images: some epoch's batches need them."""
        return self.uses_pixels

    def query(self, references: Tensor | ImageMemory, texts: Sequence[str] | TokenBatch) -> Tensor:
        """Reference patches [B,P,Dv], or their memory, and texts -> composed queries [B,D], unit norm."""
        return self.backbone.compose(references, texts)

    def target(self, patches: Tensor) -> Tensor:
        """Patches [B,P,Dv] -> target tokens [B,N,D], unit norm per token."""
        return self.backbone.encode_target(patches)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """Total loss (scalar) and its named, unweighted terms.

        ``step`` counts optimizer steps from 0 over the whole run; batches that are accumulated into one step have its
        number all of them. A loss of several terms leaves them, as weighted in
        the total, in ``terms``: training then notes once an epoch how strongly each of them pulls.
        """
        raise NotImplementedError

    def training_rows(self, clean: np.ndarray | None) -> np.ndarray | None:
        """Rows of the training set to draw batches from, int [m]; None means all of them.

        ``clean`` [n] is the truth about the noise; None unless the method declares ``uses_ledger``.
        """
        return None

    def observe(self, similarity: Tensor, temperature: float) -> None:
        """Note what a step saw of its rows, at no extra cost: their similarity s_ii and their InfoNCE loss.

        The training loop collects both; from them comes how well they tell clean rows from noisy ones.
        """
        with torch.no_grad():
            self.observed = {"similarity": similarity.diagonal().clone(), "loss": row_losses(similarity, temperature)}

    def start_epoch(self, view: TrainingView) -> dict[str, float] | None:
        """Called before each epoch; what it returns is written into the history."""
        return None

    def diagnose(self, record: dict[str, float]) -> str | None:
        """One sentence on what went wrong in an epoch, from its row of the history; None if nothing did."""
        return None

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """Trained parameters, biases, norms and learned tokens without decay. The frozen tower is never among them."""
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.dim() == 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.dim() != 2], "weight_decay": 0.0},
        ]

    def trained_state(self) -> dict[str, Tensor]:
        """State dict without the frozen tower: what a checkpoint holds."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("backbone.vision_model.")}

    def load_trained_state(self, state: dict[str, Tensor], source: str) -> None:
        """Counterpart of :meth:`trained_state`.

        Raises:
            ValueError: if the state does not fit exactly.
        """
        for place, module in self.named_modules():
            for name in getattr(module, "sized_by_data", ()):  # its size is not known before it is loaded
                module.register_buffer(name, state.get(f"{place}.{name}"))
        tower = {k: v for k, v in self.state_dict().items() if k.startswith("backbone.vision_model.")}
        load_state(self, {**state, **tower}, source)

    def similarity(self, batch: Batch) -> Tensor:
        """Scores s [B,B] of a batch, [query, target]: the best of a target's tokens."""
        return max_over_tokens(self.query(batch.references, batch.texts), self.target(batch.targets))


class BatchMethod(Method):
    """A method whose loss is one function of the batch's similarities, named in ``objective``."""

    objective: Callable[[Tensor, float], Tensor]

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
        loss = self.objective(similarity, self.config.temperature)
        return loss, {self.objective.__name__: loss.item(), "s_ii": similarity.diagonal().mean().item()}
