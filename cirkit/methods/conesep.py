"""ConeSep (CVPR 2026, arXiv 2604.20358): find noise by a boundary, learn negative anchors, unlearn by transport.

How it decides what is noise: by how far a triplet's similarity lies above that of random triplets of Gaussian images.

Warm-up: L_rank + zeta L_intra + nu L_inter; then L_rank + kappa L_ul + zeta L_intra (eq. 8 and 13), where L_rank is the
robust contrastive loss, L_intra the query-oriented and L_inter the target-oriented loss of the anchors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cirkit.anchors import NEGATIONS, query_oriented, target_oriented
from cirkit.backbone import Backbone, TokenBatch
from cirkit.boundary import fidelity, gaussian_patches, gaussian_triplets, noise_boundary, noisy_rows, separation
from cirkit.drawn import drawn_negatives
from cirkit.losses import infonce, robust_contrastive
from cirkit.methods.base import Batch, Method, TrainingView
from cirkit.methods.conesep_config import ConeSepConfig, MidZoneConfig, PaperConfig, ReleasedConfig, TwoDropConfig
from cirkit.qformer import ImageMemory
from cirkit.scores import max_over_tokens
from cirkit.similarity import own_similarity
from cirkit.unlearning import unlearning

RANK_LOSSES = {"robust": robust_contrastive, "infonce": infonce}
LEARNED_SCALE = 10  # so that the schedule's small steps move a learned boundary over its range within the warm-up


class ConeSep(Method):
    """ConeSep with switches; by default the variant ``adapted``.

    As it is, adapted does not unlearn (kappa 0), and then has no use for anchors either: it is InfoNCE on the rows that
    the boundary lets pass, with a learning rate that follows their number. Set kappa above 0 for all three parts.

    On a BLIP-2 backbone the paper trains 20 epochs in batches of 128.
    """

    needs_query_tokens = True
    variants: tuple[str, ...] = ("adapted",)
    lr = 3e-3
    Config = ConeSepConfig
    config: ConeSepConfig

    def __init__(self, backbone: Backbone, config: ConeSepConfig):
        super().__init__(backbone, config)
        self.negative_prompts = nn.Parameter(backbone.query_tokens.detach().clone())
        if config.prompt_init == "random":
            nn.init.normal_(self.negative_prompts, std=backbone.config.initializer_range)
        self.drawn = drawn_negatives(config.drawn) if config.drawn else None
        self.epoch, self.seed, self.pool_number = 0, 0, 0
        self.boundary: Tensor | None = None
        if config.boundary_from == "learned":
            self.learned_boundary = nn.Parameter(torch.zeros((), device=backbone.device))
        elif config.boundary_from == "running":
            self.register_buffer("running_boundary", torch.full((), torch.nan, device=backbone.device))
        self._pool: tuple[Tensor, Tensor] | None = None
        prefixes = backbone.tokenize(NEGATIONS)
        # without [CLS] and [SEP]
        self._negations = [ids[1 : int(mask.sum()) - 1] for ids, mask in zip(*prefixes, strict=True)]

    def start_epoch(self, view: TrainingView) -> dict[str, float] | None:
        number = view.epoch // self.config.pool_epochs if self.config.pool_epochs else 0
        if (view.seed, number) != (self.seed, self.pool_number):
            self._pool = None
        self.epoch, self.seed, self.pool_number = view.epoch, view.seed, number
        self.lr_scale = self.config.warmup_lr if view.epoch < self.config.warmup else 1.0
        self.boundary = None  # estimated anew, so that a resumed run goes on as if never interrupted
        return None if self.drawn is None else self.drawn.start_epoch(self, view)

    # -- GFQ -----------------------------------------------------------------------------------------------------------

    def estimate_boundary(self, texts: TokenBatch) -> Tensor:
        """The noise boundary as the model stands, from ``draws`` Gaussian triplets with texts of this batch.

        The others of ``boundary_from`` are the mean over such estimates so far, a learned one, or 0.
        """
        config, generator = self.config, None
        if config.boundary_from == "zero":
            return torch.zeros((), device=texts.ids.device)
        if config.boundary_from == "learned":
            return LEARNED_SCALE * self.learned_boundary.detach()
        if config.pool:
            # by its lower 32 bits alone torch's generator of the CPU is seeded
            generator = torch.Generator().manual_seed((self.seed + 1_000_003 * self.pool_number) % 2**64)
        images = self._pool
        if images is None:
            count = config.draws or len(texts.ids)
            images = tuple(gaussian_patches(self.backbone, count, generator) for _ in range(2))
        if config.pool:
            self._pool = images
        boundary = noise_boundary(*gaussian_triplets(self.backbone, *images, texts), config.pairs)
        if config.boundary_from == "running":
            before = torch.where(self.running_boundary.isnan(), boundary, self.running_boundary)
            boundary = torch.lerp(boundary, before, config.momentum)
            self.running_boundary.copy_(boundary)
        return boundary

    def split(self, similarity: Tensor) -> Tensor:
        """Rows of a batch that count as noisy, bool [B], by s [B,B] and the boundary at hand."""
        return self._noisy(similarity, self.config.omega)

    def _noisy(self, similarity: Tensor, omega: float) -> Tensor:
        own = similarity.detach().diagonal()
        values = fidelity(own, self.boundary, self.config.fidelity, self.config.guards)
        return noisy_rows(own, self.boundary, values, self.config.split, omega)

    def believed_in_part(self, similarity: Tensor, noisy: Tensor) -> Tensor | None:
        """Rows that are not noisy but would be with an ``omega`` larger by ``partial``; None where that is 0."""
        if not self.config.partial:
            return None
        return self._noisy(similarity, min(self.config.omega + self.config.partial, 1.0)) & ~noisy

    # -- NBL -----------------------------------------------------------------------------------------------------------

    def anchors(self, references: Tensor | ImageMemory, texts: TokenBatch) -> Tensor:
        """Negative anchors g [B,D], unit norm: composed with the negative prompts in place of the query tokens."""
        if self.config.negate_text:
            texts = self.negated(texts)
        prompts = self.negative_prompts if self.config.anchor_prompts == "learned" else None
        if self.config.anchors_train == "all":
            return self.backbone.compose(references, texts, prompts)
        references = references.detached() if isinstance(references, ImageMemory) else references
        with _frozen(self.backbone):
            return self.backbone.compose(references, texts, prompts)

    def negated(self, texts: TokenBatch) -> TokenBatch:
        """The texts with a randomly drawn negation in front, cut at the backbone's text length."""
        prefixes, limit, ids = self._negations, self.backbone.config.text_length, []
        drawn = torch.randint(len(prefixes), (len(texts.ids),)).tolist()
        for row, length, kind in zip(texts.ids, texts.mask.sum(dim=1).tolist(), drawn, strict=True):
            own = row[:length]
            ids.append(torch.cat([own[:1], prefixes[kind].to(row.device), own[1:-1]])[: limit - 1])
            ids[-1] = torch.cat([ids[-1], own[-1:]])
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        return TokenBatch(nn.utils.rnn.pad_sequence(ids, batch_first=True), mask)

    # -- BTU -----------------------------------------------------------------------------------------------------------

    def unlearn(self, similarity: Tensor, anchors: Tensor, composed: Tensor, targets: Tensor, noisy: Tensor):
        """The unlearning loss of a batch and its transport; None where there is nothing to unlearn."""
        config = self.config
        if len(noisy) < 2 or (config.guards and not noisy.any()):
            return None
        if config.anchors_train == "prompts":
            anchors = anchors.detach()
        if config.negative_block == "composed":
            # a plain product would be in half precision under autocast
            negative = max_over_tokens(composed, anchors[:, None])
        else:
            negative = max_over_tokens(anchors, targets).T
        positive = similarity if config.positive_block == "cosine" else (similarity / config.temperature).softmax(1)
        options = ("gamma", "reg", "mask", "marginals", "solver", "scale_cost", "resoftmax", "both_directions")
        chosen = {name: getattr(config, name) for name in options}
        chosen["partial"] = self.believed_in_part(similarity, noisy)
        return unlearning(positive, negative, noisy, config.label_temperature, **chosen)

    # -- the loss ------------------------------------------------------------------------------------------------------

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        config = self.config
        references: Tensor | ImageMemory = batch.references
        if config.anchors_train == "all" or config.kappa:
            references = self.backbone.image_memory(references)  # queries and anchors attend to the same
        composed, targets = self.query(references, batch.texts), self.target(batch.targets)
        similarity = max_over_tokens(composed, targets)
        self.observe(similarity, config.temperature)
        off = similarity.numel() - len(similarity)
        own = similarity.detach().diagonal()
        logs = {"s_ii": own.mean().item(), "s_ij": ((similarity.detach().sum() - own.sum()) / max(off, 1)).item()}
        noisy = None
        if self.epoch >= config.warmup:
            if self.boundary is None or step % config.boundary_every == 0:
                self.boundary = self.estimate_boundary(batch.texts)
            noisy = self.split(similarity)
            self.observed["flagged"] = noisy.float()
            if config.scale_lr:
                self.lr_scale = (~noisy).float().mean().item()
            logs |= {"boundary": self.boundary.item(), "flagged": noisy.float().mean().item()}
        rows = None if noisy is None or config.rank_rows == "all" else ~noisy
        if config.rank_loss == "none":
            rank = similarity.sum() * 0
        elif self.drawn is None:
            rank = RANK_LOSSES[config.rank_loss](similarity, config.temperature, rows)
        else:
            drawn = own_similarity(composed, self.target(self.drawn.patches(batch.rows)))
            rank = infonce(similarity, config.temperature, rows, drawn[:, None])
            logs["s_drawn"] = drawn.mean().item()
        self.terms = {"rank": rank}
        logs["rank"] = rank.item()
        if config.boundary_from == "learned":
            badly = separation(similarity, LEARNED_SCALE * self.learned_boundary, config.temperature)
            logs["separation"] = badly.item()
            # as small as its own gradient allows, or all others would lose by the clipping of the whole; AdamW's step
            # does not depend on the size
            self.terms["boundary"] = badly * config.temperature / LEARNED_SCALE
        # anchors that train nothing but their own prompts matter only for unlearning
        if config.kappa or config.anchors_train == "all":
            anchors = self.anchors(references, batch.texts)
            extra = self.anchor_terms(anchors, similarity, composed, targets, noisy)
            weights = {"query_oriented": config.zeta, "target_oriented": config.nu, "unlearning": config.kappa}
            self.terms |= {name: weights[name] * extra[name] for name in weights if name in extra}
            logs |= {name: value.item() for name, value in extra.items()}
            if noisy is not None and config.kappa:
                logs["not_unlearnt"] = float("unlearning" not in extra)
        logs["lr_scale"] = self.lr_scale
        return sum(self.terms.values()), logs

    def anchor_terms(
        self, anchors: Tensor, similarity: Tensor, composed: Tensor, targets: Tensor, noisy: Tensor | None
    ) -> dict[str, Tensor]:
        """The terms in which the anchors take part, unweighted, and c_g, mean <c_i, g_i>; ``noisy`` None in warm-up."""
        config = self.config
        c, t = (composed, targets) if config.anchors_train == "all" else (composed.detach(), targets.detach())
        terms = {
            "query_oriented": query_oriented(c, anchors, similarity, config.temperature, config.query_oriented),
            "c_g": (composed * anchors).sum(dim=1).mean().detach(),
        }
        if noisy is None:
            scores = max_over_tokens(anchors, t)
            terms["target_oriented"] = target_oriented(scores, config.temperature, config.target_oriented)
        elif config.kappa and (moved := self.unlearn(similarity, anchors, composed, targets, noisy)):
            terms["unlearning"] = moved.loss
        return terms

    def diagnose(self, record: dict[str, float]) -> str | None:
        """A collapse by its name: queries that no longer tell targets apart, or that became their own anchors."""
        if record["s_ii"] - record["s_ij"] < 0.02:
            return f"collapse: right and wrong pairs are alike (s_ii {record['s_ii']:.2f}, s_ij {record['s_ij']:.2f})"
        if record.get("c_g", 0.0) > 0.9:
            return f"collapse: queries and their negative anchors coincide (c_g {record['c_g']:.2f})"
        if record.get("flagged", 0.0) > 0.99:
            return "every triplet counts as noisy"
        return None


class ConeSepTwoDrop(ConeSep):
    """ConeSep's split and QuRe's negatives: InfoNCE on the rows that pass, with one drawn negative more each."""

    Config = TwoDropConfig


class ConeSepMidZone(ConeSep):
    """ConeSep's split and DQE-CIR's negatives."""

    Config = MidZoneConfig


class ConeSepPaper(ConeSep):
    """ConeSep as the paper describes it."""

    lr = 5e-4
    variants = ("paper",)
    Config = PaperConfig


class ConeSepReleased(ConeSep):
    """ConeSep as its released code computes it."""

    lr = 5e-4
    variants = ("released",)
    Config = ReleasedConfig


@contextmanager
def _frozen(backbone: Backbone) -> Iterator[None]:
    """No gradient for the backbone's parameters in what is computed inside."""
    trained = [p for p in backbone.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
