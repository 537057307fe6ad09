"""The lock, the files that say the same thing twice, what the repository may not hold, who imports whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.txt"


def requirement_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def lock() -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in requirement_lines(LOCK.read_text(encoding="utf-8"))]
    return {canonicalize_name(r.name): r for r in parsed}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# --- lock -------------------------------------------------------------------------------------------------


def test_pip_section_of_environment_is_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip_section = next(item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    assert pip_section == requirement_lines(LOCK.read_text(encoding="utf-8"))
    assert environment["name"] == "cirkit"
    assert "python=3.11" in environment["dependencies"]


@pytest.mark.parametrize(
    "name",
    ["torch", "transformers", "salesforce-lavis", "jupyterlab", "papermill", "matplotlib", "seaborn", "pot"],
)
def test_environment_names(name):
    lines = (ROOT / "environment.yml").read_text(encoding="utf-8").splitlines()
    assert any(re.search(rf"(^|\s){re.escape(name)}==", line) for line in lines)


def test_salesforce_lavis_comes_in_the_same_way_everywhere(lock):
    command = "pip install --no-deps salesforce-lavis==1.0.2"
    for name in ("environment.yml", "requirements.txt", "pyproject.toml", ".ci/install"):
        assert command in (ROOT / name).read_text(encoding="utf-8"), name
    assert "salesforce-lavis" not in lock


def test_every_line_of_the_lock_is_one_exact_version(lock):
    assert len(lock) == len(requirement_lines(LOCK.read_text(encoding="utf-8")))
    for requirement in lock.values():
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert not requirement.url and not requirement.extras, requirement


def test_lock_satisfies_pyproject(lock, project):
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for line in (line for group in groups for line in group):
        wanted = Requirement(line)
        pinned = next(iter(lock[canonicalize_name(wanted.name)].specifier)).version
        assert wanted.specifier.contains(pinned, prereleases=True), f"{line}, but the lock has {pinned}"


def test_linux_only_packages_do_not_stop_other_systems(lock):
    for name, requirement in lock.items():
        if name.startswith(("nvidia-", "cuda-")) or name == "triton":
            assert requirement.marker is not None, name
            assert not requirement.marker.evaluate({"sys_platform": "darwin"})
            assert not requirement.marker.evaluate({"sys_platform": "win32"})
            assert requirement.marker.evaluate({"sys_platform": "linux"})


def test_installed_versions_are_those_of_the_lock(lock):
    """Only where make built the environment: it leaves the lock it installed there."""
    stamp = Path(sys.prefix) / "cirkit.lock"
    if not stamp.is_file():
        pytest.skip("this environment was not made by make, so its versions may differ from the lock")
    assert stamp.read_text(encoding="utf-8") == LOCK.read_text(encoding="utf-8"), "run `make install`"
    wrong = []
    for name, requirement in lock.items():
        if requirement.marker is None or requirement.marker.evaluate():
            try:
                if not requirement.specifier.contains(version(name), prereleases=True):
                    wrong.append(f"{requirement}, but {version(name)} is installed")
            except PackageNotFoundError:
                wrong.append(f"{requirement}, but none is installed")
    assert not wrong


# --- what a public repository must not hold ----------------------------------------------------------------

# put together from pieces, so that this file does not report itself
PERSONAL = "|".join(["ro" + "ot", "ho" + "me", "Us" + "ers", "wo" + "rk"])
PRIVATE = {
    "a path of one machine": rf"(?<![\w.~-])/(?:{PERSONAL})/\w|\b[A-Z]:\\\\?Users\\",
    "a folder of one machine": r"(?<![\w.])/(?:op" + r"t|tm" + r"p|mn" + r"t|sc" + r"ratch)/\w",
    "a package host": r"py" + r"pi\.org|pythonho" + r"sted|--(?:extra-)?index-" + r"url|--find-" + r"links",
    "a private address": r"\b192\.168\.\d",
    "a key": r"AK" + r"IA[0-9A-Z]{16}|\b(?:gh" + r"p|h" + r"f)_\w{30}|-----BEGIN [A-Z ]*PRI" + r"VATE KEY",
}
TEXT = {
    "",
    ".py",
    ".md",
    ".txt",
    ".yml",
    ".yaml",
    ".toml",
    ".cff",
    ".ipynb",
    ".json",
    ".csv",
    ".html",
    ".svg",
}


def tracked_files() -> list[Path]:
    """What is or would be committed; outside a git checkout everything that is not hidden or yours."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        yours = re.compile(r"\.|results/(study|runs)/|.*(__pycache__|\.egg-info)")
        listed = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
        listed = [name for name in listed if not yours.match(name)]
    paths = [ROOT / name for name in listed if name]
    return [path for path in paths if path.is_file() and path.suffix in TEXT]


@pytest.mark.parametrize("what", PRIVATE)
def test_no_file_holds(what):
    files = tracked_files()
    assert LOCK in files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := re.search(PRIVATE[what], line))
    ]
    assert not found


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "open('/ho" + "me/someone/data')"),
        ("a path of one machine", r"C:\Us" + r"ers\someone"),
        ("a folder of one machine", "cache = '/tm" + "p/cirkit'"),
        ("a package host", "--index-" + "url https://example.invalid/simple"),
        ("a private address", "http://192.168." + "0.7:8888"),
        ("a key", "-----BEGIN RSA PRI" + "VATE KEY-----"),
    ],
)
def test_the_patterns_find_what_they_are_for(what, line):
    assert re.search(PRIVATE[what], line)


# --- who imports whom --------------------------------------------------------------------------------------

