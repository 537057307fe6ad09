"""Writing a feature store: batch by batch, by one process at a time, going on where an interrupted one stopped.

While it is written a store is called ``.<name>.partial`` and keeps, beside the array, a list of its batches with their
CRC-32. Whoever goes on with it reads back what is there and keeps the batches that are as the list says. Only a store
with all its rows takes its own name; the list stays in it, for those who read.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO, FileIO
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from tqdm import tqdm

LOG = "batches.csv"  # images, crc32
_AHEAD = 3  # batches that are loaded while one is encoded
_READ = 2**24  # bytes that are read back at a time


def write_store(
    folder: Path, meta: dict, ids: Sequence[str], load: Callable[[str], Tensor], encode: Callable[[Tensor], Tensor],
    device: torch.device, dtype: str, batch_size: int = 64, progress: bool = True,
) -> None:  # fmt: skip
    """Write ``patches.npy`` and ``store.json`` into ``folder``, unless another process does so meanwhile.

    Memory is bounded by a few batches. Processes on several machines need a shared disk that locks files.

    Args:
        meta: what store.json holds beside ids and shape.
        load: pixels [3,S,S] of an image; called in threads.
        encode: pixels [B,3,S,S] on ``device`` -> what is stored, [B, ...].

    Raises:
        ValueError: what is to be stored is NaN or infinite in ``dtype``.
        OSError: the disk has no room for it, before anything is encoded, or cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder, progress):
        if folder.is_dir():
            return
        partial = folder.with_name(f".{folder.name}.partial")
        partial.mkdir(exist_ok=True)
        with torch.no_grad():
            shape = (len(ids), *encode(load(ids[0])[None].to(device)).shape[1:])
        with _Rows(partial, shape, np.dtype(dtype)) as rows:
            done, space = rows.written, _space(rows, folder.parent)
            batches = [ids[start : start + batch_size] for start in range(done, len(ids), batch_size)]
            bar = tqdm(None, f"encoding images ({space})", len(ids), initial=done, unit="image", disable=not progress)
            with bar:
                for batch, pixels in _loaded(batches, load, device.type == "cuda"):
                    rows.append(_encoded(encode, pixels.to(device, non_blocking=True), batch, dtype))
                    bar.update(len(batch))
        (partial / "store.json").write_text(json.dumps(meta | {"ids": list(ids), "shape": shape}))
        os.replace(partial, folder)


def free_space(folder: Path) -> int:
    """Bytes that can still be written below a folder."""
    return shutil.disk_usage(folder).free


class _Rows:
    """The array of an unfinished store: opened at the end of what is verified, and appended to."""

    def __init__(self, folder: Path, shape: tuple[int, ...], dtype: np.dtype):
        self.folder, self.shape = folder, shape
        self.row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        self.header = _header(shape, dtype)
        self.file = FileIO(_touched(folder / "patches.npy"), "r+")
        try:
            self.written, kept = self._verified()
            (folder / LOG).write_text("".join(f"{count},{crc}\n" for count, crc in kept))
            self.file.truncate(len(self.header) + self.written * self.row_bytes if self.written else 0)
            self.file.seek(0, os.SEEK_END)
            self.log = (folder / LOG).open("a")
        except BaseException:
            self.file.close()
            raise

    @property
    def left(self) -> int:
        """Bytes that are still to be written."""
        return (self.shape[0] - self.written) * self.row_bytes

    def append(self, batch: np.ndarray) -> None:
        """One more batch; it counts once the log has its line."""
        try:
            if not self.written:
                _write(self.file, self.header)
            _write(self.file, batch.data.cast("B"))
            self.log.write(f"{len(batch)},{zlib.crc32(batch.data)}\n")
            self.log.flush()
        except OSError as error:
            needed = f"the features of {self.shape[0]:,} images cannot be written to {self.folder.parent}"
            size = f"{self.shape[0] * self.row_bytes / 1e9:.2g} GB"
            raise OSError(f"{needed}, where they need {size}: {error.strerror}") from None
        self.written += len(batch)

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            os.fsync(self.file.fileno())
        self.log.close()
        self.file.close()
        if not self.written:
            shutil.rmtree(self.folder)

    def _verified(self) -> tuple[int, list[tuple[int, int]]]:
        """How many rows are there as the log says, and the lines of the log that are."""
        written, kept = 0, []
        if self.file.read(len(self.header)) != self.header:
            return 0, []
        for count, crc in logged(self.folder):
            if written + count > self.shape[0] or self._crc(count * self.row_bytes) != crc:
                break
            written += count
            kept.append((count, crc))
        return written, kept

    def _crc(self, size: int) -> int | None:
        """CRC-32 of the next ``size`` bytes; None if the file ends before."""
        crc = 0
        while size:
            part = self.file.read(min(size, _READ))
            if not part:
                return None
            crc, size = zlib.crc32(part, crc), size - len(part)
        return crc


