"""Patch tokens of the frozen tower, or the pixels it takes, computed once and read from a memory map.

A store is named by what decides its content: tower weights, preprocessing, the code of both and of opening an image,
and the bytes of every image. Change any of them and the name is another, so a stale store can never be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from cirkit.backbone import Backbone
from cirkit.data.images import ImageFolder
from cirkit.paths import atomic_path, cache_dir
from cirkit.provenance import source_digest

# the code between an image file and its patch tokens
_ENCODES = ("data.images", "data.preprocess", "towers", "lavis", "backbone")
_PIXELS = _ENCODES[:2]
DTYPES = ("float32", "float16")


class FeatureStore:
    """Patch tokens [images, P, Dv] on disk, looked up by image id.

    Reading a batch copies only its rows, so memory stays bounded however many images there are.
    """

    dims = 3

    def __init__(self, folder: str | Path):
        """Open a finished store.

        Raises:
            ValueError: if the folder does not hold one, or its files do not fit each other.
        """
        self.folder = Path(folder)
        try:
            meta = json.loads((self.folder / "store.json").read_text())
            self._patches = np.load(self.folder / "patches.npy", mmap_mode="r", allow_pickle=False)
            self.ids: tuple[str, ...] = tuple(meta["ids"])
            self.key: str = meta["key"]
            shape = tuple(meta["shape"])
        except (OSError, ValueError, EOFError, LookupError, TypeError) as error:
            why = f"{self.folder} is not a readable feature store ({type(error).__name__}: {error})"
            raise ValueError(f"{why}; delete it to rebuild") from None
        if self._patches.shape != shape or len(shape) != self.dims or len(self.ids) != len(self._patches):
            raise ValueError(f"{self.folder} is damaged: its array does not fit its index; delete it to rebuild")
        self._row = {image: row for row, image in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, ...]:
        """(P, Dv) of one image."""
        return self._patches.shape[1:]

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Row numbers of image ids.

        Raises:
            KeyError: naming the first ids that the store does not hold.
        """
        unknown = [i for i in ids if i not in self._row]
        if unknown:
            raise KeyError(f"{len(unknown)} images are not in the feature store, first: {', '.join(unknown[:3])}")
        return np.fromiter((self._row[i] for i in ids), dtype=np.int64, count=len(ids))

    def patches(self, rows: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Patch tokens [len(rows), P, Dv] in float32."""
        rows = np.asarray(rows)
        order = np.argsort(rows, kind="stable")
        batch = np.empty((len(rows), *self.shape), dtype=self._patches.dtype)
        batch[order] = self._patches[rows[order]]
        return torch.from_numpy(batch).to(device, dtype=torch.float32)


class PixelStore(FeatureStore):
    """What the tower takes, normalised pixels [images, 3, S, S], for methods that change images before encoding them.

    ``patches`` gives pixels [len(rows), 3, S, S], ``shape`` is (3, S, S).
    """

    dims = 4


def store_key(
    backbone: Backbone, images: ImageFolder, ids: Sequence[str], dtype: str = "float32", pixels: bool = False
) -> str:
    """Name of the store for these images under this tower, or of their ``pixels``: 32 hex digits.

    Reads every image file once (bytes only, in threads).
    """

    def digest(image: str) -> str:
        return hashlib.sha256(images.path(image).read_bytes()).hexdigest()

    with ThreadPoolExecutor(4) as pool:
        contents = list(pool.map(digest, ids))
    maker = f"pixels {backbone.preprocess.fingerprint()}" if pixels else backbone.tower_fingerprint()
    key = hashlib.sha256(f"{maker} {dtype} {source_digest(*(_PIXELS if pixels else _ENCODES))}".encode())
    for image, content in zip(ids, contents, strict=True):
        key.update(f"{image} {content}\n".encode())
    return key.hexdigest()[:32]


def build_store(
    backbone: Backbone,
    images: ImageFolder,
    ids: Sequence[str],
    directory: str | Path | None = None,
    batch_size: int = 64,
    dtype: str = "float32",
    progress: bool = True,
    pixels: bool = False,
) -> FeatureStore:
    """Open the store for these images, encoding them first if nobody has yet.

    Args:
        ids: image ids; order and repeats do not matter.
        directory: folder of stores, ``<cache>/features`` by default.
        dtype: ``float32`` or ``float16`` on disk.
        pixels: keep what the tower takes, not what it makes of it; gives a :class:`PixelStore`.

    Raises:
        DataError: images missing or broken, before anything is encoded (see :meth:`ImageFolder.check`).
        ValueError: no ids, an unknown ``dtype``, features that are not finite in it, or a damaged store.
        OSError: the store cannot be written, on a full disk for one.
    """
    ids = sorted(set(ids))
    if not ids:
        raise ValueError("there are no images to encode: the list of ids is empty")
    if dtype not in DTYPES:
        raise ValueError(f"features are stored as {' or '.join(DTYPES)}, not {dtype}")
    directory = Path(directory) if directory is not None else cache_dir() / "features"
    if images.missing(ids):
        images.check(ids, progress=progress)
    key = store_key(backbone, images, ids, dtype, pixels)
    folder = directory / key
    if not folder.is_dir():
        images.check(ids, progress=progress)
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            encode = torch.nn.Identity() if pixels else backbone.patch_tokens
            shape = _encode(backbone, images, ids, temporary / "patches.npy", batch_size, dtype, progress, encode)
            meta = {"key": key, "ids": ids, "shape": shape, "preprocess": backbone.preprocess.fingerprint()}
            (temporary / "store.json").write_text(json.dumps(meta))
    store = (PixelStore if pixels else FeatureStore)(folder)
    if store.key != key or store.ids != tuple(ids):
        raise ValueError(f"{folder} holds another feature store than its name says; delete it to rebuild")
    return store


def _encode(
    backbone: Backbone, images: ImageFolder, ids: list[str], path: Path, batch_size: int, dtype: str, progress: bool,
    encode: Callable[[Tensor], Tensor],
) -> tuple[int, ...]:  # fmt: skip
    """What ``encode`` makes of the pixels of all images into one .npy file, batch by batch; returns its shape."""
    shape: tuple[int, ...] = (0,)
    # ordinary writes: on a full disk they are an error, where a memory map would end the process
    with path.open("wb") as file, ThreadPoolExecutor(2) as pool:
        starts = range(0, len(ids), batch_size)
        for start in tqdm(starts, desc="encoding images", unit="batch", disable=not progress):
            batch = ids[start : start + batch_size]
            pixels = torch.stack(list(pool.map(lambda image: backbone.preprocess(images.load(image)), batch)))
            with np.errstate(over="ignore"):
                patches = encode(pixels.to(backbone.device)).cpu().numpy()
                patches = np.ascontiguousarray(patches, dtype=dtype)
            if not np.isfinite(patches).all():
                names = ", ".join(batch[:3])
                raise ValueError(f"the vision tower gave NaN or inf in {dtype} for images among {names} …")
            shape = (len(ids), *patches.shape[1:])
            try:
                if not start:
                    header = {"descr": patches.dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(patches.data)
                file.flush()
            except OSError as error:
                size = np.prod(shape) * patches.itemsize / 1e9
                why = f"the features of {len(ids):,} images cannot be written to {path.parent.parent}"
                raise OSError(f"{why}, where they need {size:.2g} GB: {error.strerror}") from None
    return shape
