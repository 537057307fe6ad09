"""Peak memory of one case, in a process of its own: ``python -m cirkit.bench.memory CASE SETTINGS`` prints bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from cirkit.bench.scoring import SIZES, by_matrices, in_blocks, made
from cirkit.bench.timing import forget_most_held, most_held


def evaluation(whole: bool, size: str | None = None, **sizes: int) -> Callable[[], object]:
    """Ranks of a made case, by whole matrices or in blocks."""
    case = made(**(SIZES[size] if size else sizes))
    return lambda: (by_matrices if whole else in_blocks)(case)


def mining(queries: int, images: int, tokens: int, dims: int) -> Callable[[], object]:
    """Zones and draws of all queries, with scoring."""
    from cirkit.bench.mining import mined  # takes seconds to import, which the other case need not wait for

    case = made(queries, images, tokens=tokens, dims=dims)
    return lambda: mined(case.queries, case.tokens, case.target)


CASES = {"evaluation": evaluation, "mining": mining}


def main() -> None:
    torch.set_num_threads(1)
    work = CASES[sys.argv[1]](**json.loads(sys.argv[2]))
    (torch.ones(64, 64) @ torch.ones(64, 64)).sort()  # what libraries set up once
    forget_most_held()
    before = most_held()
    work()
    print(most_held() - before)


if __name__ == "__main__":
    main()
