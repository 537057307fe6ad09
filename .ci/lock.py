"""Write requirements.txt and environment.yml from the versions installed beside this interpreter.

    make lock

The names come from pyproject.toml (dependencies and extras), the versions from the environment that runs this
script, so both files always say the same. To move to newer versions: `pip install --upgrade NAME` in the
environment, run the tests, then `make lock`.
"""

from __future__ import annotations

import os
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
# never pinned: pip is every environment's own, cirkit is this folder
NEVER = {"pip", "cirkit"}
HEADINGS = {
    "dependencies": "The package",
    "study": "Notebooks and batch runs",
    "small": "Pretrained parts of the preset small",
    "book": "The book",
    "lavis": "What LAVIS needs, for parity with it (LAVIS itself comes separately)",
    "dev": "Tests and style",
}
LAVIS = "pip install --no-deps salesforce-lavis==1.0.2"
# the values that environment markers ask for, per system a user may have
PLATFORMS = {
    name: {"sys_platform": name, "platform_system": system, "platform_machine": machine, "os_name": os_name}
    for name, system, machine, os_name in (
        ("linux", "Linux", "x86_64", "posix"),
        ("darwin", "Darwin", "arm64", "posix"),
        ("win32", "Windows", "AMD64", "nt"),
    )
}


def direct_names() -> dict[str, list[str]]:
    """Canonical names per group of pyproject.toml, in its order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return {group: [canonicalize_name(Requirement(line).name) for line in lines] for group, lines in groups.items()}


def closure(names: list[str], platform: dict[str, str]) -> set[str]:
    """Everything that `names` need on a platform, following the metadata of the installed packages.

    A package that only other platforms need is not installed here, hence has no metadata and is left out.
    """
    found: set[str] = set()
    todo = [(name, frozenset[str]()) for name in names]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        try:
            lines = distribution(name).requires or []
        except ModuleNotFoundError:  # PackageNotFoundError is a subclass
            continue
        found.add(name)
        for line in lines:
            needed = Requirement(line)
            wanted = needed.marker is None or any(
                needed.marker.evaluate({**platform, "extra": extra}) for extra in (extras or {""})
            )
            item = (canonicalize_name(needed.name), frozenset(needed.extras))
            if wanted and item not in seen:
                seen.add(item)
                todo.append(item)
    return found - NEVER


def pinned(name: str, only_linux: bool) -> str:
    version = distribution(name).version
    return f"{name}=={version}" + (' ; sys_platform == "linux"' if only_linux else "")


def lock_groups() -> dict[str, list[str]]:
    """Heading -> pinned lines: direct dependencies group by group, then the rest."""
    groups = direct_names()
    direct = [name for names in groups.values() for name in names]
    missing = [name for name in direct if not closure([name], PLATFORMS["linux"])]
    if missing:
        raise SystemExit(f"lock: not installed here: {', '.join(missing)}; install them, then run this again")
    needed = {system: closure(direct, platform) for system, platform in PLATFORMS.items()}
    linux_only = needed["linux"] - needed["darwin"] - needed["win32"]
    rest = sorted(needed["linux"] - set(direct))
    chosen = {HEADINGS[group]: [pinned(n, n in linux_only) for n in names] for group, names in groups.items()}
    return {
        **chosen,
        "What those need": [pinned(name, False) for name in rest if name not in linux_only],
        "CUDA libraries and compiler that torch needs on Linux only": [
            pinned(name, True) for name in rest if name in linux_only
        ],
    }


def requirements_text(groups: dict[str, list[str]]) -> str:
    head = (
        "# The full lock: exact versions of everything, tested on Python 3.11.\n"
        "# Written by `make lock` from the names in pyproject.toml; not edited by hand.\n"
    )
    body = ""
    for heading, lines in groups.items():
        body += f"\n# {heading}\n" + "".join(f"{line}\n" for line in lines)
    foot = (
        "\n# salesforce-lavis pins versions that nothing modern can meet, so it comes after this file and\n"
        f"# without its dependencies (make does it):  {LAVIS}\n"
    )
    return head + body + foot


def environment_text(groups: dict[str, list[str]]) -> str:
    head = (
        "# conda env create -f environment.yml && conda activate cirkit\n"
        "# Its pip section is requirements.txt, line by line; `make lock` writes both.\n"
        "#\n"
        "# salesforce-lavis pins versions that nothing modern can meet, so it is not in the list. It comes\n"
        "# afterwards and without its dependencies; only `make parity` needs it:\n"
        f"#   {LAVIS}\n"
        "name: cirkit\n"
        "channels:\n"
        "  - conda-forge\n"
        "dependencies:\n"
        "  - python=3.11\n"
        "  - pip\n"
        "  - pip:\n"
    )
    body = ""
    for heading, lines in groups.items():
        body += f"      # {heading}\n"
        body += "".join(f"      - '{line}'\n" if ";" in line else f"      - {line}\n" for line in lines)
    return head + body


def main() -> None:
    groups = lock_groups()
    for name, text in (
        ("requirements.txt", requirements_text(groups)),
        ("environment.yml", environment_text(groups)),
    ):
        temporary = ROOT / f".{name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, ROOT / name)
    print(f"requirements.txt and environment.yml: {sum(map(len, groups.values()))} packages")


if __name__ == "__main__":
    main()
