"""INTENT (AAAI 2026, ZivChen-Ty/INTENT): change what a reference looks like and ask for the same query tokens.

How it decides what is noise: it does not. No triplet is told from another; what it is meant to withstand noise with is
the shape of its losses, whose gradient on a row is bounded.

``L_rank + 0.5 L_disc``, and ``+ L_causal`` in the first two epochs. The intervention: amplitudes of the target are
mixed into the reference (:mod:`cirkit.spectrum`), and the frozen tower encodes the result at every such step.
Of what the released code does otherwise than expected, by number:

1. It mixes pixels that are normalised by mean and std, and then clamps them to [0,1]: ``mixed_pixels`` = ``normalised``
   (released) or ``plain``, which mixes and clamps values in [0,1] and normalises the result.
2. It brings target tokens to unit length over the token axis: ``unit_axis`` = ``tokens`` (released) or ``features``.
3. Confidence scores that its read-me names are never used, and so are no part of this method.
4. A random matrix for those scores that is neither trained nor saved: left out with them.
5. The causal term counts in two epochs alone: ``causal_epochs``, 2 in both variants.
6. It mixes a reference with its own target, which tells the query something of the target: ``partner`` = ``target`` in
   both variants; ``random`` takes another row's target.
7. It tells no noise from clean rows: nor does this.
8. A learned temperature without use, validation with dropout, raw captions in submissions, last weights in place of the
   best, whole-model pickles: none of it; evaluation and checkpoints are the study's.

The released schedule is 20 epochs in batches of 128 at a constant rate, so that the causal term counts in a tenth of
it; in the study's 8 epochs it is a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cirkit.backbone import Backbone
from cirkit.losses import robust_contrastive
from cirkit.methods.base import Batch, Method, TrainingView, check_not_negative, check_positive, fill_switches
from cirkit.scores import max_over_tokens
from cirkit.spectrum import spectrum_mix

# switch -> (released, adapted)
SWITCHES = {
    "mixed_pixels": ("normalised", "plain"),
    "unit_axis": ("tokens", "features"),
    "partner": ("target", "target"),
}
VARIANTS = ("released", "adapted")
_CLAMP = 1e-7


# -- losses ------------------------------------------------------------------------------------------------------------


def causal_consistency(intervened: Tensor, tokens: Tensor) -> Tensor:
    """One minus the linear CKA of two views' tokens, as a mean over the batch: 0 where they are arranged alike.

    Per sample, with ``K = u' u'^T`` and ``L = u u^T`` centred in rows and columns: ``<K,L> / (|K| |L| + 1e-8)``.

    Args:
        intervened, tokens: u' and u, [B,N,D].

    Returns:
        Scalar; 1, with zero gradient, from a sample whose tokens are all equal.
    """
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    with torch.autocast(tokens.device.type, enabled=False):
        kernels = []
        for view in (intervened, tokens):
            centred = view.to(dtype) - view.to(dtype).mean(dim=1, keepdim=True)
            kernels.append((centred @ centred.transpose(1, 2)).flatten(1))
        first, second = kernels
        squares = first.square().sum(dim=1) * second.square().sum(dim=1)
        # where a root has no finite gradient, none is wanted
        norms = squares.clamp(min=torch.finfo(dtype).tiny).sqrt()
        return 1 - ((first * second).sum(dim=1) / (norms + 1e-8)).mean()


def discriminative(similarity: Tensor, scale: float | Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the own target by how credible each is, not by how similar.

    With ``p = softmax_j(s_ij / tau)``, a target is credible by ``r_ij = (p_ij + 1 - p_io) / 2``, where ``p_io`` is that
    of its rival: the own target, or of the own target the best other one. Logits are ``scale r_ij``.

    Args:
        similarity: s [B,B], [query, target]. scale: T. temperature: tau.

    Returns:
        Scalar, at least float32; 0 for a batch of one.
    """
    logits = similarity.to(torch.promote_types(similarity.dtype, torch.float32)) / temperature
    p = logits.softmax(dim=1)
    own = torch.eye(len(p), dtype=torch.bool, device=p.device)
    best_other = p.masked_fill(own, 0.0).amax(dim=1)
    rival = torch.where(own, best_other[:, None], p.diagonal()[:, None])
    credible = ((p + 1 - rival) / 2).clamp(_CLAMP, 1 - _CLAMP)
    return F.cross_entropy(scale * credible, torch.arange(len(p), device=p.device))


