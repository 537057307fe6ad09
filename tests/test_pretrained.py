"""BLIP-2 checkpoints in their real formats: the same numbers as transformers, round trips, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from real_formats import (
    DIM,
    FORMATS,
    QUERIES,
    SIDE,
    WORDS,
    blip2_model,
    change_json,
    clip_state,
    eva_state,
    qformer_state,
    write,
    write_lavis,
    write_transformers,
    write_vocabulary,
)
from safetensors.torch import load_file, save_file

import cirkit.hub
import cirkit.lavis
from cirkit.lavis import translate_tower
from cirkit.presets import load_backbone, save_backbone, weights_dir
from cirkit.pretrained import _blip2_fields, _blip_fields

TEXTS = ["is red", "has longer sleeves, and is red", ""]
TOLERANCE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture
def pixels():
    return torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin"])
@torch.no_grad()
def test_blip2_equals_the_model_of_transformers(tmp_path, pixels, form):
    theirs = blip2_model()
    ours = load_backbone(str(write_transformers(tmp_path / "mine", theirs, form)))
    assert len(list((tmp_path / "mine").glob("model-*.safetensors"))) > 1 or form != "sharded"
    tokens, patches = ours.tokenize(TEXTS), ours.patch_tokens(pixels)
    whole = theirs(pixel_values=pixels, input_ids=tokens.ids, attention_mask=tokens.mask, return_dict=True)
    torch.testing.assert_close(ours.ln_vision(patches), whole.vision_model_output.last_hidden_state, **TOLERANCE)
    torch.testing.assert_close(ours.encode_target(patches), whole.image_embeds, **TOLERANCE)
    torch.testing.assert_close(ours.encode_text(tokens), whole.text_embeds, **TOLERANCE)
    assert whole.image_embeds.shape == (3, QUERIES, DIM)

    matched = theirs(
        pixel_values=pixels, input_ids=tokens.ids, attention_mask=tokens.mask, use_image_text_matching_head=True
    ).text_model_output.last_hidden_state
    hidden = ours.hidden_states(patches, tokens, ours.query_tokens)
    torch.testing.assert_close(hidden, matched, **TOLERANCE)


def test_what_a_published_model_is_given(tmp_path):
    backbone = load_backbone(str(write(tmp_path / "mine", "eva")))
    config, preprocess = backbone.config, backbone.preprocess
    assert (preprocess.size, preprocess.interpolation, preprocess.pad_ratio) == (SIDE, "bicubic", 1.25)
    assert preprocess.mean[0] == 0.48145466 and preprocess.std[2] == 0.27577711
    assert (config.positions, config.text_length, config.tower_dtype) == (512, 32, "float16")
    assert backbone.ln_vision.eps == 1e-5 and config.vocabulary == (*WORDS, "[DEC]")
    assert (config.vision_heads, config.heads, config.patch_size) == (1, 1, 14)
    assert not backbone.training and not any(p.requires_grad for p in backbone.vision_model.parameters())
    assert all(p.requires_grad for n, p in backbone.named_parameters() if not n.startswith("vision_model."))
    assert all(m.p == 0 for m in backbone.modules() if isinstance(m, torch.nn.Dropout))


@pytest.mark.parametrize("form", FORMATS)
@torch.no_grad()
def test_every_format_survives_a_round_trip(tmp_path, pixels, form):
    backbone = load_backbone(str(write(tmp_path / "mine", form)))
    assert backbone.config.name == "mine"
    save_backbone(backbone, tmp_path / "saved")
    again = load_backbone(str(tmp_path / "saved"))
    assert again.fingerprint() == backbone.fingerprint()
    assert again.tower_fingerprint() == backbone.tower_fingerprint()
    patches = backbone.patch_tokens(pixels)
    assert torch.equal(again.patch_tokens(pixels), patches) and patches.isfinite().all()
    assert torch.equal(again.compose(patches, TEXTS), backbone.compose(patches, TEXTS))
    texts = backbone.encode_text(TEXTS)
    assert torch.equal(again.encode_text(TEXTS), texts) and (texts[0] - texts[1]).abs().max() > 1e-3


@torch.no_grad()
def test_a_tower_in_half_precision_is_close_and_has_the_same_identity(tmp_path, pixels):
    backbone = load_backbone(str(write(tmp_path / "mine", "clip")))
    before, exact = backbone.fingerprint(), backbone.patch_tokens(pixels)
    backbone.vision_model.half()
    patches = backbone.patch_tokens(pixels)
    assert patches.dtype == torch.float16 and (patches.float() - exact).abs().max() < 0.05
    assert patches.numpy().dtype == "float16"
    assert backbone.fingerprint() == before
    assert backbone.compose(patches, TEXTS).dtype == torch.float32


def test_settings_that_weights_do_not_show_are_part_of_the_identity(tmp_path):
    backbone = load_backbone(str(write(tmp_path / "mine", "safetensors")))
    save_backbone(backbone, tmp_path / "saved")
    change_json(tmp_path / "saved" / "config.json", vision_heads=1)
    assert load_backbone(str(tmp_path / "saved")).tower_fingerprint() != backbone.tower_fingerprint()


# -- LAVIS --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_file_of_lavis_with_its_tower_beside_it_or_in_it(tmp_path, pixels):
    path = write_lavis(tmp_path / "two", "eva")
    by_folder, by_file = load_backbone(str(path.parent)), load_backbone(str(path))
    assert by_file.config.name == "blip2_pretrained"
    patches = by_folder.patch_tokens(pixels)
    assert torch.equal(by_file.patch_tokens(pixels), patches)

    tower = {f"visual_encoder.{k}": v for k, v in torch.load(path.parent / "eva_vit_g.pth").items()}
    write_vocabulary(tmp_path / "one")
    torch.save({"model": qformer_state(88) | tower}, tmp_path / "one" / "blip2_pretrained.pth")
    assert torch.equal(load_backbone(str(tmp_path / "one")).patch_tokens(pixels), patches)

    shutil.copy(write_lavis(tmp_path / "clip", "clip").parent / "clip_vit_L.pth", path.parent)
    assert torch.equal(load_backbone(str(path)).patch_tokens(pixels), patches)


@pytest.mark.parametrize(("make", "layers"), [(eva_state, "EVA_LAYERS"), (clip_state, "CLIP_LAYERS")])
def test_layers_that_lavis_does_not_compute_are_left_out(monkeypatch, make, layers):
    state = make(layers=3)
    width = len(state["norm.weight" if layers == "EVA_LAYERS" else "ln_pre.weight"])
    monkeypatch.setitem(getattr(cirkit.lavis, layers), width, 2)
    fields, translated = translate_tower(state)
    assert fields["vision_layers"] == 2
    assert {k.split(".")[2] for k in translated if k.startswith("encoder.layers.")} == {"0", "1"}
    monkeypatch.setitem(getattr(cirkit.lavis, layers), width, 4)
    with pytest.raises(ValueError, match="^3 layers where LAVIS computes 4"):
        translate_tower(state)


def test_a_missing_tower_is_one_sentence(tmp_path):
    path = write_lavis(tmp_path, "eva")
    (tmp_path / "eva_vit_g.pth").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no vision tower; put .* eva_vit_g.pth or clip_vit_L.pth"):
        load_backbone(str(path))


def test_a_tower_of_another_model_does_not_fit(tmp_path):
    path = write_lavis(tmp_path, "eva")
    torch.save(clip_state(), tmp_path / "clip_vit_L.pth")
    (tmp_path / "eva_vit_g.pth").unlink()
    with pytest.raises(ValueError, match=r"blip2_pretrained.pth with clip_vit_L.pth does not fit .*crossattention"):
        load_backbone(str(path))


def test_two_checkpoints_of_lavis_are_not_chosen_between(tmp_path):
    write_lavis(tmp_path, "eva")
    write_lavis(tmp_path, "clip")
    with pytest.raises(ValueError, match="name one of the files"):
        load_backbone(str(tmp_path))


def test_a_second_stage_is_refused(tmp_path):
    path = write_lavis(tmp_path, "eva")
    state = {k: v for k, v in qformer_state(88).items() if ".embeddings." not in k and "text_proj" not in k}
    torch.save({"model": state | {"opt_proj.weight": torch.zeros(2, 2)}}, path)
    with pytest.raises(ValueError, match="it cannot read texts"):
        load_backbone(str(path))


# -- what does not fit ----------------------------------------------------------------------------------------------


def test_keys_that_do_not_fit_are_listed(tmp_path):
    folder = write(tmp_path / "mine", "safetensors")
    state = load_file(folder / "model.safetensors")
    state["qformer.layernorm.gain"] = state.pop("qformer.layernorm.weight")
    state["query_tokens"] = state["query_tokens"][:, :2].contiguous()
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        load_backbone(str(folder))
    for part in ("missing qformer.layernorm.weight", "unexpected qformer.layernorm.gain", "query_tokens is (1, 2, 64)"):
        assert part in str(caught.value)


def test_a_missing_shard_is_named(tmp_path):
    folder = write(tmp_path / "mine", "sharded")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(FileNotFoundError, match="mine lacks weights.*shard"):
        load_backbone(str(folder))


def test_more_than_tensors_in_a_file_is_refused(tmp_path):
    path = write_lavis(tmp_path, "eva")
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"blip2_pretrained.pth is damaged or holds more than weights"):
        load_backbone(str(path))
    path.write_bytes(b"version https://git-lfs")
    with pytest.raises(ValueError, match=r"blip2_pretrained.pth is damaged"):
        load_backbone(str(path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["Blip2ForConditionalGeneration"]}, "Blip2ForConditionalGeneration.*is made from"),
        ({"architectures": None}, "is made from Blip2ForImageTextRetrieval or"),
        ({"vision_config": {"hidden_act": "relu"}}, "asks for relu"),
        ({"qformer_config": {"hidden_size": 60, "num_attention_heads": 7}}, "does not (describe|fit)"),
        ({"num_query_tokens": "many"}, "does not describe"),
    ],
)
def test_other_models_and_damaged_configs_are_one_sentence(tmp_path, changes, said):
    folder = write(tmp_path / "mine", "safetensors")
    change_json(folder / "config.json", **changes)
    with pytest.raises(ValueError, match=said):
        load_backbone(str(folder))


# -- where published weights lie --------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and a cache of the hub that is empty."""
    monkeypatch.setattr(cirkit.hub.constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setattr(cirkit.hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("CIRKIT_WEIGHTS", str(tmp_path / "weights"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "blip2-vitg",
            r"neither in \S+ nor.*: put into \S+weights/blip2-vitg the files that LAVIS publishes, "
            r"blip2_pretrained.pth and eva_vit_g.pth, or what `hf download Salesforce/blip2-itm-vit-g --local-dir",
        ),
        (
            "blip2-vitl",
            r"put into \S+weights/blip2-vitl the files that LAVIS publishes, blip2_pretrained_vitL.pth and "
            r"clip_vit_L.pth \(CIRKIT_WEIGHTS",
        ),
        ("blip", r"neither in \S+weights/blip nor in the Hugging Face cache.*`hf download Salesforce/blip-itm-base"),
        ("someone/some-model", "^someone/some-model is not in the Hugging Face cache and the hub cannot be reached"),
    ],
)
def test_weights_that_are_nowhere_are_one_sentence_and_the_ways(offline, name, said):
    with pytest.raises(FileNotFoundError, match=said) as caught:
        load_backbone(name)
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(cirkit.hub, "_SECONDS", 0.01 - 1)
    release = cirkit.hub.threading.Event()
    monkeypatch.setattr(cirkit.hub, "get_session", release.wait)
    monkeypatch.setattr(cirkit.hub.constants, "HF_HUB_OFFLINE", False)
    assert not cirkit.hub.online()
    release.set()


def test_a_folder_with_half_of_what_is_needed_does_not_count(offline):
    path = write_lavis(weights_dir() / "blip2-vitl", "clip")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="the weights of 'blip2-vitl' are not there: put into"):
        load_backbone("blip2-vitl")


