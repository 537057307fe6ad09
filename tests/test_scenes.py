"""The world `scenes`: same bytes every time, honest splits, hard subsets, texts that say what the truth says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cirkit.data import DataError, load_circo, load_cirr
from cirkit.data import scenes as module
from cirkit.data.circo import circo_images
from cirkit.data.cirr import cirr_images
from cirkit.data.scene_circo import CONCEPTS
from cirkit.data.scene_drawing import ALL_VALUES, draw_scene
from cirkit.data.scene_texts import aspects, change_caption, concept, description
from cirkit.data.scenes import (
    ATTRIBUTES,
    DEFAULT_RECIPE,
    GROUP,
    HELD_OUT,
    SPLITS,
    STAGE1_GROUP,
    ScenesRecipe,
    attributes,
    build_scenes,
    is_complete,
    preservation,
    relevance,
    stage1_images,
    vocabulary,
)

TINY = ScenesRecipe(
    size=16, train_groups=12, eval_groups=7, train_triplets=50, eval_triplets=20, circo_images=200, circo_val=25,
    circo_test=15, seed=7,
)  # fmt: skip
NAMES = list(ATTRIBUTES)
COLOURS = "|".join(ATTRIBUTES["colour"])
FAMILY = {name: attribute for attribute in ("shape", "other") for name in ALL_VALUES[attribute]}
PLACES = {"left of": "left", "right of": "right", "above": "above", "over": "above", "below": "below", "under": "below"}
MIRROR = {"left": "right", "right": "left", "above": "below", "below": "above"}
SIZE_WORDS = {"small": r"small|smaller|little|shrinks", "large": r"large|larger|big|bigger|grows"}
WALL_WORDS = {
    "plain": "plain|nothing|no pattern",
    "striped": "striped|stripes",
    "pinstriped": "pinstriped|pinstripes|thin lines|vertical lines",
    "checked": "checked|checks|grid",
    "dotted": "dotted|dots",
    "brick": "brick|bricks",
    "zigzag": "zigzag|zigzags",
}
NUMBERS = ALL_VALUES["count"]


def only(table: dict[str, str], text: str) -> str:
    hits = [value for value, words in table.items() if re.search(rf"\b(?:{words})\b", text)]
    assert len(hits) == 1, f"{text!r} says {hits}"
    return hits[0]


def things(text: str) -> list[str]:
    """Names of figures and companions in order of mention, in the singular."""
    singular = {"crosses": "cross", "hourglasses": "hourglass"} | {f"{n}s": n for n in FAMILY}
    words = [singular.get(word, word) for word in text.split()]
    return [word for word in words if word in FAMILY]


def read_place(text: str) -> str:
    """The figure's place from "<thing> ... <place> ... <thing>", whichever comes first."""
    place = only({v: v for v in PLACES}, text)
    first = FAMILY[things(text)[0]]
    return PLACES[place] if first == "shape" else MIRROR[PLACES[place]]


def read_clause(text: str, scene: dict[str, str]) -> tuple[str, str]:
    """(attribute, new value) that one clause asks for: a reader that knows English but not the templates."""
    wanted = re.sub(r" (?:instead of|and not) .*", "", text)
    if re.search(r"\b(background|behind)\b", text):
        return "background", only(WALL_WORDS, text)
    if re.search(rf"\b({'|'.join(PLACES)})\b", text):
        return "relation", read_place(text)
    if re.search(rf"\b({'|'.join(SIZE_WORDS.values())})\b", wanted):
        return "size", only(SIZE_WORDS, wanted)
    now = NUMBERS.index(scene["count"])
    step = {"add": 1, "more": 1, "remove": -1, "take away": -1, "less": -1}
    for word, sign in step.items():
        if re.search(rf"\b{word}\b", text):
            return "count", NUMBERS[now + sign * (NUMBERS.index(only({n: n for n in NUMBERS}, text)) + 1)]
    if number := re.search(rf"\b({'|'.join(NUMBERS)})\b", wanted):
        return "count", number[1]
    if colour := re.search(rf"\b({COLOURS})\b", wanted):
        return ("colour" if FAMILY[things(text)[0]] == "shape" else "other_colour"), colour[1]
    one, two = things(text)
    assert FAMILY[one] == FAMILY[two]
    return FAMILY[one], one if "instead" in text else two