# Each module may import only modules of the rows above its own or of its own row further left.
ORDER = [
    ["", "paths", "parameters", "provenance"],
    [
        "data.annotations",
        "data.captions",
        "data.triplet_checks",
        "data.triplets",
        "data.preprocess",
        "data.images",
        "data.listed_images",
        "data.picture_tree",
        "data.table",
        "data.table_export",
    ],
    ["data.entries", "data.fashioniq", "data.cirr", "data.circo", "data.hp_fashioniq"],
    ["data.findings", "data.report_text", "data.report"],
    ["data.truth", "data.worlds", "data.garment_drawing", "data.garment_texts", "data.garments"],
    ["data.scene_drawing", "data.scene_texts", "data.scene_groups", "data.scene_circo", "data.scenes"],
    ["data.splits", "data"],
    ["derangement", "ledger", "clauses", "noise_kinds", "noise"],
    [
        "device",
        "parallel",
        "weight_files",
        "hub",
        "lavis",
        "tokens",
        "backbone_config",
        "efficientnet",
        "towers",
        "qformer",
        "backbone",
        "blip",
    ],
    ["pretrained", "presets", "small", "parity", "encoding", "features"],
    ["ranks", "exact_scores", "scores", "similarity", "bootstrap", "detection", "satisfaction", "evaluation", "losses"],
    ["graded", "judge", "list_scores", "submission", "stage1", "pretrain", "pretrain_small"],
    ["mutual_information", "history", "spectrum"],
    ["passes", "mixture", "attention", "boundary", "anchors", "transport", "unlearning", "attributes"],
    ["methods.base", "retrieval", "gallery_scores", "mining", "two_drops", "mid_zone", "drawn"],
    ["methods.conesep_config", "methods.tme_config", "methods.*", "methods"],
    ["train_scores", "evidence", "gate", "checkpoints", "schedule", "stepping", "training", "forgetting"],
    [
        "run_parameters",
        "run_identity",
        "records",
        "runs",
        "train",
        "what_if",
        "plots.style",
        "plots.*",
        "plots.interactive",
        "plots",
        "interactive",
        "tables",
        "joined",
        "publish",
        "ablations",
        "search",
        "conesep_page",
        "equations_page",
        "published",
        "rank_correlation",
        "agreement",
        "step_cost",
        "sizing",
        "scale_page",
        "real_page",
        "suspicion",
        "row_reasons",
        "expectation",
        "noise_report",
        "ask",
        "bench",
        "bench.timing",
        "bench.step",
        "bench.scoring",
        "bench.mining",
        "bench.memory",
        "bench.cost",
        "bench.store",
        "bench.__main__",
    ],
    ["__main__"],
]
PLACE = {name: place for place, name in enumerate(name for row in ORDER for name in row)}


def place(module: str) -> int | None:
    return PLACE.get(module, PLACE.get(f"{module.rpartition('.')[0]}.*"))


def modules() -> dict[str, Path]:
    """Dotted name below cirkit -> file; "" is the package itself."""
    found = {}
    for path in sorted((ROOT / "cirkit").rglob("*.py")):
        parts = path.relative_to(ROOT / "cirkit").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path, known: set[str]) -> set[str]:
    """Modules of cirkit that a file imports anywhere, inside functions too, save for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    package = [part for part in package if part]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ["cirkit", *package][: len(package) + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            if name == "cirkit" or name.startswith("cirkit."):
                below = name.removeprefix("cirkit").lstrip(".")
                if below in known:
                    found.add(below)
    return found - {module, ""}


def test_every_module_has_a_place():
    homeless = [name for name in modules() if place(name) is None]
    assert not homeless, "give it a place in ORDER: what it imports above it, what imports it below"


def test_imports_go_one_way_only():
    known = set(modules())
    wrong = []
    for name, path in modules().items():
        for other in imported(name, path, known):
            # naming a package's module imports the package's __init__ too; only what the file asks for counts
            if place(name) is not None and place(other) is not None and place(other) >= place(name):
                wrong.append(f"cirkit.{name} imports cirkit.{other}")
    assert not wrong


def test_imports_are_seen_inside_functions_and_relative_ones(tmp_path):
    source = tmp_path / "noise.py"
    source.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cirkit.tables import collect\n"
        "def f():\n    from cirkit import runs\n    from .data import triplets\n    import cirkit.training\n"
    )
    known = {"", "noise", "runs", "data", "data.triplets", "training", "tables"}
    assert imported("noise", source, known) == {"runs", "data", "data.triplets", "training"}


def test_importing_everything_needs_no_lavis():
    names = [f"cirkit.{name}".rstrip(".") for name in modules() if name != "__main__"]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print([n for n in ('lavis', 'timm', 'fairscale', 'iopath', 'omegaconf') if n in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "[]"


# --- make --------------------------------------------------------------------------------------------------


def make(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_make_refuses_a_misspelt_setting():
    result = make("grid", "METHOD=infonce")
    assert result.returncode != 0
    assert "there is no setting METHOD" in result.stderr and "METHODS" in result.stderr


def test_make_hands_settings_on_and_uses_an_interpreter_as_it_is():
    result = make("grid", "PY=python", "METHODS=infonce rcl", "DATA_ROOT=it's mine")
    assert result.returncode == 0, result.stderr
    assert "METHODS='infonce rcl'" in result.stdout
    assert r"DATA_ROOT='it'\''s mine'" in result.stdout
    assert "python -m snakemake grid" in result.stdout
    assert "install" not in result.stdout and ".venv" not in result.stdout
