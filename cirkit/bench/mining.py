"""Negatives of QuRe: zones and draws for a block of queries at a time, and query by query as the released code does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cirkit.mining import choose, corpus_scores, rows_at_once, sort_values
from cirkit.two_drops import two_drops

RELEASED = partial(two_drops, threshold=1, strict=False)
# descending order of one query's values; what sorts fastest depends on the machine
ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a loop, torch": lambda values: torch.argsort(torch.from_numpy(values), descending=True).numpy(),
    "a loop, numpy": lambda values: np.argsort(-values),
}


def made_scores(queries: int, corpus: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores [B,G], and for each query a target [B] among its best hundredth."""
    generator = torch.Generator().manual_seed(seed)
    scores = 0.1 * torch.randn(queries, corpus, generator=generator)
    best = scores.topk(max(corpus // 100, 1), dim=1).indices
    return scores, best[torch.arange(queries), torch.randint(best.shape[1], (queries,), generator=generator)]


def looped(
    scores: Tensor, own: Tensor, order_of: Callable[[np.ndarray], np.ndarray], rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Zone and one draw of each query as the released code finds them: argsort, differences, argsort, walk.

    Returns:
        For each query how many images its zone holds and one of them.
    """
    found = []
    for row, target in zip(scores.numpy(), own.numpy(), strict=True):
        order = order_of(row)
        below = order[np.flatnonzero(order == target)[0] + 1 :]
        steepness = order_of(row[below][:-1] - row[below][1:])
        for a, b in zip(steepness[:-1], steepness[1:], strict=True):
            if abs(a - b) > 1:
                zone = below[min(a, b) + 1 : max(a, b) + 1]
                found.append((len(zone), int(rng.choice(zone))))
                break
    return found


def zone_sizes(scores: Tensor, own: Tensor) -> list[int]:
    """Images in each query's zone."""
    return RELEASED(sort_values(scores), scores.gather(1, own[:, None])[:, 0]).sizes.tolist()


def mined(queries: Tensor, tokens: Tensor, own: Tensor, chunk: int = 512) -> Tensor:
    """One negative for each query [B,D] among images [G,N,D], scored as :func:`cirkit.mining.mine` does."""
    rng, drawn = np.random.default_rng(0), []
    for part, target in zip(*(x.split(rows_at_once(chunk, len(tokens))) for x in (queries, own)), strict=True):
        drawn.append(choose(corpus_scores(part, tokens), target, RELEASED, 1, rng)[0])
    return torch.cat(drawn)
