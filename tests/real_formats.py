"""Writes small random checkpoints in the formats that BLIP-2 and BLIP are published in."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.tokens import build_vocabulary

WORDS = build_vocabulary(["red", "sleeves", "longer", "has", "is"])
SIDE = 28  # pixels
QUERIES, WIDTH, DIM = 3, 64, 6


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Matrices of unit gain, biases and norms a tenth away from where they begin: nothing stays 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            else:
                parameter.add_(noise, alpha=0.1)
    return module.eval()


def write_vocabulary(folder: Path, words: tuple[str, ...] = WORDS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def blip2_model(rows: int = len(WORDS) + 1) -> nn.Module:
    """transformers' ``Blip2ForImageTextRetrieval``; ``rows`` of its word embedding, [DEC] the last."""
    from transformers import Blip2Config, Blip2ForImageTextRetrieval

    config = Blip2Config(
        vision_config={
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
            "image_size": SIDE, "patch_size": 7,
        },
        qformer_config={
            "hidden_size": WIDTH, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": rows, "use_qformer_text_input": True,
        },
        text_config={
            "model_type": "opt", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "ffn_dim": 8,
            "vocab_size": 9, "word_embed_proj_dim": 8,
        },
        num_query_tokens=QUERIES, image_text_hidden_size=DIM,
    )  # fmt: skip
    return randomise(Blip2ForImageTextRetrieval(config))


def blip_model(rows: int = len(WORDS) + 2) -> nn.Module:
    """transformers' ``BlipForImageTextRetrieval``; the last two of ``rows`` are [DEC] and [ENC]."""
    from transformers import BlipConfig, BlipForImageTextRetrieval

    config = BlipConfig(
        vision_config={
            "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
            "image_size": SIDE, "patch_size": 14, "layer_norm_eps": 1e-5,
        },
        text_config={
            "hidden_size": WIDTH, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": rows, "encoder_hidden_size": 48, "bos_token_id": 1,
        },
        image_text_hidden_size=DIM,
    )  # fmt: skip
    return randomise(BlipForImageTextRetrieval(config))


def write_transformers(folder: Path, model: nn.Module, form: str = "safetensors") -> Path:
    """The folder as ``save_pretrained`` leaves it: ``safetensors``, ``sharded``, or the older ``bin``."""
    write_vocabulary(folder)
    model.save_pretrained(folder, **{"max_shard_size": "100KB"} if form == "sharded" else {})
    if form == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def eva_state(width: int = 88, layers: int = 2) -> dict[str, Tensor]:
    """A ViT of EVA-CLIP under its own names."""
    shapes = {
        "cls_token": (1, 1, width), "pos_embed": (1, 5, width), "patch_embed.proj.weight": (width, 3, 14, 14),
        "patch_embed.proj.bias": (width,), "norm.weight": (width,), "head.weight": (9, width),
    }  # fmt: skip
    for i in range(layers):
        block = {
            "norm1.weight": (width,), "norm1.bias": (width,), "attn.q_bias": (width,), "attn.v_bias": (width,),
            "attn.qkv.weight": (3 * width, width), "attn.proj.weight": (width, width), "attn.proj.bias": (width,),
            "norm2.weight": (width,), "norm2.bias": (width,), "mlp.fc1.weight": (100, width), "mlp.fc1.bias": (100,),
            "mlp.fc2.weight": (width, 100), "mlp.fc2.bias": (width,),
        }  # fmt: skip
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in block.items()}
    return _random_state(shapes)


def clip_state(width: int = 64, layers: int = 2) -> dict[str, Tensor]:
    """The ViT of CLIP under its own names."""
    shapes = {
        "class_embedding": (width,), "positional_embedding": (5, width), "conv1.weight": (width, 3, 14, 14),
        "ln_pre.weight": (width,), "ln_pre.bias": (width,), "ln_post.weight": (width,), "proj": (width, 9),
    }  # fmt: skip
    for i in range(layers):
        block = {
            "attn.in_proj_weight": (3 * width, width), "attn.in_proj_bias": (3 * width,),
            "attn.out_proj.weight": (width, width), "attn.out_proj.bias": (width,), "ln_1.weight": (width,),
            "ln_1.bias": (width,), "mlp.c_fc.weight": (4 * width, width), "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (width, 4 * width), "mlp.c_proj.bias": (width,), "ln_2.weight": (width,),
            "ln_2.bias": (width,),
        }  # fmt: skip
        shapes |= {f"transformer.resblocks.{i}.{name}": shape for name, shape in block.items()}
    return _random_state(shapes)


def qformer_state(vision_width: int, rows: int = len(WORDS) + 1) -> dict[str, Tensor]:
    """A first-stage Q-Former under the names of LAVIS, with what it saves beside it."""
    config = BackboneConfig(
        "written", tuple(f"[{i}]" for i in range(rows - 4)) + WORDS[:4], WIDTH, 3, 1, 72, 2, QUERIES, DIM,
        positions=512, vision_width=vision_width, vision_layers=1,
    )  # fmt: skip
    renames = {
        "qformer.layernorm.": "Qformer.bert.embeddings.LayerNorm.",
        "embeddings.": "Qformer.bert.embeddings.",
        "qformer.encoder.": "Qformer.bert.encoder.",
        "vision_projection.": "vision_proj.",
        "text_projection.": "text_proj.",
    }
    state = {}
    for key, value in randomise(Backbone(config), 1).state_dict().items():
        for own, lavis in renames.items():
            if key.startswith(own):
                key = lavis + key.removeprefix(own)
        if not key.startswith("vision_model."):
            state[key.replace("attention.attention.", "attention.self.")] = value
    return state | {
        "temp": torch.tensor(0.07),
        "itm_head.weight": torch.zeros(2, WIDTH),
        "itm_head.bias": torch.zeros(2),
        "Qformer.bert.embeddings.position_ids": torch.arange(512)[None],
        "Qformer.cls.predictions.bias": torch.zeros(rows),
    }


LAVIS = {  # tower -> its published name, that of its Q-Former, and what makes its state
    "eva": ("eva_vit_g.pth", "blip2_pretrained.pth", eva_state),
    "clip": ("clip_vit_L.pth", "blip2_pretrained_vitL.pth", clip_state),
}


def write_lavis(folder: Path, tower: str, **changes) -> Path:
    """The two files of LAVIS and a vocabulary; returns the path of the Q-Former's."""
    write_vocabulary(folder)
    name, qformer, make = LAVIS[tower]
    state = make(**changes)
    width = state["cls_token" if tower == "eva" else "class_embedding"].shape[-1]
    torch.save(state, folder / name)
    torch.save({"model": qformer_state(width)}, folder / qformer)
    return folder / qformer


FORMATS = ("safetensors", "sharded", "bin", "eva", "clip", "blip")


def write(folder: Path, form: str) -> Path:
    """A small checkpoint in any of ``FORMATS``; returns its folder."""
    if form in LAVIS:
        return write_lavis(folder, form).parent
    model = blip_model() if form == "blip" else blip2_model()
    return write_transformers(folder, model, "safetensors" if form == "blip" else form)


def change_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def _random_state(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    state = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        scale = 0.1 if len(shape) == 1 else noise[0].numel() ** -0.5
        state[name] = noise * scale + (len(shape) == 1 and name.endswith("weight"))
    return state
