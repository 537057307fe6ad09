"""Drawn negatives: score a corpus, choose a zone of each query's ranking, draw from it for some epochs ahead.

A *zone* is a run of places in one query's ranking of the corpus, best first. Random, two-drop (QuRe) and mid-zone
(DQE-CIR) negatives differ in nothing but their zone, so the rest stands here once. Values are sorted,
never indices: which image stands at a drawn place is looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cirkit.data.triplets import TripletSet
from cirkit.features import FeatureStore
from cirkit.methods.base import Method
from cirkit.ranks import refuse_non_finite
from cirkit.retrieval import encode_images, encode_queries

Corpus = Literal["targets", "split"]
_BLOCK = 2**20  # scores that are looked at together on the CPU: they fit into its cache
_SCORES = 2**23  # that stand side by side at most, whatever the size of the corpus: 34 MB


class Zone(NamedTuple):
    """Places ``first`` to ``last`` - 1 of each ranking, long [B] each; ``fallback`` [B] is 0 where the rule itself gave
    the zone, otherwise how often it had to be widened."""

    first: Tensor
    last: Tensor
    fallback: Tensor

    @property
    def sizes(self) -> Tensor:
        return self.last - self.first


# descending scores [B,G], -inf for what is no candidate, and each own target's score [B] -> zone
Chooser = Callable[[Tensor, Tensor], Zone]


class Mined(NamedTuple):
    """``draws`` [n,count], rows of the feature store; ``sizes`` [n] of the zones and how many needed a ``fallback``."""

    draws: Tensor
    sizes: Tensor
    fallback: Tensor


def whole_corpus(ordered: Tensor, own: Tensor) -> Zone:
    """Every candidate: uniform negatives."""
    first = torch.zeros(len(ordered), dtype=torch.long, device=ordered.device)
    return Zone(first, (ordered > -torch.inf).sum(dim=1), first.clone())


def sort_values(scores: Tensor) -> Tensor:
    """Each row in descending order, [B,G], without indices."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.sort(scores.numpy(), axis=1)).flip(1)  # many times faster than torch on the CPU
    return scores.sort(dim=1, descending=True).values


def first_largest(values: Tensor) -> Tensor:
    """Place of the first largest entry (or first True) of each row, long [B]."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.argmax(values.numpy(), axis=1))  # many times faster than torch on the CPU
    return (values.to(torch.uint8) if values.dtype == torch.bool else values).argmax(dim=1)


def corpora(triplets: TripletSet, corpus: Corpus) -> Iterator[tuple[np.ndarray, list[str]]]:
    """For each category its rows in ``triplets`` and the images, each once, that their negatives come from.

    Args:
        corpus: ``targets`` of the category's triplets, or the whole ``split``, i.e. its gallery and all that occurs in
            its triplets.
    """
    if corpus not in ("targets", "split"):
        raise ValueError(f"corpus must be 'targets' or 'split', got {corpus!r}")
    categories = np.array(triplets.categories)
    for category in dict.fromkeys(triplets.categories):
        rows = np.flatnonzero(categories == category)
        images = dict.fromkeys(triplets.targets[row] for row in rows)
        if corpus == "split":
            images |= dict.fromkeys(triplets.references[row] for row in rows)
            images |= dict.fromkeys(triplets.galleries.get(category, ()))
        yield rows, list(images)


def draw(scores: Tensor, ordered: Tensor, zone: Zone, own: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Places in the corpus of ``count`` negatives a query, uniform over its zone without its own target.

    Without repetition until the zone is used up, and then over again. Images of equal score stand in corpus order.

    Args:
        scores: [B,G]. ordered: the same in descending order. own: [B] place of the own target in the corpus.

    Returns:
        long [B,count].
    """
    value = scores.gather(1, own[:, None])
    rank = torch.searchsorted(-ordered, -value)[:, 0]
    following = ordered.gather(1, (rank[:, None] + 1).clamp(max=ordered.shape[1] - 1))
    tied = torch.nonzero((following == value)[:, 0])[:, 0]
    before = torch.arange(scores.shape[1], device=scores.device) < own[tied, None]
    rank[tied] += ((scores[tied] == value[tied]) & before).sum(dim=1)
    inside = (zone.first <= rank) & (rank < zone.last)
    sizes = zone.sizes - inside.long()
    if not (sizes > 0).all():
        lacking = int((sizes <= 0).sum())
        raise ValueError(f"{lacking} queries have no negative to draw: nothing but their own target to draw from")
    ranks = torch.from_numpy(_distinct(sizes.cpu().numpy(), count, rng)).to(scores.device) + zone.first[:, None]
    ranks += (inside[:, None] & (ranks >= rank[:, None])).long()
    return torch.stack([_at(scores, ordered, ranks[:, k]) for k in range(count)], dim=1)


