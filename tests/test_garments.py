"""The world `garments`: same bytes every time, honest splits, texts that say what the truth says."""

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

from cirkit.data import DataError, load_fashioniq
from cirkit.data import garments as module
from cirkit.data.garment_drawing import draw_garment
from cirkit.data.garment_texts import change_captions, description
from cirkit.data.garments import (
    ATTRIBUTES,
    CATEGORIES,
    DEFAULT_RECIPE,
    SPLITS,
    GarmentsRecipe,
    attributes,
    build_garments,
    is_complete,
    preservation,
    relevance,
    split_vectors,
    stage1_images,
    vocabulary,
)

TINY = GarmentsRecipe(size=16, train_images=30, gallery_images=30, train_triplets=40, eval_triplets=12, seed=7)
NAMES = list(ATTRIBUTES)

# A reader of the texts that knows English but not the templates.
PATTERN_WORDS = {
    "solid": r"plain|solid|no pattern|without any pattern",
    "striped": r"striped|stripes",
    "pinstriped": r"pinstriped|pinstripes|lines",
    "checked": r"checked|checks|plaid",
    "dotted": r"dotted|dots",
    "floral": r"floral|flowers",
}
NECK_WORDS = {"round": r"round|scoop", "v": r"v", "collar": r"collar|collared", "high": r"high|turtleneck"}
SLEEVE_WORDS = {
    "sleeveless": r"sleeveless|no sleeves|without sleeves|remove the sleeves",
    "short": r"(?:short|shorter) (?:sleeves|sleeved)|sleeves short",
    "long": r"(?:long|longer) (?:sleeves|sleeved)|sleeves long",
}
LENGTH_WORDS = {"short": r"short|shorter|cropped", "long": r"long|longer"}


def read_text(text: str) -> dict[str, str]:
    """{attribute: value} that a text names; fails on a text that contradicts itself."""
    found: dict[str, str] = {}
    rest = re.sub(r"\b(?:instead of|not) \w+", "", text)
    tables = {"sleeve": SLEEVE_WORDS, "pattern": PATTERN_WORDS, "neckline": NECK_WORDS}
    tables |= {"length": LENGTH_WORDS, "colour": {colour: colour for colour in ATTRIBUTES["colour"]}}
    for attribute, words in tables.items():
        hits = [value for value, pattern in words.items() if re.search(rf"\b(?:{pattern})\b", rest)]
        assert len(hits) <= 1, f"{text!r} names {attribute} {hits}"
        found.update((attribute, hit) for hit in hits)
        if attribute == "sleeve":  # its "long" and "short" say nothing about the length of the garment
            rest = re.sub("|".join(words.values()), "", rest)
    return found


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return build_garments(tmp_path_factory.mktemp("worlds"), TINY, progress=False)


def read_json(world: Path, kind: str, category: str, split: str) -> list:
    folder = {"cap": "captions", "split": "image_splits"}[kind]
    return json.loads((world / folder / f"{kind}.{category}.{split}.json").read_text())


# ---------------------------------------------------------------- bytes


def test_another_process_writes_the_same_bytes(world, tmp_path):
    code = (
        "import sys, numpy, random; from pathlib import Path; numpy.random.seed(3); numpy.random.rand(5)\n"
        "from cirkit.data.garments import GarmentsRecipe, build_garments\n"
        f"build_garments(Path(sys.argv[1]), GarmentsRecipe(**{dataclasses.asdict(TINY)!r}), progress=False)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        cwd=Path(module.__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "123"},
    )
    again = digests(tmp_path / world.name)
    assert len(again) == 3 * 90 + 9 + 9 + 3
    assert again == digests(world)


def test_an_image_does_not_depend_on_the_number_of_others(world, tmp_path):
    """More triplets and fewer training images leave the pictures of val alone (ids are dealt out anew)."""
    fewer = dataclasses.replace(TINY, train_images=20, train_triplets=25, images_per_vector=1)
    other = build_garments(tmp_path, fewer, progress=False)
    for category in CATEGORIES:
        pairs = zip(*(read_json(w, "split", category, "val") for w in (world, other)), strict=True)
        for a, b in pairs:
            one, two = (w / "images" / f"{i}.png" for w, i in ((world, a), (other, b)))
            assert one.read_bytes() == two.read_bytes()


def test_seed_changes_pictures_and_folder(world, tmp_path):
    other = build_garments(tmp_path, dataclasses.replace(TINY, seed=8), progress=False)
    assert other.name != world.name
    assert not set(digests(other / "images").values()) & set(digests(world / "images").values())


