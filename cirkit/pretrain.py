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
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from tqdm import tqdm

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.data import garments, scenes
from cirkit.data.annotations import stored_name
from cirkit.data.splits import SOURCES
from cirkit.data.truth import attributes
from cirkit.evaluation import linear_probe
from cirkit.features import build_store
from cirkit.presets import WEIGHTS, save_backbone
from cirkit.stage1 import (
    AttributeHead,
    BatchSampler,
    Stage1Config,
    contrastive_loss,
    drawn_groups,
    shared_attributes,
    text_to_image_recall,
)
from cirkit.tokens import build_vocabulary


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