def read_caption(text: str, scene: dict[str, str]) -> dict[str, str]:
    """Everything a caption asks for of a reference with the attributes `scene`."""
    scene, said = dict(scene), {}
    for part in re.split(r" and (?!not\b)", text.removeprefix("same scene but ")):
        attribute, new = read_clause(part, scene)
        known = [thing for thing in things(part) if thing in (scene["shape"], scene["other"])]
        assert known or not things(part), f"{part!r} names nothing that is there"
        said[attribute] = scene[attribute] = new
    return said


def read_named(text: str, scene: dict[str, str]) -> dict[str, set[str]]:
    """Values that a caption leaves to what it names and does not change: {attribute: those that fit its words}."""
    asked = read_caption(text, scene)
    fits = {FAMILY[thing]: {thing} for thing in things(text) if FAMILY[thing] not in asked}
    plural = {word not in FAMILY for word in text.split() for thing in things(word) if FAMILY[thing] == "other"}
    if plural and "count" not in asked:
        assert len(plural) == 1
        fits["count"] = set(NUMBERS[1:]) if plural.pop() else {"one"}
    return fits


def read_description(text: str) -> dict[str, str]:
    figure = re.search(rf"(\w+) ({COLOURS}) (\w+)", re.sub(rf"\b({'|'.join(NUMBERS)}) \w+ \w+", "", text))
    others = re.search(rf"\b({'|'.join(NUMBERS)}) ({COLOURS}) (\w+)", text)
    wall = text.replace(figure[0], "").replace(others[0], "")
    return {
        "shape": things(figure[3])[0],
        "colour": figure[2],
        "size": only(SIZE_WORDS, figure[1]),
        "relation": read_place(text),
        "count": others[1],
        "other": things(others[3])[0],
        "other_colour": others[2],
        "background": only(WALL_WORDS, wall),
    }


