"""The feature store: same content as the tower, never stale, never half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cirkit import encoding, features
from cirkit.data.images import ImageFolder
from cirkit.data.triplets import DataError
from cirkit.encoding import write_store
from cirkit.features import FeatureStore, PixelStore, build_store, store_key, stored_dtype
from cirkit.run_parameters import RunParameters
from cirkit.runs import Run


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


def counted(backbone, monkeypatch, stop=None):
    """The batch sizes that a tower is given; it is interrupted at its call number ``stop``."""
    encode, calls = type(backbone).patch_tokens, []

    def patch_tokens(self, pixels):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(len(pixels))
        return encode(self, pixels)

    monkeypatch.setattr(type(backbone), "patch_tokens", patch_tokens)
    return calls


def names(folder):
    return sorted(path.suffix for path in folder.iterdir())


def interrupted(backbone, folder, stores, monkeypatch):
    """Leaves a store of five images of which two batches of two are written."""
    with monkeypatch.context() as patch:
        counted(backbone, patch, stop=3)  # the first call asks for the shape
        with pytest.raises(KeyboardInterrupt):
            build_store(backbone, ImageFolder(folder.parent), ids(folder), stores, batch_size=2, progress=False)
    return next(stores.glob(".*.partial"))


def test_killed_build_leaves_no_store_and_the_next_one_goes_on(images, small_backbone, monkeypatch, tmp_path):
    backbone, folder, stores = small_backbone(), ImageFolder(images.parent), tmp_path / "stores"
    whole = build_store(backbone, folder, ids(images), batch_size=2, progress=False)
    partial = interrupted(backbone, images, stores, monkeypatch)
    assert names(stores) == [".lock", ".partial"] and not (partial / "store.json").exists()
    with pytest.raises(ValueError, match="not a readable feature store"):
        FeatureStore(partial)
    calls = counted(backbone, monkeypatch)
    store = build_store(backbone, folder, ids(images), stores, batch_size=2, progress=False)
    assert calls == [1, 1] and names(stores) == [""]  # the shape, and the last image
    assert (store.folder / "patches.npy").read_bytes() == (whole.folder / "patches.npy").read_bytes()


def damage(path, place, content=None):
    data = bytearray(path.read_bytes())
    data[place:] = bytes([data[place] ^ 1]) + data[place:][1:] if content is None else content
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "place", "content", "kept"),
    [
        ("patches.npy", -1, None, 2),  # the last byte of the second batch
        ("patches.npy", 200, None, 0),
        ("patches.npy", 60, None, 0),  # another header
        ("patches.npy", -1, b"", 2),
        ("patches.npy", 0, b"", 0),
        ("patches.npy", 10**6, b"a batch that was being written", 4),
        ("batches.csv", -4, b"", 2),
        ("batches.csv", 0, b"", 0),
        ("batches.csv", 10**6, b"2,12", 4),
        ("batches.csv", 10**6, b"9,1\n", 4),
        ("batches.csv", 0, b"\xff\xfe", 0),
    ],
)
def test_only_batches_that_are_whole_are_kept(
    images, small_backbone, monkeypatch, tmp_path, file, place, content, kept
):
    backbone, folder, stores = small_backbone(), ImageFolder(images.parent), tmp_path / "stores"
    whole = build_store(backbone, folder, ids(images), batch_size=2, progress=False)
    damage(interrupted(backbone, images, stores, monkeypatch) / file, place, content)
    calls = counted(backbone, monkeypatch)
    store = build_store(backbone, folder, ids(images), stores, batch_size=2, progress=False)
    assert sum(calls) == 1 + 5 - kept
    assert (store.folder / "patches.npy").read_bytes() == (whole.folder / "patches.npy").read_bytes()


def test_a_process_killed_for_good_leaves_what_it_had(images, small_backbone, tmp_path):
    stores = tmp_path / "stores"
    code = f"""
import os, signal, torch
from pathlib import Path
from cirkit.encoding import write_store
calls = []
def encode(pixels):
    calls.append(len(pixels))
    if len(calls) == 4:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return pixels + 1
