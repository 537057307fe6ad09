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
# imported by what computes a run, yet without a say in its numbers
_SPECTATORS = ("methods", "provenance", "records", "run_parameters", "run_identity")


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


def _without_docstrings(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                node.body = body[1:]
    return tree


def source_digest(*modules: str) -> str:
    """16 hex digits of the code of just these modules, such as ``data.images``, without comments and docstrings."""
    root = Path(__file__).resolve().parent
    code = [ast.dump(_without_docstrings(root.joinpath(*module.split(".")).with_suffix(".py"))) for module in modules]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def code_fingerprint(method: str | None = None) -> str:
    """Hash of the package code that computes a run: `cirkit.runs` and every module that it imports, however deep.

    Comments, docstrings and layout do not change it, nor does the room `data`: what it reads is in a run's identity
    itself, as triplets, attributes and features, so that one more data set leaves the runs on others alone.

    Args:
        method: a method's module (``infonce``), looked at with what it imports; all methods if None.
    """
    root = Path(__file__).resolve().parent
    names = [path.stem for path in sorted((root / "methods").glob("*.py")) if path.stem != "__init__"]
    waiting, seen = ["runs", *(f"methods.{name}" for name in ([method] if method else names))], {}
    while waiting:
        module = waiting.pop()
        path = root.joinpath(*module.split(".")).with_suffix(".py")
        path = path if path.is_file() else path.with_suffix("") / "__init__.py"
        if module in seen or module.partition(".")[0] == "data" or not path.is_file():
            continue
        tree = _without_docstrings(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "cirkit":
                package = node.module.removeprefix("cirkit").lstrip(".")
                waiting += [package, *(f"{package}.{alias.name}".lstrip(".") for alias in node.names)]
            if isinstance(node, ast.Import):
                waiting += [alias.name[7:] for alias in node.names if alias.name.startswith("cirkit.")]
        seen[module] = "" if module in _SPECTATORS else ast.dump(tree)
    digest = hashlib.sha256()
    for module, code in sorted(seen.items()):
        digest.update(f"{module}\n{code}\n".encode() if code else b"")
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