def test_images_of_one_vector_differ():
    values = dict(zip(["category", *NAMES], ["shirt", "teal", "long", "dotted", "v", "short"], strict=True))
    pictures = [draw_garment(**values, rng=np.random.default_rng(seed)) for seed in range(5)]
    assert all(p.shape == (48, 48, 3) and p.dtype == np.uint8 for p in pictures)
    assert len({p.tobytes() for p in pictures}) == 5


# ---------------------------------------------------------------- building


def test_rebuilding_a_complete_world_writes_nothing(world, monkeypatch):
    def fail(*_):
        raise AssertionError("rebuilt")

    monkeypatch.setattr(module, "write_world", fail)
    assert build_garments(world.parent, TINY) == world


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_build_does_not_count(tmp_path, monkeypatch, error):
    drawn = []

    def draw(*args, **kwargs):
        drawn.append(1)
        if len(drawn) == 11:
            raise error("stop")
        return draw_garment(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, "draw_garment", draw)
        with pytest.raises(error):
            build_garments(tmp_path, TINY, progress=False)
    assert not is_complete(tmp_path / f"garments-{TINY.digest}", TINY)
    assert is_complete(build_garments(tmp_path, TINY, progress=False), TINY)


@pytest.mark.parametrize("lost", ["dataset.json", "image"])
def test_damaged_world_is_built_again(world, tmp_path, lost):
    folder = build_garments(tmp_path, TINY, progress=False)
    gone = folder / lost if lost == "dataset.json" else sorted((folder / "images").iterdir())[3]
    gone.unlink()
    assert not is_complete(folder, TINY)
    build_garments(tmp_path, TINY, progress=False)
    assert digests(folder) == digests(world)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_two_builders_at_once(world, tmp_path, monkeypatch):
    write = module.write_world

    def slow_write(folder, recipe, progress):
        write(folder, recipe, progress)
        monkeypatch.setattr(module, "write_world", write)
        build_garments(tmp_path, recipe, progress=False)  # the other builder is done first

    monkeypatch.setattr(module, "write_world", slow_write)
    folder = build_garments(tmp_path, TINY, progress=False)
    assert digests(folder) == digests(world)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"train_images": 12.5}, r"train_images is 12\.5"),
        ({"gallery_images": 900}, "2300 attribute vectors"),
    ],
)
def test_impossible_recipes_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        GarmentsRecipe(**change)


def test_too_many_triplets_are_refused(tmp_path):
    with pytest.raises(DataError, match="5000 triplets a category are wanted"):
        build_garments(tmp_path, dataclasses.replace(TINY, eval_triplets=5000), progress=False)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- layout and splits


def test_layout_is_that_of_fashioniq(world):
    listed = []
    for category in CATEGORIES:
        for split in SPLITS:
            gallery = read_json(world, "split", category, split)
            entries = read_json(world, "cap", category, split)
            assert len(gallery) == 30 and len(entries) == (40 if split == "train" else 12)
            for entry in entries:
                assert set(entry) == {"target", "candidate", "captions"}
                assert {entry["target"], entry["candidate"]} <= set(gallery)
                assert len(entry["captions"]) == 2 and entry["captions"][0] != entry["captions"][1]
            listed += gallery
    assert len(set(listed)) == len(listed) == 270
    assert all(re.fullmatch(r"GD\d{8}", i) for i in listed)
    assert {path.name for path in (world / "images").iterdir()} == {f"{i}.png" for i in listed}
    with Image.open(world / "images" / f"{listed[0]}.png") as image:
        assert (image.mode, image.size) == ("RGB", (16, 16))


@pytest.mark.parametrize("split", SPLITS)
def test_the_reader_of_fashioniq_reads_it(world, split):
    triplets = load_fashioniq(world, split)
    assert triplets.name == "garments"
    assert sorted(triplets.galleries) == list(CATEGORIES)
    assert triplets.has_targets and len(triplets) == 3 * (40 if split == "train" else 12)


def test_ids_tell_nothing(world):
    """Numbers in ids are a shuffle: their order says neither split nor category."""
    truth = attributes(world)
    numbers = truth.index.str[2:].astype(int)
    means = pd.Series(numbers, index=truth["category"].to_numpy()).groupby(level=0).mean()
    assert (abs(means - 134.5) < 30).all()  # three standard errors of a mean of 90 among 0..269: 24.6