def test_published_configs_say_what_the_papers_say():
    """Both hold differences from the defaults of their time, among them settings that transformers has given up."""
    blip2 = {
        "architectures": ["Blip2ForImageTextRetrieval"], "image_text_hidden_size": 256, "initializer_factor": 1.0,
        "model_type": "blip-2", "num_query_tokens": 32, "torch_dtype": "float32", "transformers_version": "4.45.0",
        "use_decoder_only_language_model": True, "text_config": {"model_type": "opt"},
        "qformer_config": {"model_type": "blip_2_qformer", "use_qformer_text_input": True, "vocab_size": 30523,
                           "position_embedding_type": "absolute", "classifier_dropout": None},
        "vision_config": {"dropout": 0.0, "initializer_factor": 1.0, "model_type": "blip_2_vision_model",
                          "num_channels": 3, "projection_dim": 512},
    }  # fmt: skip
    fields = _blip2_fields(blip2)
    towers = ("vision_width", "vision_layers", "vision_heads", "vision_intermediate", "image_size", "patch_size")
    assert [fields[name] for name in towers] == [1408, 39, 16, 6144, 224, 14]
    texts = ("width", "layers", "heads", "intermediate", "query_tokens", "positions")
    assert [fields[name] for name in texts] == [768, 12, 12, 3072, 32, 512]
    assert fields["cross_attention_frequency"] == 2
    assert (fields["embed_dim"], fields["vision_norm_eps"], fields["layer_norm_eps"]) == (256, 1e-6, 1e-12)

    blip = {
        "architectures": ["BlipForImageTextRetrieval"], "image_text_hidden_size": 256, "model_type": "blip",
        "text_config": {"num_attention_heads": 12, "vocab_size": 30524, "add_cross_attention": False},
        "vision_config": {"image_size": 384, "patch_size": 16, "num_attention_heads": 12, "dropout": 0.0},
    }  # fmt: skip
    fields = _blip_fields(blip)
    assert [fields[name] for name in towers] == [768, 12, 12, 3072, 384, 16]
    assert [fields[name] for name in texts] == [768, 12, 12, 3072, 0, 512]


