"""The kinds `hard` and `partial`: a slow loop says what they must do, and all kinds mix on untouched rows only."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_triplets import coarse, distinct, make, slots

from cirkit import noise_kinds
from cirkit.clauses import clauses, part_spans, replace_clause
from cirkit.data.fashioniq import load_fashioniq
from cirkit.noise import corrupt, selected_count

WORDS = ("red", "long sleeves", "a collar", "dots", "lace")


def few(n: int, images: int, seed: int, **fields):
    """Two categories whose galleries overlap, few images and few words."""
    rng = np.random.default_rng(seed)
    names = [f"i{v}" for v in rng.permutation(images)]
    pairs = [rng.choice(images, 2, replace=False) for _ in range(n)]
    captions = []
    for _ in range(n):
        drawn = rng.permutation(WORDS)[: rng.integers(1, 5)]
        captions.append((" and ".join(drawn[::2]), ", ".join(drawn[1::2])))
    return make(
        [names[a] for a, _ in pairs], captions, [names[b] for _, b in pairs],
        [f"c{v}" for v in rng.integers(2, size=n)], galleries={"c0": names, "c1": names[::-1][: images - 1]}, **fields,
    )  # fmt: skip


# --- hard: the target becomes the look-alike of the reference -------------------------------------------


def slow_hard_target(before, row: int) -> str:
    """One pair at a time: the most alike, in a tie the first id."""
    best, best_score = None, -1
    used = set(before.references) | set(before.targets)
    for candidate in sorted(before.galleries[before.categories[row]]):
        if candidate in used - {before.references[row], before.targets[row]}:
            score = coarse([before.references[row]], [candidate])[0, 0]
            if score > best_score:
                best, best_score = candidate, score
    return best


@given(st.integers(1, 25), st.integers(5, 12), st.integers(0, 10**6), st.floats(0, 0.6), st.floats(0, 0.4))
@settings(max_examples=80, deadline=None)
def test_hard_target_is_what_a_slow_loop_finds(n, images, seed, earlier, rate):
    before = corrupt(few(n, images, seed), earlier, "shuffle", seed=seed)
    try:
        noisy = corrupt(before, rate, "hard", seed, coarse)
    except ValueError as error:
        assert "hard finds no image of category" in str(error)
        assert None in [slow_hard_target(before.triplets, row) for row in range(n)]
        return
    rows = np.flatnonzero(noisy.ledger.kind == "hard")
    assert len(rows) == selected_count(rate, n)
    for row, (old, new) in enumerate(zip(slots(before.triplets), slots(noisy.triplets), strict=True)):
        assert new == ((*old[:2], slow_hard_target(before.triplets, row)) if row in rows else old)
    assert (noisy.ledger.slot[rows] == "target").all() and noisy.ledger.changed[rows].all()
    assert noisy.ledger.steps[-1].slot == "target" and noisy.ledger.steps[0].slot is None


def test_hard_draws_the_rows_of_its_seed():
    picked = [corrupt(distinct(60), 0.5, "hard", seed, coarse).ledger.kind == "hard" for seed in (1, 1, 2)]
    assert (picked[0] == picked[1]).all() and (picked[0] != picked[2]).any()


@pytest.mark.parametrize("slot", ["target", "text"])
def test_chunks_change_nothing_but_the_memory(monkeypatch, slot):
    calls = []

    def counted(references, candidates):
        calls.append((len(references), len(candidates)))
        return coarse(references, candidates)

    data = few(700, 40, 3)
    whole = corrupt(data, 0.9, "hard", 1, counted, slot=slot)
    assert max(r for r, _ in calls) <= 512 and len(calls) > 1
    calls.clear()
    monkeypatch.setattr(noise_kinds, "_CHUNK_ROWS", 64)
    monkeypatch.setattr(noise_kinds, "_CHUNK_SCORES", 250)
    assert corrupt(data, 0.9, "hard", 1, counted, slot=slot).triplets == whole.triplets
    assert max(r for r, _ in calls) <= 64 and (slot == "text" or max(r * c for r, c in calls) <= 250)


@pytest.mark.parametrize("slot", ["target", "text"])
@pytest.mark.parametrize(
    "similarity, message",
    [
        (None, r"noise kind 'hard' needs similarity, a function \(references, candidates\) -> scores .* got None"),
        (np.eye(3), "noise kind 'hard' needs similarity"),
        (lambda r, c: coarse(c, r)[:-1], r"similarity gave shape \(\d+, \d+\) for \d+ references and \d+ candidates"),
        (lambda r, c: np.full((len(r), len(c)), np.nan), r"(\d+) of \1 similarities are NaN or infinite \(first"),
        (lambda r, c: np.where(coarse(r, c) == 0, np.inf, 0.0), "similarities are NaN or infinite"),
    ],
)
def test_unusable_similarities_are_one_sentence(slot, similarity, message):
    with pytest.raises(ValueError, match=message):
        corrupt(few(40, 12, 0), 0.5, "hard", similarity=similarity, slot=slot)


def test_half_precision_and_whole_numbers_are_similarities_too():
    data = few(30, 9, 1)
    found = [
        corrupt(data, 0.7, "hard", 0, lambda r, c, t=t: coarse(r, c).astype(t)).triplets for t in ("f2", "u1", "f8")
    ]
    assert found[0] == found[1] == found[2]


def test_hard_without_a_wrong_image_left():
    data = make(["a", "b"], [("x",), ("y",)], ["b", "a"])
    with pytest.raises(ValueError, match="hard finds no image of category '' but a triplet's own to make its target"):
        corrupt(data, 1.0, "hard", similarity=coarse)


# --- hard: a wrong text where reference and target look alike -------------------------------------------


@given(st.integers(4, 40), st.integers(0, 10**6), st.floats(0, 0.4), st.floats(0, 0.6), st.booleans())
@settings(max_examples=80, deadline=None)
def test_hard_text_goes_to_the_rows_that_look_most_alike(n, seed, earlier, rate, within):
    before = corrupt(few(n, 7, seed), earlier, "shuffle", seed=seed)
    count = selected_count(rate, n)
    free = [row for row in range(n) if not before.ledger.kind[row]]
    alike = {row: coarse([before.triplets.references[row]], [before.triplets.targets[row]])[0, 0] for row in free}
    expected = sorted(free, key=lambda row: (-alike[row], row))[:count]
    try:
        noisy = corrupt(before, rate, "hard", seed, coarse, within, slot="text")
    except ValueError as error:
        assert "hard cannot give each of" in str(error) and "a different text by exchange" in str(error)
        return
    assert sorted(expected) == np.flatnonzero(noisy.ledger.kind == "hard").tolist()
    old, new = before.triplets, noisy.triplets
    assert (old.references, old.targets) == (new.references, new.targets)
    assert all((old.texts[row] != new.texts[row]) == (row in expected) for row in range(n))
    for category in {"c0", "c1"} if within else {None}:
        rows = [row for row in expected if category in (None, old.categories[row])]
        assert Counter(old.captions[row] for row in rows) == Counter(new.captions[row] for row in rows)
    assert count == 0 or (set(noisy.ledger.slot[expected]) == {"text"} and noisy.ledger.steps[-1].slot == "text")


def test_hard_text_depends_on_the_seed_by_its_texts_only():
    first, second = (corrupt(distinct(60), 0.3, "hard", seed, coarse, slot="text") for seed in (1, 2))
    assert (first.ledger.kind == second.ledger.kind).all() and first.triplets != second.triplets


# --- clauses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "captions, mode, expected",
    [
        (("is red", "has a collar"), "first_and_second", ["is red", "has a collar"]),
        ((" is red and long ", "has a collar"), "random", ["is red and long", "has a collar"]),
        (("is red and long", "has a collar"), "first", ["is red", "long"]),
        (("is red and long", "a collar but no buttons"), "second", ["a collar", "no buttons"]),
        (("is red and long", "  "), "second", ["is red", "long"]),
        (("is red, and long; no dots", ""), "second_and_first", ["is red", "long", "no dots"]),
        (("Remove the dog. Add sand, AND a cat.",), "first_and_second", ["Remove the dog", "Add sand", "a cat."]),
        (("the sandy andes",), "first_and_second", ["the sandy andes"]),
        (("is red", ",."), "first_and_second", ["is red"]),
        (("", " "), "first_and_second", []),
        ((), "first_and_second", []),
    ],
)
def test_clauses_follow_what_the_model_reads(captions, mode, expected):
    assert [captions[c.caption][c.start : c.end] for c in clauses(captions, mode)] == expected


@given(st.lists(st.sampled_from(["red", "a b", " and ", " but ", ", ", ";", ". ", " ", "and", "\n", "."]), max_size=9))
def test_parts_and_what_is_between_them_make_up_the_caption(pieces):
    caption = "".join(pieces)
    spans = part_spans(caption)
    assert [edge for span in spans for edge in span] == sorted(edge for span in spans for edge in span)
    for start, end in spans:
        part = caption[start:end]
        assert part == part.strip() and re.search(r"\w", part) and not re.search(r"[,;]|\s(and|but)\s", part)
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    gaps = [caption[a:b] for a, b in zip([0, *ends], [*starts, None], strict=True)]
    assert not re.search(r"red|a b", " ".join(gaps))


@given(st.lists(st.sampled_from([*WORDS, " and ", ", ", " ", ""]), max_size=7), st.sampled_from(["first", "random"]))
def test_a_clause_replaced_by_itself_changes_nothing(pieces, mode):
    captions = ("".join(pieces[:4]), "".join(pieces[4:]))
    for clause in clauses(captions, mode):
        own = captions[clause.caption][clause.start : clause.end]
        assert replace_clause(captions, clause, own) == captions
        other = replace_clause(captions, clause, "<new>")
        assert other[clause.caption].replace("<new>", own) == captions[clause.caption]
        assert other[1 - clause.caption] == captions[1 - clause.caption]


# --- partial --------------------------------------------------------------------------------------------


def words_of(text: str) -> set[str]:
    return {part for part in re.split(r" and |, ", text) if part}


@given(
    st.integers(3, 30), st.integers(0, 10**6), st.floats(0, 0.5), st.booleans(),
    st.sampled_from(["first_and_second", "first", "second", "random"]),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_partial_replaces_one_clause_and_leaves_the_others(n, seed, rate, within, mode):
    data = few(n, 9, seed, caption_mode=mode)
    read = [[c for c in captions if c] for captions in data.captions]
    read = [captions[:1] if mode == "first" else captions[-1:] if mode == "second" else captions for captions in read]
    units = [captions if len(captions) > 1 else re.split(" and |, ", captions[0]) for captions in read]
    eligible = [row for row in range(n) if len(units[row]) > 1]
    count = selected_count(rate, n)
    try:
        noisy = corrupt(data, rate, "partial", seed, within_category=within)
    except ValueError as error:
        few_rows = (
            f"partial asks for {count} untouched triplets whose text has several clauses, but only {len(eligible)}"
        )
        assert few_rows in str(error) if count > len(eligible) else "partial finds no clause that differs" in str(error)
        return
    rows = np.flatnonzero(noisy.ledger.kind == "partial").tolist()
    assert len(rows) == count and set(rows) <= set(eligible)
    assert noisy.ledger.changed[rows].all() and set(noisy.ledger.slot[rows]) <= {"text"}
    for row, (old, new) in enumerate(zip(slots(data), slots(noisy.triplets), strict=True)):
        assert (old[0], old[2]) == (new[0], new[2]) and (old == new) == (row not in rows)
    for row in rows:
        donors = [d for d in range(n) if not within or data.categories[d] == data.categories[row]]
        foreign = {u for d in donors for u in units[d] if not words_of(u) & words_of(" and ".join(units[row]))}
        number, new = next(
            (i, b)
            for i, (a, b) in enumerate(zip(data.captions[row], noisy.triplets.captions[row], strict=True))
            if a != b
        )
        old = data.captions[row][number]
        made = {
            old[:at] + words + old[at + len(unit) :]
            for unit in units[row]
            for at in [m.start() for m in re.finditer(re.escape(unit), old)]
            for words in foreign
        }
        assert new in made


def test_partial_draws_every_clause_and_many_donors():
    first = corrupt(distinct(300), 1.0, "partial", seed=1).ledger.to_frame()
    kept = [was.split(" and ")[0] in now for was, now in zip(first["original_text"], first["text"], strict=True)]
    assert 100 < sum(kept) < 200
    donors = {word for now in first["text"] for word in now.split(" and ")}
    assert len(donors) > 400


def test_partial_never_draws_a_row_that_is_one_clause():
    captions = [("is red", " "), ("is blue",), ("", ""), ("is short and striped",), ("has dots", "has a collar")]
    data = make([f"r{i}" for i in range(5)], captions, [f"t{i}" for i in range(5)])
    for seed in range(9):
        assert corrupt(data, 0.4, "partial", seed).ledger.kind.tolist() == ["", "", "", "partial", "partial"]
    with pytest.raises(ValueError, match="partial asks for 3 untouched triplets .* but only 2 of 5 are such"):
        corrupt(data, 0.6, "partial")


def test_partial_without_other_words():
    data = make(["r0", "r1"], [("red", "long"), ("Long.", " red ")], ["t0", "t1"])
    with pytest.raises(ValueError, match="partial finds no clause that differs from all of the text '"):
        corrupt(data, 0.5, "partial")


def test_rows_of_the_real_annotations_that_partial_can_draw(shared_data):
    """All but nine: their one caption has one part. With one caption read, two in five are left."""
    counts = {}
    for mode in ("first_and_second", "first", "second"):
        data = load_fashioniq(shared_data / "fashioniq", "train", caption_mode=mode)
        counts[mode] = sum(len(clauses(captions, mode)) > 1 for captions in data.captions)
    assert counts["first_and_second"] == 17991
    noisy = corrupt(data.replace(caption_mode="first_and_second"), 0.8, "partial", within_category=True)
    assert noisy.ledger.realised_rate == 0.8
    assert (counts["first"], counts["second"]) == (7710, 7384)


# --- all kinds together ---------------------------------------------------------------------------------

CALLS = [("shuffle", None), ("derange", None), ("hard", "target"), ("hard", "text"), ("partial", None)]


@given(st.permutations(CALLS), st.integers(0, 10**6), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_kinds_mix_in_any_order(calls, seed, within, random_texts):
    data = distinct(61, caption_mode="random" if random_texts else "first_and_second")
    original = list(slots(data))
    now, again, total = data, data, 0
    for step, (kind, slot) in enumerate(calls, start=1):
        arguments = {"kind": kind, "seed": seed + step, "similarity": coarse, "within_category": within, "slot": slot}
        try:
            after = corrupt(now, 0.15, **arguments)
        except ValueError as error:
            assert "by exchange" in str(error)
            continue
        again = corrupt(again, 0.15, **arguments)
        before, earlier = (now.triplets, now.ledger.kind != "") if total else (data, np.zeros(61, dtype=bool))
        mine = (after.ledger.kind != "") & ~earlier
        total += 9
        assert mine.sum() == 9 and (after.ledger.kind != "").sum() == total
        assert set(after.ledger.kind[mine]) == {kind} and (slot is None or set(after.ledger.slot[mine]) == {slot})
        for row, (old, new) in enumerate(zip(slots(before), slots(after.triplets), strict=True)):
            assert mine[row] or old == new
        assert after.ledger.steps[-1][:3] == (kind, 0.15, seed + step) and after.ledger.steps[-1].slot == slot
        assert after.ledger.fingerprint() == again.ledger.fingerprint() and after.triplets == again.triplets
        now = after
    assert list(slots(data)) == original
    if now is data:
        return
    ledger = now.ledger
    assert ledger.original is data and ledger.realised_rate <= ledger.nominal_rate
    assert set(now.triplets.references + now.triplets.targets) <= set(data.references + data.targets)
    assert now.triplets.galleries == data.galleries and now.triplets.image_ids() == data.image_ids()
    for row, (old, new) in enumerate(zip(original, slots(now.triplets), strict=True)):
        assert ledger.changed[row] == (old != new) and (ledger.kind[row] or old == new)
        assert sum(a != b for a, b in zip(old, new, strict=True)) == int(ledger.changed[row])
    assert ledger.changed[~np.isin(ledger.kind, ["", "shuffle"])].all()


def test_rate_zero_needs_no_similarity():
    assert corrupt(distinct(9), 0.0, "hard").triplets == distinct(9)


@pytest.mark.parametrize("kind, slot", CALLS)
def test_the_real_annotations_bring_in_no_new_image(shared_data, kind, slot):
    data = load_fashioniq(shared_data / "fashioniq", "train")
    used = {*data.references, *data.targets}
    number = {image: j for j, image in enumerate(sorted(used))}
    features = np.random.default_rng(0).standard_normal((len(number), 16), dtype=np.float32)

    def similarity(references, candidates):
        return features[[number[i] for i in references]] @ features[[number[i] for i in candidates]].T

    noisy = corrupt(data, 0.5, kind, 3, similarity, within_category=True, slot=slot)
    assert {*noisy.triplets.references, *noisy.triplets.targets} <= used
    galleries = {category: set(images) for category, images in data.galleries.items()}
    rows = np.flatnonzero(noisy.ledger.kind == kind).tolist()
    assert len(rows) == 9000 and all(noisy.triplets.targets[row] in galleries[data.categories[row]] for row in rows)
    assert kind == "shuffle" or noisy.ledger.realised_rate == 0.5
    if slot == "target":
        was, now = (
            np.einsum("nd,nd->n", *(features[[number[ids[row]] for row in rows]] for ids in (x.references, x.targets)))
            for x in (data, noisy.triplets)
        )
        assert abs(np.median(was)) < 0.5 and np.median(now) > 10


@given(st.integers(9, 60), st.floats(0, 1), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40, deadline=None)
def test_mixed_noise_is_its_three_kinds_on_different_rows_and_the_ledger_names_them(n, rate, seed, within):
    noisy = corrupt(distinct(n), rate, "mixed", seed, coarse, within_category=within)
    count, kinds, ledger = selected_count(rate, n), Counter(noisy.ledger.kind.tolist()), noisy.ledger
    assert kinds == Counter(partial=count // 3, hard=count // 3, shuffle=count - 2 * (count // 3)) + Counter(
        {"": n - count}
    )
    assert set(ledger.slot[ledger.kind == "partial"]) <= {"text"} and set(ledger.slot[ledger.kind == "hard"]) <= {
        "target"
    }
    assert ledger.changed[np.isin(ledger.kind, ["partial", "hard"])].all()
    assert [step.kind for step in ledger.steps] == ["mixed"]
    for row in np.flatnonzero(ledger.kind == "partial"):  # one of the two clauses still holds
        assert len(set(noisy.triplets.captions[row]) & {f"a{row}", f"b{row}"}) == 1


def test_mixed_noise_needs_a_similarity_and_rows_with_several_clauses():
    with pytest.raises(ValueError, match="'hard' needs similarity"):
        corrupt(distinct(9), 0.5, "mixed")
    plain = make([f"r{i}" for i in range(9)], [(f"a{i}",) for i in range(9)], [f"t{i}" for i in range(9)])
    with pytest.raises(ValueError, match="partial asks for 1 untouched triplets"):
        corrupt(plain, 0.5, "mixed", similarity=coarse)
