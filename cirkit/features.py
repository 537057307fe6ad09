"""Patch tokens of the frozen tower, or the pixels it takes, computed once and read from a memory map, or from memory.

A store is named by what decides its content: tower weights, preprocessing, the code of both and of opening an image,
the dtype, and the bytes of every image. Change any of them and the name is another, so a stale store can never be read.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from cirkit.backbone import Backbone
from cirkit.data.images import ImageFolder
from cirkit.encoding import logged, write_store
from cirkit.paths import cache_dir
from cirkit.provenance import source_digest

# the code between an image file and its patch tokens
_ENCODES = ("data.images", "data.preprocess", "towers", "efficientnet", "backbone")
_PIXELS = _ENCODES[:2]
DTYPES = ("float32", "float16")
_COPY = 256  # images that are copied at a time


class FeatureStore:
    """Patch tokens [images, P, Dv] on disk, looked up by image id.

    Reading a batch copies only its rows, so memory stays bounded however many images there are; :meth:`hold` trades
    memory for speed. What is read is checked against its CRC-32 the first time.
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
        batches = np.array(list(logged(self.folder)), dtype=np.int64).reshape(-1, 2)  # images, CRC-32
        sizes = {len(self.ids), len(self._patches), batches[:, 0].sum()}
        if self._patches.shape != shape or len(shape) != self.dims or len(sizes) > 1:
            raise ValueError(f"{self.folder} is damaged: its array does not fit its index; delete it to rebuild")
        self._ends, self._crcs = batches[:, 0].cumsum(), batches[:, 1]
        self._unread = np.full(len(batches), True)
        self._row = {image: row for row, image in enumerate(self.ids)}
        self._held: Tensor | None = None
        self._place = np.empty(0, dtype=np.int64)  # of each row among the held ones, -1 for none

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, ...]:
        """(P, Dv) of one image."""
        return self._patches.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """In which numbers are kept."""
        return getattr(torch, self._patches.dtype.name)

    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""
        return math.prod(self.shape) * self._patches.itemsize

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Row numbers of image ids.

        Raises:
            KeyError: naming the first ids that the store does not hold.
        """
        unknown = [i for i in ids if i not in self._row]
        if unknown:
            raise KeyError(f"{len(unknown)} images are not in the feature store, first: {', '.join(unknown[:3])}")
        return np.fromiter((self._row[i] for i in ids), dtype=np.int64, count=len(ids))

    def hold(self, device: torch.device | str, ids: Sequence[str] | None = None, share: float = 0.5) -> bool:
        """Keep these images on a device, in the dtype of the store, if they take at most ``share`` of its free memory.

        Batches of held images alone are then gathered there, to the same bits; all others are read from disk.

        Args:
            device: where training runs, or ``cpu`` for the main memory.
            ids: those to hold, such as the images of the training triplets; None for all.
            share: in [0,1].

        Returns:
            Whether they are held. Where they do not fit, nothing changes.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share of the free memory must lie between 0 and 1, got {share}")
        rows = np.arange(len(self)) if ids is None else np.unique(self.rows(ids))
        if len(rows) * self.row_bytes > share * free_memory(torch.device(device)):
            return False
        held = torch.empty((len(rows), *self.shape), dtype=self.dtype, device=device)
        self._check(rows)
        for start in range(0, len(rows), _COPY):
            held[start : start + _COPY] = torch.from_numpy(self._patches[rows[start : start + _COPY]])
        self._held, self._place = held, np.full(len(self), -1)
        self._place[rows] = np.arange(len(rows))
        return True

    def patches(
        self, rows: np.ndarray | Tensor, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Patch tokens [len(rows), P, Dv] on ``device``, where they become ``dtype``.

        Raises:
            ValueError: they are not what was once written.
        """
        rows, device = np.asarray(rows), torch.device(device)
        places = self._place[rows] if self._held is not None else rows[:0]
        if self._held is not None and (places >= 0).all():
            batch = self._held.index_select(0, torch.from_numpy(places).to(self._held.device))
            return batch.to(device).to(dtype)
        self._check(rows)
        # pinned memory is copied to a GPU while the host goes on
        batch = torch.empty((len(rows), *self.shape), dtype=self.dtype, pin_memory=device.type == "cuda")
        target, source = batch.numpy(), np.asarray(self._patches)
        for place in np.argsort(rows, kind="stable"):  # row by row, in the order of the disk, and copied once
            target[place] = source[rows[place]]
        return batch.to(device, non_blocking=True).to(dtype)

    def _check(self, rows: np.ndarray) -> None:
        """Raises ValueError if what these rows were written with is not what the file holds."""
        if not self._unread.any():
            return
        batches = np.unique(np.searchsorted(self._ends, rows, side="right"))
        for batch in batches[self._unread[batches]]:
            start, end = self._ends[batch - 1] if batch else 0, self._ends[batch]
            if zlib.crc32(np.ascontiguousarray(self._patches[start:end]).data.cast("B")) != self._crcs[batch]:
                among = f"{self.ids[start]} to {self.ids[end - 1]}"
                raise ValueError(f"{self.folder} is damaged: not what was written of {among}; delete it to rebuild")
            self._unread[batch] = False


class PixelStore(FeatureStore):
    """What the tower takes, normalised pixels [images, 3, S, S], for methods that change images before encoding them.

    ``patches`` gives pixels [len(rows), 3, S, S], ``shape`` is (3, S, S).
    """

    dims = 4


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device, or of main memory."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def stored_dtype(backbone: Backbone) -> str:
    """How features of a backbone are stored unless asked for otherwise: in the precision of its tower on a GPU."""
    return backbone.config.tower_dtype


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
    if not pixels:  # a tower in half precision is computed in float32 on the CPU, which gives other tokens
        maker += str(next(backbone.vision_model.parameters()).dtype)
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
    dtype: str | None = None,
    progress: bool = True,
    pixels: bool = False,
) -> FeatureStore:
    """Open the store for these images, encoding them first if nobody has yet.

    An encoding that was interrupted goes on where it stopped; of several processes one encodes and the others wait.

    Args:
        ids: image ids; order and repeats do not matter.
        directory: folder of stores, ``<cache>/features`` by default.
        dtype: ``float32`` or ``float16`` on disk; None for :func:`stored_dtype`.
        pixels: keep what the tower takes, not what it makes of it; gives a :class:`PixelStore`.

    Raises:
        DataError: images missing or broken, before anything is encoded (see :meth:`ImageFolder.check`).
        ValueError: no ids, an unknown ``dtype``, features that are not finite in it, or a damaged store.
        OSError: the disk has no room for the store, or it cannot be written.
    """
    ids = sorted(set(ids))
    if not ids:
        raise ValueError("there are no images to encode: the list of ids is empty")
    dtype = stored_dtype(backbone) if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"features are stored as {' or '.join(DTYPES)}, not {dtype}")
    directory = Path(directory) if directory is not None else cache_dir() / "features"
    if images.missing(ids):
        images.check(ids, progress=progress)
    key = store_key(backbone, images, ids, dtype, pixels)
    folder = directory / key
    if not folder.is_dir():
        images.check(ids, progress=progress)
        meta = {"key": key, "preprocess": backbone.preprocess.fingerprint()}
        encode = torch.nn.Identity() if pixels else backbone.patch_tokens
        write_store(
            folder, meta, ids, lambda image: backbone.preprocess(images.load(image)), encode, backbone.device, dtype,
            batch_size, progress,
        )  # fmt: skip
    store = (PixelStore if pixels else FeatureStore)(folder)
    if store.key != key or store.ids != tuple(ids):
        raise ValueError(f"{folder} holds another feature store than its name says; delete it to rebuild")
    return store