@pytest.mark.parametrize(("name", "form"), [("blip2-vitg", "eva"), ("blip2-vitl", "clip"), ("blip", "blip")])
def test_a_preset_is_read_from_the_folder_of_its_name(offline, name, form):
    write(weights_dir() / name, form)
    assert load_backbone(name).config.name == name


def cached(monkeypatch, tmp_path, repo: str) -> Path:
    """A folder of the hub's cache with just the files that are needed of a repository."""
    monkeypatch.setattr(cirkit.hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    place = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0a1b")
    return write(place / "snapshots" / "0a1b", "safetensors")


@pytest.mark.parametrize("repo", ["someone/some-model", "Salesforce/blip2-itm-vit-g"])
def test_a_hub_id_is_read_from_the_cache(monkeypatch, tmp_path, offline, repo):
    folder = cached(monkeypatch, tmp_path, repo)
    assert load_backbone(repo).config.name == repo
    if repo.startswith("Salesforce"):
        assert load_backbone("blip2-vitg").config.name == "blip2-vitg"
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="cannot be reached"):
        load_backbone(repo)


def test_the_hub_is_asked_for_the_needed_files_only(monkeypatch, tmp_path, offline):
    names = ["config.json", "vocab.txt", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "README.md"]
    asked = {}

    def download(repo, allow_patterns):
        asked[repo] = sorted(allow_patterns)
        return str(cached(monkeypatch, tmp_path, repo))

    monkeypatch.setattr(cirkit.hub, "snapshot_download", download)
    monkeypatch.setattr(cirkit.hub, "online", lambda: True)
    monkeypatch.setattr(cirkit.hub.HfApi, "list_repo_files", lambda self, repo: names)
    load_backbone("someone/some-model")
    assert asked == {"someone/some-model": ["config.json", "model.safetensors", "vocab.txt"]}
    monkeypatch.setattr(cirkit.hub, "snapshot_download", None)
    load_backbone("someone/some-model")  # what was fetched is found again


def test_a_download_that_breaks_off_is_one_sentence(monkeypatch, offline):
    def broken(self, repo):
        raise RuntimeError("connection reset\nby peer")

    monkeypatch.setattr(cirkit.hub, "online", lambda: True)
    monkeypatch.setattr(cirkit.hub.HfApi, "list_repo_files", broken)
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded .* \(connection reset\)"):
        load_backbone("someone/some-model")


def test_a_mistyped_folder_is_no_hub_id(monkeypatch, tmp_path):
    monkeypatch.setattr(cirkit.presets, "resolve", lambda name: tmp_path / name)
    monkeypatch.setattr(cirkit.presets, "hub_folder", None)
    (tmp_path / "results").mkdir()
    with pytest.raises(ValueError, match="unknown backbone 'results/mymodle'"):
        load_backbone("results/mymodle")


def test_tiny_config_files_say_no_more_than_before():
    for name in ("tiny", "tiny-scenes"):
        backbone = load_backbone(name)
        stored = json.loads((cirkit.presets.WEIGHTS / name / "config.json").read_text(encoding="utf-8"))
        assert json.loads(json.dumps(backbone.config.to_dict())) == stored
