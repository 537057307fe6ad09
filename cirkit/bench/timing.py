"""Time of several implementations side by side, and the memory that one of them needs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


def side_by_side(works: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each work over ``rounds``, in each of which all are done in turn; and what each gave last."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    given = {}
    for number in range(rounds):
        order = list(works) if number % 2 == 0 else list(works)[::-1]
        for name in order:
            given.pop(name, None)  # not two of the same side by side
            start = time.perf_counter()
            given[name] = works[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}, given


def peak_memory(case: str, **settings: Any) -> float:
    """Bytes that a case of `cirkit.bench.memory` needs beyond its inputs, in a process of its own."""
    command = [sys.executable, "-m", "cirkit.bench.memory", case, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{case} {settings} failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout.split()[-1])


def most_held() -> float:
    """Bytes that this process has held at most since :func:`forget_most_held`, or, where there is none, at all."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024.0 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(held if sys.platform == "darwin" else 1024 * held)


def forget_most_held() -> None:
    """Let the peak of this process begin anew, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
