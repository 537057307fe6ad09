"""Images: id to file in the layouts seen in the wild, and any file to RGB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from cirkit.data.annotations import DataError, file_bytes, first_ids, in_its_place

IMAGE_FOLDERS = ("images", "resized_image", "image_data")
EXTENSIONS = (".jpg", ".jpeg", ".png")
LAYOUTS = (
    "images/<id>.jpg",
    "images/<id>.png",
    "resized_image/<category>/<id>.jpg",
    "image_data/<category>/<id>.jpg",
)

LONGEST = 15_000  # pixels of a side; a thin image is padded to nearly a square before it is made small
_INSTEAD = {
    "nothing": "it is empty",
    "pointer": "a git-lfs pointer; run `git lfs pull` where it was cloned",
    "page": "a web page or XML; download the image itself",
}
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True)
class ImageReport:
    """What a check of image files found.

    Attributes:
        n: distinct ids asked for.
        missing: ids without a file, sorted.
        broken: ids whose file cannot be decoded to its last pixel, sorted.
        reasons: broken id -> why.
        groups: group name -> (asked for, missing, broken); one group "all" if none were named.
    """

    n: int
    missing: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def unusable(self) -> tuple[str, ...]:
        """Missing and broken ids, sorted: what `TripletSet.without_images` takes."""
        return tuple(sorted({*self.missing, *self.broken}))

    @property
    def complete(self) -> bool:
        """Whether every image is there and decodes."""
        return not self.unusable


class ImageFolder:
    """Finds and opens images by id, in whichever of the known layouts they lie.

    Looked for are the folders images/, resized_image/ and image_data/ of `root`, each with the files in it or
    in one folder per category, named <id>.jpg, .jpeg or .png in upper or lower case. The extension never
    decides how a file is decoded. Where an id has several files, the first in that order is taken. The index
    is built once, on first use, by listing the folders.
    """

    def __init__(self, root: str | Path):
        """Raises `DataError` if `root` is not a folder."""
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise DataError(f"the image folder {self.root} does not exist.")

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, image: object) -> bool:
        return image in self._index

    @cached_property
    def _index(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in IMAGE_FOLDERS:
            folder = self.root / name
            if not folder.is_dir():
                continue
            files, folders = _image_files(folder)
            for subfolder in folders:
                files += _image_files(subfolder)[0]
            for image, path in files:
                found.setdefault(image, path)
        return found

    def path(self, image: str) -> Path:
        """File of an image; `DataError` names the layouts tried if there is none."""
        try:
            return Path(self._index[image])
        except KeyError:
            raise DataError(f"image {image} is missing: {self.tried()}.") from None

    def missing(self, ids: Iterable[str]) -> list[str]:
        """Those ids that have no file, sorted and distinct."""
        return sorted({image for image in ids if image not in self._index})

    def load(self, image: str) -> Image.Image:
        """The image as RGB, see `open_rgb`."""
        return open_rgb(self.path(image))

    def check(
        self,
        ids: Iterable[str] | Mapping[str, Iterable[str]],
        allow_missing: bool = False,
        progress: bool = True,
    ) -> ImageReport:
        """Decode every image to its last pixel, in threads, before work that relies on them.

        Args:
            ids: image ids, or group name -> ids (as `TripletSet.image_groups()`), to count gaps per group.
            allow_missing: report gaps instead of raising. Pass `report.unusable` on to
                `TripletSet.without_images`, which marks the results as not comparable.
            progress: show a bar.

        Raises:
            DataError: images are missing or broken; says how many, in which groups, the first ids and what
                was tried. If any are missing it says so at once, without decoding the others.
        """
        named = ids if isinstance(ids, Mapping) else {"all": ids}
        groups = {name: set(members) for name, members in named.items()}
        wanted = sorted(set().union(*groups.values()))
        missing = self.missing(wanted)
        if missing and not allow_missing:
            raise DataError(self._complaint(_report(wanted, missing, {}, groups)))
        present = [image for image in wanted if image in self._index]
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            decoded = pool.map(decoding_error, (self._index[image] for image in present))
            hidden = not (progress and present)
            bar = tqdm(decoded, "checking images", len(present), unit="image", disable=hidden)
            reasons = {image: reason for image, reason in zip(present, bar, strict=True) if reason}
        report = _report(wanted, missing, reasons, groups)
        if not report.complete and not allow_missing:
            raise DataError(self._complaint(report))
        return report

    def tried(self) -> str:
        """Which layouts were looked for, where, and how many images are there: for messages."""
        tried = f"looked for {', '.join(LAYOUTS)} under {self.root}"
        if not self._index:
            hint = "; give its parent folder instead" if self.root.name in IMAGE_FOLDERS else ""
            return f"{tried}, which has no image at all{hint}"
        return f"{tried}, which has {len(self._index):,} images"

    def _complaint(self, report: ImageReport) -> str:
        parts = []
        for word, ids in (("missing", report.missing), ("broken", report.broken)):
            if ids:
                parts.append(f"{len(ids):,} of {report.n:,} images are {word} ({first_ids(ids)})")
        if list(report.groups) != ["all"]:
            gaps = [f"{name} {gone + bad:,}/{n:,}" for name, (n, gone, bad) in report.groups.items() if gone + bad]
            parts[-1] += f" [{', '.join(gaps)}]"
        if report.broken:
            parts.append(f"the first broken one is {report.reasons[report.broken[0]]}")
        return (
            f"{'; '.join(parts)}; {self.tried()}; allow_missing=True (ALLOW_MISSING_IMAGES=True) goes on without them."
        )


def open_rgb(file: str | Path) -> Image.Image:
    """Open an image file as RGB, whatever its format and mode.

    The image is turned as its EXIF orientation says, where that can be read. Transparency, that of palettes and
    grey images too, is composited on white, the usual background of product photographs. 16-bit grey is scaled by
    1/257 to 8 bit. CMYK and other colour spaces go through Pillow's conversion; colour profiles are not applied. Of an
    animation the first frame is taken.

    Raises:
        DataError: the file is missing, no image, truncated, has a side of more than 15,000 pixels, or 32-bit integer
            or float pixels, whose range cannot be known; the message names the file.
    """
    return _decode(file)


def decoding_error(file: str | Path) -> str | None:
    """What `open_rgb` would raise on a file, or None; faster, as it decodes JPEG at reduced size."""
    try:
        _decode(file, reduced=True)
    except DataError as error:
        return str(error).removesuffix(".")
    return None


def _image_files(folder: Path) -> tuple[list[tuple[str, str]], list[Path]]:
    """((id, path) of the image files, subfolders) of a folder, both sorted."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, extension = os.path.splitext(entry.name)
            if extension.lower() in EXTENSIONS:
                files.append((EXTENSIONS.index(extension.lower()), entry.name, stem, entry.path))
            elif entry.is_dir():
                folders.append(Path(entry.path))
    return [(stem, path) for _, _, stem, path in sorted(files)], sorted(folders)


