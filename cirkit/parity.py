"""salesforce-lavis itself against this package: the same random weights, the largest difference of every output.

``make parity`` runs it. Small models in LAVIS's own classes are saved as LAVIS saves them, loaded here as published
files are, and given the same pixels and texts, all in float32 on the CPU. The only module that runs LAVIS, whose
Q-Former works with transformers 4.57 and its towers with 5 too; with 5 the towers alone are compared.
"""

from __future__ import annotations

import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from cirkit.backbone import Backbone
from cirkit.backbone_config import BackboneConfig
from cirkit.lavis import translate_tower
from cirkit.presets import load_backbone
from cirkit.pretrained import LAVIS_QFORMERS, LAVIS_TOWERS
from cirkit.tokens import build_vocabulary
from cirkit.towers import build_tower
from cirkit.weight_files import load_state

EXPECTED = 1e-5
TOWERS = ("eva", "clip")
_PIXELS, _QUERIES, _WIDTH, _DIM = 28, 3, 128, 7
_TEXTS = ("is red", "has longer sleeves, and is red", "")
_MOVED = ("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer")


@contextmanager
def lavis_modules(*names: str) -> Iterator[list[types.ModuleType]]:
    """Modules of LAVIS by their names below ``lavis``, without what its packages import when they are opened.

    Raises:
        RuntimeError: LAVIS is not installed, or does not import with the packages that are.
    """
    spec = find_spec("lavis")
    if spec is None:
        raise RuntimeError("salesforce-lavis is not installed: pip install --no-deps salesforce-lavis==1.0.2")
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "lavis"}
    root = Path(spec.submodule_search_locations[0])
    for name in ("lavis", "lavis.models", "lavis.models.blip2_models", "lavis.common"):
        stand_in = types.ModuleType(name)
        stand_in.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = stand_in
    for name in _MOVED:  # by transformers, from one module to another
        moved = getattr(transformers.pytorch_utils, name, None)
        if moved is not None and not hasattr(transformers.modeling_utils, name):
            setattr(transformers.modeling_utils, name, moved)
    try:
        yield [import_module(f"lavis.{name}") for name in names]
    except ImportError as error:
        raise RuntimeError(f"salesforce-lavis does not import here ({error})") from error
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "lavis"]:
            del sys.modules[name]
        sys.modules.update(before)


def lavis_tower(kind: str, seed: int = 0) -> nn.Module:
    """A small vision tower of LAVIS with random weights: ViT-g's class (``eva``) or that of ViT-L (``clip``)."""
    with lavis_modules("models.eva_vit", "models.clip_vit") as (eva, clip):
        if kind == "eva":
            norm = partial(nn.LayerNorm, eps=1e-6)
            tower = eva.VisionTransformer(
                _PIXELS, 14, embed_dim=176, depth=3, num_heads=2, mlp_ratio=4.3637, qkv_bias=True, norm_layer=norm
            )
        else:
            tower = clip.VisionTransformer(_PIXELS, 14, width=_WIDTH, layers=4, heads=2, use_grad_checkpointing=False)
    return _randomise(tower, seed).eval()


@torch.no_grad()
def compare_tower(kind: str, seed: int = 0) -> float:
    """Largest difference between LAVIS's patch tokens and ours."""
    theirs = lavis_tower(kind, seed)
    fields, state = translate_tower(theirs.state_dict())
    ours = build_tower(BackboneConfig("tower", (), **fields))
    load_state(ours, state, f"LAVIS's {kind} tower")
    return _difference(ours.eval()(_pixels(seed)), theirs(_pixels(seed)))