write_store(Path({str(stores / "k")!r}), {{}}, "abcdefg", lambda name: torch.full((3, 2, 2), ord(name) * 1.0), encode,
            torch.device("cpu"), "float16", 2, False)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode != 0
    assert (stores / ".k.partial" / "batches.csv").read_text().count("\n") == 2
    calls, device = [], torch.device("cpu")

    def load(name):
        calls.append(name)
        return torch.full((3, 2, 2), ord(name) * 1.0)

    write_store(stores / "k", {"key": "k"}, "abcdefg", load, lambda pixels: pixels + 1, device, "float16", 2, False)
    store = PixelStore(stores / "k")
    assert sorted(calls) == ["a", "e", "f", "g"] and store.dtype == torch.float16
    assert store.patches(np.arange(7))[:, 0, 0, 0].tolist() == [ord(name) + 1 for name in "abcdefg"]


def test_two_at_once_encode_once(images, small_backbone, monkeypatch, capsys):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    encode, calls, began, go_on = type(backbone).patch_tokens, [], threading.Event(), threading.Event()

    def patch_tokens(self, pixels):
        calls.append(len(pixels))
        began.set()
        assert go_on.wait(10)
        return encode(self, pixels)

    monkeypatch.setattr(type(backbone), "patch_tokens", patch_tokens)
    monkeypatch.setattr(encoding.FileLock, "acquire", acquire_and_tell(encoding.FileLock.acquire, go_on))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build_store, backbone, folder, ids(images), batch_size=2, progress=False)
        assert began.wait(10)
        second = pool.submit(build_store, backbone, folder, ids(images), batch_size=2)
        assert first.result(10).key == second.result(10).key
    assert calls == [1, 2, 2, 1]  # the shape, and each image once
    assert "waiting for another process that encodes these images" in capsys.readouterr().err


def acquire_and_tell(acquire, event):
    """Locks as before; the one who waits lets the other go on."""

    def waiting(self, timeout=None, **settings):
        if timeout is None:
            event.set()
        return acquire(self, timeout, **settings)

    return waiting


def test_a_disk_without_room_is_named_before_anything_is_encoded(images, small_backbone, monkeypatch, tmp_path):
    backbone, folder, stores = small_backbone(), ImageFolder(images.parent), tmp_path / "stores"
    needed = 5 * 36 * 24 * 4
    monkeypatch.setattr(encoding, "free_space", lambda path: needed - 1)
    calls = counted(backbone, monkeypatch)
    message = r"^the features of 5 images need 1.73e-05 GB more in \S+stores, which has 1.73e-05 GB free; make room"
    with pytest.raises(OSError, match=message):
        build_store(backbone, folder, ids(images), stores, progress=False)
    assert calls == [1] and names(stores) == [".lock"]
    monkeypatch.setattr(encoding, "free_space", lambda path: needed)
    assert len(build_store(backbone, folder, ids(images), stores, progress=False)) == 5


def test_an_interrupted_encoding_needs_room_for_the_rest_only(images, small_backbone, monkeypatch, tmp_path):
    backbone, folder, stores = small_backbone(), ImageFolder(images.parent), tmp_path / "stores"
    interrupted(backbone, images, stores, monkeypatch)
    monkeypatch.setattr(encoding, "free_space", lambda path: 36 * 24 * 4)
    assert len(build_store(backbone, folder, ids(images), stores, progress=False)) == 5


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


@pytest.mark.parametrize("held", [False, True])
def test_one_flipped_bit_is_never_read(images, small_backbone, tmp_path, held):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    make = lambda: build_store(backbone, folder, ids(images), tmp_path / "stores", batch_size=2, progress=False)  # noqa: E731
    store = make()
    path, last = store.folder / "patches.npy", len(store) - 1
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    store = make()
    assert torch.isfinite(store.patches(np.array([0, 1]))).all()  # another batch than the damaged one
    with pytest.raises(
        ValueError, match=rf"^\S+/stores/\w+ is damaged: not what was written of .*{store.ids[-1]}; dele"
    ):
        store.hold("cpu", share=1.0) if held else store.patches(np.array([0, last]))


