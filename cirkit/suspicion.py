"""Which rows of one's own table look wrong, and why: three looks, none of which needs a label or a noise rate.

How it decides what is noise:

1. **The table itself**: one picture as reference and target, the same triplet again, one question with several targets.
2. **Before training** (`cirkit.gate`): the pretrained model sees no more evidence for the text than chance would give.
   This is what finds look-alikes whose text does not hold.
3. **After a short training** (`cirkit.boundary`): similarity at or below ConeSep's boundary. Each half of the rows is
   judged by a model that was trained on the other half, and on rows that passed the gate alone. So no row is judged by
   a model that has learnt it by heart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cirkit.backbone import Backbone
from cirkit.boundary import gaussian_patches, gaussian_triplets, noise_boundary
from cirkit.data.table import Table
from cirkit.data.triplets import TripletSet
from cirkit.evidence import evidence_scores
from cirkit.features import FeatureStore
from cirkit.gate import FACTOR, mirrored_null
from cirkit.methods import Method, build_method
from cirkit.presets import WORLD_ONLY
from cirkit.retrieval import encode_images, encode_queries
from cirkit.run_parameters import RunParameters
from cirkit.runs import check_words, train_config
from cirkit.similarity import own_similarity
from cirkit.training import fit

EVIDENCE, METHOD = "text", "infonce"
_DRAWS, _TEXTS = 64, 512  # Gaussian images a side, and composed queries, of the boundary
_PART = 512  # triplets that are scored at a time


def check_reads(backbone: Backbone, table: Table) -> None:
    """Raises ValueError if the backbone cannot read this table: the tiny ones know one embedded world each."""
    name = backbone.config.name
    if name in WORLD_ONLY and not table.world:
        raise ValueError(
            f"the backbone {name!r} has seen drawings of an embedded world and nothing else, so it cannot judge"
            f" {table.path}: take 'small' (`make small` makes it, in about an hour) or a larger one"
        )
    check_words(backbone, [table.triplets()])


@dataclass(frozen=True)
class Looks:
    """What the models see of triplets, each [n]; NaN where there was no such look.

    Attributes:
        evidence: of the text, before training; high = clean. threshold: rows above it pass.
        alike: similarity of reference and target, before training.
        similarity: of the composed query and the target, after training on other rows; high = clean.
        boundary: the boundary of the model that gave the similarity.
        spread: of the similarities of the table's own rows, 1.48 times their median distance from the median.
    """

    evidence: np.ndarray
    threshold: float
    alike: np.ndarray
    similarity: np.ndarray
    boundary: np.ndarray
    spread: float = 1.0

    @property
    def depths(self) -> dict[str, np.ndarray]:
        """How far each row lies below its threshold, "evidence" and "boundary", in spreads: above 0 is suspicious.

        The spread of the evidence is the threshold itself, one standard deviation of the null. A row at its threshold
        counts as below it, by the least there is.
        """
        deep = {
            "evidence": (self.threshold - self.evidence) / (self.threshold or 1.0),
            "boundary": (self.boundary - self.similarity) / (self.spread or 1.0),
        }
        return {name: np.where(depth == 0, np.finfo(np.float32).tiny, depth) for name, depth in deep.items()}


class Suspicion:
    """Models that look at the triplets of one table, and at other triplets in place of its rows.

    ``own`` are the looks at the table as it is, ``triplets`` its rows, and ``folds`` [n] which half each belongs to.
    """

    def __init__(
        self, backbone: Backbone, table: Table, store: FeatureStore, epochs: int = 4, seed: int = 0,
        batch_size: int = 64, lr: float = 0.0, progress: bool = True,
    ):  # fmt: skip
        """Args: `epochs` of the short training, 0 for none; `lr`, 0 for the method's own (`cirkit.runs`).

        Raises ValueError: a backbone that cannot read the table, or settings out of range.
        """
        check_reads(backbone, table)
        if epochs < 0:
            raise ValueError(f"epochs must be 0 or more, got {epochs}")
        self.triplets, self.store, self.backbone = table.triplets(), store, backbone
        self.folds = np.random.default_rng(seed).permutation(len(table)) % 2
        self.method: Method = build_method(METHOD, backbone)
        self.epochs, self.seed, self.progress = epochs, seed, progress
        if epochs:
            half = max(len(table) // 2, 2)
            parameters = RunParameters(
                METHOD, dataset="fashioniq", data_root=str(table.path.parent), seed=seed, epochs=epochs,
                batch_size=min(batch_size, half), lr=lr,
            )  # fmt: skip
            self.config = train_config(parameters, backbone)
        self.evidence = self._evidence(self.triplets)
        self.threshold = mirrored_null(self.evidence)
        self._boundaries = np.full(2, np.nan)
        self._states = [self._trained(fold) for fold in (0, 1)] if epochs else []
        self.spread = 1.0
        own = self.look(self.triplets)
        if epochs:
            self.spread = float(FACTOR * np.median(np.abs(own.similarity - np.median(own.similarity))))
        self.own = dataclasses.replace(own, spread=self.spread)

    def _evidence(self, triplets: TripletSet) -> np.ndarray:
        return evidence_scores(self.backbone, triplets, self.store, (EVIDENCE,))[EVIDENCE]

    def _trained(self, fold: int) -> dict[str, torch.Tensor]:
        """The weights after training on the rows of the other fold that pass the gate."""
        start, others = self._weights(), self.folds != fold
        rows = np.flatnonzero(others & (self.evidence > self.threshold))
        if len(rows) < 2:  # the backbone sees no evidence in these texts
            rows = np.flatnonzero(others)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            fit(self.method, self.triplets, self.store, self.config, progress=self.progress, rows=rows)
            texts = self.backbone.tokenize(self.triplets.texts)
            generator = torch.Generator().manual_seed(self.seed)
            references, targets = (gaussian_patches(self.backbone, _DRAWS, generator) for _ in range(2))
            torch.manual_seed(self.seed)
            many = references.repeat(_TEXTS // _DRAWS, 1, 1)
            self.method.eval()
            self._boundaries[fold] = noise_boundary(*gaussian_triplets(self.backbone, many, targets, texts)).item()
        trained = self._weights()
        self.method.load_trained_state(start, "the weights before training")
        return trained

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.method.trained_state().items()}

    @torch.inference_mode()
    def look(self, triplets: TripletSet, rows: Sequence[int] | np.ndarray | None = None) -> Looks:
        """Look at triplets that stand in the place of these rows of the table, [n]; None for all, in order.

        Their images must be in the store. A triplet is judged by the model that was not trained on its row.
        """
        rows = np.arange(len(self.triplets)) if rows is None else np.asarray(rows)
        evidence = self.evidence if triplets is self.triplets else self._evidence(triplets)
        alike = self._in_parts(triplets, self._alike)
        similarity, boundary = (np.full(len(triplets), np.nan, dtype=np.float32) for _ in range(2))
        start = self._weights()
        for fold, state in enumerate(self._states):
            mine = np.flatnonzero(self.folds[rows] == fold)
            if len(mine):
                self.method.load_trained_state(state, "the weights after training")
                similarity[mine] = self._in_parts(triplets.select(mine), self._similarity)
                boundary[mine] = self._boundaries[fold]
        self.method.load_trained_state(start, "the weights before training")
        return Looks(evidence, self.threshold, alike, similarity, boundary, self.spread)

    def _alike(self, part: TripletSet) -> torch.Tensor:
        mean = encode_images(self.method, part.references, self.store).float().mean(dim=1)
        return own_similarity(torch.nn.functional.normalize(mean, dim=-1), self._targets(part))

    def _similarity(self, part: TripletSet) -> torch.Tensor:
        return own_similarity(encode_queries(self.method, part, self.store), self._targets(part))

    def _targets(self, part: TripletSet) -> torch.Tensor:
        return encode_images(self.method, part.targets, self.store)

    @staticmethod
    def _in_parts(triplets: TripletSet, score: Callable[[TripletSet], torch.Tensor]) -> np.ndarray:
        """A score of every triplet, [n]; of some at a time, so that a large table takes no more memory."""
        parts = [triplets.select(range(i, min(i + _PART, len(triplets)))) for i in range(0, len(triplets), _PART)]
        return np.concatenate([score(part).cpu().numpy() for part in parts])
