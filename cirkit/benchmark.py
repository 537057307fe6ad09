"""How long mining takes: ``python -m cirkit.benchmark`` prints a table.

Zones and draws are timed without scoring against the released procedure query by query, then with scoring.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.mining import choose, corpus_scores
from cirkit.two_drops import two_drops

RELEASED = partial(two_drops, threshold=1, strict=False)
# descending order of one query's values; what sorts fastest depends on the machine
ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "loop, torch": lambda values: torch.argsort(torch.from_numpy(values), descending=True).numpy(),
    "loop, numpy": lambda values: np.argsort(-values),
    "loop, numpy stable": lambda values: np.argsort(-values, kind="stable"),
}


def loop(
    scores: np.ndarray, own: np.ndarray, order_of: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> list[int]:
    """One negative a query as the released code finds it, a query at a time: argsort, differences, argsort, walk."""
    drawn = []
    for row, target in zip(scores, own, strict=True):
        order = order_of(row)
        below = order[np.flatnonzero(order == target)[0] + 1 :]
        steepness = order_of(row[below][:-1] - row[below][1:])
        for a, b in zip(steepness[:-1], steepness[1:], strict=True):
            if abs(a - b) > 1:
                drawn.append(int(rng.choice(below[min(a, b) + 1 : max(a, b) + 1])))
                break
    return drawn


def made_scores(queries: int, corpus: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores [B,G], and for each query a target [B] among its best hundredth."""
    generator = torch.Generator().manual_seed(seed)
    scores = 0.1 * torch.randn(queries, corpus, generator=generator)
    best = scores.topk(max(corpus // 100, 1), dim=1).indices
    return scores, best[torch.arange(queries), torch.randint(best.shape[1], (queries,), generator=generator)]


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The shortest of several runs: what else the machine does only ever adds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def mining(corpus: int, queries: int = 1024, looped: int = 64) -> dict[str, float]:
    """Milliseconds a query, for zones and one draw from ready scores."""
    (scores, own), rng = made_scores(queries, corpus), np.random.default_rng(0)
    few = scores[:looped].numpy(), own[:looped].numpy()
    table = {name: 1e3 * seconds(lambda order=order: loop(*few, order, rng)) / looped for name, order in ORDERS.items()}
    return table | {"cirkit": 1e3 * seconds(lambda: choose(scores, own, RELEASED, 1, rng)) / queries}


def scoring(queries: int = 18_000, corpus: int = 18_000, tokens: int = 8, dims: int = 64, chunk: int = 512) -> float:
    """Seconds to score, choose zones and draw, as :func:`cirkit.mining.mine` does with encoded images."""
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    asked = F.normalize(torch.randn(queries, dims, generator=generator), dim=1)
    images = F.normalize(torch.randn(corpus, tokens, dims, generator=generator), dim=2)
    own = torch.randint(corpus, (queries,), generator=generator)
    start = time.perf_counter()
    for first in range(0, queries, chunk):
        part = slice(first, first + chunk)
        choose(corpus_scores(asked[part], images), own[part], RELEASED, 1, rng)
    return time.perf_counter() - start


def peak_memory() -> float:
    """Most memory this process has held so far, MB."""
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    threads = torch.get_num_threads()
    print(f"{threads} threads, {peak_memory():.0f} MB held before any work")
    print("18,000 queries x 18,000 images of 8 tokens x 64 dimensions, with scoring and drawing:")
    print(f"  {scoring():.1f} s, peak memory of the process {peak_memory():.0f} MB")
    print("zones and one draw from ready scores, milliseconds a query:")
    for corpus in (6_000, 17_000):
        table = mining(corpus)
        for name, value in table.items():
            print(f"  corpus {corpus:6,}  {name:18} {value:7.3f}  {value / table['cirkit']:5.1f}x")


if __name__ == "__main__":
    main()