class LavisBlip2(nn.Module):
    """The parts of LAVIS's ``Blip2Qformer`` under its own names, small and random, and the passes of its forward."""

    def __init__(self, kind: str, words: int, seed: int = 0):
        super().__init__()
        self.visual_encoder = lavis_tower(kind, seed)
        with lavis_modules("models.blip2_models.Qformer") as (module,):
            config = module.BertConfig(
                vocab_size=words, hidden_size=_WIDTH, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96
            )
            config.encoder_width, config.add_cross_attention = self.visual_encoder.num_features, True
            config.cross_attention_freq, config.query_length = 2, _QUERIES
            self.Qformer = module.BertLMHeadModel(config)
        self.ln_vision = nn.LayerNorm(self.visual_encoder.num_features)
        self.query_tokens = nn.Parameter(torch.zeros(1, _QUERIES, _WIDTH))
        self.vision_proj, self.text_proj = nn.Linear(_WIDTH, _DIM), nn.Linear(_WIDTH, _DIM)
        self.itm_head = nn.Linear(_WIDTH, 2)
        self.temp = nn.Parameter(torch.tensor(0.07))
        _randomise(self, seed + 1).eval()

    def save(self, folder: Path, vocabulary: tuple[str, ...]) -> None:
        """As published: the Q-Former without its frozen tower, the tower in a file of its own."""
        state = {k: v for k, v in self.state_dict().items() if not k.startswith("visual_encoder.")}
        clip = hasattr(self.visual_encoder, "class_embedding")
        torch.save({"model": state}, folder / LAVIS_QFORMERS[clip])
        torch.save(self.visual_encoder.state_dict(), folder / LAVIS_TOWERS[clip])
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")

    def passes(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What retrieval uses, name -> tensor."""
        patches = self.visual_encoder(pixels)
        image = {"encoder_hidden_states": self.ln_vision(patches)}
        image["encoder_attention_mask"] = torch.ones(image["encoder_hidden_states"].shape[:2])
        queries = self.query_tokens.expand(len(pixels), -1, -1)
        both = torch.cat([torch.ones(queries.shape[:2]), mask], dim=1)
        bert = partial(self.Qformer.bert, return_dict=True)
        target = bert(query_embeds=queries, **image).last_hidden_state
        fused = bert(ids, query_embeds=queries, attention_mask=both, **image).last_hidden_state
        text = bert(ids, attention_mask=mask).last_hidden_state
        return {
            "tower": patches,
            "hidden states, image": target,
            "hidden states, image and text": fused,
            "hidden states, text": text,
            "target tokens": F.normalize(self.vision_proj(target), dim=-1),
            "composed query, text position": F.normalize(self.text_proj(fused[:, _QUERIES]), dim=-1),
            "composed query, query mean": F.normalize(self.text_proj(fused[:, :_QUERIES]).mean(dim=1), dim=-1),
            "text feature": F.normalize(self.text_proj(text[:, 0]), dim=-1),
        }


def our_passes(backbone: Backbone, pixels: Tensor) -> dict[str, Tensor]:
    """The same by this package."""
    patches, tokens = backbone.patch_tokens(pixels), backbone.tokenize(_TEXTS)
    return {
        "tower": patches,
        "hidden states, image": backbone.hidden_states(patches, queries=backbone.query_tokens),
        "hidden states, image and text": backbone.hidden_states(patches, tokens, backbone.query_tokens),
        "hidden states, text": backbone.hidden_states(texts=tokens),
        "target tokens": backbone.encode_target(patches),
        "composed query, text position": backbone.compose(patches, tokens),
        "composed query, query mean": backbone.compose(patches, tokens, pool="mean"),
        "text feature": backbone.encode_text(tokens),
    }


@torch.no_grad()
def compare_all(kind: str, seed: int = 0) -> dict[str, float]:
    """Largest difference of every output, from files on.

    Raises:
        RuntimeError: LAVIS is not installed, or transformers is one its Q-Former does not run with.
    """
    if not transformers.__version__.startswith("4."):
        raise RuntimeError(f"LAVIS's Q-Former runs with transformers 4.57, not {transformers.__version__}: make parity")
    vocabulary = (*build_vocabulary(["red", "longer", "sleeves"]), "[DEC]")
    theirs = LavisBlip2(kind, len(vocabulary), seed)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save(Path(folder), vocabulary[:-1])
        ours = load_backbone(folder)
    tokens, pixels = ours.tokenize(_TEXTS), _pixels(seed)
    reference = theirs.passes(pixels, tokens.ids, tokens.mask)
    return {name: _difference(value, reference[name]) for name, value in our_passes(ours, pixels).items()}


def main() -> int:
    """Print all differences; 1 if one is larger than expected."""
    whole = transformers.__version__.startswith("4.")
    warnings.simplefilter("ignore")  # of LAVIS, and of the packages of its time
    transformers.logging.set_verbosity_error()
    print(f"salesforce-lavis against cirkit, transformers {transformers.__version__}; expected at most {EXPECTED:g}")
    worst = 0.0
    for kind in TOWERS:
        found = compare_all(kind) if whole else {"tower": compare_tower(kind)}
        for name, difference in found.items():
            print(f"{kind:5} {name:32} {difference:.1e}")
            worst = max(worst, difference)
    if not whole:
        print("the Q-Former of LAVIS runs with transformers 4.57: `make parity` lays it over the environment")
    return int(worst > EXPECTED)


@torch.no_grad()
def _randomise(module: nn.Module, seed: int) -> nn.Module:
    """Matrices of unit gain, and biases and norms a tenth away from where they begin."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(noise / parameter[0].numel() ** 0.5)
        else:
            parameter.add_(noise, alpha=0.1)
    return module


def _pixels(seed: int) -> Tensor:
    return torch.randn(len(_TEXTS), 3, _PIXELS, _PIXELS, generator=torch.Generator().manual_seed(seed))


def _difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes differ: {tuple(ours.shape)} here, {tuple(theirs.shape)} in LAVIS")
    return (ours - theirs).abs().max().item()


if __name__ == "__main__":
    sys.exit(main())
