"""The batch behind `make study` and `make grid`, on stand-in notebooks that take a second."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SENT = "METHOD BACKBONE LR DATASET NOISE_KIND NOISE_RATE NOISE_SEED SEED DATA_ROOT DEVICE RESULT".split()
TRAIN = """
import json, os, sys
assert METHOD != "broken", "this method is broken"
content = dict(method=METHOD, rate=NOISE_RATE, noise_seed=NOISE_SEED, seed=SEED, python=sys.executable,
               threads=os.environ["OMP_NUM_THREADS"])
json.dump(content, open(RESULT, "w"))
"""


def write_notebook(path: Path, *cells: tuple[str, list[str]], kernel: str = "python3") -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source, metadata={"tags": tags}) for source, tags in cells],
        metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
    )
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


def stand_in(folder: Path) -> Path:
    """A folder with this Snakefile, a package that does nothing and notebooks that do little."""
    (folder / "cirkit" / "data").mkdir(parents=True)
    shutil.copy(ROOT / "Snakefile", folder)
    (folder / "cirkit" / "__init__.py").touch()
    (folder / "cirkit" / "data" / "__init__.py").touch()
    (folder / "cirkit" / "data" / "garments.py").write_text("def build_garments(): print('drawn')\n")
    (folder / "cirkit" / "publish.py").write_text("print('reported')\n")
    for name, literal in (
        ("methods/__init__", "REGISTRY = {'infonce': '', 'broken': ''}"),
        ("noise_kinds", "KINDS: dict = {'shuffle': None, 'hard': None}"),
        ("data/splits", "SOURCES = {'garments': 1, 'scenes': 1, 'fashioniq': 1}"),
        ("presets", "PRESETS = ('tiny', 'tiny-scenes', 'small')"),
    ):
        (folder / "cirkit" / name).parent.mkdir(exist_ok=True)
        (folder / "cirkit" / f"{name}.py").write_text(f"{literal}\n")
    parameters = "\n".join(f"{name} = None" for name in SENT)
    for name in sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb") if path.stem != "07_training"):
        write_notebook(folder / "notebooks" / f"{name}.ipynb", ("DATASET = ''", ["parameters"]), ("1", []))
    write_notebook(
        folder / "notebooks" / "07_training.ipynb",
        (parameters, ["parameters"]),
        (TRAIN, []),
        kernel="author_env",
    )
    return folder


def snakemake(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """As make calls it, save for the terminal."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CIRKIT_", "JUPYTER_", "PYTHONPATH"))}
    target, *rest = arguments
    command = [sys.executable, "-m", "snakemake", target, "--cores", "2", "--nolock", "--rerun-incomplete"]
    command += [
        "--rerun-triggers",
        "mtime",
        "params",
        "--quiet",
        "host",
        "progress",
        "rules",
        "reason",
        *rest,
    ]
    return subprocess.run(
        command,
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.notebook
def test_a_batch_from_failure_to_done(tmp_path):
    """Paths with spaces, a foreign kernel of the same name, a method that fails: then again without it."""
    folder = stand_in(tmp_path / "my stüdy")
    foreign = tmp_path / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text(
        json.dumps({"argv": ["no-such-python"], "display_name": "x", "language": "python"})
    )
    jupyter = {"JUPYTER_PATH": str(foreign.parents[1]), "JUPYTER_DATA_DIR": str(foreign.parents[1])}
    place = {"CIRKIT_RESULTS": "Ergebnisse für alle"}
    study = folder / "Ergebnisse für alle" / "study"
    runs, notebooks = study / "runs", study / "notebooks"

    failed = snakemake(
        folder,
        "grid",
        "--keep-going",
        "--config",
        "METHODS=broken infonce",
        "RATES=0.50",
        "SEEDS=1",
        "THREADS=1",
        **jupyter,
        **place,
    )
    assert failed.returncode != 0
    assert "To do: 4 steps" in failed.stdout
    assert "broken-tiny-garments-shuffle-0.5-seed1.ipynb shows where" in failed.stderr
    assert "this method is broken" in failed.stderr
    # the notebook that stopped is there to read and no result; the other run was not held up by it
    stopped = nbformat.read(notebooks / "07_training-broken-tiny-garments-shuffle-0.5-seed1.ipynb", 4)
    assert any(output.output_type == "error" for cell in stopped.cells for output in cell.get("outputs", []))
    (result,) = runs.iterdir()
    assert result.name == "infonce-tiny-garments-shuffle-0.5-seed1.json"
    content = json.loads(result.read_text())
    assert Path(content.pop("python")) == Path(sys.executable)
    assert content == {"method": "infonce", "rate": 0.5, "noise_seed": 43, "seed": 1, "threads": "1"}
    assert not (study / "done" / "report").exists()
    assert "1 of 2 runs have no result" in failed.stdout
    assert "broken-tiny-garments-shuffle-0.5-seed1  (see Ergebnisse für alle/study/notebooks" in failed.stdout

    one = ["grid", "--config", "METHODS=infonce", "RATES=0.5", "SEEDS=1"]
    finished = snakemake(folder, *one, **place)
    assert finished.returncode == 0, finished.stderr
    assert "To do: 1 steps" in finished.stdout and "reported" in finished.stdout
    again = snakemake(folder, *one, **place)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr and "To do" not in again.stdout

    # an old report does not hide that a run is missing, and a change of the package reaches every step
    missing = snakemake(folder, "grid", "--dry-run", "--config", "METHODS=infonce", "RATES=0.5", "SEEDS=1 2", **place)
    assert "train" in missing.stdout + missing.stderr
    (folder / "cirkit" / "noise.py").write_text("changed = True\n")
    changed = snakemake(folder, "grid", "--dry-run", *one[1:], **place)
    assert "train" in changed.stdout + changed.stderr and "Nothing" not in changed.stderr


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("RATES=0 1.2", "RATES: '1.2' is not a noise rate between 0 and 1"),
        ("RATES=nan", "RATES: 'nan' is not a noise rate"),
        ("SEEDS=-1", "SEEDS: '-1' is not a whole number"),
        ("METHODS=../x", "METHODS: '../x' is unknown; choose among infonce, broken"),
        ("KINDS=shufle", "KINDS: 'shufle' is unknown; choose among shuffle, hard"),
        ("DATASET=garment", "DATASET: 'garment' is unknown"),
        ("DATASET=fashioniq", "DATASET: 'fashioniq' needs DATA_ROOT"),
        ("LR=fast", "LR: 'fast' is not a learning rate"),
        ("BACKBONE=tinny", "BACKBONE: 'tinny' is neither a folder, a file, a hub id, nor one of tiny"),
        ("METHOD=infonce", "there is no setting METHOD"),
        ("METHODS=", "must each name at least one value"),
        ("THREADS=x", "THREADS: 'x' is not a whole number"),
        ("DEVICE=cudda", "DEVICE: 'cudda' is none of auto, cpu"),
        ("DATA_ROOT=nowhere", "DATA_ROOT: there is no folder nowhere"),
        ("BACKBONE=small", "BACKBONE: the weights of 'small' are not there: `make small`"),
    ],
)
def test_wrong_settings_get_one_sentence(tmp_path, settings, sentence):
    result = snakemake(stand_in(tmp_path / "study"), "grid", "--dry-run", "--config", settings)
    assert result.returncode != 0
    assert sentence in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ([("METHOD = 'infonce'", ["parameters"])], "has no parameter BACKBONE, DATASET, NOISE_KIND"),
        ([("METHOD = 'infonce'", [])], "has 0 cells tagged 'parameters'"),
        ([("METHOD = 1", ["parameters"]), ("SEED = 1", ["parameters"])], "has 2 cells tagged 'parameters'"),
    ],
)
def test_a_notebook_that_would_ignore_parameters_is_not_run(tmp_path, cells, sentence):
    folder = stand_in(tmp_path / "study")
    write_notebook(folder / "notebooks" / "07_training.ipynb", *cells)
    result = snakemake(folder, "grid", "--dry-run")
    assert result.returncode != 0
    assert sentence in result.stderr and "Traceback" not in result.stderr


