"""Backbone folders that are damaged, incomplete or of another kind: one sentence that names the file."""

from __future__ import annotations

import json

import pytest

from cirkit.presets import load_backbone, save_backbone


@pytest.fixture
def folder(small_backbone, tmp_path):
    save_backbone(small_backbone(), tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize("kept", [0, 7, 500, -1])
def test_truncated_weights_are_named(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"^\S+mine/model\.safetensors is damaged or no safetensors file \(.+\); copy"):
        load_backbone(str(folder))


def test_a_pointer_instead_of_weights_is_named(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ValueError, match="model.safetensors is damaged or no safetensors file"):
        load_backbone(str(folder))


@pytest.mark.parametrize(
    "change", [b"", b"{", b"[]", b"\xff\xfe", {"width": "wide"}, {"width": 25}, {"heads": 0}, {"vocabulary": []},
               {"tower": "none"}, {"name": None, "widht": 3}, {"image_size": 0}, {"layers": -1}, {"width": None}],
)  # fmt: skip
def test_a_config_that_describes_no_backbone_is_named(folder, change):
    path = folder / "config.json"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"mine/(config\.json does not describe|model\.safetensors does not fit)"):
        load_backbone(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"^[^ ]+mine/{name} is missing"):
        load_backbone(str(folder))


def test_a_device_that_is_not_there_is_one_sentence(folder):
    with pytest.raises(ValueError, match="^device 'foo' cannot be used here"):
        load_backbone(str(folder), "foo")
