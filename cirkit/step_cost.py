"""What a training step of a method costs: arithmetic and memory, which are the same on every machine, and time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore, PixelStore
from cirkit.methods.base import Batch, Method, TrainingView
from cirkit.training import TrainConfig, epoch_order

# begun one after the other: methods warm up for up to three, and CLIP4CIR changes what it trains in the middle
EPOCHS = 5


def step_cost(
    method: Method,
    triplets: TripletSet,
    store: FeatureStore,
    config: TrainConfig,
    clean: np.ndarray,
    steps: int = 5,
    pixels: PixelStore | None = None,
) -> dict[str, float]:
    """Train for a step of each of four epochs and a few of the fifth, and measure these; the method is changed by it.

    Args:
        clean: bool [n], the truth about the noise; passed on only to methods that declare ``uses_ledger``.
        steps: timed steps, at least 1; one more is counted and not timed.
        pixels: the images of the triplets, for methods that declare ``uses_pixels``.

    Returns:
        ``seconds`` of a step (median), ``epoch_seconds`` of what the method does before an epoch, such as mining, with
        the whole training set; ``flops`` of a step, matrix products and convolutions forward and backward, with
        what is frozen left to the feature store; ``activations``, bytes kept for the backward pass; ``state``, bytes of
        trained parameters, their gradients and AdamW's two moments.

    Raises:
        ValueError: no steps.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    truth = torch.from_numpy(np.asarray(clean, dtype=bool)) if method.uses_ledger else None
    chosen = method.training_rows(None if truth is None else truth.numpy())
    trained = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(method.parameter_groups(config.weight_decay), lr=config.lr, fused=True)
    device, total = method.backbone.device, len(epoch_order(len(triplets), config.batch_size, config.seed, 0))
    seconds: list[float] = []

    def step(rows: np.ndarray, number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss, _ = method.loss(_batch(method, triplets.select(rows), store, rows, pixels), number)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
        optimizer.step()

    for epoch in range(EPOCHS):
        view = TrainingView(triplets, store, epoch, max(config.epochs, EPOCHS), config.seed, truth)
        method.eval()
        before = _timed(lambda view=view: method.start_epoch(view), device)
        method.train()
        order = epoch_order(len(triplets), config.batch_size, config.seed, epoch, chosen)
        for i in range(steps if epoch == EPOCHS - 1 else 1):
            rows = order[i % len(order)]
            seconds.append(_timed(lambda rows=rows, n=epoch * total + i: step(rows, n), device))
    kept: list[int] = []
    last = EPOCHS * total - 1
    flops = arithmetic(lambda: kept.append(kept_for_backward(method, lambda: step(order[-1], last))))
    return {
        "seconds": float(np.median(seconds[EPOCHS - 1 :])),
        "epoch_seconds": before,
        "flops": float(flops),
        "activations": float(kept[0]),
        "state": float(4 * sum(p.numel() * p.element_size() for p in trained)),
    }


def arithmetic(work: Callable[[], object]) -> int:
    """FLOPs of what ``work`` does, frozen or not: products and convolutions, without fused attention on the CPU."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its layers in one piece would not be counted
    try:
        with _Arithmetic() as counter:
            work()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.flops


def kept_for_backward(module: nn.Module, work: Callable[[], object]) -> int:
    """Bytes that autograd keeps of what ``work`` does, without the module's parameters."""
    kept = _Kept({p.untyped_storage().data_ptr() for p in module.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda x: x):
        work()
    return sum(kept.sizes.values())


class _Arithmetic(TorchDispatchMode):
    """Adds up what torch says its operations cost; on the CPU it says nothing about fused attention.

    Its own counter hooks into modules as well, and stops where the output of one needs no gradient.
    """

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if (cost := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += cost(*args, **kwargs, out_val=out)
        return out


class _Kept:
    """Storages that autograd keeps, each once, without the parameters, which are there anyway."""

    def __init__(self, known: set[int]):
        self.known = known
        self.sizes: dict[int, int] = {}
        self.held: list[Tensor] = []  # a freed storage would lend its address to another

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.sizes[storage.data_ptr()] = storage.nbytes()
            self.held.append(tensor.detach())
        return tensor


def _batch(method: Method, part: TripletSet, store: FeatureStore, rows: np.ndarray, pixels: PixelStore | None) -> Batch:
    device, images = method.backbone.device, (part.references, part.targets)
    references, targets = (store.patches(store.rows(ids), device) for ids in images)
    pictures = [pixels.patches(pixels.rows(ids), device) for ids in images] if method.uses_pixels else []
    return Batch(
        torch.from_numpy(rows).to(device), references, method.backbone.tokenize(part.texts), targets, *pictures
    )


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds, with all that was started on an accelerator."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start
