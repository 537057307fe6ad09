"""One optimizer step on accelerate: gradients in the precision asked for, of all processes, clipped, at its rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin
from torch import Tensor

from cirkit.methods.base import Method
from cirkit.parallel import agree, average
from cirkit.schedule import TrainConfig, learning_rate

_TOLERANCE = 1e-4  # of the losses of two replicas, which on different accelerators may differ in their last digits


class Stepper:
    """AdamW over what a method trains: a few calls of :meth:`backward`, and then one of :meth:`step`.

    Attributes:
        accelerator, optimizer, schedule: accelerate's; the method itself is not wrapped, as it is a replica.
        scaler: of the loss in fp16, otherwise None.
    """

    def __init__(self, method: Method, config: TrainConfig, steps: int, device: torch.device):
        self.method = method
        self.clip_norm = config.clip_norm
        self.accelerator = _accelerator(config, device)
        optimizer = torch.optim.AdamW(
            method.parameter_groups(config.weight_decay), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )
        schedule = learning_rate(optimizer, config, steps)
        self.optimizer, self.schedule = self.accelerator.prepare(optimizer, schedule)
        self._rates: list[float] = []

    @property
    def scaler(self) -> Any:
        return self.accelerator.scaler

    @property
    def lr(self) -> float:
        """The scheduled learning rate of the next step."""
        return self.schedule.get_last_lr()[0]

    def backward(self, loss: Tensor, batches: int = 1) -> None:
        """Add the gradient of the loss of one of ``batches`` that make up a step."""
        self._rates.append(self.method.lr_scale)
        self.accelerator.backward(loss / batches)

    def step(self) -> float | None:
        """Move the parameters; the norm of the gradient before it was clipped.

        Returns:
            None where fp16 overflowed: nothing moves then, the schedule neither, and the loss is scaled down.
        """
        found = [p for p in self.method.parameters() if p.grad is not None]
        agree("which parameters have gradients", [len(found), sum(p.numel() for p in found)])
        average(p.grad for p in found)
        norm = self.accelerator.clip_grad_norm_(self.method.parameters(), self.clip_norm)
        scale = sum(self._rates) / len(self._rates)
        for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
            group["lr"] = rate * scale
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._rates.clear()
        return None if self.optimizer.step_was_skipped else float(norm)


def agree_on_loss(loss: float) -> None:
    """Raises ReplicaError if the replicas of several processes no longer compute the same loss."""
    agree("the loss", [loss], _TOLERANCE)


def gradient_norms(method: Method) -> dict[str, float]:
    """Norm of each term's gradient over all trained parameters, where a loss has several terms."""
    trained = [p for p in method.parameters() if p.requires_grad]
    norms = {}
    for name, term in method.terms.items():
        squares = [g.float().square().sum() for g in _gradients(term, trained)]
        norms[f"gradient {name}"] = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
    return norms


def _gradients(term: Tensor, trained: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(term, trained, retain_graph=True, allow_unused=True) if term.requires_grad else ()
    found = [g for g in found if g is not None]
    average(found)
    return found


def _accelerator(config: TrainConfig, device: torch.device) -> Accelerator:
    """Accelerate for these settings, whatever the process used it for before."""
    placed = PartialState._shared_state.get("device", device)
    precision = AcceleratorState._shared_state.get("_mixed_precision", config.mixed_precision)
    if (placed.type, precision) != (device.type, config.mixed_precision):
        AcceleratorState._reset_state(reset_partial_state=True)  # it would refuse any other settings than the first
    return Accelerator(
        mixed_precision=config.mixed_precision,
        cpu=device.type == "cpu",
        # the method already is where it belongs, which accelerate would take to the first GPU
        device_placement=False,
        # a batch is one batch, however many processes share it: the schedule moves on once a step
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        # batches are accumulated here; accelerate would take their number from its launcher's environment
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )
