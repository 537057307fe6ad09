"""Stage 1 of the presets ``tiny`` and ``tiny-scenes``: image-text contrastive pretraining, in minutes on a laptop.

The contrastive part of BLIP-2's first stage; on scenes also a small stand-in for its third part, image-grounded text
generation: the values that a caption names are read off image and text by one linear layer, which is thrown away.

The captioned images belong to no split of the retrieval world, and no attribute combination of its validation or test
split occurs among them. Those of ``scenes`` do show the shapes and backgrounds that its CIRCO-style part keeps for
itself, as images of the web would.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.data import garments, scenes
from cirkit.data.annotations import stored_name
from cirkit.data.splits import SOURCES
from cirkit.data.truth import attributes
from cirkit.evaluation import linear_probe
from cirkit.features import build_store
from cirkit.presets import WEIGHTS, save_backbone
from cirkit.scores import max_over_tokens, top_k
from cirkit.tokens import build_vocabulary


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


@dataclass(frozen=True)
class World:
    """What stage 1 needs of an embedded world.

    Attributes:
        preset: name of the backbone.
        recipe: class of recipes; its default is what is built.
        build: () -> folder of the default world.
        stage1_images: (recipe, n, progress=) -> pixels, captions, truth.
        vocabulary: () -> words of every text of the world.
        groupings: truth -> ways to put look-alikes together, a group number [n] an image.
        config: settings of stage 1.
        attribute_weight: of `AttributeHead`'s loss.
    """

    preset: str
    recipe: type
    build: Callable[[], Path]
    stage1_images: Callable
    vocabulary: Callable[[], list[str]]
    groupings: Callable[[pd.DataFrame], list[np.ndarray]]
    config: Stage1Config
    attribute_weight: float = 0.0


WORLDS = {
    "garments": World(
        "tiny",
        garments.GarmentsRecipe,
        garments.build_garments,
        garments.stage1_images,
        garments.vocabulary,
        shared_attributes,
        Stage1Config(),
    ),
    "scenes": World(
        "tiny-scenes",
        scenes.ScenesRecipe,
        scenes.build_scenes,
        scenes.stage1_images,
        scenes.vocabulary,
        drawn_groups,
        Stage1Config(images=12000, steps=1300, plain_share=0.2),
        attribute_weight=1.0,
    ),
}


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


def pretrain(
    config: Stage1Config | None = None,
    architecture: BackboneConfig | None = None,
    recipe: garments.GarmentsRecipe | scenes.ScenesRecipe | None = None,
    progress: bool = True,
    world: str = "garments",
) -> tuple[Backbone, dict]:
    """Train tower, Q-Former and projections together on captioned images of ``world``, a name in `WORLDS`.

    Returns:
        The backbone, its tower frozen, and a record of recipe, seed, loss and held-out figures.
    """
    source = WORLDS[world]
    config = config or source.config
    recipe = recipe or source.recipe()
    architecture = architecture or BackboneConfig(source.preset, build_vocabulary(source.vocabulary()))
    arrays, captions, truth = source.stage1_images(recipe, config.images + config.held_out, progress=progress)
    content = truth.groupby(list(truth.columns)).ngroup().to_numpy()
    truth, began = truth[: config.images], time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone = Backbone(architecture).train()
        backbone.freeze_tower(False)
        pixels = torch.stack([backbone.preprocess(Image.fromarray(array)) for array in arrays])
        tokens = backbone.tokenize(captions)
        head = AttributeHead(truth, architecture.embed_dim) if source.attribute_weight else nn.Module()
        log_temperature = nn.Parameter(torch.tensor(config.temperature).log())
        trained = [*backbone.parameters(), *head.parameters()]
        weights, others = [p for p in trained if p.dim() >= 2], [p for p in trained if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [{"params": weights, "weight_decay": config.weight_decay}, {"params": [*others, log_temperature]}],
            lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=config.lr, total_steps=config.steps, pct_start=config.warmup
        )
        sampler, losses = BatchSampler(truth, config, source.groupings(truth)), []
        bar = tqdm(range(config.steps), desc="stage 1", unit="step", disable=not progress)
        for step in bar:
            batch = sampler.draw(step)
            images = backbone.encode_target(backbone.vision_model(pixels[batch]))
            texts = backbone.encode_text(tokens.rows(batch))
            loss = contrastive_loss(images, texts, log_temperature.exp())
            if source.attribute_weight:
                named = head(images.mean(dim=1), batch) + head(texts, batch)
                loss = loss + source.attribute_weight * named
            loss.backward()
            nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            if len(losses) % 25 == 0:
                bar.set_postfix(loss=f"{np.mean(losses[-25:]):.3f}")
    backbone.freeze_tower()
    backbone.eval()
    held_out = slice(config.images, None)
    with torch.inference_mode():
        images = backbone.encode_target(backbone.patch_tokens(pixels[held_out]))
        texts = backbone.encode_text(tokens.rows(torch.arange(config.images, len(pixels))))
    record = {
        "stage1": dataclasses.asdict(config),
        "attribute_weight": source.attribute_weight,
        "world": dataclasses.asdict(recipe),
        "final_loss": float(np.mean(losses[-25:])),
        "text_to_image": text_to_image_recall(images, texts, content[config.images :]),
        "seconds": round(time.perf_counter() - began, 1),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "fingerprint": backbone.fingerprint(),
    }
    return backbone, record


def probe_world(backbone: Backbone, root: Path, split: str = "val", progress: bool = True) -> dict[str, float]:
    """Accuracy in percent, per attribute, of a logistic regression on mean target tokens of an embedded world.

    Trained on the training images of the world in folder ``root``, scored on those of ``split``.
    """
    source, truth = SOURCES[stored_name(root)], attributes(root)
    listed = {part: [i for ids in source.load(root, part).galleries.values() for i in ids] for part in ("train", split)}
    store = build_store(
        backbone, source.images(root, None), [i for ids in listed.values() for i in ids], progress=progress
    )
    features = {}
    with torch.inference_mode():
        for part, ids in listed.items():
            rows = store.rows(ids)
            chunks = [backbone.encode_target(store.patches(rows[i : i + 256])) for i in range(0, len(rows), 256)]
            features[part] = torch.cat(chunks).mean(dim=1).numpy()
    train, test = truth.loc[listed["train"]], truth.loc[listed[split]]
    return {
        name: 100 * linear_probe(features["train"], train[name], features[split], test[name]) for name in train.columns
    }


def main(arguments: list[str] | None = None) -> None:
    """``python -m cirkit.pretrain``: make the weights of ``tiny`` or ``tiny-scenes`` again, print held-out figures."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.pretrain", description=main.__doc__)
    parser.add_argument("--world", choices=list(WORLDS), default="garments")
    parser.add_argument("--out", help="folder for weights, config and recipe; default: that of the preset")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(arguments)
    world = WORLDS[options.world]
    changes = {name: getattr(options, name) for name in ("seed", "steps") if getattr(options, name) is not None}
    config = dataclasses.replace(world.config, **changes)
    backbone, record = pretrain(config, world=options.world)
    record["probe"] = probe_world(backbone, world.build())
    record["command"] = f"python -m cirkit.pretrain --world {options.world} --seed {config.seed} --steps {config.steps}"
    save_backbone(backbone, options.out or WEIGHTS / world.preset, record)
    print(f"stage 1 took {record['seconds']:.0f} s, loss {record['final_loss']:.3f}")
    print("text -> image, held out:", {k: round(v, 1) for k, v in record["text_to_image"].items()})
    print("probe accuracy on validation images (at least 80 expected):")
    for name, value in record["probe"].items():
        print(f"  {name:10s} {value:5.1f}")


if __name__ == "__main__":
    main()
