"""The notebooks: how they are written, that each runs, and that the training notebook runs anywhere on any data."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from mini_fashioniq import write_annotations, write_images

from cirkit.parameters import check_parameters
from cirkit.runs import RunParameters

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TRAINING = REPOSITORY / "notebooks" / "07_training.ipynb"
TASK = REPOSITORY / "notebooks" / "00_task_and_data.ipynb"
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
every_other = pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p != TRAINING], ids=lambda path: path.stem)

# a path of one machine: rooted in a folder that people's files lie in, or at a drive letter
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|Users|root|tmp|work|opt|mnt|usr|data)/|\b[A-Z]:\\\\")


# --- how they are written ---------------------------------------------------------------------------------


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def literals(path: Path) -> dict[str, object]:
    """What the one cell tagged ``parameters`` assigns."""
    tagged = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1, f"{len(tagged)} cells are tagged 'parameters'"
    values = {}
    for statement in ast.parse(tagged[0].source).body:
        assert isinstance(statement, ast.Assign) and len(statement.targets) == 1, ast.unparse(statement)
        values[ast.unparse(statement.targets[0])] = ast.literal_eval(statement.value)
    return values


def calls(path: Path, function: str) -> list[ast.Call]:
    trees = (ast.parse(cell.source) for cell in code_cells(path))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in nodes if ast.unparse(node.func) == function]


def test_there_are_notebooks():
    assert {path.name for path in NOTEBOOKS} >= {"02_qformer_retrieval.ipynb", TRAINING.name}


@every_notebook
def test_parameters_are_plain_upper_case_literals_with_a_comment_each(path):
    assert literals(path) and all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in literals(path))
    cells = code_cells(path)
    assert "parameters" in cells[0].metadata.get("tags", []), "the parameters cell is the first code cell"
    assert all(re.search(r"\S  # \S", line) for line in cells[0].source.splitlines())


@every_notebook
def test_parameters_are_checked_against_the_values_they_have(path):
    [call] = calls(path, "check_parameters")
    assert any(ast.unparse(call) in ast.unparse(ast.parse(cell.source)) for cell in code_cells(path)[1:2])
    checked = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    assert checked == literals(path)
    assert [type(value) for value in checked.values()] == [type(checked[name]) for name in literals(path)]


@every_notebook
def test_a_misspelt_parameter_is_refused_before_anything_heavy_is_loaded(path):
    namespace = literals(path) | {"SED": 1, "__name__": "__main__"}
    (call,) = calls(path, "check_parameters")
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    with pytest.raises(ValueError, match="SED is not a parameter of this notebook"):
        check_parameters(namespace, **arguments)


@every_notebook
def test_it_is_committed_clean(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(content)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
        assert set(cell["metadata"]) <= {"tags"}, cell["id"]
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    assert content["metadata"]["kernelspec"]["display_name"] == "Python 3"
    assert set(content["metadata"]) <= {"kernelspec", "language_info"}


@every_notebook
def test_it_works_on_any_machine(path):
    for cell in read(path).cells:
        assert not MACHINE_PATH.search(cell.source), cell.id
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.match(r"(/\w|~/|[A-Za-z]:[\\/])", node.value), f"{cell.id}: {node.value!r}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "") or ""}
                assert not names & {"ipywidgets", "tqdm.auto", "tqdm.notebook"}, cell.id
        for banned in ("sys.path", "os.chdir", "%cd", "!pip", "%pip"):
            assert banned not in cell.source, cell.id


@every_notebook
def test_it_opens_with_what_a_reader_needs_and_ends_with_exercises(path):
    first, *others = read(path).cells
    assert first.cell_type == "markdown" and first.source.startswith(f"# {path.name[:2]}")
    for word in ("Purpose", "You will see", "Needs", "Time"):
        assert f"**{word}:**" in first.source
    assert len(re.findall(r"\bAfter this you can\b", first.source)) == 1, "the opening names a learning goal"
    [exercises] = [cell for cell in others if re.match(r"#+ .*\bexercises?\b", cell.source, re.IGNORECASE)]
    assert 2 <= len(re.findall(r"^\d\. ", exercises.source, re.MULTILINE)) <= 3


def test_the_training_notebook_has_the_parameters_of_a_run():
    defaults = dataclasses.asdict(RunParameters())
    assert literals(TRAINING) == {**{name.upper(): value for name, value in defaults.items()}, "RESULT": ""}


@every_notebook
def test_a_parameter_of_a_run_has_the_default_of_a_run(path):
    if path != TRAINING and not calls(path, "train_or_load"):
        pytest.skip("it looks at no run")
    defaults = {name.upper(): value for name, value in dataclasses.asdict(RunParameters()).items()}
    here = literals(path)
    assert {name: here[name] for name in here if name in defaults} == {n: v for n, v in defaults.items() if n in here}


# --- that they run ----------------------------------------------------------------------------------------

CATEGORIES = ("dress", "rain.coat")
IMAGES = {"train": 16, "val": 8, "test": 4}
NOISY = ("-p", "NOISE_RATE", "0.5", "-r", "NOISE_KIND", "derange", "-y", "METHOD_OPTIONS: {temperature: 0.2}")
SENTENCE = re.compile(r"^(?:ValueError|TypeError|DataError): (.+)$", re.MULTILINE)


def small_fashioniq(root: Path) -> Path:
    """Two categories in FashionIQ layout, JPEG images in one folder per category, test without targets."""
    rng = np.random.default_rng(0)
    parts = {}
    for category in CATEGORIES:
        for split, count in IMAGES.items():
            ids = [f"{split}-{category[0]}{i:02d}" for i in range(count)]
            entries = []
            for i, (candidate, target) in enumerate(zip(ids, [*ids[1:], ids[0]], strict=True)):
                colour = rng.choice(["red", "blue", "é vert"])
                captions = [f"is {colour} {i}", "" if i == 0 else f"has {i} buttons"]
                entries.append((candidate, None if split == "test" else target, captions))
            parts[category, split] = (entries, ids)
            write_images(root, f"resized_image/{category}/{{image}}.jpg", ids, kind="JPEG")
    return write_annotations(root, parts)


class Finished:
    """A papermill run: exit code, the message it stopped with, the executed notebook."""

    def __init__(self, process: subprocess.CompletedProcess, output: Path):
        self.code, self.log = process.returncode, process.stdout + process.stderr
        self.notebook = nbformat.read(output, 4) if output.is_file() else None

    @property
    def text(self) -> str:
        """All that its cells showed, as text."""
        outputs = [o for c in self.notebook.cells if c.cell_type == "code" for o in c.outputs]
        data = [{kind: v for kind, v in o.get("data", {}).items() if kind.startswith("text/")} for o in outputs]
        return "\n".join(o.get("text", "") + "\n".join(d.values()) for o, d in zip(outputs, data, strict=True))


# What every Python of a run begins with: no network, ipywidgets or second thread, and worlds of a second in the kernel.
STARTUP = """
import sys
from pathlib import Path

