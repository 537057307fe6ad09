"""What travels with every number: commit, package versions, machine, and a fingerprint of the code that made it."""

from __future__ import annotations

import ast
import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from cirkit.paths import project_root

PACKAGES = ("cirkit", "torch", "transformers", "accelerate", "numpy", "scikit-learn", "POT")
_COMPUTES = (
    "data", "methods", "backbone", "presets", "towers", "tokens", "noise", "derangement", "features", "scores",
    "retrieval", "training", "evaluation", "bootstrap",
)  # fmt: skip
_SPECTATORS = ("data/report", "data/findings", "methods/__init__")


def git_state() -> dict[str, object]:
    """``commit`` of the checkout and whether it is ``dirty``; both None outside a git checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=project_root(), capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def package_versions() -> dict[str, str | None]:
    """Installed versions of the packages that decide a number."""

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: installed(name) for name in PACKAGES}


def code_fingerprint(method: str | None = None) -> str:
    """Hash of the package code that computes a run; comments, docstrings and layout do not change it.

    Args:
        method: a method's module (``infonce``); other methods' files are then left out.
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).with_suffix("").as_posix()
        if name.split("/")[0] not in _COMPUTES or name in _SPECTATORS:
            continue
        if name.startswith("methods/") and method is not None and name not in ("methods/base", f"methods/{method}"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                    node.body = body[1:]
        digest.update(f"{name}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()[:16]


def provenance() -> dict[str, object]:
    """Commit, versions, Python, machine kind, thread count and the time (UTC)."""
    return {
        **git_state(),
        "versions": package_versions(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "threads": torch.get_num_threads(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
