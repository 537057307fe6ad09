"""Unlearning watched: a trained model goes on training, and what it does to clean triplets near the noisy is measured.

ConeSep's third challenge, the unlearning backlash: to push noisy triplets away may damage clean ones beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Batch, Method
from cirkit.retrieval import encode_images, encode_queries
from cirkit.scores import max_over_tokens
from cirkit.training import TrainConfig


def nearness(queries: Tensor, noisy: Tensor) -> Tensor:
    """Similarity of each composed query with the nearest noisy one other than itself.

    Args:
        queries: [n,D], unit norm. noisy: bool [n], at least two of them True.

    Returns:
        [n].
    """
    if int(noisy.sum()) < 2:
        raise ValueError(f"nearness needs at least two noisy triplets, got {int(noisy.sum())}")
    similarity = queries @ queries[noisy].T
    others = torch.arange(len(queries), device=queries.device)[noisy]
    similarity[others, torch.arange(len(others), device=queries.device)] = -1.0
    return similarity.amax(dim=1)


def margins(method: Method, triplets: TripletSet, store: FeatureStore) -> tuple[np.ndarray, np.ndarray]:
    """How each triplet fares among the targets of its own set, each image once.

    Returns:
        s_ii [n], and the margin [n]: s_ii less the best score of a wrong image; above 0, the target is found first.

    Raises:
        ValueError: all triplets have the same target.
    """
    place = {image: i for i, image in enumerate(dict.fromkeys(triplets.targets))}
    if len(place) < 2:
        raise ValueError("margins need triplets with at least two different targets")
    scores = max_over_tokens(encode_queries(method, triplets, store), encode_images(method, tuple(place), store))
    right = torch.tensor([[place[image]] for image in triplets.targets], device=scores.device)
    own = scores.gather(1, right)[:, 0]
    wrong = scores.scatter(1, right, -torch.inf).amax(dim=1)
    return own.cpu().numpy(), (own - wrong).cpu().numpy()


def continue_training(
    method: Method,
    loss: Callable[[Method, Batch, Tensor], Tensor],
    triplets: TripletSet,
    store: FeatureStore,
    noisy: np.ndarray,
    batches: Iterable[np.ndarray],
    config: TrainConfig,
    lr: float,
    on_step: Callable[[int], None] | None = None,
) -> Method:
    """Train ``method`` in place on the given batches at a constant learning rate, all else as in ``config``.

    Args:
        loss: of the method, a batch and which of its rows are noisy, bool [B].
        noisy: bool [n], which of the triplets are noisy.
        batches: row numbers of each step.
        on_step: called after each step with the number of steps done.

    Raises:
        ValueError: a loss that is not finite.
    """
    device = method.backbone.device
    references, targets = store.rows(triplets.references), store.rows(triplets.targets)
    tokens = method.backbone.tokenize(triplets.texts)
    optimizer = torch.optim.AdamW(
        method.parameter_groups(config.weight_decay), lr=lr, betas=config.betas, eps=config.eps
    )
    for step, rows in enumerate(batches, start=1):
        method.train()
        index = torch.from_numpy(rows).to(device)
        batch = Batch(
            index, store.patches(references[rows], device), tokens.rows(index), store.patches(targets[rows], device)
        )
        value = loss(method, batch, torch.from_numpy(noisy[rows]).to(device))
        if not torch.isfinite(value):
            raise ValueError(f"the loss is {value.item()} in step {step}")
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(method.parameters(), config.clip_norm)
        optimizer.step()
        if on_step is not None:
            on_step(step)
    method.eval()
    return method


def at_equal(amount: float, reached: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """What was measured at several moments, at the moment when a quantity first came to ``amount``.

    Between two moments both are taken to move along a straight line.

    Args:
        reached: [T], the quantity at each moment. values: [T,n].

    Returns:
        [n]; None if the amount was never reached.
    """
    reached, values = np.asarray(reached, dtype=float), np.asarray(values, dtype=float)
    there = np.flatnonzero(reached >= amount)
    if not len(there):
        return None
    k = there[0]
    if k == 0:
        return values[0]
    share = (amount - reached[k - 1]) / (reached[k] - reached[k - 1])
    return (1 - share) * values[k - 1] + share * values[k]
