"""The small word-piece tokenizer of the preset ``tiny``."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def build_vocabulary(words: Iterable[str]) -> tuple[str, ...]:
    """Special tokens, whole ``words``, and single characters, so that any English text can be spelt out."""
    characters = string.ascii_lowercase + string.digits
    pieces = [*characters, *(f"##{c}" for c in characters), *"-'.,/"]
    return tuple(dict.fromkeys([*SPECIAL, *sorted(set(words)), *pieces]))


class WordTokenizer:
    """Lower-casing BERT word pieces over a given vocabulary: "[CLS] text [SEP]", padded at the end."""

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
