"""Reading annotation files, and the error for data that cannot be used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any


class DataError(ValueError):
    """Data that cannot be used; the message is one sentence that names the file, the id or the parameter."""


def first_ids(ids: Iterable[str], n: int = 5) -> str:
    """The first `n` of `ids`, comma-separated, with an ellipsis if there are more: for error messages."""
    ids = list(ids)
    return ", ".join(ids[:n]) + (", ..." if len(ids) > n else "")


def file_bytes(path: Path, hint: str = "") -> bytes:
    """The content of a file; ``hint`` is what follows where it does not exist.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist{hint}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def in_its_place(content: bytes) -> str:
    """What a file is that came in the place of another: "nothing", "pointer" (of git-lfs), "page", or ""."""
    start = content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"version https://git-lfs"):
        return "pointer"
    return ("page" if start.startswith(b"<") else "") if start else "nothing"


def read_json(path: str | Path) -> Any:
    """Read an annotation file.

    Raises:
        DataError: the file is missing, empty, a large-file pointer, a web page, not UTF-8 or not JSON; a key stands
            twice in one object, or half of a character in a text.
    """
    path = Path(path)
    content = file_bytes(path)
    instead = in_its_place(content)
    if instead == "nothing":
        raise DataError(f"{path} is empty ({len(content)} bytes); download it again.")
    if instead == "pointer":
        raise DataError(f"{path} is a git-lfs pointer, not data; run `git lfs pull` where it was cloned.")
    if instead == "page":
        raise DataError(f"{path} is a web page or XML, not JSON; download the raw file.")
    try:
        read = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_distinct)
        if b"\\ud" in content.lower():  # escaped characters may come in halves, which no file can be named by
            json.dumps(read, ensure_ascii=False).encode()
        return read
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path} has half of a character after {error.object[max(error.start - 20, 0) : error.start]!r}."
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); it may be cut off."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an annotation file: {error}.") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        key = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {key!r} stands twice in one object")
    return content


def image_id(value: Any, where: str) -> str:
    """An image id as a string; `where` names the file and entry.

    Raises:
        DataError: neither a string that is not empty nor an integer.
    """
    # JSON integers have no leading zeros and no limit, so their digits are the id; a float has no one form.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where} is {value!r}, not an image id (a string).")
    return value


def image_ids(values: Any, where: str) -> tuple[str, ...]:
    """A list of distinct image ids.

    Raises:
        DataError: not a list, no id, or an id that stands in it twice (it would be ranked twice).
    """
    if not isinstance(values, list):
        raise DataError(f"{where} holds {kind_of(values)}, not a list of image ids.")
    ids = tuple(image_id(value, f"{where}, entry {row}") for row, value in enumerate(values))
    if len(set(ids)) < len(ids):
        repeated = [image for image, times in Counter(ids).items() if times > 1]
        raise DataError(f"{where} lists {len(repeated):,} ids more than once ({first_ids(repeated)}).")
    return ids


def query_id(entry: dict[str, Any], key: str, where: str, seen: Container[str]) -> str:
    """The id of a query as a string.

    Raises:
        DataError: it is no id, or an earlier query has it (a submission file could then hold only one of them).
    """
    value = image_id(entry.get(key), f"{where}, {key}")
    if value in seen:
        raise DataError(f"{where} has the {key} {value} of an earlier entry.")
    return value


def kind_of(value: Any) -> str:
    """What a JSON value is, in words, for error messages."""
    kinds = {dict: "an object", list: "a list", str: "a string", type(None): "nothing", bool: "a truth value"}
    return kinds.get(type(value), "a number")


def read_entry_list(path: str | Path, needed: Iterable[str]) -> list[dict[str, Any]]:
    """Read a file that is a list of objects which all have the `needed` keys.

    Raises:
        DataError: as `read_json`, or another form.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path} holds {kind_of(content)}, not a list of entries.")
    for row, entry in enumerate(content):
        if not isinstance(entry, dict):
            raise DataError(f"{path}, entry {row} is {kind_of(entry)}, not an object.")
        if lacking := [key for key in needed if key not in entry]:
            raise DataError(
                f"{path}, entry {row} has no {lacking[0]!r} (keys: {', '.join(entry) or 'none'});"
                " is it the file of another data set?"
            )
    return content


def stored_name(root: str | Path) -> str | None:
    """The name in <root>/dataset.json, None if there is no such file.

    Raises:
        DataError: the file does not hold {"name": "..."}.
    """
    path = Path(root) / "dataset.json"
    if not path.is_file():
        return None
    content = read_json(path)
    name = content.get("name") if isinstance(content, dict) else None
    if not isinstance(name, str) or not name:
        raise DataError(f'{path} does not hold {{"name": "..."}}.')
    return name
