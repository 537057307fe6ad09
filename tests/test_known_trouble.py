"""What trouble known from other people's work still lacked as a test, and that tests/README.md names real tests."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mini_cirr import write_hp
from mini_fashioniq import ALL_IDS, PARTS, write_annotations, write_images

from cirkit import runs
from cirkit.backbone import Backbone
from cirkit.data import DataError, load_fashioniq, load_hp_fashioniq
from cirkit.data.hp_fashioniq import relative_path
from cirkit.data.images import ImageFolder
from cirkit.evaluation import recall_table
from cirkit.features import build_store
from cirkit.methods import build_method
from cirkit.presets import save_backbone
from cirkit.records import tidy
from cirkit.retrieval import rank_queries

TESTS = Path(__file__).resolve().parent
NOTEBOOK = TESTS.parent / "notebooks" / "00_task_and_data.ipynb"
TABLE = (TESTS / "README.md").read_text(encoding="utf-8")
ITEMS = {row[1]: row[2] for row in re.finditer(r"^\| (R?\d+) \|.*\| (.*) \|$", TABLE, re.MULTILINE)}


def test_the_tables_have_every_item_and_name_tests_that_exist():
    assert list(ITEMS) == [*map(str, range(1, 27)), *(f"R{n}" for n in range(1, 13))]
    defined = {
        path.stem.removeprefix("test_"): {
            node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
        }
        for path in TESTS.glob("test_*.py")
    }
    for item, cell in ITEMS.items():
        file, named = "", re.findall(r"`([^`]+)`", cell)
        assert named or "not yet" in cell, item
        for name in named:
            before, _, test = name.rpartition("::")
            file = before or file  # the file is said once and holds until the next
            assert test in defined[file], f"item {item}: there is no {file}::{test}"


@pytest.fixture
def settings(mini_world, small_backbone, tmp_path) -> dict:
    save_backbone(small_backbone(), tmp_path / "backbone")
    world = shutil.copytree(mini_world, tmp_path / "world")
    return {
        "backbone": str(tmp_path / "backbone"), "dataset": "fashioniq", "data_root": str(world), "epochs": 1,
        "batch_size": 4, "progress": False, "device": "cpu",
    }  # fmt: skip


def test_a_gallery_of_20_without_5_files_is_refused_or_marked(settings, monkeypatch):
    """Item 3: two of the five are a query's reference and another's target."""
    val = load_fashioniq(settings["data_root"], "val", categories="dress")
    gone = {val.references[0], next(t for t in val.targets if t not in (val.references[0], val.targets[0]))}
    gone |= set([image for image in val.galleries["dress"] if image not in gone][:3])
    for image in gone:
        ImageFolder(settings["data_root"]).path(image).unlink()
    monkeypatch.setattr(Backbone, "patch_tokens", lambda *_: pytest.fail("encoded"))
    with pytest.raises(DataError, match=r"5 of \d+ images are missing \(.*\[dress val 5/20\]") as error:
        runs.prepare(**settings)
    assert sorted(gone)[0] in str(error.value) and "\n" not in str(error.value)
    monkeypatch.undo()
    run = runs.train_or_load(**settings, allow_missing_images=True)
    (protocol,) = [p for p in run.effective["protocols"] if p["split"] == "val"]
    lost = sum(r in gone or t in gone for r, t in zip(val.references, val.targets, strict=True))
    assert lost >= 2 and protocol["dropped_queries"] == lost and protocol["dropped_images"] == 5
    assert protocol["gallery_sizes"]["dress"] == 15 and protocol["comparable"] is False
    table = tidy([run.folder]).query("split == 'val' and category == 'dress' and metric == 'R@1'")
    assert table[["n", "candidates"]].values.tolist() == [[len(val) - lost, 15]] and not table["comparable"].any()


def test_distractors_count_unless_the_union_is_asked_for(tmp_path, small_backbone):
    """Item 9: three images of the gallery are nobody's reference or target."""
    entries, gallery = PARTS["dress", "val"]
    write_annotations(tmp_path, {("dress", "val"): (entries, [*gallery, "d4"])})
    write_images(tmp_path)
    method = build_method("infonce", small_backbone())
    store = build_store(method.backbone, ImageFolder(tmp_path), ALL_IDS, progress=False)
    ranks = {rule: rank_queries(method, load_fashioniq(tmp_path, "val", gallery_rule=rule), store)
             for rule in ("split", "union")}  # fmt: skip
    assert (load_fashioniq(tmp_path, "val").gallery_rule, len(ranks["split"])) == ("split", 2)
    assert {rule: set(r["candidates"]) for rule, r in ranks.items()} == {"split": {6}, "union": {3}}
    assert (ranks["union"]["better"] <= ranks["split"]["better"]).all()
    tables = {rule: recall_table(r, ks=(1, 2, 3), n=5) for rule, r in ranks.items()}
    assert {rule: set(t["candidates"]) for rule, t in tables.items()} == {"split": {6}, "union": {3}}  # of every number
    assert (tables["union"]["value"] >= tables["split"]["value"]).all()
    assert tables["union"]["value"].iloc[-1] == 100