def test_counts_of_the_default_world():
    table = module.image_table(DEFAULT_RECIPE)
    counts = table.groupby(["category", "split"]).size().unstack()
    assert (counts["train"] == 1000).all() and (counts[["val", "test"]] == 600).all(axis=None)
    assert table["id"].is_unique
    vectors = table.assign(vector=table[NAMES].agg(" ".join, axis=1)).groupby(["category", "split"])["vector"]
    for category in CATEGORIES:
        train, val, test = (vectors.get_group((category, split)) for split in SPLITS)
        assert val.is_unique and test.is_unique
        assert not (set(train) & set(val) or set(train) & set(test) or set(val) & set(test))
        assert (train.value_counts() == 2).all()


def test_changes_are_spread_evenly_over_attributes():
    """Of 400, 200 change one attribute (40 each) and 200 two (20 a pair, an attribute is in 4): 120 each."""
    table = module.image_table(DEFAULT_RECIPE)
    images = table[(table["split"] == "val") & (table["category"] == "shirt")]
    entries, truth = module.split_triplets(DEFAULT_RECIPE, images, "val", "shirt")
    assert len({(e["candidate"], e["target"]) for e in entries}) == 400
    assert (abs(truth["attribute"].value_counts() - 120) <= 5).all()
    assert abs((truth.groupby("row").size() == 1).sum() - 200) <= 5


# ---------------------------------------------------------------- truth and texts


def test_texts_and_changes_say_what_the_truth_says(world):
    truth = attributes(world)
    changes = pd.read_csv(world / "changes.csv", keep_default_na=False)
    for (split, category), listed in changes.groupby(["split", "category"]):
        entries = read_json(world, "cap", category, split)
        assert set(listed["row"]) == set(range(len(entries)))
        for row, entry in enumerate(entries):
            old, new = truth.loc[entry["candidate"]], truth.loc[entry["target"]]
            assert old["category"] == new["category"] == category
            wanted = {name: new[name] for name in NAMES if old[name] != new[name]}
            before = {name: old[name] for name in wanted}
            assert len(wanted) in (1, 2)
            rows = listed[listed["row"] == row]
            assert dict(zip(rows["attribute"], rows["new"], strict=True)) == wanted
            assert dict(zip(rows["attribute"], rows["old"], strict=True)) == before
            said = [read_text(caption) for caption in entry["captions"]]
            assert said[0] | said[1] == wanted == said[1] | said[0]


vector = st.tuples(*(st.sampled_from(values) for values in ATTRIBUTES.values()))


