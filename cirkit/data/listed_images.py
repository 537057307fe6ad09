"""Images of data sets that list a path for each id, as CIRR and COCO do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from cirkit.data.images import EXTENSIONS, IMAGE_FOLDERS, ImageFolder


class ListedImages(ImageFolder):
    """Finds images by listed path, else by file name.

    Looked through are the first folders of the listed paths (dev/, test1/, train/, unlabeled2017/) and the folders of
    `ImageFolder`, each with one level of subfolders, in `root` and in its folders `bases`. A file that lies where it
    is listed comes first; elsewhere its name without extension decides, unless two listed files share it.
    """

    def __init__(self, root: str | Path, paths: Mapping[str, str], bases: Sequence[str] = ()):
        """Args: `root`, a folder; `paths`, id -> path relative to it; `bases`, folders of it to look in as well."""
        super().__init__(root)
        # "./dev/x.png" and "dev/x.png" are the same listed path
        self._listed = {str(PurePosixPath(path)): image for image, path in paths.items()}
        self._bases = ("", *bases)
        self._folders = tuple(dict.fromkeys((*(self._first(path) for path in self._listed), *IMAGE_FOLDERS)))

    def tried(self) -> str:
        """Where images were looked for, and how many there are: for messages."""
        folders = ", ".join(f"{folder}/" for folder in self._folders if folder)
        below = f" and of its folders {', '.join(self._bases[1:])}" if self._bases[1:] else ""
        count = f"{len(self._index):,} images" if self._index else "no image at all"
        return f"looked for listed paths and for names in {folders} of {self.root}{below}, and found {count}"

    @cached_property
    def _index(self) -> dict[str, str]:
        stems = Counter(PurePosixPath(path).stem for path in self._listed)
        named = ((PurePosixPath(path).stem, image) for path, image in self._listed.items())
        by_stem = {stem: image for stem, image in named if stems[stem] == 1}
        exact: dict[str, str] = {}
        by_name: dict[str, str] = {}
        for base in (self.root / base for base in self._bases):
            for folder in filter(Path.is_dir, (base / folder for folder in self._folders)):
                for path in self._files(folder):
                    if image := self._listed.get(path.relative_to(base).as_posix()):
                        exact.setdefault(image, str(path))
                    by_name.setdefault(by_stem.get(path.stem, path.stem), str(path))
        return by_name | exact

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        files = (path for form in ("*", "*/*") for path in folder.glob(form) if path.suffix.lower() in EXTENSIONS)
        return sorted(files, key=lambda path: (len(path.parts), EXTENSIONS.index(path.suffix.lower()), str(path)))

    @staticmethod
    def _first(path: str) -> str:
        return PurePosixPath(path).parts[0] if "/" in path else ""