def test_a_store_whose_list_of_batches_is_cut_or_gone_is_refused(images, small_backbone, tmp_path):
    make = lambda: build_store(  # noqa: E731
        small_backbone(), ImageFolder(images.parent), ids(images), tmp_path / "stores", batch_size=2, progress=False
    )
    log = make().folder / "batches.csv"
    whole = log.read_text()
    for content in ("", whole[: len(whole) // 2], whole + whole.splitlines()[0] + "\n"):
        log.write_text(content)
        with pytest.raises(ValueError, match="is damaged: .*delete it to rebuild"):
            make()
    log.unlink()
    with pytest.raises(ValueError, match="is damaged: .*delete it to rebuild"):
        make()


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


def test_full_disk_is_an_error_that_says_what_is_needed(images, small_backbone, monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    backbone, folder, stores = small_backbone(), ImageFolder(images.parent), tmp_path / "stores"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        with pytest.raises(OSError, match="the features of 5 images cannot be written to .*stores, where they need"):
            build_store(backbone, folder, ids(images), stores, batch_size=1, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(stores) == [".lock", ".partial"]
    calls = counted(backbone, monkeypatch)
    assert len(build_store(backbone, folder, ids(images), stores, batch_size=1, progress=False)) == 5
    assert len(calls) == 1 + 4  # one had room


def test_half_precision_store_is_close_and_has_its_own_key(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    exact = build_store(backbone, folder, ids(images), progress=False)
    half = build_store(backbone, folder, ids(images), dtype="float16", progress=False)
    assert half.key != exact.key
    rows = np.arange(5)
    assert half.patches(rows).dtype == torch.float32
    torch.testing.assert_close(half.patches(rows), exact.patches(rows), rtol=1e-2, atol=1e-2)


def test_the_dtype_follows_the_tower(images, small_backbone):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    plain = build_store(backbone, folder, ids(images), progress=False)
    assert plain.dtype == torch.float32 and plain.key == store_key(backbone, folder, ids(images), "float32")
    half = small_backbone(tower_dtype="float16")
    assert stored_dtype(backbone) == "float32" and stored_dtype(half) == "float16"
    assert build_store(half, folder, ids(images), progress=False).dtype == torch.float16
    assert build_store(half, folder, ids(images), progress=False, pixels=True).dtype == torch.float16


def test_held_features_are_the_same_bits(images, small_backbone, monkeypatch):
    backbone, folder = small_backbone(), ImageFolder(images.parent)
    for dtype in ("float32", "float16"):
        store = build_store(backbone, folder, ids(images), dtype=dtype, progress=False)
        asked, others = np.array([3, 1, 3]), np.array([4, 1])
        before, mixed = store.patches(asked), store.patches(others)
        some = [ids(images)[i] for i in (3, 1, 3)]
        assert store.hold("cpu", some) and store._held.shape == (2, 36, 24) and store._held.dtype == store.dtype
        monkeypatch.setattr(store, "_patches", np.zeros_like(store._patches))  # whatever is read from disk is now 0
        assert torch.equal(store.patches(asked), before) and torch.equal(store.patches(torch.tensor(asked)), before)
        assert store.patches(asked, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert not store.patches(others).any() and mixed.any()
        monkeypatch.undo()
        assert store.hold("cpu") and torch.equal(store.patches(others), mixed) and len(store._held) == 5


def test_what_does_not_fit_stays_on_disk(images, small_backbone, monkeypatch):
    store = build_store(small_backbone(), ImageFolder(images.parent), ids(images), progress=False)
    three = 3 * 36 * 24 * 4
    monkeypatch.setattr(features, "free_memory", lambda device: 2 * three)
    assert not store.hold("cpu") and store._held is None
    assert store.hold("cpu", ids(images)[:3]) and len(store._held) == 3
    assert not store.hold("cpu", ids(images)[:3], share=0.49)
    assert len(store._held) == 3 and torch.isfinite(store.patches(np.arange(5))).all()
    with pytest.raises(ValueError, match="share of the free memory must lie between 0 and 1, got 1.5"):
        store.hold("cpu", share=1.5)
    with pytest.raises(KeyError, match="GD_unknown"):
        store.hold("cpu", ["GD_unknown"])


@pytest.mark.parametrize(("device", "held"), [("cpu", None), ("cuda:1", ("a", "b", "c"))])
def test_a_run_holds_the_images_of_its_training_triplets_on_a_gpu(device, held):
    train = SimpleNamespace(references=("b", "a"), targets=("a", "c"))
    asked = []
    run = SimpleNamespace(
        method=SimpleNamespace(backbone=SimpleNamespace(device=torch.device(device))),
        noisy=SimpleNamespace(triplets=train), parameters=RunParameters(feature_memory=0.3),
        store=SimpleNamespace(hold=lambda *arguments: asked.append(arguments) or True),
    )  # fmt: skip
    assert Run.hold_features(run) == (held is not None)
    assert asked == ([] if held is None else [(torch.device(device), list(held), 0.3)])


def test_how_much_memory_features_may_take_is_a_share():
    with pytest.raises(ValueError, match="feature_memory is a share, from 0 to 1, got 1.2"):
        RunParameters(feature_memory=1.2)
