"""What stage 1 is made of: its settings, loss, batches of look-alikes, and the figure it is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cirkit.data import scenes
from cirkit.scores import max_over_tokens, top_k


@dataclass(frozen=True)
class Stage1Config:
    """Settings of stage 1; they are stored beside the weights.

    After ``plain_share`` of the steps every second batch is a hard one: groups of ``group_size`` look-alikes, on
    garments with category and two attributes in common, on scenes with all but three attributes. Without them
    necklines are read late: a probe was at 56 % after 900 plain steps.
    """

    images: int = 8400
    held_out: int = 600
    steps: int = 1400
    batch_size: int = 128
    plain_share: float = 0.3
    group_size: int = 8
    lr: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.05
    temperature: float = 0.07  # start value; learned
    seed: int = 0


def contrastive_loss(images: Tensor, texts: Tensor, temperature: Tensor | float) -> Tensor:
    """Image-text contrastive loss of BLIP-2, both directions.

    Args:
        images: target tokens [B,N,D]; texts: [B,D]; all unit norm. The score is the best token's cosine.
    """
    similarity = max_over_tokens(texts, images) / temperature
    labels = torch.arange(len(texts), device=texts.device)
    return (F.cross_entropy(similarity, labels) + F.cross_entropy(similarity.T, labels)) / 2


class AttributeHead(nn.Module):
    """Reads every attribute off an embedding by one linear layer, shared by images and texts.

    Contrast alone does not keep eight attributes apart: after 1,600 steps 85 % of the images of look-alikes were found
    by their caption, but a linear probe read the shape of 34 %, and so a later composition had little to hold on to.
    """

    def __init__(self, truth: pd.DataFrame, embed_dim: int):
        super().__init__()
        codes = [pd.factorize(truth[name], sort=True) for name in truth]
        self.register_buffer("codes", torch.from_numpy(np.stack([code for code, _ in codes], axis=1)))
        self.sizes = [len(values) for _, values in codes]
        self.scale = embed_dim**0.5
        self.linear = nn.Linear(embed_dim, sum(self.sizes))

    def forward(self, embedding: Tensor, rows: Tensor) -> Tensor:
        """Cross-entropy, averaged over attributes, of embeddings [B,D] of the images or captions ``rows`` [B]."""
        parts = self.linear(self.scale * embedding).split(self.sizes, dim=1)
        losses = [F.cross_entropy(part, codes) for part, codes in zip(parts, self.codes[rows].T, strict=True)]
        return torch.stack(losses).mean()


def text_to_image_recall(images: Tensor, texts: Tensor, content: np.ndarray) -> dict[str, float]:
    """R@1/5/10 in percent of caption -> image; a hit is any image with the content (integer label) asked for.

    Args:
        images: [n,N,D]; texts: [n,D], caption i describes image i; content: int [n], equal for equal attributes.
    """
    order = top_k(texts, images, 10)[1].numpy()
    hit = content[order] == content[:, None]
    return {f"R@{k}": 100 * float(hit[:, :k].any(axis=1).mean()) for k in (1, 5, 10)}


def shared_attributes(truth: pd.DataFrame) -> list[np.ndarray]:
    """Group numbers [n] of garments that share the category and two attributes, for every pair of attributes."""
    others = [c for c in truth.columns if c != "category"]
    return [truth.groupby(["category", *pair], sort=True).ngroup().to_numpy() for pair in combinations(others, 2)]


def drawn_groups(truth: pd.DataFrame) -> list[np.ndarray]:
    """Group numbers [n] of scenes: they are drawn as groups of look-alikes."""
    return [np.arange(len(truth)) // scenes.STAGE1_GROUP]


class BatchSampler:
    """Batches of captioned images, never two of one attribute vector: that pair would be no negative.

    Args:
        truth: attributes, one row an image.
        groupings: ways to put look-alikes together, a group number [n] an image; a hard batch uses one of them.
    """

    def __init__(self, truth: pd.DataFrame, config: Stage1Config, groupings: list[np.ndarray]):
        self.rng = np.random.default_rng(config.seed)
        self.config = config
        self.vector = truth.groupby(list(truth.columns), sort=True).ngroup().to_numpy()
        self.groupings = groupings

    def draw(self, step: int) -> Tensor:
        """Rows [batch_size] of one step."""
        order = self.rng.permutation(len(self.vector))
        order = order[np.sort(np.unique(self.vector[order], return_index=True)[1])]
        if step >= self.config.plain_share * self.config.steps and step % 2:
            group = self.groupings[self.rng.integers(len(self.groupings))][order]
            place = pd.Series(group).groupby(group).cumcount().to_numpy()
            rank = self.rng.permutation(group.max() + 1)[group]
            order = order[np.lexsort((place, rank, place >= self.config.group_size))]
        return torch.from_numpy(order[: self.config.batch_size])