def read_concept(text: str) -> dict[str, str]:
    said = {FAMILY[thing]: thing for thing in things(text)}
    if colour := re.search(rf"\b({COLOURS})\b", text):
        said["colour" if "shape" in said else "other_colour"] = colour[1]
    if number := re.search(rf"\b({'|'.join(NUMBERS)})\b", text):
        said["count"] = number[1]
    if size := re.search(r"\b(small|large)\b", text):
        said["size"] = size[1]
    return said


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def read_json(path: Path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return build_scenes(tmp_path_factory.mktemp("worlds"), TINY, progress=False)


# ---------------------------------------------------------------- bytes and building


def test_another_process_writes_the_same_bytes(world, tmp_path):
    code = (
        "import sys, numpy, random; from pathlib import Path; numpy.random.seed(3); numpy.random.rand(5)\n"
        "from cirkit.data.scenes import ScenesRecipe, build_scenes\n"
        f"build_scenes(Path(sys.argv[1]), ScenesRecipe(**{dataclasses.asdict(TINY)!r}), progress=False)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        cwd=Path(module.__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "123"},
    )
    again = digests(tmp_path / world.name)
    assert len(again) == GROUP * 26 + 200 + 6 + 3 + 2 + 3
    assert again == digests(world)


def test_evaluation_does_not_depend_on_the_size_of_training(world, tmp_path):
    other = build_scenes(tmp_path, dataclasses.replace(TINY, train_groups=9, train_triplets=30), progress=False)
    assert other.name != world.name
    for name in ("val", "test1"):
        one, two = (read_json(w / "captions" / f"cap.rc2.{name}.json") for w in (world, other))
        assert [entry | {"pairid": 0} for entry in one] == [entry | {"pairid": 0} for entry in two]
    for name in ("dev", "test1", "circo"):
        assert digests(world / name) == digests(other / name)


def test_seed_changes_every_picture(world, tmp_path):
    other = build_scenes(tmp_path, dataclasses.replace(TINY, seed=8), progress=False)
    pictures = [{v for k, v in digests(w).items() if k.endswith(".png")} for w in (world, other)]
    assert len(pictures[0]) == len(pictures[1]) == GROUP * 26 + 200 and not pictures[0] & pictures[1]


def test_rebuilding_a_complete_world_writes_nothing(world, monkeypatch):
    def fail(*_):
        raise AssertionError("rebuilt")

    monkeypatch.setattr(module, "write_world", fail)
    assert build_scenes(world.parent, TINY) == world


def test_interrupted_build_does_not_count(tmp_path, monkeypatch):
    drawn = []

    def draw(*args, **kwargs):
        drawn.append(1)
        if len(drawn) == 11:
            raise KeyboardInterrupt
        return draw_scene(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, "draw_scene", draw)
        with pytest.raises(KeyboardInterrupt):
            build_scenes(tmp_path, TINY, progress=False)
    assert not is_complete(tmp_path / f"scenes-{TINY.digest}", TINY)
    assert is_complete(build_scenes(tmp_path, TINY, progress=False), TINY)


@pytest.mark.parametrize("lost", ["dataset.json", "dev/*", "train/*/*", "circo/COCO2017_unlabeled/unlabeled2017/*"])
def test_damaged_world_is_built_again(world, tmp_path, lost):
    folder = build_scenes(tmp_path, TINY, progress=False)
    sorted(folder.glob(lost))[0].unlink()
    assert not is_complete(folder, TINY)
    build_scenes(tmp_path, TINY, progress=False)
    assert digests(folder) == digests(world)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"train_groups": 12.5}, r"train_groups is 12\.5"),
        ({"train_groups": 4000}, "24084 images are more than an eighth"),
        ({"circo_images": 9000}, "circo_images is 9000, the most is 2304"),
    ],
)
def test_impossible_recipes_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(TINY, **change)


def test_too_many_queries_are_refused(tmp_path):
    with pytest.raises(DataError, match="5000 val triplets are wanted"):
        build_scenes(tmp_path, dataclasses.replace(TINY, eval_triplets=5000), progress=False)
    with pytest.raises(DataError, match="99 test queries of circo/ are wanted, .* circo_images 4"):
        build_scenes(tmp_path, dataclasses.replace(TINY, circo_images=4, circo_val=1, circo_test=99), progress=False)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- layout and splits


def test_layout_is_that_of_cirr(world):
    pairs, listed = [], []
    for split, folder in zip(SPLITS, ("train", "dev", "test1"), strict=True):
        paths = read_json(world / "image_splits" / f"split.rc2.{split}.json")
        assert all(re.fullmatch(rf"{folder}-\d+-[01]-img[01]", image) for image in paths)
        assert all(re.fullmatch(rf"\./{folder}/(\d/)?{image}\.png", path) for image, path in paths.items())
        with Image.open(world / next(iter(paths.values()))) as image:
            assert (image.mode, image.size) == ("RGB", (16, 16))
        listed += paths
        entries = read_json(world / "captions" / f"cap.rc2.{split}.json")
        for entry in entries:
            assert set(entry) == {"pairid", "reference", "target_hard", "target_soft", "caption", "img_set"}
            assert set(entry["img_set"]) == {"id", "members", "reference_rank", "target_rank"}
            assert entry["target_soft"] == {entry["target_hard"]: 1.0}
            assert len(set(entry["img_set"]["members"])) == GROUP
            assert {entry["reference"], entry["target_hard"]} <= set(entry["img_set"]["members"]) <= set(paths)
        pairs += [entry["pairid"] for entry in entries]
    assert pairs == list(range(90))
    assert len(set(listed)) == len(listed) == GROUP * 26


