"""Asking one's own gallery: the answers are the trained model's, and bad questions are one sentence."""

from __future__ import annotations

import json
import shutil

import pytest
from PIL import Image

from cirkit import ask
from cirkit.data.annotations import DataError
from cirkit.data.fashioniq import load_fashioniq
from cirkit.features import build_store
from cirkit.presets import save_backbone
from cirkit.retrieval import encode_images, encode_queries
from cirkit.runs import train_or_load


@pytest.fixture(scope="module")
def trained(mini_world, tmp_path_factory):
    """A finished run on the mini world: (run, its folder)."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("run")
    patch.setenv("CIRKIT_CACHE", str(folder / "cache"))
    patch.setenv("CIRKIT_RESULTS", str(folder / "results"))
    with pytest.warns(UserWarning, match="optimizer steps"):
        run = train_or_load(
            False, dataset="fashioniq", data_root=str(mini_world), epochs=1, batch_size=32, device="cpu",
            method="infonce", method_options={"temperature": 0.1},
        )  # fmt: skip
    patch.undo()
    return run, run.folder


def test_answers_are_those_of_a_slow_loop(trained, mini_world, tmp_path):
    run, folder = trained
    method = ask.load_run(folder, "cpu")
    assert method.config.temperature == 0.1
    gallery = ask.Gallery(method, mini_world / "images", progress=False)
    assert len(gallery.ids) == 3 * (24 + 20 + 20)
    triplets = load_fashioniq(mini_world, "val").select([4])
    answers = gallery.ask(f"{triplets.references[0]}.png", triplets.texts[0], top=7)
    query = encode_queries(run.method, triplets, run.store)[0]
    names = [image.removesuffix(".png") for image in gallery.ids]
    store = build_store(run.method.backbone, run.data.images, names, progress=False)
    tokens = encode_images(run.method, names, store)
    scores = {i: max(float(t @ query) for t in tokens[row]) for row, i in enumerate(gallery.ids)}
    del scores[f"{triplets.references[0]}.png"]
    expected = sorted(scores, key=lambda image: -scores[image])[:7]
    assert answers.id.tolist() == expected and answers["rank"].tolist() == list(range(1, 8))
    assert answers.score.tolist() == pytest.approx([scores[i] for i in expected], abs=1e-5)


def test_a_picture_from_elsewhere_is_asked_too_and_features_are_kept(trained, mini_world, tmp_path):
    _, folder = trained
    method = ask.load_run(folder, "cpu")
    (tmp_path / "gallery" / "deep").mkdir(parents=True)
    pictures = sorted((mini_world / "images").iterdir())[:5]
    for path in pictures[:4]:
        shutil.copy(path, tmp_path / "gallery" / "deep")
    gallery = ask.Gallery(method, tmp_path / "gallery", progress=False)
    answers = gallery.ask(pictures[4], "is red", top=10)
    assert sorted(answers.id) == [f"deep/{path.name}" for path in pictures[:4]]
    made = gallery.store.folder.stat().st_mtime_ns
    assert ask.Gallery(method, tmp_path / "gallery", progress=False).store.folder.stat().st_mtime_ns == made
    figure = ask.answer_strip(gallery, pictures[4], "is red", answers, right=answers.id[2])
    framed = [axis for axis in figure.axes if axis.spines["left"].get_visible()]
    assert len(figure.axes) == 5 and framed == [figure.axes[3]]


def test_bad_questions_are_one_sentence(trained, mini_world, tmp_path):
    _, folder = trained
    method = ask.load_run(folder, "cpu")
    (tmp_path / "one").mkdir()
    picture = sorted((mini_world / "images").iterdir())[0]
    shutil.copy(picture, tmp_path / "one")
    gallery = ask.Gallery(method, tmp_path / "one", progress=False)
    with pytest.raises(ValueError, match="the text is blank"):
        gallery.ask(picture, "  ")
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        gallery.ask(picture, "is red", top=0)
    with pytest.raises(ValueError, match="'tiny' does not know the words corduroy, trousers"):
        gallery.ask(picture, "corduroy trousers")
    with pytest.raises(ValueError, match="holds the asked image and no other"):
        gallery.ask(tmp_path / "one" / picture.name, "is red")
    with pytest.raises(DataError, match="does not exist"):
        gallery.ask(tmp_path / "none.jpg", "is red")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"nothing to search: .*empty and its folders hold 0 images"):
        ask.Gallery(method, tmp_path / "empty")
    (tmp_path / "one" / "broken.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"the gallery .*one: .*broken\.jpg is not a usable image"):
        ask.Gallery(method, tmp_path / "one", progress=False)


def test_runs_that_cannot_answer_are_refused(trained, tmp_path, small_backbone):
    _, folder = trained
    with pytest.raises(ValueError, match="is not a finished run's record"):
        ask.load_run(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="its weights are gone"):
        ask.load_run(copy)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-7] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="model.safetensors is not what the run wrote: copy it again"):
        ask.load_run(copy)
    shutil.copy(folder / "model.safetensors", copy)
    save_backbone(small_backbone(5), tmp_path / "weights")
    record = json.loads((copy / "metrics.json").read_text())
    record["parameters"]["backbone"] = str(tmp_path / "weights")
    (copy / "metrics.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="was trained from other weights"):
        ask.load_run(copy)


def test_the_command_prints_ranks_and_writes_the_strip(trained, mini_world, tmp_path, capsys):
    _, folder = trained
    picture = sorted((mini_world / "images").iterdir())[3]
    out = tmp_path / "new" / "answer.png"
    options = [str(folder), str(picture), "is red", "--gallery", str(mini_world / "images"), "--device", "cpu"]
    assert ask.main([*options, "--top", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    ranked = [line.split() for line in printed if line.split()[:1] and line.split()[0].isdigit()]
    assert [line[0] for line in ranked] == ["1", "2", "3"] and all(line[1].endswith(".png") for line in ranked)
    assert printed[-1] == f"wrote {out}"
    assert Image.open(out).format == "PNG"
    assert picture.name not in " ".join(printed)
    for wrong, message in (
        ([*options, "--top", "0"], "top must be at least 1"),
        ([options[0], "none.jpg", *options[2:]], "none.jpg is neither an image file nor an image of"),
        ([str(tmp_path), *options[1:]], "is not a finished run's record"),
        ([*options[:4], str(tmp_path / "nowhere"), *options[5:]], "nowhere does not exist"),
    ):
        assert ask.main(wrong) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