def logged(folder: Path) -> Iterator[tuple[int, int]]:
    """Images and CRC-32 of each batch of a store: the whole lines of its log, of which the last one may be torn."""
    log = folder / LOG
    for line in log.read_text(errors="replace").splitlines() if log.is_file() else ():
        count, _, crc = line.partition(",")
        if not (count.isdecimal() and crc.isdecimal() and int(count)):
            return
        yield int(count), int(crc)


def _header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """What a .npy file of this shape begins with."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return header.getvalue()


def _touched(path: Path) -> Path:
    path.touch()
    return path


def _write(file: FileIO, data: bytes | memoryview) -> None:
    # unbuffered, so that on a full disk nothing waits in memory to be written again; and no memory map, which would
    # end the process there
    data = memoryview(data)
    while len(data):
        data = data[file.write(data) :]


def _encoded(encode: Callable[[Tensor], Tensor], pixels: Tensor, names: Sequence[str], dtype: str) -> np.ndarray:
    """What is stored of a batch, in its dtype; narrowed before it is copied from the device."""
    with torch.no_grad():
        made = encode(pixels).to(getattr(torch, dtype))
        if not torch.isfinite(made).all():
            raise ValueError(f"the vision tower gave NaN or inf in {dtype} for images among {', '.join(names[:3])} …")
        return made.cpu().contiguous().numpy()


def _loaded(
    batches: Sequence[Sequence[str]], load: Callable[[str], Tensor], pin: bool
) -> Iterator[tuple[Sequence[str], Tensor]]:
    """Batches of names with their pixels [B,3,S,S]; the next few are loaded meanwhile."""

    def stacked(futures: list[Future]) -> Tensor:
        pixels = torch.stack([future.result() for future in futures])
        return pixels.pin_memory() if pin else pixels

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        waiting: deque[tuple[Sequence[str], list[Future]]] = deque()
        try:
            for batch in itertools.chain(batches, [None] * _AHEAD):
                if batch is not None:
                    waiting.append((batch, [pool.submit(load, image) for image in batch]))
                if waiting and (batch is None or len(waiting) > _AHEAD):
                    names, futures = waiting.popleft()
                    yield names, stacked(futures)
        finally:
            pool.shutdown(cancel_futures=True)


def _space(rows: _Rows, directory: Path) -> str:
    """What is still to be written, of what is free; OSError if it is more."""
    free = free_space(directory)
    if rows.left > free:
        raise OSError(
            f"the features of {rows.shape[0]:,} images need {rows.left / 1e9:.3g} GB more in {directory}, which has"
            f" {free / 1e9:.3g} GB free; make room there, or name a larger disk in CIRKIT_CACHE"
        )
    return f"{rows.left / 1e9:.2g} of {free / 1e9:.3g} GB free"


@contextmanager
def _alone(folder: Path, progress: bool) -> Iterator[None]:
    """One process at a time; the others wait. The lock falls with the process that holds it."""
    path = folder.with_name(f".{folder.name}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            tqdm.write(f"waiting for another process that encodes these images ({path})", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        if folder.is_dir():
            path.unlink(missing_ok=True)  # nobody who still waits for it has anything left to write
        lock.release()
