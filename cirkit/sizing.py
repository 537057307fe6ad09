"""What passes, steps and stores cost, on paper: arithmetic from the shapes of a backbone, without building it.

A product of [m,k] and [k,n] counts 2mkn FLOPs, as vendors count them. The backward pass of a product with a trained
weight is two more of the same size. What is not a product (norms, activations, embeddings) is left out.

Letters: P patches, Dv vision width, H Q-Former width, F its feed-forward width, N query tokens, L text tokens, D
embedding, B batch, K Gaussian images a side.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache

import torch

from cirkit.backbone import Backbone, BackboneConfig

# BLIP-2's first stage: 39 of the 40 layers of EVA's ViT-g, and a Q-Former of BERT's shape; the words do not matter here
VIT_G = BackboneConfig(
    "blip2-vitg", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"{i}" for i in range(30_523 - 4))), width=768, layers=12,
    heads=12, intermediate=3072, query_tokens=32, embed_dim=256, tower="vit", vision_width=1408, vision_layers=39,
    vision_heads=16, vision_intermediate=6144, image_size=224, patch_size=14, tower_dtype="float16", positions=512,
)  # fmt: skip


def patches(config: BackboneConfig) -> int:
    """P, how many tokens the tower gives of an image."""
    if config.tower == "convolutional":
        return (config.image_size // 8) ** 2
    return (config.image_size // config.patch_size) ** 2 + 1


def tower_flops(config: BackboneConfig, attention: bool = True) -> float:
    """Of one image through the frozen tower.

    Args:
        attention: count the two products inside attention; torch's counter leaves them out on the CPU.
    """
    count, width = patches(config), config.vision_width
    if config.tower == "convolutional":
        channels, side = (3, width // 3, 2 * width // 3, width), config.image_size
        pairs = zip(channels, channels[1:], strict=False)
        stem = sum(2 * 9 * a * b * (side // 2 ** (i + 1)) ** 2 for i, (a, b) in enumerate(pairs))
        wide = 2 * width
    else:
        stem = 2 * (count - 1) * 3 * config.patch_size**2 * width
        wide = config.vision_intermediate
    layer = 2 * count * (4 * width**2 + 2 * width * wide) + attention * 4 * count**2 * width
    return stem + config.vision_layers * layer


def crossing_layers(config: BackboneConfig) -> list[int]:
    """The layers of the Q-Former that attend to the image."""
    return [depth for depth in range(config.layers) if depth % config.cross_attention_frequency == 0]


def memory_flops(config: BackboneConfig) -> float:
    """Keys and values of one image for all layers that attend to it."""
    return len(crossing_layers(config)) * 2 * patches(config) * 2 * config.vision_width * config.width


def computed(config: BackboneConfig, queries: int, text: int, wanted: str) -> list[tuple[int, int]]:
    """For each layer how many positions it computes, and how many of them ask the image.

    Args:
        wanted: "queries", all of them, or "text", the first text position: what the last layer computes.
    """
    last = (queries, queries) if wanted == "queries" else (1, 0)
    layers = [(queries + text, queries)] * (config.layers - 1) + [last]
    crossing = crossing_layers(config)
    return [(own, asking if depth in crossing else 0) for depth, (own, asking) in enumerate(layers)]


def pass_flops(config: BackboneConfig, queries: int, text: int, wanted: str, attention: bool = True) -> float:
    """One row through the Q-Former and the projection, without the keys and values of its image; see `computed`."""
    width, wide, total = config.width, config.intermediate, 0.0
    for own, asking in computed(config, queries, text, wanted):
        # queries and outputs of the computed positions, keys and values of all
        total += 2 * (2 * own + 2 * (queries + text)) * width**2 + 2 * own * 2 * width * wide
        total += 2 * 2 * asking * width**2
        total += attention * 4 * (own * (queries + text) + asking * patches(config)) * width
    return total + 2 * (queries if wanted == "queries" else 1) * width * config.embed_dim


@dataclass(frozen=True)
class Step:
    """What a training step consists of, for each row of its batch; each pass of ``trained`` goes forward and back.

    Attributes:
        memories: images whose keys and values are computed. composed: passes that compose. targets: target passes.
        gaussian: Gaussian images a side for each row, forward only, once in ``every`` steps.
        negation: tokens that stand before the text in every composing pass but the first.
        scores: matrices [B,B] of token scores.
    """

    memories: int = 2
    composed: int = 1
    targets: int = 1
    gaussian: float = 0.0
    every: int = 1
    negation: int = 0
    scores: int = 1


def steps(batch: int, negation: int = 2) -> dict[str, Step]:
    """The steps that the tables show."""
    anchored = Step(composed=2, scores=2, negation=negation)  # queries and anchors share the reference's memory
    return {
        "infonce": Step(),
        "conesep-released, warm-up": anchored,
        "conesep-released": dataclasses.replace(anchored, gaussian=1.0),
        "conesep-adapted": Step(gaussian=64 / batch, every=7),
    }


def step_flops(config: BackboneConfig, step: Step, batch: int, text: int, attention: bool = True) -> float:
    """FLOPs of an optimizer step of ``batch`` rows with stored features and texts of ``text`` tokens."""
    queries, memory, tokens = config.query_tokens, memory_flops(config), config.query_tokens * config.embed_dim
    target = pass_flops(config, queries, 0, "queries", attention)
    composed = [pass_flops(config, queries, length, "text", attention) for length in _lengths(step, text)]
    trained = step.memories * memory + sum(composed) + step.targets * target
    if config.layers - 1 in crossing_layers(config):  # composing has no use for these keys and values, nor a gradient
        trained -= 2 / 3 * memory / len(crossing_layers(config))
    random = step.gaussian * (2 * memory + composed[0] + target + 2 * step.gaussian * batch * tokens)
    return batch * (3 * trained + 3 * step.scores * 2 * batch * tokens + random / step.every)


def _lengths(step: Step, text: int) -> list[int]:
    """Text tokens of each composing pass."""
    return [text + step.negation * (i > 0) for i in range(step.composed)]


def frozen_flops(config: BackboneConfig, step: Step, batch: int, attention: bool = True) -> float:
    """What the same step adds where the tower encodes its references, targets and Gaussian images anew."""
    return batch * (2 + 2 * step.gaussian / step.every) * tower_flops(config, attention)


def activation_bytes(config: BackboneConfig, step: Step, batch: int, text: int, itemsize: int = 4) -> float:
    """About what autograd keeps of a step: inputs of products, norms and activations, once each.

    A layer keeps of all positions their state, key and value; of those it computes query, mixed values (twice, as the
    heads are put side by side), two inputs of norms, the state between them, and the feed-forward layer before and
    behind GELU; of those that ask the image five more. An image keeps its patches, normalised too, and keys and values
    for each layer that attends to it.
    """
    width, wide = config.width, config.intermediate
    image = patches(config) * (2 * config.vision_width + len(crossing_layers(config)) * 2 * width)

    def kept(text: int, wanted: str) -> float:
        queries = config.query_tokens
        layers = computed(config, queries, text, wanted)
        return sum(3 * (queries + text) * width + own * (6 * width + 2 * wide) + asking * 5 * width
                   for own, asking in layers)  # fmt: skip

    rows = step.memories * image + step.targets * kept(0, "queries")
    rows += sum(kept(length, "text") for length in _lengths(step, text))
    return itemsize * batch * rows


@cache
def parameters(config: BackboneConfig) -> tuple[int, int]:
    """How many numbers are frozen, the tower's above all, and how many trained; nothing is allocated for them."""
    with torch.device("meta"):
        backbone = Backbone(config)
    counts = [sum(p.numel() for p in backbone.parameters() if p.requires_grad == trained) for trained in (False, True)]
    return counts[0], counts[1]


def row_bytes(config: BackboneConfig, itemsize: int = 2) -> int:
    """Of one image in a feature store."""
    return patches(config) * config.vision_width * itemsize
