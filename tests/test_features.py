"""The feature store: same content as the tower, never stale, never half-written."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch

from cirkit import features
from cirkit.data.images import ImageFolder
from cirkit.data.triplets import DataError
from cirkit.features import build_store, store_key


@pytest.fixture
def images(mini_world, tmp_path):
    """A private copy of five images, so that a test may damage them."""
    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    for path in sorted((mini_world / "images").iterdir())[:5]:
        shutil.copy(path, folder)
    return folder


def ids(folder):
    return sorted(path.stem for path in folder.iterdir())


def test_store_holds_what_the_tower_gives(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    store = build_store(backbone, folder, [*ids(images), ids(images)[0]], batch_size=2, progress=False)
    assert len(store) == 5 and store.shape == (36, 24)
    asked = [ids(images)[i] for i in (4, 0, 4, 2)]
    patches = store.patches(store.rows(asked))
    pixels = torch.stack([backbone.preprocess(folder.load(i)) for i in asked])
    torch.testing.assert_close(patches, backbone.patch_tokens(pixels), rtol=1e-5, atol=1e-5)
    assert isinstance(store._patches, np.memmap)


def test_second_build_opens_the_first_and_encodes_nothing(images, small_backbone, monkeypatch):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    first = build_store(backbone, folder, ids(images), progress=False)
    monkeypatch.setattr(type(backbone), "patch_tokens", lambda *_: pytest.fail("encoded again"))
    assert build_store(backbone, folder, reversed(ids(images)), progress=False).key == first.key


def test_one_changed_weight_gives_a_new_key(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    before = store_key(backbone, folder, ids(images))
    with torch.no_grad():
        next(backbone.vision_model.parameters()).flatten()[0] += 1e-6
    assert store_key(backbone, folder, ids(images)) != before


def test_another_transform_gives_a_new_key(images, small_backbone):
    folder = ImageFolder(images.parent)
    keys = {
        store_key(small_backbone(**c), folder, ids(images)) for c in ({}, {"pad_ratio": 1.5}, {"image_std": (0.3,) * 3})
    }
    assert len(keys) == 3


def test_other_code_between_image_and_tokens_gives_a_new_key(images, small_backbone, monkeypatch):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    before = store_key(backbone, folder, ids(images))
    assert "data.images" in features._ENCODES and "towers" in features._ENCODES
    monkeypatch.setattr(features, "source_digest", lambda *modules: "changed")
    assert store_key(backbone, folder, ids(images)) != before


def test_one_changed_image_byte_gives_a_new_key(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    before = store_key(backbone, folder, ids(images))
    path = sorted(images.iterdir())[3]
    stamp = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert store_key(backbone, folder, ids(images)) != before


def test_trained_weights_do_not_touch_the_key(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    before = store_key(backbone, folder, ids(images))
    with torch.no_grad():
        backbone.query_tokens.add_(1)
        backbone.ln_vision.weight.add_(1)
    assert store_key(backbone, folder, ids(images)) == before


def test_missing_and_truncated_images_stop_before_encoding(images, small_backbone, monkeypatch):
    backbone, names = small_backbone(), ids(images)
    monkeypatch.setattr(type(backbone), "patch_tokens", lambda *_: pytest.fail("encoded"))
    with pytest.raises(DataError, match="GD99999999"):
        build_store(backbone, ImageFolder(images.parent), [*names, "GD99999999"], progress=False)
    path = next(images.glob(f"{names[1]}.*"))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=names[1]):
        build_store(backbone, ImageFolder(images.parent), names, progress=False)


def test_killed_build_leaves_no_store_and_the_next_one_works(images, small_backbone, monkeypatch, tmp_path):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    encode, calls = type(backbone).patch_tokens, []

    def dies_at_the_second_batch(self, pixels):
        calls.append(len(pixels))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(self, pixels)

    monkeypatch.setattr(type(backbone), "patch_tokens", dies_at_the_second_batch)
    with pytest.raises(KeyboardInterrupt):
        build_store(backbone, folder, ids(images), tmp_path / "stores", batch_size=2, progress=False)
    assert list((tmp_path / "stores").iterdir()) == []
    monkeypatch.undo()
    assert len(build_store(backbone, folder, ids(images), tmp_path / "stores", progress=False)) == 5


def test_damaged_and_unknown_are_named(images, small_backbone, tmp_path):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    store = build_store(backbone, folder, ids(images), tmp_path / "stores", progress=False)
    with pytest.raises(KeyError, match="GD_unknown"):
        store.rows(["GD_unknown"])
    renamed = store.folder.rename(store.folder.with_name("0" * 32))
    renamed.rename(store.folder)
    meta, array = store.folder / "store.json", store.folder / "patches.npy"
    good = {meta: meta.read_bytes(), array: array.read_bytes()}
    index = json.loads(good[meta])
    damages = [
        (meta, b"{"), (meta, b""), (meta, b"[]"), (meta, b"{}"), (meta, json.dumps(index | {"shape": None}).encode()),
        (meta, json.dumps(index | {"ids": index["ids"][1:]}).encode()),
        (meta, json.dumps(index | {"shape": [5, 6, 144]}).encode()), (meta, b"\xff\xfe"),
        (array, good[array][:-1]), (array, good[array][:60]), (array, b""), (array, b"PK" + good[array]), (array, None),
    ]  # fmt: skip
    for path, content in damages:
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ValueError, match=r"^\S+/stores/\w+ is .*; delete it to rebuild$"):
            build_store(backbone, folder, ids(images), tmp_path / "stores", progress=False)
        path.write_bytes(good[path])
    other = build_store(backbone, folder, ids(images)[1:], tmp_path / "stores", progress=False)
    shutil.rmtree(store.folder)
    other.folder.rename(store.folder)
    with pytest.raises(ValueError, match="another feature store than its name says; delete it"):
        build_store(backbone, folder, ids(images), tmp_path / "stores", progress=False)


@pytest.mark.parametrize(
    ("change", "message"), [({"dtype": "int8"}, "float32 or float16, not int8"), ({"ids": []}, "list of ids is empty")]
)
def test_what_cannot_be_stored_is_one_sentence(images, small_backbone, tmp_path, change, message):
    settings = {"ids": ids(images), "directory": tmp_path / "stores", "progress": False} | change
    with pytest.raises(ValueError, match=message):
        build_store(small_backbone(), ImageFolder(images.parent), **settings)
    assert not (tmp_path / "stores").exists()


def test_what_overflows_in_half_precision_is_refused(images, small_backbone, monkeypatch):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    encode = type(backbone).patch_tokens
    monkeypatch.setattr(type(backbone), "patch_tokens", lambda self, pixels: 1e6 + encode(self, pixels))
    with pytest.raises(ValueError, match=f"NaN or inf in float16 for images among {ids(images)[0]}"):
        build_store(backbone, folder, ids(images), dtype="float16", progress=False)
    assert build_store(backbone, folder, ids(images), progress=False).patches(np.arange(2)).min() > 9e5


def test_full_disk_is_an_error_that_says_what_is_needed(images, small_backbone, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        with pytest.raises(OSError, match="the features of 5 images cannot be written to .*stores, where they need"):
            build_store(small_backbone(), ImageFolder(images.parent), ids(images), tmp_path / "stores", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "stores").iterdir()) == []


def test_half_precision_store_is_close_and_has_its_own_key(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    exact = build_store(backbone, folder, ids(images), progress=False)
    half = build_store(backbone, folder, ids(images), dtype="float16", progress=False)
    assert half.key != exact.key
    rows = np.arange(5)
    assert half.patches(rows).dtype == torch.float32
    torch.testing.assert_close(half.patches(rows), exact.patches(rows), rtol=1e-2, atol=1e-2)
