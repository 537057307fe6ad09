"""All splits of a data set at once: what to train on, what to choose on, what to report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirkit.data.fashioniq import caption_files, load_fashioniq
from cirkit.data.garments import attributes, build_garments
from cirkit.data.images import ImageFolder
from cirkit.data.triplets import DataError, TripletSet

DATASETS = ("garments", "fashioniq")


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
    exclude_reference: bool = False,
    progress: bool = True,
) -> Data:
    """Read every split of a data set; images are listed but not opened.

    Args:
        dataset: ``garments``, rendered first if it is not there yet, or ``fashioniq``, any folder in that layout.
        root: the data set's folder; for ``garments`` the folder that holds worlds, None for the cache.
        image_root: folder of the images, where it is not ``root``.
        caption_mode: evaluated splits use ``first_and_second`` where training draws ``random`` forms.

    Raises:
        DataError: whatever is wrong with the files, in one sentence.
    """
    if dataset not in DATASETS:
        raise DataError(f"unknown dataset {dataset!r}; known: {', '.join(DATASETS)}")
    truth = None
    if dataset == "garments":
        root = build_garments(root, progress=progress)
        truth = attributes(root)
    elif root is None:
        raise DataError(f"dataset {dataset!r} needs data_root, the folder with captions/ and image_splits/")
    rules = {"gallery_rule": gallery_rule, "exclude_reference": exclude_reference}
    train = load_fashioniq(root, "train", caption_mode=caption_mode, **rules)
    fixed = "first_and_second" if caption_mode == "random" else caption_mode
    val = load_fashioniq(root, "val", caption_mode=fixed, **rules)
    report = val
    if any(split == "test" for _, split in caption_files(root)):
        # without targets there is nothing to report, and no union of images that occur in a query
        test = load_fashioniq(root, "test", caption_mode=fixed, exclude_reference=exclude_reference)
        if test.has_targets:
            report = load_fashioniq(root, "test", caption_mode=fixed, **rules)
    return Data(train, val, report, ImageFolder(image_root or root), truth)