# -- the method --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class INTENTConfig(Method.Config):
    """Options of INTENT. A switch that is None is what the variant says; only ``adapted`` lets switches be changed.

    Args:
        temperature: tau of both losses. scale: where the learned scale T of the discriminative loss starts.
        discriminative_weight, causal_weight: 0.5 and 1. causal_epochs: how many first epochs have the causal term.
        alpha: a mix is as strong as a number drawn uniformly from 0 to ``alpha``. ratio: share of the frequencies.
        mixed_pixels: mix ``plain`` values in [0,1], or ``normalised`` ones (released).
        unit_axis: target tokens of the discriminative loss have unit length over their ``features``, or each feature
            has it over the ``tokens`` of a target (released).
        partner: whose amplitudes a reference gets, its own ``target``'s or a ``random`` other row's.
    """

    variant: str = "adapted"
    temperature: float = 0.07
    scale: float = 10.0
    discriminative_weight: float = 0.5
    causal_weight: float = 1.0
    causal_epochs: int = 2
    alpha: float = 1.0
    ratio: float = 1.0
    mixed_pixels: Literal["plain", "normalised"] | None = None
    unit_axis: Literal["features", "tokens"] | None = None
    partner: Literal["target", "random"] | None = None

    def __post_init__(self):
        if self.variant not in VARIANTS:
            return  # refused by its name, with the ones there are
        own = {name: values[VARIANTS.index(self.variant)] for name, values in SWITCHES.items()}
        fill_switches(self, own, "INTENT", "'intent'")
        check_positive(self, "temperature", "scale")
        for name in ("alpha", "ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be greater than 0 and at most 1, got {getattr(self, name)}")
        check_not_negative(self, "discriminative_weight", "causal_weight", "causal_epochs")


class INTENT(Method):
    """INTENT with its two defects mended, each by a switch.

    Of the learning rates 1e-4, 5e-4, 1e-3 and 3e-3, validation R@1 of seed 100, summed over the clean set and
    shuffle 0.5, was best at 5e-4 (59.9 + 21.2); at 1e-3 it is better
    on clean triplets and falls apart under noise (64.9 + 7.6).
    """

    needs_query_tokens = True
    uses_pixels = True
    lr = 5e-4
    published_lr = {"cirr": 2e-5, "fashioniq": 2e-5}
    variants: tuple[str, ...] = ("adapted",)
    Config = INTENTConfig
    config: INTENTConfig

    def __init__(self, backbone: Backbone, config: INTENTConfig):
        super().__init__(backbone, config)
        sizes = backbone.config.width, backbone.config.embed_dim
        self.causal_projection = nn.Linear(*sizes).to(backbone.device)
        self.scale = nn.Parameter(torch.tensor(config.scale, device=backbone.device))
        self.uses_pixels = config.causal_epochs > 0

    @property
    def needs_pixels(self) -> bool:
        return self.config.causal_epochs > 0

    def start_epoch(self, view: TrainingView) -> None:
        self.uses_pixels = view.epoch < self.config.causal_epochs

    def intervene(self, batch: Batch) -> Tensor:
        """Patch tokens [B,P,Dv] of the references, each with amplitudes of its partner.

        Raises:
            ValueError: the batch has no pixels.
        """
        config, reference, partner = self.config, batch.reference_pixels, batch.target_pixels
        if reference is None or partner is None:
            raise ValueError("INTENT mixes images, so its batches need reference_pixels and target_pixels")
        if config.partner == "random":
            partner = partner.roll(int(torch.randint(1, max(len(partner), 2), ())), dims=0)
        strength = config.alpha * torch.rand(len(reference), device=reference.device)
        if config.mixed_pixels == "normalised":
            return self.backbone.patch_tokens(spectrum_mix(reference, partner, strength, config.ratio))
        preprocess = self.backbone.preprocess
        mean, std = (reference.new_tensor(x)[:, None, None] for x in (preprocess.mean, preprocess.std))
        mixed = spectrum_mix(reference * std + mean, partner * std + mean, strength, config.ratio)
        return self.backbone.patch_tokens((mixed - mean) / std)

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        config, backbone = self.config, self.backbone
        length = backbone.query_tokens.shape[1]
        hidden = backbone.hidden_states(batch.references, batch.texts, backbone.query_tokens, slice(length + 1))
        composed = F.normalize(backbone.text_projection(hidden[:, length]), dim=-1)
        targets = self.target(batch.targets)
        similarity = max_over_tokens(composed, targets)
        self.observe(similarity, config.temperature)
        scores = similarity
        if config.unit_axis == "tokens":
            scores = max_over_tokens(composed, F.normalize(targets, dim=1))
        terms = {
            "rank": robust_contrastive(similarity, config.temperature),
            "discriminative": discriminative(scores, self.scale, config.temperature),
        }
        if self.uses_pixels:
            other = backbone.hidden_states(self.intervene(batch), batch.texts, backbone.query_tokens, slice(length))
            views = (F.normalize(self.causal_projection(h[:, :length]), dim=-1) for h in (other, hidden))
            terms["causal"] = causal_consistency(*views)
        weights = {"rank": 1.0, "discriminative": config.discriminative_weight, "causal": config.causal_weight}
        self.terms = {name: weights[name] * term for name, term in terms.items()}
        logs = {name: term.item() for name, term in terms.items()}
        logs |= {"s_ii": similarity.diagonal().mean().item(), "scale": self.scale.item()}
        return sum(self.terms.values()), logs


@dataclass(frozen=True)
class ReleasedConfig(INTENTConfig):
    """The released code."""

    variant: str = "released"


class INTENTReleased(INTENT):
    """INTENT as its released code computes it."""

    variants = ("released",)
    Config = ReleasedConfig
