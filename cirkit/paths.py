"""Where things live, and how files are written so that a killed run leaves nothing half-written."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path``; it takes the name ``path`` on success and vanishes on failure.

    The temporary path does not exist yet, so the caller may create a file or a folder there. A finished folder that
    another process put in place meanwhile is kept and ours is dropped: both hold the same content.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        try:
            os.replace(temporary, path)
        except OSError:
            if not (temporary.is_dir() and path.is_dir()):
                raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