@pytest.mark.parametrize(("split", "n", "images"), [("train", 50, 72), ("val", 20, 42), ("test1", 20, 42)])
def test_the_reader_of_cirr_reads_it(world, split, n, images):
    triplets = load_cirr(world, split)
    assert (triplets.name, len(triplets), len(triplets.galleries[""])) == ("scenes", n, images)
    assert triplets.has_targets and triplets.exclude_reference
    assert not cirr_images(world).missing(triplets.image_ids())


@pytest.mark.parametrize(("split", "n"), [("val", 25), ("test", 15)])
def test_the_reader_of_circo_reads_it(world, split, n):
    triplets = load_circo(world / "circo", split)
    assert (triplets.name, len(triplets), len(triplets.galleries[""])) == ("scenes-circo", n, 200)
    assert not circo_images(world / "circo").missing(triplets.image_ids())
    assert set(attributes(world / "circo").index) == set(triplets.galleries[""])
    for reference, target, answers in zip(triplets.references, triplets.targets, triplets.ground_truths, strict=True):
        assert 1 <= len(answers) <= 14 and target == answers[0] and reference not in answers
    assert all(
        found and found == tuple(aspects(text)) for found, text in zip(triplets.aspects, triplets.texts, strict=True)
    )


def test_counts_of_the_default_world():
    table = module.image_table(DEFAULT_RECIPE)
    assert table["split"].value_counts().to_dict() == {"train": 2400, "val": 900, "test1": 900}
    assert table["id"].is_unique and table["path"].is_unique
    assert not table.duplicated(NAMES).any()


def test_held_out_values_are_only_in_the_circo_part(world):
    cirr, circo = attributes(world), attributes(world / "circo")
    for name, values in HELD_OUT.items():
        assert not set(cirr[name]) & set(values)
        assert set(circo[name]) == set(values)
    assert not circo.duplicated().any()


def test_members_of_a_group_look_alike_and_ids_do_not_say_so(world):
    truth = attributes(world)
    triplets = load_cirr(world, "val")
    for members in triplets.subsets:
        scenes = truth.loc[list(members)]
        assert (scenes.nunique() > 1).sum() <= 3
    numbers = truth.index[truth.index.str.startswith("dev")].str.extract(r"-(\d+)-")[0].astype(int)
    assert numbers.diff().abs().median() > 1


def test_changes_are_spread_over_attributes():
    table = module.image_table(DEFAULT_RECIPE)
    _, truth = module.split_triplets(DEFAULT_RECIPE, table[table["split"] == "val"], "val")
    counts = truth["attribute"].value_counts()
    assert set(counts.index) == set(NAMES) and counts.max() < 1.6 * counts.min()
    assert 0.4 < (truth.groupby("pairid").size() == 1).mean() < 0.5


# ---------------------------------------------------------------- truth and texts


@pytest.mark.parametrize("split", SPLITS)
def test_texts_and_changes_say_what_the_truth_says(world, split):
    truth, triplets = attributes(world), load_cirr(world, split)
    changes = pd.read_csv(world / "changes.csv", dtype=str, keep_default_na=False).groupby("pairid")
    for query, (reference, text, target, _) in zip(triplets.query_ids, triplets, strict=True):
        old, new = truth.loc[reference], truth.loc[target]
        wanted = {name: new[name] for name in NAMES if old[name] != new[name]}
        assert 1 <= len(wanted) <= 2
        assert read_caption(text, dict(old)) == wanted
        rows = changes.get_group(query)
        assert dict(zip(rows["attribute"], rows["new"], strict=True)) == wanted
        assert (rows["old"].to_numpy() == old[rows["attribute"]].to_numpy()).all()
        assert set(rows["split"]) == {split} and set(rows["reference"]) == {reference}


@pytest.mark.parametrize("split", SPLITS)
def test_the_target_is_unique(world, split):
    """In the gallery as the reference with just the change; among the six as what satisfies the text."""
    truth, triplets = attributes(world), load_cirr(world, split)
    gallery = triplets.galleries[""]
    query = (truth, triplets.references, triplets.targets, gallery)
    full = (relevance(*query) == 1) & (preservation(*query) == 1)
    assert (full.sum(axis=1) == 1).all()
    assert [gallery[g] for g in full.argmax(axis=1)] == list(triplets.targets)
    for reference, target, members in zip(triplets.references, triplets.targets, triplets.subsets, strict=True):
        satisfied = relevance(truth, [reference], [target], members)[0] == 1
        assert satisfied.sum() == 1 and members[satisfied.argmax()] == target


