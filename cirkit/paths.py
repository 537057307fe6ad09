"""Where things live, and how files are written so that a killed run leaves nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

# .<name>.<machine>-<process>-<random>.tmp
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.tmp")
_A_DAY = 24 * 3600


def project_root() -> Path:
    """Folder that holds notebooks/, results/ and figures/: the checkout the package was installed from.

    Without a checkout (a plain ``pip install``) it is the current working directory.
    """
    checkout = Path(__file__).resolve().parent.parent
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def cache_dir() -> Path:
    """Folder for what can be made again (worlds, features): ``CIRKIT_CACHE`` or ``<project root>/.cache``."""
    return Path(os.environ.get("CIRKIT_CACHE") or project_root() / ".cache")


def results_dir() -> Path:
    """Folder for runs and tables: ``CIRKIT_RESULTS`` or ``<project root>/results``."""
    return Path(os.environ.get("CIRKIT_RESULTS") or project_root() / "results")


def resolve(path: str | Path) -> Path:
    """Absolute form of ``path``; a relative one is taken from the project root, not from the caller's folder."""
    path = Path(path).expanduser()
    return path if path.is_absolute() else project_root() / path


def check_writable(folder: str | Path) -> None:
    """Whether ``folder`` could be made and written to; nothing is made.

    Raises:
        OSError: it could not, in one sentence.
    """
    folder = Path(folder)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{folder} cannot be a folder: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written to: {there} does not permit it")


def check_target(path: str | Path, name: str) -> None:
    """Whether a file could be written there, that the user named in the parameter ``name``; nothing is made.

    Raises:
        OSError: it could not, in one sentence.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{name} must name a file to write, but {path} is a folder")
    try:
        check_writable(Path(path).absolute().parent)
    except OSError as error:
        raise type(error)(f"{name}: {error}") from None


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; it takes the name ``path`` on success and vanishes on failure.

    The temporary path does not exist yet, so the caller may create a file or a folder there. A finished folder that
    another process put in place meanwhile is kept and ours is dropped: both hold the same content. What killed
    processes left in the folder is removed first.

    Raises:
        OSError: the disk is full, naming ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    temporary = temporary_path(path)
    try:
        yield temporary
        try:
            os.replace(temporary, path)
        except OSError:
            if not (temporary.is_dir() and path.is_dir()):
                raise
    except Exception as error:
        if _disk_full(error):
            raise OSError(f"{path} cannot be written: there is no space left on the disk") from error
        raise
    finally:
        _remove(temporary)


def _disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"os error {errno.ENOSPC}" in str(error)  # how safetensors says it


def temporary_path(path: Path) -> Path:
    """A sibling of ``path`` under a name that nobody else takes, and that is swept once this process is gone."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def _sweep(folder: Path) -> None:
    """Remove temporary files and folders whose process is gone, or that nobody wrote to for a day."""
    for path in folder.glob(".*.tmp"):
        if match := _TEMPORARY.fullmatch(path.name):
            machine, process = match.groups()
            if (machine == _machine() and not _alive(int(process))) or _idle(path) > _A_DAY:
                with suppress(OSError):  # another user's
                    _remove(path)


@cache
def _machine() -> str:
    """Eight hex digits for where process numbers mean the same: this machine, or this container of it."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return hashlib.sha256(f"{platform.node()} {processes}".encode()).hexdigest()[:8]


def _alive(process: int) -> bool:
    if os.name == "nt":  # there, signal 0 is not a question
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _idle(path: Path) -> float:
    """Seconds since the last write to a file, or to anything in a folder; 0 if it just vanished."""
    try:
        return time.time() - max(p.stat().st_mtime for p in (path, *path.rglob("*")))
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
