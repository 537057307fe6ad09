"""Stage 1 of the preset ``tiny``: image-text contrastive pretraining from nothing, in minutes on a laptop.

The contrastive part of BLIP-2's first stage. The captioned images belong to no split of the retrieval world, and no
attribute combination of its validation or test split occurs among them.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
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
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.garments import GarmentsRecipe, attributes, build_garments, stage1_images, vocabulary
from cirkit.data.images import ImageFolder
from cirkit.evaluation import linear_probe
from cirkit.features import build_store
from cirkit.presets import WEIGHTS, save_backbone
from cirkit.scores import max_over_tokens, top_k
from cirkit.tokens import build_vocabulary


@dataclass(frozen=True)
class Stage1Config:
    """Settings of stage 1; they are stored beside the weights.

    After ``plain_share`` of the steps every second batch is a hard one: groups of ``group_size`` captions that share
    the category and two attributes. Without them necklines are read late: a probe was at 56 % after 900 plain steps.
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


def text_to_image_recall(images: Tensor, texts: Tensor, content: np.ndarray) -> dict[str, float]:
    """R@1/5/10 in percent of caption -> image; a hit is any image with the content (integer label) asked for.

    Args:
        images: [n,N,D]; texts: [n,D], caption i describes image i; content: int [n], equal for equal attributes.
    """
    order = top_k(texts, images, 10)[1].numpy()
    hit = content[order] == content[:, None]
    return {f"R@{k}": 100 * float(hit[:, :k].any(axis=1).mean()) for k in (1, 5, 10)}


class BatchSampler:
    """Batches of captioned images, never two of one attribute vector: that pair would be no negative.

    Args:
        truth: attributes, one row an image, among them ``category``.
    """

    def __init__(self, truth: pd.DataFrame, config: Stage1Config):
        self.rng = np.random.default_rng(config.seed)
        self.config = config
        self.vector = truth.groupby(list(truth.columns), sort=True).ngroup().to_numpy()
        others = [c for c in truth.columns if c != "category"]
        self.groupings = [
            truth.groupby(["category", *pair], sort=True).ngroup().to_numpy() for pair in combinations(others, 2)
        ]

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
    recipe: GarmentsRecipe | None = None,
    progress: bool = True,
) -> tuple[Backbone, dict]:
    """Train tower, Q-Former and projections together on captioned images.

    Returns:
        The backbone, its tower frozen, and a record of recipe, seed, loss and held-out figures.
    """
    config = config or Stage1Config()
    recipe = recipe or GarmentsRecipe()
    architecture = architecture or BackboneConfig("tiny", build_vocabulary(vocabulary()))
    arrays, captions, truth = stage1_images(recipe, config.images + config.held_out, progress=progress)
    content = truth.groupby(list(truth.columns)).ngroup().to_numpy()
    truth, began = truth[: config.images], time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone = Backbone(architecture).train()
        backbone.freeze_tower(False)
        pixels = torch.stack([backbone.preprocess(Image.fromarray(array)) for array in arrays])
        tokens = backbone.tokenize(captions)
        log_temperature = nn.Parameter(torch.tensor(config.temperature).log())
        weights = [p for p in backbone.parameters() if p.dim() >= 2]
        others = [p for p in backbone.parameters() if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [{"params": weights, "weight_decay": config.weight_decay}, {"params": [*others, log_temperature]}],
            lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True,
        )  # fmt: skip
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=config.lr, total_steps=config.steps, pct_start=config.warmup
        )
        sampler, losses = BatchSampler(truth, config), []
        bar = tqdm(range(config.steps), desc="stage 1", unit="step", disable=not progress)
        for step in bar:
            batch = sampler.draw(step)
            patches = backbone.vision_model(pixels[batch])
            loss = contrastive_loss(
                backbone.encode_target(patches), backbone.encode_text(tokens.rows(batch)), log_temperature.exp()
            )
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
    """Accuracy in percent, per attribute, of a logistic regression on mean target tokens of the garments world.

    Trained on the training images, scored on those of ``split``.
    """
    truth = attributes(root)
    listed = {
        part: [i for ids in load_fashioniq(root, part).galleries.values() for i in ids] for part in ("train", split)
    }
    store = build_store(backbone, ImageFolder(root), [i for ids in listed.values() for i in ids], progress=progress)
    features = {}
    with torch.inference_mode():
        for part, ids in listed.items():
            rows = store.rows(ids)
            chunks = [backbone.encode_target(store.patches(rows[i : i + 256])) for i in range(0, len(rows), 256)]
            features[part] = torch.cat(chunks).mean(dim=1).numpy()
    train, test = truth.loc[listed["train"]], truth.loc[listed[split]]
    return {
        name: 100 * linear_probe(features["train"], train[name], features[split], test[name]) for name in truth.columns
    }


def main(arguments: list[str] | None = None) -> None:
    """``python -m cirkit.pretrain``: make the weights of ``tiny`` again and print their held-out figures."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.pretrain", description=main.__doc__)
    parser.add_argument("--out", default=str(WEIGHTS / "tiny"), help="folder for weights, config and recipe")
    parser.add_argument("--seed", type=int, default=Stage1Config.seed)
    parser.add_argument("--steps", type=int, default=Stage1Config.steps)
    options = parser.parse_args(arguments)
    backbone, record = pretrain(Stage1Config(seed=options.seed, steps=options.steps))
    record["probe"] = probe_world(backbone, build_garments())
    save_backbone(backbone, options.out, record)
    print(f"stage 1 took {record['seconds']:.0f} s, loss {record['final_loss']:.3f}")
    print("text -> image, held out:", {k: round(v, 1) for k, v in record["text_to_image"].items()})
    print("probe accuracy on validation images (at least 80 expected):")
    for name, value in record["probe"].items():
        print(f"  {name:10s} {value:5.1f}")


if __name__ == "__main__":
    main()