def choose(
    scores: Tensor, own: Tensor, chooser: Chooser, count: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Zone and draws of each row of scores [B,G]: places in the corpus [B,count], zone sizes [B], fallbacks [B].

    Rows are looked at a block at a time; on the CPU, blocks that fit into its cache, one a thread.
    """
    on_cpu = scores.device.type == "cpu"
    rows = max(_BLOCK // scores.shape[1], 1) if on_cpu else len(scores)
    parts, owns = scores.split(rows), own.split(rows)

    def block(part: Tensor, target: Tensor, own_rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        ordered = sort_values(part)
        zone = chooser(ordered, part.gather(1, target[:, None])[:, 0])
        return draw(part, ordered, zone, target, count, own_rng), zone.sizes, zone.fallback

    blocks = zip(parts, owns, rng.spawn(len(parts)), strict=True)
    if on_cpu:
        with _one_thread_each() as threads, ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda args: block(*args), blocks))
    else:
        found = [block(*args) for args in blocks]
    return tuple(torch.cat(column) for column in zip(*found, strict=True))


def mine(
    method: Method, triplets: TripletSet, store: FeatureStore, chooser: Chooser, corpus: Corpus, count: int,
    seed: int | list[int], exclude_reference: bool = False, chunk: int = 512,
) -> Mined:  # fmt: skip
    """Score every query of a training set with its corpus, as the model stands, and draw ``count`` negatives for each.

    Memory is bounded by ``chunk`` rows of scores, fewer where the corpus is very large, and the encoded corpus of one
    category.
    """
    rng, n = np.random.default_rng(seed), len(triplets)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    draws = torch.empty(n, count, dtype=torch.long)
    sizes, fallback = torch.empty(n, dtype=torch.long), torch.empty(n, dtype=torch.long)
    queries = encode_queries(method, triplets, store)
    for rows, images in corpora(triplets, corpus):
        if len(images) < 2 + exclude_reference:
            name = triplets.categories[rows[0]] or triplets.name
            raise ValueError(
                f"no negatives can be drawn for {name!r}: its corpus ({corpus!r}) has {len(images)} images"
            )
        tokens, places = encode_images(method, images, store), {image: k for k, image in enumerate(images)}
        where = torch.from_numpy(store.rows(images))
        step = rows_at_once(chunk, len(images))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            own = torch.tensor([places[triplets.targets[row]] for row in part], device=tokens.device)
            scores = corpus_scores(queries[torch.from_numpy(part).to(queries.device)], tokens)
            refuse_non_finite((~torch.isfinite(scores)).sum(), scores.numel())
            if exclude_reference:
                sources = [places.get(triplets.references[row], -1) for row in part]
                kept = [(i, j) for i, j in enumerate(sources) if j >= 0 and j != int(own[i])]
                scores[[i for i, _ in kept], [j for _, j in kept]] = -torch.inf
            drawn, sizes[part], fallback[part] = (x.cpu() for x in choose(scores, own, chooser, count, rng))
            draws[part] = where[drawn]
    return Mined(draws, sizes, fallback)


def rows_at_once(chunk: int, corpus: int) -> int:
    """How many of ``chunk`` queries are scored together, so that their scores stay within bounds."""
    return max(min(chunk, _SCORES // corpus), 1)


def corpus_scores(queries: Tensor, tokens: Tensor, chunk: int = 1024) -> Tensor:
    """`max_over_tokens` [B,G], block by block and token by token: scores of single tokens never stand side by side."""
    scores, queries = torch.empty(len(queries), len(tokens), device=queries.device), queries.float()
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk].float()
        best = queries @ part[:, 0].T
        for token in range(1, part.shape[1]):
            torch.maximum(best, queries @ part[:, token].T, out=best)
        scores[:, start : start + chunk] = best
    return scores


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """How many threads torch has, which inside take one operation each instead of sharing every small one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def _distinct(sizes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers [B,count] below each of ``sizes`` [B], distinct as long as there are any left."""
    found = rng.integers(0, np.maximum(sizes, 1)[:, None], size=(len(sizes), count))
    small = sizes < 4 * count
    for row in np.flatnonzero(small):
        rounds = [rng.permutation(sizes[row]) for _ in range(-(-count // max(sizes[row], 1)))]
        found[row] = np.concatenate(rounds)[:count]
    while True:  # in large zones repeats are rare: draw those again
        repeated = np.triu(found[:, :, None] == found[:, None, :], 1).any(axis=1) & ~small[:, None]
        if not repeated.any():
            return found
        rows = np.nonzero(repeated)[0]
        found[repeated] = rng.integers(0, sizes[rows])


def _at(scores: Tensor, ordered: Tensor, places: Tensor) -> Tensor:
    """Which corpus entry stands at these places [B] of the rankings."""
    value = ordered.gather(1, places[:, None])
    found = first_largest(scores == value)
    around = torch.stack([places - 1, places + 1], dim=1).clamp(0, ordered.shape[1] - 1)
    equal = (ordered.gather(1, around) == value) & (around != places[:, None])
    several = torch.nonzero(equal.any(dim=1))[:, 0]
    if len(several):  # equal scores: the one as far down its group as the place is
        group = scores[several] == value[several]
        depth = places[several] - torch.searchsorted(-ordered[several], -value[several])[:, 0]
        found[several] = first_largest(group.cumsum(dim=1) == depth[:, None] + 1)
    return found