@given(
    vector,
    vector,
    st.permutations(NAMES),
    st.integers(1, 2),
    st.sampled_from(CATEGORIES),
    st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_captions_of_any_change_can_be_read_back(reference, other, order, count, category, seed):
    changes = [(n, reference[NAMES.index(n)], other[NAMES.index(n)]) for n in order]
    changes = [change for change in changes if change[1] != change[2]][:count]
    if not changes:
        return
    captions = change_captions(category, changes, np.random.default_rng(seed))
    wanted = {name: new for name, _, new in changes}
    said = [read_text(caption) for caption in captions]
    assert said[0] | said[1] == wanted
    assert all(len(caption.split()) <= 8 for caption in captions)
    old = {name: value for name, value, _ in changes}
    for caption in captions:
        if re.search("longer sleeves|shorter sleeves", caption):  # has one meaning only
            assert {old["sleeve"], wanted["sleeve"]} == {"short", "long"}
        if named := re.search(r"(?:instead of|not) (\w+)", caption):
            assert named[1] == old["colour"]


@given(vector, st.sampled_from(CATEGORIES), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_descriptions_name_every_attribute(values, category, seed):
    wanted = dict(zip(NAMES, values, strict=True))
    assert read_text(description(category, wanted, np.random.default_rng(seed))) == wanted


def test_vocabulary_is_exactly_what_is_said():
    rng = np.random.default_rng(0)
    said: set[str] = {"and"}
    for _ in range(6000):
        old, new = ([values[rng.integers(len(values))] for values in ATTRIBUTES.values()] for _ in range(2))
        category = CATEGORIES[rng.integers(3)]
        changes = [c for c in zip(NAMES, old, new, strict=True) if c[1] != c[2]]
        if changes:
            some = [changes[i] for i in rng.permutation(len(changes))[:2]]
            said.update(" ".join(change_captions(category, some, rng)).split())
        said.update(description(category, dict(zip(NAMES, new, strict=True)), rng).split())
    assert vocabulary() == sorted(said)
    assert 60 <= len(said) <= 110


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", NAMES)
def test_every_attribute_is_visible(name):
    """Under the same nuisance, another value changes at least 1 % of the 48 x 48 pixels by 40 grey levels."""
    rng = np.random.default_rng(1)
    for trial in range(60):
        values = {n: v[rng.integers(len(v))] for n, v in ATTRIBUTES.items()}
        category = CATEGORIES[trial % 3]
        one, two = rng.permutation(len(ATTRIBUTES[name]))[:2]
        a, b = (
            draw_garment(category, **values | {name: ATTRIBUTES[name][k]}, rng=np.random.default_rng(trial))
            for k in (one, two)
        )
        changed = (abs(a.astype(int) - b.astype(int)).max(axis=-1) > 40).mean()
        assert changed >= 0.01, (category, values, ATTRIBUTES[name][one], ATTRIBUTES[name][two])


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match="pattern 'paisley' is unknown"):
        draw_garment("shirt", "red", "long", "paisley", "v", "long", rng=np.random.default_rng(0))


# ---------------------------------------------------------------- stage 1


def test_stage1_vectors_are_not_those_of_val_and_test():
    _, _, truth = stage1_images(dataclasses.replace(DEFAULT_RECIPE, size=4), n=600, progress=False)
    for category in CATEGORIES:
        vectors = split_vectors(DEFAULT_RECIPE, category)
        held_out = {tuple(module.named(v).values()) for s in ("val", "test") for v in vectors[s]}
        assert len(held_out) == 1200
        seen = set(truth.loc[truth["category"] == category, NAMES].itertuples(index=False, name=None))
        assert len(seen) > 100 and not seen & held_out


def test_stage1_images_are_a_growing_sequence_with_true_captions(world):
    pixels, captions, truth = stage1_images(TINY, 9, progress=False)
    fewer, first_captions, _ = stage1_images(TINY, 5, progress=False)
    assert pixels.shape == (9, 16, 16, 3) and pixels.dtype == np.uint8
    assert (pixels[:5] == fewer).all() and captions[:5] == first_captions
    assert [read_text(caption) for caption in captions] == truth[NAMES].to_dict("records")
    built = [np.asarray(Image.open(path)).tobytes() for path in (world / "images").iterdir()]
    assert not {p.tobytes() for p in pixels} & set(built)
    with pytest.raises(DataError, match="n is 0"):
        stage1_images(TINY, 0)


# ---------------------------------------------------------------- graded relevance


@pytest.fixture
def graded():
    rng = np.random.default_rng(5)
    ids = [f"id{k}" for k in range(40)]
    truth = pd.DataFrame({n: rng.choice(v[:3], 40) for n, v in ATTRIBUTES.items()}, index=ids)
    truth.insert(0, "category", "shirt")
    return truth, ids[:7], ids[10:17], ids[15:40]


def test_relevance_and_preservation_match_a_slow_loop(graded):
    truth, references, targets, gallery = graded
    satisfied, kept = relevance(*graded), preservation(*graded)
    assert satisfied.shape == kept.shape == (7, 25)
    for q, (reference, target) in enumerate(zip(references, targets, strict=True)):
        asked = [n for n in truth if truth.loc[reference, n] != truth.loc[target, n]]
        rest = [n for n in truth if n not in asked]
        for g, image in enumerate(gallery):
            hits = [truth.loc[image, n] == truth.loc[target, n] for n in asked]
            same = [truth.loc[image, n] == truth.loc[reference, n] for n in rest]
            assert satisfied[q, g] == pytest.approx(np.mean(hits))
            assert kept[q, g] == pytest.approx(np.mean(same))


def test_in_val_exactly_the_target_scores_full_in_both(world):
    truth = attributes(world)
    for split in ("val", "test"):
        triplets = load_fashioniq(world, split)
        for category, gallery in triplets.galleries.items():
            rows = [i for i, c in enumerate(triplets.categories) if c == category]
            references = [triplets.references[i] for i in rows]
            targets = [triplets.targets[i] for i in rows]
            query = (truth, references, targets, gallery)
            full = (relevance(*query) == 1) & (preservation(*query) == 1)
            assert (full.sum(axis=1) == 1).all()
            assert [gallery[g] for g in full.argmax(axis=1)] == targets


def test_relevance_refuses_what_it_cannot_grade(graded, tmp_path):
    truth, references, targets, gallery = graded
    with pytest.raises(DataError, match="1 queries request nothing.*id3 to id3"):
        relevance(truth, references, [*targets[:3], "id3", *targets[4:]], gallery)
    with pytest.raises(DataError, match="1 ids have no attributes: nobody"):
        relevance(truth, references, targets, ["nobody", *gallery])
    with pytest.raises(DataError, match="6 references but 7 targets"):
        preservation(truth, references[:6], targets, gallery)
    with pytest.raises(DataError, match="attributes.csv does not exist"):
        attributes(tmp_path)
