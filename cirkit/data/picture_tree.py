"""Images of any folder, at any depth, by their path below it: for data that are in no layout yet."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from cirkit.data.annotations import DataError, first_ids
from cirkit.data.images import ImageFolder

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class PictureTree(ImageFolder):
    """Finds images by their path below `root`, with extension and "/" between folders, such as ``shoes/0017.jpg``.

    All files with an extension of `SUFFIXES` count, in upper or lower case, but for those that begin with a dot or lie
    in a folder that does (what file managers leave behind) or in ``__MACOSX``. The extension never decides how a file
    is decoded.
    """

    @cached_property
    def _index(self) -> dict[str, str]:
        found = {}
        for folder, folders, files in os.walk(self.root):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
            for name in sorted(files):
                if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                    path = Path(folder, name)
                    found[path.relative_to(self.root).as_posix()] = str(path)
        return found

    @property
    def ids(self) -> tuple[str, ...]:
        """All images, sorted."""
        return tuple(sorted(self._index))

    def find(self, name: str) -> str | None:
        """The image that somebody calls `name`; None if there is none.

        Tried in this order: its path below the folder, the path without extension, the file name, the file name
        without extension. Backslashes count as "/", and letters with accents are equal however they are encoded.

        Raises:
            DataError: the first of these that fits fits several images.
        """
        name = unicodedata.normalize("NFC", name.strip().replace("\\", "/").removeprefix("./"))
        for names in self._names:
            if found := names.get(name):
                if len(found) > 1:
                    raise DataError(f"{name!r} is the name of {len(found)} images ({first_ids(found)}): write the path")
                return found[0]
        return None

    def tried(self) -> str:
        """Where images were looked for, and how many are there: for messages."""
        return f"{self.root} and its folders hold {len(self._index):,} images ({', '.join(SUFFIXES)})"

    @cached_property
    def _names(self) -> tuple[dict[str, list[str]], ...]:
        """Name -> images, for each of the ways of `find`."""
        ways: tuple[dict[str, list[str]], ...] = ({}, {}, {}, {})
        for image in self.ids:
            stem, base = os.path.splitext(image)[0], image.rpartition("/")[2]
            for names, name in zip(ways, (image, stem, base, os.path.splitext(base)[0]), strict=True):
                names.setdefault(unicodedata.normalize("NFC", name), []).append(image)
        return ways


def check_pictures(images: ImageFolder, ids: Iterable[str], where: dict[str, str], progress: bool = True) -> None:
    """Decode all images, so that a damaged one is told before any long work.

    Args:
        where: image -> where it is asked for, such as "row 7", for the message.

    Raises:
        DataError: images that cannot be decoded; it names the first, and where it is asked for.
    """
    report = images.check(ids, allow_missing=True, progress=progress)
    if bad := report.unusable:
        more = f" ({len(bad):,} images of {report.n:,} are unreadable: {first_ids(bad)})" if len(bad) > 1 else ""
        reason = report.reasons.get(bad[0], f"{bad[0]} is gone")
        raise DataError(f"{where.get(bad[0], bad[0])}: {reason}{more}; save the picture again, or leave it out.")
