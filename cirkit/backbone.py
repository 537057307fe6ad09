"""The Q-Former backbone of composed image retrieval, on the transformers BLIP-2 classes.

Shapes: B batch, P patches, Dv vision width, N query tokens, L text tokens, H Q-Former width, D embedding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.blip_2.configuration_blip_2 import Blip2QFormerConfig
from transformers.models.blip_2.modeling_blip_2 import Blip2QFormerModel, Blip2TextEmbeddings

from cirkit.backbone_config import BackboneConfig
from cirkit.data.preprocess import Preprocess
from cirkit.qformer import ImageMemory, image_memory, run
from cirkit.tokens import WordTokenizer
from cirkit.towers import build_tower


class TokenBatch(NamedTuple):
    """Token ids [B,L] and mask [B,L] (1 = token, 0 = padding); position 0 is [CLS]."""

    ids: Tensor
    mask: Tensor

    def rows(self, rows: Tensor) -> TokenBatch:
        """The rows asked for, cut to the longest text among them."""
        mask = self.mask[rows]
        length = int(mask.sum(1).max())
        return TokenBatch(self.ids[rows, :length], mask[:, :length])

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(self.ids.to(device), self.mask.to(device))


class Backbone(nn.Module):
    """Frozen vision tower, Q-Former and the two projections of BLIP-2's first stage.

    Names of sub-modules follow transformers' ``Blip2ForImageTextRetrieval``. The tower is frozen and always in eval
    mode; ``ln_vision``, the LayerNorm behind it, belongs to the trained part, as in the released code of the methods.
    Nothing is dropped out, where BERT's config has 0.1.
    """

    has_query_tokens = True  # what methods that reach into the Q-Former need

    def __init__(self, config: BackboneConfig):
        super().__init__()
        self.config = config
        if config.tower_dtype not in ("float32", "float16"):
            raise ValueError(f"tower_dtype must be float32 or float16, got {config.tower_dtype!r}")
        self.tokenizer = WordTokenizer(config.vocabulary)
        self.preprocess = Preprocess(
            size=config.image_size, pad_ratio=config.pad_ratio, mean=config.image_mean, std=config.image_std
        )
        self.vision_model = build_tower(config)
        self.ln_vision = nn.LayerNorm(config.vision_width, eps=config.vision_norm_eps)
        self._build_encoder(config)
        self.freeze_tower()

    def _build_encoder(self, config: BackboneConfig) -> None:
        """Everything behind ``ln_vision``."""
        qformer = Blip2QFormerConfig(
            vocab_size=len(config.vocabulary),
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.intermediate,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=config.positions or max(config.text_length, 32),
            initializer_range=config.initializer_range,
            layer_norm_eps=config.layer_norm_eps,
            cross_attention_frequency=config.cross_attention_frequency,
            encoder_hidden_size=config.vision_width,
            use_qformer_text_input=True,
        )
        self.embeddings = Blip2TextEmbeddings(qformer)
        self.embeddings.word_embeddings.requires_grad_(config.train_words)
        self.qformer = Blip2QFormerModel(qformer)
        self.query_tokens = nn.Parameter(torch.empty(1, config.query_tokens, config.width))
        self.vision_projection = nn.Linear(config.width, config.embed_dim)
        self.text_projection = nn.Linear(config.width, config.embed_dim)
        self._initialise(config.initializer_range)

    def _initialise(self, std: float) -> None:
        nn.init.normal_(self.query_tokens, std=std)
        for module in [
            *self.embeddings.modules(),
            *self.qformer.modules(),
            self.vision_projection,
            self.text_projection,
        ]:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=std)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)
                elif module.padding_idx is not None:
                    nn.init.zeros_(module.weight[module.padding_idx].unsqueeze(0))

    # -- frozen and trained parts ------------------------------------------------------------------------------------

    def freeze_tower(self, frozen: bool = True) -> None:
        """Freeze the tower (the default state) or, for stage-1 pretraining only, set it free."""
        self.vision_model.requires_grad_(not frozen)
        self.vision_model.train(not frozen and self.training)

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        tower_is_free = any(p.requires_grad for p in self.vision_model.parameters())
        self.vision_model.train(mode and tower_is_free)
        return self

    def place(self, device: torch.device | str) -> Backbone:
        """Move everything to a device, the tower in the precision that it has there."""
        device = torch.device(device)
        dtype = getattr(torch, self.config.tower_dtype) if device.type == "cuda" else torch.float32
        self.vision_model.to(dtype=dtype)
        return self.to(device)

    @property
    def device(self) -> torch.device:
        return self.vision_projection.weight.device

    # -- passes ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def patch_tokens(self, pixels: Tensor) -> Tensor:
        """Frozen tower: pixels [B,3,S,S] -> patch tokens [B,P,Dv], no gradient, in the tower's precision."""
        if pixels.dim() != 4 or pixels.shape[1] != 3:
            raise ValueError(f"pixels must be [B,3,S,S], got {tuple(pixels.shape)}")
        with torch.autocast(pixels.device.type, enabled=False):  # the same tokens inside a training as in the store
            return self.vision_model(pixels)

    def tokenize(self, texts: Sequence[str]) -> TokenBatch:
        """Texts -> padded token ids on the backbone's device, cut at ``text_length``."""
        ids, mask = self.tokenizer(texts, self.config.text_length)
        return TokenBatch(ids, mask).to(self.device)

    def image_memory(self, patches: Tensor) -> ImageMemory:
        """Patch tokens [B,P,Dv] as the passes below use them; they take it in place of patches that several need."""
        return image_memory(self.qformer, patches, lambda part: self.ln_vision(part.to(self.query_tokens.dtype)))

    def hidden_states(
        self,
        patches: Tensor | ImageMemory | None = None,
        texts: Sequence[str] | TokenBatch | None = None,
        queries: Tensor | None = None,
        wanted: slice = slice(None),
    ) -> Tensor:
        """One Q-Former pass: hidden states [B, N+L, H], query positions first.

        Args:
            patches: image to attend to, [B,P,Dv], or its memory; None runs the pass without image.
            texts: B texts, or their tokens; None runs the pass without text (L = 0).
            queries: query embeddings [N,H], [1,N,H] or [B,N,H]; None runs a text-only pass (N = 0).
            wanted: the positions whose states are given back; asking for few of them saves time.

        Raises:
            ValueError: if there is neither text nor query, or batch sizes differ.
        """
        tokens = texts if texts is None or isinstance(texts, TokenBatch) else self.tokenize(texts)
        if tokens is None and queries is None:
            raise ValueError("a Q-Former pass needs texts or queries")
        sizes = set() if tokens is None else {len(tokens.ids)}
        if patches is not None:
            sizes |= {patches.rows if isinstance(patches, ImageMemory) else len(patches)}
        if queries is not None:
            queries = queries if queries.dim() == 3 else queries.unsqueeze(0)
            sizes |= {len(queries)} - {1}
        if len(sizes) > 1:
            raise ValueError(f"patches, texts and queries disagree on the batch size: {sorted(sizes)}")
        batch = sizes.pop() if sizes else 1
        length = 0
        if queries is not None:
            queries = queries.expand(batch, -1, -1)
            length = queries.shape[1]
        embeds = self.embeddings(input_ids=None if tokens is None else tokens.ids, query_embeds=queries)
        mask = embeds.new_ones(batch, length)
        if tokens is not None:
            mask = torch.cat([mask, tokens.mask.to(mask.dtype)], dim=1)
        return self.run_qformer(embeds, mask, length, patches, wanted)

    def run_qformer(
        self,
        embeds: Tensor,
        mask: Tensor,
        query_length: int,
        patches: Tensor | ImageMemory | None = None,
        wanted: slice = slice(None),
    ) -> Tensor:
        """The Q-Former on ready embeddings [B,S,H], the first ``query_length`` of them queries -> [B,S,H].

        Only query positions attend to the image and use the query feed-forward layers. Without ``patches`` every
        position is treated as text, which is what the second passes of SPRC and TME do.
        """
        if patches is None:
            return run(self.qformer, embeds, mask, wanted=wanted)
        memory = patches if isinstance(patches, ImageMemory) else self.image_memory(patches)
        return run(self.qformer, embeds, mask, query_length, memory, wanted)

    def encode_target(self, patches: Tensor) -> Tensor:
        """Patch tokens [B,P,Dv] -> target tokens [B,N,D], unit norm per token (BLIP-2, image-only pass)."""
        return F.normalize(self.vision_projection(self.hidden_states(patches, queries=self.query_tokens)), dim=-1)

    def compose(
        self,
        patches: Tensor | ImageMemory,
        texts: Sequence[str] | TokenBatch,
        prompts: Tensor | None = None,
        pool: Literal["text", "mean"] = "text",
    ) -> Tensor:
        """Reference patches [B,P,Dv] (or their memory) and modification texts -> composed query [B,D], unit norm.

        Args:
            prompts: learned tokens [N',H] or [B,N',H] that take the place of the query tokens.
            pool: ``text`` takes the first text position ([CLS]; SPRC, TME, ConeSep), ``mean`` the mean of the
                projected query positions (QuRe).
        """
        queries = self.query_tokens if prompts is None else prompts
        length = queries.shape[-2]
        if pool == "text":
            hidden = self.hidden_states(patches, texts, queries, slice(length, length + 1))
            pooled = self.text_projection(hidden[:, 0])
        elif pool == "mean":
            hidden = self.hidden_states(patches, texts, queries, slice(length))
            pooled = self.text_projection(hidden).mean(dim=1)
        else:
            raise ValueError(f"pool must be 'text' or 'mean', got {pool!r}")
        return F.normalize(pooled, dim=-1)

    def encode_text(self, texts: Sequence[str] | TokenBatch) -> Tensor:
        """Texts -> [B,D], unit norm, from the text-only pass at [CLS]."""
        return F.normalize(self.text_projection(self.hidden_states(texts=texts, wanted=slice(1))[:, 0]), dim=-1)

    # -- identity ----------------------------------------------------------------------------------------------------

    def tower_fingerprint(self) -> str:
        """Hash of all that decides what the frozen tower makes of an image: weights, settings, preprocessing."""
        settings = ("vision_heads", "tower_norm_eps", "tower_dtype")  # that its weights do not show
        differ = {k: v for k, v in self.config.to_dict().items() if k in settings}
        tower = state_digest(self._identity("vision_model.")) + (json.dumps(differ) if differ else "")
        return hashlib.sha256((tower + self.preprocess.fingerprint()).encode()).hexdigest()

    def fingerprint(self) -> str:
        """Hash of the whole backbone: every weight and the config."""
        config = json.dumps(self.config.to_dict(), sort_keys=True)
        return hashlib.sha256((state_digest(self._identity()) + config).encode()).hexdigest()

    def _identity(self, below: str = "") -> dict[str, Tensor]:
        """The weights whose names begin with ``below``, the tower's as precise as they are on a GPU, wherever it is."""
        dtype = getattr(torch, self.config.tower_dtype)
        state = {k: v for k, v in self.state_dict().items() if k.startswith(below)}
        own = {k: v.to(dtype) for k, v in state.items() if k.startswith("vision_model.") and v.is_floating_point()}
        return {k.removeprefix(below): v for k, v in (state | own).items()}


def state_digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