def test_gallery_size_stands_beside_every_recall_of_a_run(settings):
    table = tidy([runs.train_or_load(**settings).folder])
    recall = table[table["metric"].str.match("Rs?@")]
    assert len(recall) and recall["candidates"].notna().all() and (recall["gallery_rule"] == "split").all()


def test_placeholders_of_paths_stay_below_the_root_and_the_file_as_it_is(tmp_path):
    """Item 13, always run: joining "/-/image_data" to a root as it stands would drop the root."""
    root = write_hp(tmp_path)
    before = (root / "hpfiq.json").read_bytes()
    judged = load_hp_fashioniq(root)
    assert (root / "hpfiq.json").read_bytes() == before
    stored = json.loads(before)["user_1"]["question_set_1"]
    assert judged["caption"].tolist()[:3] == stored["sentences"]
    for path in (*stored["ref_img_paths"], *stored["targ_img_paths"]):
        assert (root / relative_path(path)).parent == root / "image_data" / "shirt"


def test_hyphens_of_the_real_file_are_paths_and_sentences(shared_data):
    text = (shared_data / "hp_fashioniq" / "hpfiq.json").read_text(encoding="utf-8")
    assert (text.count('"/-/image_data/'), text.count("-")) == (36_600, 36_757)
    judged = load_hp_fashioniq(shared_data / "hp_fashioniq")
    sentences = [s for user in json.loads(text).values() for questions in user.values() for s in questions["sentences"]]
    assert sorted(judged["caption"]) == sorted(sentences)


def test_the_first_notebook_says_what_to_fetch_and_how_to_check_it():
    """Item 15; that it runs without data and network is in test_notebooks.py."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    for part in ("by hand", "python -m cirkit check", "XiaoxiaoGuo/fashion-iq"):
        assert part in text, part
    assert re.search(r"74,?381", text) and re.search(r"77,?683", text)


def test_a_collapsed_model_gets_chance_wherever_the_target_is_listed(mini_world, small_backbone):
    """Item 20 through the whole path: all scores equal."""
    method = build_method("infonce", small_backbone())
    val = load_fashioniq(mini_world, "val")
    store = build_store(method.backbone, ImageFolder(mini_world), val.image_ids(), progress=False)
    method.target = lambda patches: patches.new_ones(len(patches), 1, 7)
    galleries = {name: tuple(reversed(ids)) for name, ids in val.galleries.items()}
    for triplets in (val, val.replace(galleries=galleries)):
        table = recall_table(rank_queries(method, triplets, store), ks=(1, 10), n=5)
        np.testing.assert_allclose(table["value"], table["metric"].map({"R@1": 100 / 20, "R@10": 50}))
    method.target = lambda patches: patches.new_full((len(patches), 1, 7), float("nan"))
    with pytest.raises(ValueError, match=r"\d.*(NaN|finite)"):
        rank_queries(method, val, store)


def test_nothing_loads_pickles_or_half_a_model():
    """Item 26: tensors only, onto the CPU, and every key must fit."""
    for path in (TESTS.parent / "cirkit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if name.endswith(("load_state_dict", "load_model")):
                    assert options.get("strict") != "False", f"{path}:{node.lineno}"
                assert name not in ("pickle.load", "pickle.loads", "joblib.load"), f"{path}:{node.lineno}"
                if name == "torch.load":
                    assert (options["weights_only"], options["map_location"]) == ("True", "'cpu'"), path
                if name == "np.load":
                    assert options["allow_pickle"] == "False", path
