"""CLIP4Cir (TOMM 2023): image and text features are added, and later mixed by a small network, the Combiner.

How it decides what is noise: it does not; every triplet counts as clean.
Image and text never meet in the encoder: what the text asks for is put together from two finished features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cirkit.backbone import Backbone, TokenBatch
from cirkit.losses import infonce
from cirkit.methods.base import BatchMethod, TrainingView, check_positive


def image_features(backbone: Backbone, patches: Tensor) -> Tensor:
    """Patches [B,P,Dv] -> [B,D], not of unit norm: the mean of the projected query states of the image-only pass."""
    return backbone.vision_projection(backbone.hidden_states(patches, queries=backbone.query_tokens)).mean(dim=1)


def text_features(backbone: Backbone, texts: Sequence[str] | TokenBatch) -> Tensor:
    """Texts -> [B,D], not of unit norm: the projected [CLS] of the text-only pass."""
    return backbone.text_projection(backbone.hidden_states(texts=texts, wanted=slice(1))[:, 0])


def element_wise_sum(image: Tensor, text: Tensor) -> Tensor:
    """Queries [B,D], unit norm, of image and text features [B,D]: the direction of their sum."""
    return F.normalize(image + text, dim=-1)


class Combiner(nn.Module):
    """Queries of features that are not of unit norm: what is new, and how much of either side stays.

    ``unit(v + lambda text + (1 - lambda) image)``, where v [B,C] and the scalar lambda of each row come from both
    features, projected side by side.

    Args:
        features: C, width of the features.
        projection: P, width of each projected feature.
        hidden: Hd, width of the layer behind them.
        dropout: share of each hidden layer that a training step leaves out.
    """

    def __init__(self, features: int, projection: int, hidden: int, dropout: float):
        super().__init__()
        self.text_projection = nn.Linear(features, projection)
        self.image_projection = nn.Linear(features, projection)
        self.mixture_hidden = nn.Linear(2 * projection, hidden)
        self.mixture = nn.Linear(hidden, features)
        self.balance_hidden = nn.Linear(2 * projection, hidden)
        self.balance = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Image and text features [B,C] -> queries [B,C], unit norm."""

        def layer(linear: nn.Linear, inputs: Tensor) -> Tensor:
            return self.dropout(linear(inputs).relu())

        both = torch.cat([layer(self.text_projection, text), layer(self.image_projection, image)], dim=-1)
        mixture = self.mixture(layer(self.mixture_hidden, both))
        share = self.balance(layer(self.balance_hidden, both)).sigmoid()
        return F.normalize(mixture + share * text + (1 - share) * image, dim=-1)


class CLIP4CIR(BatchMethod):
    """Stage 1: the sum as query, everything trains. Stage 2: the Combiner as query, and it alone trains.

    Both stages have InfoNCE from query to target at a fixed temperature; scores are cosines with the image feature of
    the target. The stage that was reached travels with the weights, so a trained model is evaluated as it was trained.

    CLIP's two encoders are the shared backbone's image-only and text-only passes here, which have weights in common. No
    defect of the released code touches these numbers; as there, CLIP's own learned logit scale is not used, and the
    loss has one direction. In the schedule it differs: the released code trains CLIP at a constant 2e-6, then the
    Combiner at 2e-5 with Adam for 300 epochs in batches of 1024 or 4096 (betas (0.9, 0.999), eps 1e-7 in both). Here
    the stages share the study's one cycle of 8 epochs in batches of 128, so that the Combiner begins at its middle.

    Of the learning rates 1e-4, 5e-4, 1e-3 and 3e-3, validation R@1 of seed 100, summed over the clean set and
    shuffle 0.5, was best at 1e-3 (62.6 + 42.5).
    """

    needs_query_tokens = True
    objective = staticmethod(infonce)
    variants = ("released",)
    lr = 1e-3
    published_lr = {"cirr": 2e-6, "fashioniq": 2e-6}  # of stage 1; the Combiner has ten times that

    @dataclass(frozen=True)
    class Config(BatchMethod.Config):
        """Options of CLIP4Cir.

        Args:
            stage1: share of the epochs, from 0 to 1, that come before stage 2. With 1 there is no Combiner; with 0
                nothing but the Combiner is trained.
            projection, hidden: P and Hd of the Combiner as multiples of the feature width; 4 and 8 as released (2560
                and 5120 for C = 640).
            dropout: that of the Combiner.
            temperature: tau; 0.01 is the released logit scale of 100.
        """

        variant: str = "released"
        stage1: float = 0.5
        projection: int = 4
        hidden: int = 8
        dropout: float = 0.5
        temperature: float = 0.01

        def __post_init__(self):
            check_positive(self, "temperature", "projection", "hidden")
            if not 0 <= self.stage1 <= 1:
                raise ValueError(f"stage1 is a share of all epochs, from 0 to 1, got {self.stage1}")
            if not 0 <= self.dropout < 1:
                raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")

    config: Config

    def __init__(self, backbone: Backbone, config: Config):
        super().__init__(backbone, config)
        width = backbone.config.embed_dim
        self.combiner = Combiner(width, config.projection * width, config.hidden * width, config.dropout)
        self.combiner.to(backbone.device)
        self.register_buffer("stage", torch.tensor(1, device=backbone.device))

    def start_epoch(self, view: TrainingView) -> dict[str, float]:
        self.stage.fill_(1 if view.epoch / view.epochs < self.config.stage1 else 2)
        return {"stage": float(self.stage)}

    def query(self, references: Tensor, texts: Sequence[str] | TokenBatch) -> Tensor:
        first = bool(self.stage == 1)
        # without gradients the optimizer passes the backbone over, weight decay and momentum included
        with torch.set_grad_enabled(first and torch.is_grad_enabled()):
            image, text = image_features(self.backbone, references), text_features(self.backbone, texts)
        return element_wise_sum(image, text) if first else self.combiner(image, text)

    def target(self, patches: Tensor) -> Tensor:
        """Patches [B,P,Dv] -> [B,1,D], unit norm: one token, so that the score is its cosine."""
        with torch.set_grad_enabled(bool(self.stage == 1) and torch.is_grad_enabled()):
            return F.normalize(image_features(self.backbone, patches), dim=-1)[:, None]