def _decode(file: str | Path, reduced: bool = False) -> Image.Image:
    try:
        with Image.open(file) as image:
            if max(image.size) > LONGEST:
                raise DataError(f"{image.width:,} x {image.height:,} pixels; a side has {LONGEST:,} at most")
            if reduced:
                # JPEG's entropy-coded stream is read in full at any scale, so truncation still shows.
                image.draft(image.mode, (1, 1))
            image.load()
            with suppress(Exception):  # a damaged note of the camera costs no picture; parsers raise a dozen types
                ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist.") from None
    except Exception as error:  # Pillow's plugins raise a dozen types on damaged files
        raise DataError(f"{file} is not a usable image ({_instead(file) or error}).") from error


def _instead(file: str | Path) -> str:
    """What lies in the place of an image; "" if that is not known."""
    try:
        return _INSTEAD.get(in_its_place(file_bytes(Path(file))), "")
    except DataError:
        return ""


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format == "PNG"):
        grey = np.rint(np.asarray(image, dtype=np.float32) / 257).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("I", "F"):
        raise DataError(f"pixels of mode {image.mode} have no known range; save it with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _report(
    wanted: Sequence[str], missing: Sequence[str], reasons: dict[str, str], groups: Mapping[str, set[str]]
) -> ImageReport:
    gone, bad = set(missing), set(reasons)
    counts = {name: (len(ids), len(ids & gone), len(ids & bad)) for name, ids in groups.items()}
    return ImageReport(len(wanted), tuple(sorted(gone)), tuple(sorted(bad)), reasons, counts)
