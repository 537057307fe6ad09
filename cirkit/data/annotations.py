"""Reading annotation files, and the error for data that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence that names the file, the id or the parameter."""


def first_ids(ids: Iterable[str], n: int = 5) -> str:
    """The first `n` of `ids`, comma-separated, with an ellipsis if there are more: for error messages."""
    ids = list(ids)
    return ", ".join(ids[:n]) + (", ..." if len(ids) > n else "")


def read_json(path: str | Path) -> Any:
    """Read an annotation file.

    Raises:
        DataError: the file is missing, empty, a large-file pointer, a web page, not UTF-8 or not JSON.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    start = content[:200].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not content.strip(b"\xef\xbb\xbf \t\r\n"):
        raise DataError(f"{path} is empty ({len(content)} bytes); download it again.")
    if start.startswith(b"version https://git-lfs"):
        raise DataError(f"{path} is a git-lfs pointer, not data; run `git lfs pull` where it was cloned.")
    if start.startswith(b"<"):
        raise DataError(f"{path} is a web page or XML, not JSON; download the raw file.")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); it may be cut off."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an annotation file: {error}.") from None
