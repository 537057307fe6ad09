"""Words of an attribute cut out of token ids, against regular expressions on the texts themselves."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from cirkit.attributes import NEGATIONS, WORDS, AttributeWords, attribute_list
from cirkit.data import scene_texts
from cirkit.data.garment_drawing import ATTRIBUTES
from cirkit.data.garment_texts import CHANGES, vocabulary
from cirkit.data.garments import CATEGORIES, change_captions
from cirkit.data.scene_drawing import ALL_VALUES
from cirkit.tokens import SPECIAL, build_vocabulary


def text_of(backbone, tokens) -> list[str]:
    """Token ids back to texts, pieces of one word joined, special tokens left out."""
    pieces = np.array(backbone.config.vocabulary)[tokens.ids.cpu().numpy()]
    rows = [row[mask == 1] for row, mask in zip(pieces, tokens.mask.cpu().numpy(), strict=True)]
    assert all(row[0] == "[CLS]" and row[-1] == "[SEP]" for row in rows)
    return [" ".join(row[1:-1]).replace(" ##", "") for row in rows]


def left(backbone, texts, words, **options) -> list[str]:
    found = AttributeWords(backbone, words, **options)(backbone.tokenize(texts))
    kept = text_of(backbone, found.tokens)
    assert [bool(text) for text in kept] == found.present.tolist()
    return kept


def slowly(text: str, words, negations) -> str:
    """The same by words of the text: phrases, and negations directly before one."""
    tokens = re.findall(r"\w+|[^\w\s]", text.lower())
    kept = [False] * len(tokens)

    def stands(phrase: str, place: int) -> int:
        pieces = re.findall(r"\w+|[^\w\s]", phrase)
        return len(pieces) if tokens[place : place + len(pieces)] == pieces else 0

    phrases = [*words, *(w.replace(" ", "-") for w in words)]
    for place in range(len(tokens)):
        for phrase in phrases:
            for k in range(stands(phrase, place)):
                kept[place + k] = True
    for length in range(1, 40):  # in pieces of the tokenizer, shortest first
        for place in range(len(tokens)):
            for negation in negations:
                n = stands(negation, place)
                if n == length and place + n < len(tokens) and kept[place + n]:
                    kept[place : place + n] = [True] * n
    return " ".join(t for t, k in zip(tokens, kept, strict=True) if k)


def test_words_are_kept_in_order_with_the_negation_before_them(small_backbone):
    backbone, words = small_backbone(), ("red", "blue", "v neck", "sleeves")
    texts = [
        "is red and has long sleeves", "is blue instead of red", "no sleeves", "not in red", "a v neck", "a V-neck",
        "v", "is teal", "", "red", "REDDISH or bluered but tired", "is not blue",
    ]  # fmt: skip
    assert left(backbone, texts, words) == [
        "red sleeves", "blue instead of red", "no sleeves", "red", "v neck", "v - neck",
        "", "", "", "red", "", "not blue",
    ]  # fmt: skip
    assert left(backbone, texts[1:3], words, negations=()) == ["blue red", "sleeves"]


def test_words_that_the_tokenizer_spells_are_whole_words_all_the_same(small_backbone):
    backbone = small_backbone()
    assert not {"zebra", "lilac"} & set(backbone.config.vocabulary)
    texts = ["a zebra print", "zebras in lilac", "lilac-zebra", "zeb ra"]
    assert left(backbone, texts, ("zebra", "lilac")) == ["zebra", "lilac", "lilac zebra", ""]


def test_any_length_and_padding_give_the_same_text(small_backbone):
    backbone = small_backbone()
    find = AttributeWords(backbone, WORDS["colour"])
    texts = ["red", "is red and has long sleeves and a collar", "", "make it teal"]
    together = text_of(backbone, find(backbone.tokenize(texts)).tokens)
    assert together == [text_of(backbone, find(backbone.tokenize([text])).tokens)[0] for text in texts]
    found = find(backbone.tokenize(texts))
    assert found.tokens.mask.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]]
    assert found.tokens.ids[2, 2] == SPECIAL.index("[PAD]") and found.present.tolist() == [True, True, False, True]


def test_a_text_cut_at_the_backbones_length_keeps_its_end_token(small_backbone):
    backbone = small_backbone(text_length=6)
    assert left(backbone, ["has dots and is red and blue", "red blue teal green"], WORDS["colour"])[0] == ""
    assert left(backbone, ["red blue teal green pink"], WORDS["colour"]) == ["red blue teal green"]


def test_a_row_of_ready_tokens_is_matched_wherever_it_was_cut(small_backbone):
    backbone = small_backbone()
    tokens = backbone.tokenize(["is red", "with long sleeves and a collar, not in blue", "in teal"])
    part = tokens.rows(torch.tensor([2, 0]))
    assert text_of(backbone, AttributeWords(backbone, WORDS["colour"])(part).tokens) == ["teal", "red"]


def test_every_change_of_the_garments_world_speaks_of_what_it_changes(small_backbone):
    backbone = small_backbone()
    asked = {"colour": ("colour",), "pattern": ("pattern",), "shape": ("sleeve", "neckline", "length")}
    for attribute, values in CHANGES.items():
        texts = [t.format(old="pink") for templates in values.values() for t in templates]
        for name, attributes in asked.items():
            found = [bool(text) for text in left(backbone, texts, WORDS[name])]
            wanted = attribute in attributes
            wrong = [t for t, hit in zip(texts, found, strict=True) if hit != wanted]
            assert not wrong, (name, wrong)
    assert set(ATTRIBUTES) == set(CHANGES)


def test_a_kept_word_of_two_changes_is_that_of_the_attribute_alone(small_backbone):
    backbone, rng = small_backbone(), np.random.default_rng(3)
    for _ in range(20):
        new, old = rng.choice(ATTRIBUTES["colour"], 2, replace=False)
        texts = change_captions(CATEGORIES[0], [("colour", old, new), ("neckline", "round", "collar")], rng)
        colours = " ".join(left(backbone, [" and ".join(texts)], WORDS["colour"])).split()
        assert new in colours and set(colours) <= {new, old, "not", "instead", "of"}


def test_words_of_the_scenes_world(small_backbone):
    backbone = small_backbone(vocabulary=build_vocabulary(scene_texts.vocabulary()))
    names = {"colour": "colour", "shape": "shape", "size": "size", "relation": "position", "count": "number"}
    for attribute, name in names.items():
        values = [v for v in ALL_VALUES[attribute] if v != "house"]  # too often a thing to count as a shape
        assert left(backbone, values, WORDS[name]) == list(values)
    assert left(backbone, ["make the circle red", "add two hearts"], WORDS["shape"]) == ["circle", "hearts"]


@pytest.mark.parametrize("name", ["colour", "shape"])
def test_real_captions_are_cut_as_a_slow_loop_over_words_does(small_backbone, shared_data, name):
    texts = []
    for category in CATEGORIES:
        entries = json.loads((shared_data / "fashioniq" / "captions" / f"cap.{category}.val.json").read_text())
        texts += [caption for entry in entries[:40] for caption in entry["captions"]]
    entries = json.loads((shared_data / "cirr" / "captions" / "cap.rc2.val.json").read_text())
    texts += [entry["caption"] for entry in entries[:100]]
    texts = [t for t in texts if t.isascii() and "_" not in t]
    words = {word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())}
    entries = {w for phrase in (*WORDS[name], *NEGATIONS) for w in phrase.split()}
    backbone = small_backbone(vocabulary=build_vocabulary(words | entries), text_length=96)
    kept = left(backbone, texts, WORDS[name])
    assert kept == [slowly(text, WORDS[name], NEGATIONS) for text in texts]
    assert 0.1 < np.mean([bool(text) for text in kept]) < 0.9


def test_attributes_by_name_or_with_words_of_their_own():
    assert attribute_list("colour") == ("colour", WORDS["colour"])
    assert attribute_list("material = lace, stone washed ,") == ("material", ("lace", "stone washed"))
    for wrong in ("color", "", "material=", "=lace", "material= ,"):
        with pytest.raises(ValueError, match="is none of colour, shape, .*; write one of your own as 'name=word"):
            attribute_list(wrong)


def test_a_tokenizer_that_reads_none_of_the_words_is_refused(small_backbone):
    backbone = small_backbone(vocabulary=(*SPECIAL, "red"))
    with pytest.raises(ValueError, match=r"tokenizer of 'small' reads none of these words: \['teal', 'blue'\]"):
        AttributeWords(backbone, ("teal", "blue"))
    assert left(backbone, ["red", "teal"], ("teal", "red")) == ["red", ""]  # an unknown word is not every unknown word


def test_no_word_is_listed_twice_and_all_are_lower_case():
    for name, words in WORDS.items():
        assert len(set(words)) == len(words), name
        assert [w for w in words if w != w.lower().strip()] == []
    assert set(WORDS["colour"]).isdisjoint(WORDS["shape"]) and set(vocabulary()) & set(WORDS["pattern"])
