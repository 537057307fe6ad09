"""How the captions of one triplet become the query text."""

from __future__ import annotations

from collections.abc import Sequence

from cirkit.data.annotations import DataError

CAPTION_FORMS = ("first_and_second", "second_and_first", "first", "second")
CAPTION_MODES = (*CAPTION_FORMS, "random", "both")


def join_captions(captions: Sequence[str], mode: str = "first_and_second") -> str:
    """Join the captions of one triplet to the query text.

    Blank captions are left out and the others stripped, so that a text never starts or ends with a stray
    "and"; "first" and "second" fall back to the other caption where theirs is blank. If all are blank, so is
    the text.

    Args:
        captions: one or more raw captions.
        mode: one of `CAPTION_FORMS`.

    Raises:
        DataError: unknown mode.
    """
    if mode not in CAPTION_FORMS:
        raise DataError(f"caption form {mode!r} is unknown; choose one of {', '.join(CAPTION_FORMS)}.")
    parts = [part for part in (caption.strip() for caption in captions) if part]
    if not parts:
        return ""
    if mode == "first":
        return parts[0]
    if mode == "second":
        return parts[-1]
    return " and ".join(parts if mode == "first_and_second" else reversed(parts))


def check_caption_mode(mode: str, split: str) -> None:
    """Raises `DataError` for an unknown caption mode, and for "random" outside training."""
    if mode not in CAPTION_MODES:
        raise DataError(f"caption_mode {mode!r} is unknown; choose one of {', '.join(CAPTION_MODES)}.")
    if mode == "random" and split != "train":
        raise DataError(f"caption_mode 'random' is for training only, not for split {split!r}; name a fixed form.")
