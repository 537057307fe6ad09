"""One run on several processes: each holds a replica, the Q-Former's passes are divided, everything else is repeated.

Every process sees the whole batch, draws the same random numbers and computes the same loss, so that a method need not
know of processes. Only what costs, the passes over the rows of a batch, is done in shares (:func:`share`), whose states
all processes then hold (:func:`gather`). On the way back the gradients that the W processes have of these states are
summed, and each hands its own rows' sum on into its share; in the end the gradients of all parameters are averaged
(:func:`average`). So the mean over the processes is the whole batch's gradient everywhere: behind a gather, where every
replica has found the same, within a share, where each has W times its own rows' part, and before it, where the gradient
of others' rows is 0. Passes may follow one another, and what is not divided is merely repeated, and as right.

Without processes to share with every function here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET = 2**24  # numbers that are averaged in one message
# torch's names for them changed
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_PATIENCE = timedelta(days=1)  # while one process encodes a data set the others wait
_apart = False  # whether this process is at work without the others


class ReplicaError(RuntimeError):
    """The processes of a run cannot go on together."""


def processes() -> int:
    """How many processes share this run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process is the one that prints and writes."""
    return processes() == 1 or dist.get_rank() == 0


def launched() -> int:
    """How many processes a launcher has started, whether or not they have met yet."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def start(device: str = "auto") -> None:
    """Let the processes of a launcher (accelerate, torchrun) meet, each with a GPU of its own where there are any.

    To be called before anything is put on a device; `cirkit.runs.prepare` does. A second call does nothing.

    Raises:
        ValueError: a device that several processes cannot have each, fewer GPUs than processes, or a launcher that
            was told to divide a model in a way of its own.
    """
    if launched() == 1 or processes() > 1:
        return
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"{launched()} processes cannot all compute on {device!r}; say 'auto', 'cpu' or 'cuda'")
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or launched())
    if not on_cpu and torch.cuda.is_available() and here > torch.cuda.device_count():
        raise ValueError(f"{here} processes need as many GPUs, and here are {torch.cuda.device_count()}")
    from accelerate import DistributedType, PartialState

    PartialState._reset_state()
    state = PartialState(cpu=on_cpu, timeout=_PATIENCE)
    if state.distributed_type not in (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
        raise ValueError(f"several processes are plain replicas here; {state.distributed_type} is not supported")


def stop() -> None:
    """Take leave of the other processes, when all have done their work."""
    if processes() > 1:
        dist.destroy_process_group()


# -- shares of a batch -------------------------------------------------------------------------------------------------


def share(rows: Tensor) -> Tensor:
    """This process's part [ceil(B/W),...] of the rows [B,...] of a batch.

    Parts have one size, so that every process has rows to compute, however few there are: where B runs out, the last
    row is repeated, and :func:`gather` leaves the repetition out. A single row is not divided.
    """
    count = len(rows)
    if not _divided(count):
        return rows
    size = -(-count // processes())
    first = min(size * dist.get_rank(), count)
    part = rows[first : first + size]
    missing = size - len(part)
    return torch.cat([part, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else part


def gather(part: Tensor, count: int) -> Tensor:
    """The ``count`` rows of the batch whose :func:`share` each process holds, in their order; differentiable."""
    return _Gather.apply(part)[:count] if _divided(count) else part


def _divided(count: int) -> bool:
    return count > 1 and processes() > 1 and not _apart


class _Gather(torch.autograd.Function):
    """Parts of all processes under each other; back, the sum of their gradients, each process its own rows of it."""

    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        whole = part.new_empty(processes() * len(part), *part.shape[1:])
        _all_gather(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        part = gradient.new_empty(len(gradient) // processes(), *gradient.shape[1:])
        _reduce_scatter(part, gradient.contiguous())
        return part


# -- gradients ---------------------------------------------------------------------------------------------------------


def average(tensors: Iterable[Tensor]) -> None:
    """Put the mean over all processes into each tensor; all processes give tensors of the same shapes, in one order."""
    if processes() == 1:
        return
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or sum(t.numel() for t in bucket) + tensor.numel() > _BUCKET):
            _average(bucket)
            bucket = []
        bucket.append(tensor)
    if bucket:
        _average(bucket)


def _average(tensors: list[Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= processes()
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


# -- keeping together --------------------------------------------------------------------------------------------------


def agree(what: str, numbers: Sequence[float], tolerance: float = 0.0) -> None:
    """Go on only if all processes have the same numbers, as many each.

    Raises:
        ReplicaError: they differ by more than ``tolerance``, absolute and relative.
    """
    if processes() == 1:
        return
    own = torch.tensor(list(numbers), dtype=torch.float64, device=_device())
    found = own.new_empty(processes() * len(own))
    _all_gather(found, own)
    found = found.view(processes(), -1)
    if not torch.isclose(found, found[:1], rtol=tolerance, atol=tolerance, equal_nan=True).all():
        raise ReplicaError(
            f"the {processes()} processes no longer agree on {what}: what one of them computed is not what the others"
            " did, so that no number of this run would be right; start it again, or in one process"
        )


@contextmanager
def main_first() -> Iterator[None]:
    """The main process does what is inside before the others, which then find it done; nothing in it is divided.

    Raises:
        ReplicaError: in the other processes, where the main one failed.
    """
    if processes() == 1:
        yield
        return
    if not is_main() and (problem := _tell("")):
        raise ReplicaError(f"the main process stopped: {problem}")
    global _apart
    _apart = True
    try:
        yield
    except Exception as error:
        if is_main():
            _tell(str(error) or type(error).__name__)
        raise
    else:
        if is_main():
            _tell("")
    finally:
        _apart = False


def main_only(work: Callable[[], object]) -> None:
    """Let the main process do something while the others wait; raises ReplicaError in these where it failed."""
    with main_first():
        if is_main():
            work()


def _tell(problem: str) -> str:
    """What the main process has to say, on every process."""
    said = [problem]
    dist.broadcast_object_list(said, src=0, device=_device())
    return said[0]


def _device() -> torch.device:
    """Where messages have to lie."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