sys.modules["ipywidgets"] = None


def offline(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1][0] if event == "socket.connect" and isinstance(arguments[1], tuple) else arguments[0]
        if isinstance(host, (str, bytes)) and host not in ("localhost", "127.0.0.1", "::1", "", b"localhost"):
            with open(Path(__file__).with_name("network.txt"), "a") as file:
                file.write(f"{host}\\n")
            raise OSError(f"there is no network to reach {host}")


sys.addaudithook(offline)
if any("ipykernel" in part for part in sys.orig_argv):
    from cirkit.data.garments import GarmentsRecipe, build_garments
    from cirkit.data.scenes import ScenesRecipe, build_scenes

    garments = GarmentsRecipe(train_images=120, gallery_images=40, train_triplets=60, eval_triplets=30)
    scenes = ScenesRecipe(train_groups=12, eval_groups=7, train_triplets=50, eval_triplets=20, circo_images=200,
                          circo_val=25, circo_test=15)
    build_garments.__defaults__, build_scenes.__defaults__ = (None, garments, True), (None, scenes, True)
"""


def papermill(
    notebook: Path, folder: Path, *options: str, cwd: Path | None = None, name: str = "", output: str = ""
) -> Finished:
    """Execute a notebook as the batch does, from a folder that has nothing to do with it, or from `cwd`.

    Missing cell ids are an error, `STARTUP` holds, and all that is written goes below `folder`; `name` tells apart
    results folders, `output` executed notebooks.
    """
    elsewhere, hidden = folder / "irgendwo  anders é 図", folder / "hidden"
    for made in (elsewhere, hidden):
        made.mkdir(parents=True, exist_ok=True)
    (hidden / "sitecustomize.py").write_text(STARTUP, encoding="utf-8")
    output = elsewhere / f"{output or f'out{name}'}.ipynb"
    output.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(hidden), str(REPOSITORY)]),
        "PYTHONWARNINGS": "error:Cell is missing an id field:FutureWarning",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "OMP_NUM_THREADS": "1",
        "CIRKIT_CACHE": str(folder / "cache ü"),
        "CIRKIT_RESULTS": str(folder / f"results ü{name}"),
    }
    command = [sys.executable, "-m", "papermill", "-k", "python3", "--no-progress-bar", str(notebook), str(output)]
    process = subprocess.run(
        [*command, *options], cwd=cwd or elsewhere, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert not (hidden / "network.txt").exists(), (hidden / "network.txt").read_text()
    assert all(path.suffix == ".ipynb" for path in elsewhere.iterdir())  # nothing else is written where it was called
    return Finished(process, output)


def assert_clean(finished: Finished) -> None:
    """No error, no warning among what it shows."""
    assert finished.code == 0, finished.log[-3000:]
    shown = [o for c in finished.notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    warned = [line for line in finished.text.splitlines() if "Warning" in line]
    assert [line for line in warned if "UserWarning: this run has" not in line] == []  # few steps: that is so here
    assert not MACHINE_PATH.search(json.dumps(finished.notebook.metadata.get("kernelspec", {})))


def figures(place: Path, number: str) -> set[str]:
    """Names of the figures that a notebook wrote, each as .png, .svg and .json."""
    folder = place / "results ü" / "study" / "figures"
    found = [{path.stem for path in folder.glob(f"{number}_*.{suffix}")} for suffix in ("png", "svg", "json")]
    assert found[0] == found[1] == found[2]
    return found[0]


def training(folder: Path, *options: str, notebook=TRAINING, result="record.json", **elsewhere) -> Finished:
    return papermill(
        notebook, folder, "-r", "DATASET", "fashioniq", "-r", "DATA_ROOT", str(folder / "mein Datensatz é"),
        "-r", "BACKBONE", "tiny-random", "-p", "EPOCHS", "2", "-p", "BATCH_SIZE", "8",
        "-r", "RESULT", str(folder / "kopie é" / result), *options, **elsewhere,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    small_fashioniq(folder / "mein Datensatz é")
    return folder


@pytest.fixture(scope="module")
def noisy_run(place) -> Finished:
    """The training notebook on the small folder, stored under a kernel that nobody has."""
    content = json.loads(TRAINING.read_text(encoding="utf-8"))
    content["metadata"]["kernelspec"] = {"name": "somebodys_env", "display_name": "Somebody's environment"}
    foreign = place / "foreign kernel.ipynb"
    foreign.write_text(json.dumps(content), encoding="utf-8")
    return training(place, *NOISY, notebook=foreign)


@pytest.mark.notebook
def test_training_runs_from_anywhere_on_a_folder_of_ones_own(noisy_run, place):
    assert_clean(noisy_run)
    record = json.loads((place / "kopie é" / "record.json").read_text(encoding="utf-8"))
    assert record["parameters"]["method_options"] == {"temperature": 0.2}
    assert record["effective"]["method_config"]["temperature"] == 0.2
    assert record["noise"] == {"nominal": 0.5, "realised": 0.5}
    assert record["comparable"] is True and record["choose_on"] == record["report_on"] == "val"
    recall = [row for row in record["metrics"] if row["metric"].startswith("R@")]
    table = {(row["metric"], row["category"]): row for row in recall}
    assert {category for _, category in table} == {*CATEGORIES, "mean"}
    for row in table.values():
        assert 0 <= row["low"] <= row["value"] <= row["high"] <= 100
        assert row["n"] == IMAGES["val"] * (len(CATEGORIES) if row["category"] == "mean" else 1)
    assert table["R@1", "mean"]["value"] < 100 == table["R@10", "mean"]["value"]  # 8 images: 10 hold them all
    folder = place / "results ü" / "runs" / record["run_id"]
    assert {"metrics.json", "history.csv", "ranks_val.csv", "model.safetensors"} <= {p.name for p in folder.iterdir()}


@pytest.mark.notebook
def test_two_at_once_make_one_run(noisy_run, place):
    """Both finish with one record, of the numbers that one alone has."""
    own = place / "twice"
    own.mkdir()
    shutil.copytree(place / "mein Datensatz é", own / "mein Datensatz é")
    with ThreadPoolExecutor(2) as both:
        # the results are shared; only where the executed notebook goes differs
        jobs = [both.submit(training, own, *NOISY, result=f"{n}.json", output=f"out{n}") for n in range(2)]
        for finished in (job.result() for job in jobs):
            assert_clean(finished)
    (run,) = (own / "results ü" / "runs").iterdir()
    first, second = (json.loads((own / "kopie é" / f"{n}.json").read_text(encoding="utf-8")) for n in range(2))
    alone = json.loads((place / "kopie é" / "record.json").read_text(encoding="utf-8"))
    assert first == second and run.name == first["run_id"] and first["metrics"] == alone["metrics"]


@pytest.mark.notebook
def test_training_shows_its_steps(noisy_run, place):
    text = noisy_run.text
    assert "rate asked for 0.5000, obtained 0.5000 (16 of 32 training triplets)" in text
    assert "serves for both" in text and "AUROC" in text and "comes without attributes" in text
    assert "NOT COMPARABLE" not in text
    shown = [o for c in noisy_run.notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 5
    ours = {name.split("_")[1] for name in figures(place, "07") if "fashioniq" in name or "derange" in name}
    assert ours == {"history", "batch", "retrieved", "detection"}


@pytest.mark.notebook
def test_missing_images_are_loud_and_a_notebook_without_kernel_runs(place):
    content = json.loads(TRAINING.read_text(encoding="utf-8"))
    del content["metadata"]["kernelspec"]
    nameless = place / "no kernel.ipynb"
    nameless.write_text(json.dumps(content), encoding="utf-8")
    for gone in ("val-d00", "val-r03", "train-d05"):
        (path,) = (place / "mein Datensatz é" / "resized_image").rglob(f"{gone}.jpg")
        path.rename(place / path.name)
    try:
        allowed = training(place, "-p", "ALLOW_MISSING_IMAGES", "True", notebook=nameless, result="partial.json")
    finally:
        for path in place.glob("*.jpg"):
            category = CATEGORIES["-r" in path.name]
            path.rename(place / "mein Datensatz é" / "resized_image" / category / path.name)
    assert allowed.code == 0, allowed.log[-3000:]
    record = json.loads((place / "kopie é" / "partial.json").read_text(encoding="utf-8"))
    assert record["comparable"] is False
    assert allowed.text.count("NOT COMPARABLE") == 2
    [mean] = [row for row in record["metrics"] if (row["metric"], row["category"]) == ("R@1", "mean")]
    assert mean["n"] == 2 * IMAGES["val"] - 4 and mean["candidates"] == IMAGES["val"] - 1


@pytest.mark.notebook
@pytest.mark.parametrize(
    "option, sentence",
    [
        (("-p", "NOISE_RATIO", "0.5"), "NOISE_RATIO is not a parameter of this notebook; did you mean NOISE_RATE?"),
        (("-p", "EPOCHS", "2.5"), "EPOCHS must be int (such as 8), got 2.5"),
    ],
    ids=["misspelt", "wrong type"],
)
def test_wrong_parameters_stop_it_before_any_work(place, option, sentence):
    finished = training(place, *option, result="wrong.json")
    assert finished.code != 0
    assert SENTENCE.findall(finished.log)[-1].startswith(sentence)
    assert not (place / "kopie é" / "wrong.json").exists()
    ran = [cell.id for cell in finished.notebook.cells if cell.get("execution_count")]
    assert "setup" in ran and "prepare" not in ran


@pytest.mark.notebook
@pytest.mark.parametrize("cwd", [REPOSITORY, REPOSITORY / "notebooks"], ids=["root", "notebooks"])
def test_training_gives_the_same_numbers_from_every_working_directory(noisy_run, place, cwd):
    """Known trouble 24: `noisy_run` was called from a folder with spaces and letters that are not ASCII."""
    before = set(cwd.iterdir())
    finished = training(place, *NOISY, result=f"{cwd.name}.json", cwd=cwd, name=f" from {cwd.name}")
    assert finished.code == 0, finished.log[-3000:]
    assert "its record is loaded" not in finished.text
    first, second = (json.loads((place / "kopie é" / f"{n}.json").read_text("utf-8")) for n in ("record", cwd.name))
    assert second["metrics"] == first["metrics"] and second["parameters"] == first["parameters"]
    assert {path.name for path in set(cwd.iterdir()) - before} <= {".pytest_cache"}


@pytest.mark.notebook
def test_training_on_groups_of_look_alikes(place):
    finished = papermill(
        TRAINING, place, "-r", "DATASET", "scenes", "-r", "BACKBONE", "tiny-random", "-p", "EPOCHS", "1",
        "-r", "RESULT", str(place / "kopie é" / "scenes.json"),
    )  # fmt: skip
    assert_clean(finished)
    record = json.loads((place / "kopie é" / "scenes.json").read_text(encoding="utf-8"))
    assert (record["choose_on"], record["report_on"], record["comparable"]) == ("val", "test1", True)
    table = pd.DataFrame(record["metrics"]).query("split == 'test1' and category == 'mean'").set_index("metric")
    assert {"R@1", "Rs@1", "Rs@2", "Rs@3"} <= set(table.index)
    assert (table.loc[["Rs@1", "Rs@2", "Rs@3"], "candidates"] == 5).all()  # six without the reference
    assert table.loc["R@1", "candidates"] == 6 * 7 - 1
    for chance in ("Rs@1", "20.0", "40.0", "60.0"):
        assert chance in finished.text
    assert {name.split("_")[1] for name in figures(place, "07") if "scenes" in name} >= {"attributes", "retrieved"}


def saved_figures(path: Path) -> tuple[set[str], set[str]]:
    """Names that a notebook's code gives its figures: whatever the data, and below an ``if``."""
    found = {False: set(), True: set()}

    def visit(node, conditional):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "plots.save":
            name = node.args[1].orelse if isinstance(node.args[1], ast.IfExp) else node.args[1]
            found[conditional].add(ast.literal_eval(name))
        for child in ast.iter_child_nodes(node):
            visit(child, conditional or isinstance(node, ast.If))

    for cell in code_cells(path):
        visit(ast.parse(cell.source), False)
    return found[False], found[True]


@pytest.mark.notebook
@every_other
def test_it_runs_without_data_or_network_and_writes_its_figures(path, place):
    short = {"EPOCHS": "1", "STEPS": "4"}
    options = [word for name in short if name in literals(path) for word in ("-p", name, short[name])]
    finished = papermill(path, place, *options)
    assert_clean(finished)
    always, only_with_data = saved_figures(path)
    assert always and always <= figures(place, path.name[:2]) <= always | only_with_data


@pytest.mark.notebook
def test_task_and_data_on_the_real_annotations(place, shared_data):
    finished = papermill(TASK, place, "-r", "DATA_ROOT", str(shared_data / "fashioniq"), name=" real")
    assert_clean(finished)
    assert "74,381" in finished.text  # distinct images that the nine split files list
    for leaked in (392, 419, 410, 393):  # images that training shares with val or test of another category
        assert re.search(rf"\b{leaked}\b", finished.text), leaked
