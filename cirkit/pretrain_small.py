"""Stage 1 of the preset ``small``: its pretrained parts learn to look at the images of both worlds.

One model for both: a batch of garments and a batch of scenes in turn, BLIP-2's contrastive loss, and on either an
attribute head as a small stand-in for image-grounded text generation (see `cirkit.pretrain`). The tower stays frozen,
so every image is encoded once, before the first step.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from cirkit.backbone import Backbone, TokenBatch
from cirkit.paths import atomic_path
from cirkit.presets import save_backbone, weights_dir
from cirkit.pretrain import WORLDS, World, probe_world
from cirkit.provenance import source_digest
from cirkit.small import FRESH, build_small
from cirkit.stage1 import AttributeHead, BatchSampler, Stage1Config, contrastive_loss, text_to_image_recall

_RESUME, _EVERY = "stage1.pt", 50  # the checkpoint, and after how many steps it is written
# the code that stage 1 depends on
_CODE = ("pretrain_small", "small", "stage1", "efficientnet", "backbone", "qformer")


@dataclass(frozen=True)
class SmallStage1(Stage1Config):
    """Settings of stage 1; ``images`` and ``held_out`` of each world, ``steps`` of both together.

    ``lr`` is that of the pretrained parts, ``fresh_lr`` of those that start at random.
    """

    images: int = 6000
    held_out: int = 400
    steps: int = 800
    lr: float = 2e-4
    fresh_lr: float = 1e-3
    attribute_weight: float = 1.0


class Material(NamedTuple):
    """Stage 1 of one world: patch tokens [n,P,Dv] in half precision, tokens of the captions, what is shown."""

    patches: Tensor
    tokens: TokenBatch
    content: np.ndarray  # int [n], equal for equal attributes
    head: AttributeHead
    sampler: BatchSampler


def material(world: World, backbone: Backbone, config: SmallStage1, progress: bool = True) -> Material:
    """Draw the captioned images of a world and encode them with the frozen tower."""
    count = config.images + config.held_out
    arrays, captions, truth = world.stage1_images(world.recipe(), count, progress=progress)
    parts = []
    for start in tqdm(range(0, count, 64), desc=f"encoding {world.preset}", unit="batch", disable=not progress):
        pixels = [backbone.preprocess(Image.fromarray(array)) for array in arrays[start : start + 64]]
        parts.append(backbone.patch_tokens(torch.stack(pixels)).half())
    content = truth.groupby(list(truth.columns)).ngroup().to_numpy()
    truth = truth[: config.images]
    of_world = dataclasses.replace(config, steps=config.steps // 2)
    return Material(
        torch.cat(parts),
        backbone.tokenize(captions),
        content,
        AttributeHead(truth, backbone.config.embed_dim),
        BatchSampler(truth, of_world, world.groupings(truth)),
    )


def pretrain_small(
    config: SmallStage1 | None = None, folder: str | Path | None = None, progress: bool = True
) -> tuple[Backbone, dict]:
    """Stage 1 of ``small`` on the captions of both worlds.

    Args:
        folder: keeps a checkpoint every few steps, so that an interrupted stage 1 goes on from there; None keeps none.

    Returns:
        The backbone and a record of settings, loss and held-out figures.

    Raises:
        FileNotFoundError: a package that brings pretrained weights is not installed.
    """
    config = config or SmallStage1()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone = build_small(config.seed).train()
        worlds = {name: material(world, backbone, config, progress) for name, world in WORLDS.items()}
        losses, seconds = _train(backbone, worlds, config, None if folder is None else Path(folder) / _RESUME, progress)
    backbone.eval()
    record = {
        "stage1": dataclasses.asdict(config),
        "worlds": {name: dataclasses.asdict(world.recipe()) for name, world in WORLDS.items()},
        "final_loss": float(np.mean(losses[-50:])),
        "text_to_image": {name: _recall(backbone, part, config) for name, part in worlds.items()},
        "seconds": round(seconds, 1),  # of the steps
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "fingerprint": backbone.fingerprint(),
    }
    return backbone, record


def _train(
    backbone: Backbone, worlds: dict[str, Material], config: SmallStage1, checkpoint: Path | None, progress: bool
) -> tuple[list[float], float]:
    temperature = nn.Parameter(torch.tensor(config.temperature).log())
    trained = nn.ModuleDict({"backbone": backbone} | {name: part.head for name, part in worlds.items()})
    trained.register_parameter("temperature", temperature)
    optimizer = torch.optim.AdamW(list(_groups(trained, config)), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    peaks = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=peaks, total_steps=config.steps, pct_start=config.warmup, cycle_momentum=False
    )
    losses: list[float] = []
    began, spent = time.perf_counter(), 0.0
    texts = [(part.tokens.ids.sum().item(), part.patches.float().sum().item()) for part in worlds.values()]
    identity = repr((config, backbone.fingerprint(), source_digest(*_CODE), texts, torch.__version__))
    if checkpoint is not None and checkpoint.is_file():
        kept = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if kept["identity"] != identity:
            raise ValueError(f"{checkpoint} belongs to another stage 1; delete it to start this one")
        trained.load_state_dict(kept["trained"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        losses, spent = kept["losses"], kept["seconds"]
    parts = list(worlds.values())
    batches = [parts[step % 2].sampler.draw(step // 2) for step in range(config.steps)]
    bar = tqdm(range(len(losses), config.steps), desc="stage 1", unit="step", disable=not progress)
    for step in bar:
        part, batch = parts[step % 2], batches[step]
        images = backbone.encode_target(part.patches[batch].float())
        texts = backbone.encode_text(part.tokens.rows(batch))
        loss = contrastive_loss(images, texts, temperature.exp())
        named = part.head(images.mean(dim=1), batch) + part.head(texts, batch)
        (loss + config.attribute_weight * named).backward()
        nn.utils.clip_grad_norm_(backbone.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if len(losses) % 10 == 0:
            bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}")
        if checkpoint is not None and len(losses) % _EVERY == 0:
            with atomic_path(checkpoint) as path:
                torch.save(
                    {"identity": identity, "trained": trained.state_dict(), "optimizer": optimizer.state_dict(),
                     "schedule": schedule.state_dict(), "losses": losses,
                     "seconds": spent + time.perf_counter() - began}, path,
                )  # fmt: skip
    return losses, spent + time.perf_counter() - began


def _groups(trained: nn.ModuleDict, config: SmallStage1) -> Iterator[dict]:
    """Fresh or pretrained, with weight decay or without."""
    named = [(name, p) for name, p in trained.named_parameters() if p.requires_grad]
    for fresh in (True, False):
        own = [p for n, p in named if fresh == (not n.startswith("backbone.") or any(f in n for f in FRESH))]
        lr = config.fresh_lr if fresh else config.lr
        yield {"params": [p for p in own if p.dim() >= 2], "lr": lr, "weight_decay": config.weight_decay}
        yield {"params": [p for p in own if p.dim() < 2], "lr": lr}


@torch.inference_mode()
def _recall(backbone: Backbone, part: Material, config: SmallStage1) -> dict[str, float]:
    rows = torch.arange(config.images, config.images + config.held_out)
    images = torch.cat([backbone.encode_target(part.patches[chunk].float()) for chunk in rows.split(128)])
    texts = torch.cat([backbone.encode_text(part.tokens.rows(chunk)) for chunk in rows.split(128)])
    return text_to_image_recall(images, texts, part.content[config.images :])


def main(arguments: list[str] | None = None) -> None:
    """``python -m cirkit.pretrain_small``: make the weights of ``small``, and print held-out figures."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.pretrain_small", description=main.__doc__)
    parser.add_argument("--out", help="folder for weights, config and recipe; default: that of the preset")
    parser.add_argument("--seed", type=int, default=SmallStage1.seed)
    parser.add_argument("--steps", type=int, default=SmallStage1.steps)
    parser.add_argument("--again", action="store_true", help="even if the folder holds finished weights")
    options = parser.parse_args(arguments)
    config = SmallStage1(seed=options.seed, steps=options.steps)
    folder = Path(options.out) if options.out else weights_dir() / "small"
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "recipe.json").is_file() and (folder / "model.safetensors").is_file() and not options.again:
        print(f"{folder} holds a finished stage 1; --again trains another in its place")
        return
    backbone, record = pretrain_small(config, folder)
    record["probe"] = {name: probe_world(backbone, world.build()) for name, world in WORLDS.items()}
    record["command"] = f"python -m cirkit.pretrain_small --seed {config.seed} --steps {config.steps}"
    save_backbone(backbone, folder, record)
    (folder / _RESUME).unlink(missing_ok=True)
    print(f"stage 1 took {record['seconds']:.0f} s, loss {record['final_loss']:.3f}; written to {folder}")
    for name in WORLDS:
        print(f"{name}: text -> image, held out:", {k: round(v, 1) for k, v in record["text_to_image"][name].items()})
        print("  probe accuracy on validation images:", {k: round(v, 1) for k, v in record["probe"][name].items()})


if __name__ == "__main__":
    main()