@pytest.mark.parametrize("split", ["val", "test"])
def test_right_answers_are_all_that_meet_concept_and_text(world, split):
    truth = attributes(world / "circo")
    for entry in read_json(world / "circo" / "annotations" / f"{split}.json"):
        reference = truth.loc[str(entry["reference_img_id"])].to_dict()
        asked = read_caption(entry["relative_caption"], reference)
        kept = read_concept(entry["shared_concept"])
        assert len(kept) == 2 and all(reference[name] == value for name, value in kept.items())
        assert all(reference[name] != value for name, value in asked.items())
        wanted = pd.Series(kept | asked)
        meets = (truth[list(wanted.index)] == wanted).all(axis=1)
        for name, fitting in read_named(entry["relative_caption"], reference).items():
            meets &= truth[name].isin(fitting)
        meets = truth.index[meets]
        assert sorted(map(str, entry["gt_img_ids"])) == sorted(meets)


@pytest.mark.parametrize(("split", "n"), [("val", 220), ("test", 400)])
def test_no_right_answer_contradicts_its_text(split, n):
    """In the default world: neither what a text asks for nor what it only names, and no "same scene" of other ones."""
    images = module.circo_images(DEFAULT_RECIPE)
    truth = images.set_index("id")[NAMES]
    stream = np.random.default_rng([DEFAULT_RECIPE.seed, module._QUERIES, ("val", "test").index(split)])
    entries = module.circo_queries(images, n, stream)
    assert len(entries) == n
    for entry in entries:
        text, answers = entry["relative_caption"], truth.loc[[str(i) for i in entry["gt_img_ids"]]]
        reference = truth.loc[str(entry["reference_img_id"])].to_dict()
        asked = {name: {value} for name, value in read_caption(text, reference).items()}
        for name, fitting in (asked | read_named(text, reference)).items():
            assert set(answers[name]) <= fitting, (text, name)
        assert 1 <= len(answers) <= 14 and "same" not in text


def test_the_reader_of_what_is_named():
    said = dict(zip(NAMES, ["arrow", "blue", "small", "left", "two", "hourglass", "red", "brick"], strict=True))
    assert read_named("one hourglass and make the arrow bigger", said) == {"shape": {"arrow"}, "other": {"hourglass"}}
    several = {"count": {"two", "three"}}
    assert read_named("turn the hourglasses into flowers", said) == several
    assert read_named("the arrow is right of the hourglasses", said) == several | {
        "shape": {"arrow"},
        "other": {"hourglass"},
    }
    assert read_named("on a zigzag background", said) == {}


scene = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in ALL_VALUES.items()})


