"""All splits of a data set at once: what to train on, what to choose on, what to report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import cirkit.data.cirr as cirr
import cirkit.data.fashioniq as fashioniq
from cirkit.data.annotations import DataError, first_ids
from cirkit.data.garments import attributes, build_garments
from cirkit.data.images import ImageFolder
from cirkit.data.scenes import build_scenes
from cirkit.data.triplets import TripletSet


@dataclass(frozen=True)
class Source:
    """How one data set is read.

    Attributes:
        load: (root, split, caption_mode=, gallery_rule=, exclude_reference=) -> TripletSet.
        splits: root -> names of the splits that have a caption file.
        test: the split to report on where its targets are known.
        exclude_reference: whether the reference is taken out of the ranking by default.
        images: (root, image_root or None) -> ImageFolder.
        build: (parent folder or None, progress=) -> root; renders an embedded world. None: the user gives the root.
        truth: root -> attributes of every image, where they are known.
    """

    load: Callable[..., TripletSet]
    splits: Callable[[Path], Iterable[str]]
    test: str
    exclude_reference: bool
    images: Callable[[Path, Path | None], ImageFolder]
    build: Callable[..., Path] | None = None
    truth: Callable[[Path], pd.DataFrame] | None = None


def _fashioniq(**world: Callable) -> Source:
    # the reference is ranked, as in the public code of CLIP4CIR, SPRC and QuRe
    return Source(fashioniq.load_fashioniq, fashioniq.splits, "test", False, _image_folder, **world)


def _cirr(**world: Callable) -> Source:
    return Source(cirr.load_cirr, cirr.caption_files, "test1", True, cirr.cirr_images, **world)


def _image_folder(root: Path, image_root: Path | None) -> ImageFolder:
    return ImageFolder(image_root or root)


SOURCES = {
    "garments": _fashioniq(build=build_garments, truth=attributes),
    "scenes": _cirr(build=build_scenes, truth=attributes),
    "fashioniq": _fashioniq(),
    "cirr": _cirr(),
}
DATASETS = tuple(SOURCES)


@dataclass(frozen=True)
class Data:
    """The splits of a data set, its images, and, on embedded worlds, the attributes of every image.

    ``report`` is the split numbers are reported on, ``choose`` the one to choose on. A data set whose test targets
    are not public has one split for both, which is what its literature does.
    """

    train: TripletSet
    choose: TripletSet
    report: TripletSet
    images: ImageFolder
    attributes: pd.DataFrame | None

    @property
    def splits(self) -> dict[str, TripletSet]:
        """Evaluated splits by name."""
        return {t.split: t for t in (self.choose, self.report)}


def load_data(
    dataset: str,
    root: Path | None = None,
    image_root: Path | None = None,
    caption_mode: str = "first_and_second",
    gallery_rule: str = "split",
    exclude_reference: bool | None = None,
    progress: bool = True,
) -> Data:
    """Read every split of a data set; images are listed but not opened.

    Args:
        dataset: ``garments`` or ``scenes``, rendered first if it is not there yet, or ``fashioniq`` or ``cirr``, any
            folder in that layout.
        root: the data set's folder; for an embedded world the folder that holds worlds, None for the cache.
        image_root: folder of the images, where it is not ``root``.
        caption_mode: evaluated splits use ``first_and_second`` where training draws ``random`` forms.
        exclude_reference: None takes the data set's default, True in CIRR's layout and False in FashionIQ's.

    Raises:
        DataError: whatever is wrong with the files, in one sentence.
    """
    if dataset not in SOURCES:
        raise DataError(f"unknown dataset {dataset!r}; known: {', '.join(DATASETS)}")
    source = SOURCES[dataset]
    if source.build is not None:
        root = source.build(root, progress=progress)
    elif root is None:
        raise DataError(f"dataset {dataset!r} needs data_root (DATA_ROOT), the folder with captions/ and image_splits/")
    exclude_reference = source.exclude_reference if exclude_reference is None else exclude_reference
    rules = {"gallery_rule": gallery_rule, "exclude_reference": exclude_reference}
    train = source.load(root, "train", caption_mode=caption_mode, **rules)
    fixed = "first_and_second" if caption_mode == "random" else caption_mode
    val = source.load(root, "val", caption_mode=fixed, **rules)
    report = val
    if source.test in source.splits(root):
        # without targets there is nothing to report, and no union of images that occur in a query
        test = source.load(root, source.test, caption_mode=fixed, exclude_reference=exclude_reference)
        if test.has_targets:
            if lacking := sorted(set(val.galleries).difference(test.galleries)):
                raise DataError(
                    f"{root} has {first_ids(lacking)} in val but not in {source.test}, so that their averages would"
                    f" be of different categories; add the {source.test} files, or remove them all."
                )
            report = source.load(root, source.test, caption_mode=fixed, **rules)
    truth = None if source.truth is None else source.truth(root)
    return Data(train, val, report, source.images(root, image_root), truth)