def test_the_real_notebooks_take_what_the_batch_sends(tmp_path):
    folder = stand_in(tmp_path / "study")
    shutil.rmtree(folder / "notebooks")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    (folder / "data").mkdir()
    result = snakemake(folder, "study", "--dry-run", "--config", "DATA_ROOT=data", "DEVICE=cpu")
    assert result.returncode == 0, result.stderr


def test_two_batches_do_not_run_in_one_folder(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = stand_in(tmp_path / "study")
    (folder / ".snakemake").mkdir()
    with open(folder / ".snakemake" / "cirkit-lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = snakemake(folder, "grid", "--dry-run")
    assert result.returncode != 0
    assert "another make study or make grid (process " in result.stderr
    assert snakemake(folder, "grid", "--dry-run").returncode == 0


def test_a_job_of_a_cluster_reads_the_file_while_the_batch_holds_the_folder(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = stand_in(tmp_path / "study")
    (folder / ".snakemake").mkdir()
    with open(folder / ".snakemake" / "cirkit-lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        job = snakemake(folder, "grid", "--dry-run", "--mode", "remote")
    assert job.returncode == 0, job.stderr


@pytest.mark.parametrize("profile", sorted((ROOT / "profiles").iterdir()), ids=lambda path: path.name)
def test_profiles_hold_options_of_snakemake(tmp_path, profile):
    """That of Slurm needs a plugin for its executor, which is not in the lock; the rest of it is read here."""
    folder, own = stand_in(tmp_path / "study"), tmp_path / "profile"
    own.mkdir()
    settings = yaml.safe_load((profile / "config.yaml").read_text(encoding="utf-8"))
    executor = settings.pop("executor", None)
    assert executor in (None, "slurm")
    (own / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    listed = snakemake(folder, "grid", "--profile", str(own), "--dry-run", "--config", "RATES=0.5")
    assert listed.returncode == 0, listed.stderr


def test_two_folders_of_data_or_weights_are_two_runs(tmp_path):
    folder = stand_in(tmp_path / "study")
    names = set()
    (folder / "x").mkdir()
    for place in ("one/weights", "two/weights"):
        (folder / place).mkdir(parents=True)
        for setting in (f"DATA_ROOT={place}", f"BACKBONE={place}"):
            result = snakemake(folder, "grid", "--summary", "--config", "RATES=0.5", "DATASET=fashioniq",
                               *{setting, *(["DATA_ROOT=x"] if "BACKBONE" in setting else [])})  # fmt: skip
            found = re.findall(r"results/study/runs/(\S+)\.json", result.stdout + result.stderr)
            assert found, result.stderr
            names.add(found[0])
    assert len(names) == 4


def test_every_world_brings_its_backbone(tmp_path):
    folder = stand_in(tmp_path / "study")
    (folder / "cirkit" / "data" / "scenes.py").touch()
    result = snakemake(folder, "grid", "--summary", "--config", "RATES=0", "DATASET=scenes")
    assert "infonce-tiny-scenes-scenes-shuffle-0-seed0" in result.stdout + result.stderr


def test_clean_runs_are_made_once_and_a_learning_rate_is_in_the_name(tmp_path):
    folder = stand_in(tmp_path / "study")
    listed = snakemake(folder, "grid", "--summary", "--config", "RATES=0 0.5", "KINDS=hard shuffle", "LR=1e-3")
    found = set(re.findall(r"results/study/runs/(\S+)\.json", listed.stdout))
    names = ("hard-0", "hard-0.5", "shuffle-0.5")
    assert found == {f"infonce-tiny-garments-{name}-lr0.001-seed0" for name in names}


def test_a_study_of_another_data_set_leaves_the_notebooks_on_garments_out(tmp_path):
    folder = stand_in(tmp_path / "study")
    (folder / "cirkit" / "data" / "scenes.py").touch()
    default = snakemake(folder, "study", "--summary").stdout
    assert "done/03_cone_histograms" in default and "infonce-tiny-garments-hard-0.5-seed0" in default
    scenes = snakemake(folder, "study", "--summary", "--config", "DATASET=scenes").stdout
    assert "infonce-tiny-scenes-scenes-shuffle-0-seed0" in scenes
    assert "03_cone" not in scenes and "tiny-garments-" not in scenes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("CORES=0", "CORES: '0' is not a number of runs at once, 1 or more"),
        ("CORES=two", "CORES: 'two' is not a number of runs at once"),
        ("PROFILE=slrum", "PROFILE: there is no folder profiles/slrum with a config.yaml; there are: local slurm"),
    ],
)
def test_what_make_itself_refuses(settings, sentence):
    result = subprocess.run(
        ["make", "-n", "grid", "PY=python", settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0 and sentence in result.stderr


def test_cores_count_beside_a_profile_and_arguments_are_passed_on():
    said = subprocess.run(
        ["make", "-n", "grid", "PY=python", "PROFILE=local", "CORES=1", "ARGS=-n"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "--profile 'profiles/local' --cores 1" in " ".join(said.split()) and "--keep-going -n" in said