@given(scene, scene, st.permutations(NAMES), st.integers(1, 2), st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_captions_of_any_change_can_be_read_back(reference, other, order, count, seed):
    changes = [(name, other[name]) for name in order if reference[name] != other[name]][:count]
    if changes:
        text = change_caption(reference, changes, np.random.default_rng(seed))
        assert read_caption(text, reference) == dict(changes)
        assert len(text.split()) <= 28


@given(scene, st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_descriptions_name_every_attribute(values, seed):
    text = description(values, np.random.default_rng(seed))
    assert read_description(text) == values
    assert len(text.split()) <= 28


def test_concepts_name_what_is_kept():
    values = dict(zip(NAMES, ["arrow", "blue", "small", "left", "two", "hourglass", "red", "brick"], strict=True))
    said = [concept(values, kept) for kept in CONCEPTS]
    assert said == ["a blue arrow", "red hourglasses", "an arrow and hourglasses", "a small arrow", "two hourglasses"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("add one heart", {"cardinality", "addition"}),
        ("the star is red and not blue", {"negation", "direct_addressing"}),
        ("has nothing in the background", {"negation", "spatial_relations_background"}),
        ("a ring instead of a moon", {"compare_change"}),
        ("a bigger star", {"comparative_statement"}),
        ("red rings and a white star", {"statement_with_conjunction"}),
        ("a red star", set()),
    ],
)
def test_aspects_are_read_off_the_words(text, found):
    assert set(aspects(text)) == found


def test_vocabulary_is_exactly_what_is_said():
    rng = np.random.default_rng(0)
    said: set[str] = {"and"}
    for _ in range(6000):
        old, new = ({n: v[rng.integers(len(v))] for n, v in ALL_VALUES.items()} for _ in range(2))
        changes = [(name, new[name]) for name in NAMES if old[name] != new[name]]
        some = [changes[i] for i in rng.permutation(len(changes))[:2]]
        said.update(change_caption(old, some, rng).split(), description(new, rng).split())
        said.update(concept(old, CONCEPTS[rng.integers(len(CONCEPTS))]).split())
    assert vocabulary() == sorted(said)
    assert 90 <= len(said) <= 120


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", NAMES)
def test_every_attribute_is_visible(name):
    """Under the same nuisance, another value changes at least 1 % of the 48 x 48 pixels by 40 grey levels."""
    rng = np.random.default_rng(1)
    for trial in range(60):
        values = {n: v[rng.integers(len(v))] for n, v in ALL_VALUES.items()}
        one, two = rng.permutation(len(ALL_VALUES[name]))[:2]
        a, b = (
            draw_scene(**values | {name: ALL_VALUES[name][k]}, rng=np.random.default_rng(trial)) for k in (one, two)
        )
        changed = (abs(a.astype(int) - b.astype(int)).max(axis=-1) > 40).mean()
        assert changed >= 0.01, (values, ALL_VALUES[name][one], ALL_VALUES[name][two])


def test_images_of_one_vector_differ():
    values = {name: known[-1] for name, known in ALL_VALUES.items()}
    pictures = [draw_scene(**values, rng=np.random.default_rng(seed)) for seed in range(5)]
    assert all(p.shape == (48, 48, 3) and p.dtype == np.uint8 for p in pictures)
    assert len({p.tobytes() for p in pictures}) == 5


def test_unknown_values_are_refused():
    values = {name: known[0] for name, known in ALL_VALUES.items()}
    with pytest.raises(ValueError, match="relation 'inside' is unknown"):
        draw_scene(**values | {"relation": "inside"}, rng=np.random.default_rng(0))


# ---------------------------------------------------------------- stage 1


def test_stage1_vectors_are_not_those_of_evaluation(world):
    recipe = dataclasses.replace(DEFAULT_RECIPE, size=4)
    _, _, truth = stage1_images(recipe, n=800, progress=False)
    table = module.image_table(recipe)
    held_out = set(map(tuple, table.loc[table["split"] != "train", NAMES].to_numpy()))
    held_out |= set(map(tuple, module.circo_images(recipe)[NAMES].to_numpy()))
    assert len(held_out) == 2 * 900 + 900
    assert not held_out & set(map(tuple, truth.to_numpy()))
    for name, values in ALL_VALUES.items():
        assert set(truth[name]) == set(values)


def test_stage1_images_are_a_growing_sequence_of_groups_with_true_captions(world):
    pixels, captions, truth = stage1_images(TINY, 17, progress=False)
    fewer, first_captions, _ = stage1_images(TINY, 11, progress=False)
    assert pixels.shape == (17, 16, 16, 3) and pixels.dtype == np.uint8
    assert (pixels[:11] == fewer).all() and captions[:11] == first_captions
    assert [read_description(caption) for caption in captions] == truth.to_dict("records")
    for start in (0, STAGE1_GROUP):
        group = truth[start : start + STAGE1_GROUP]
        assert not group.duplicated().any() and (group.nunique() > 1).sum() <= 3
    with pytest.raises(DataError, match="n is 0"):
        stage1_images(TINY, 0)
