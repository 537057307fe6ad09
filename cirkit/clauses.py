"""The clauses of a query text: where each stands in the raw captions, so that one can be replaced alone.

What counts as one clause follows what the model reads. Where it reads several captions, each is a clause: in
FashionIQ, and in the world `garments`, two people describe one change, and one of them being wrong leaves half
of the text right. A caption that is read alone (CIRR; caption mode "first" or "second"; a row whose other
caption is blank) is cut into its parts at commas, semicolons, ends of sentences, "and" and "but".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_BETWEEN = re.compile(r"\s*[,;]\s*(?:(?:and|but)\s+)?|\s*\.\s+|\s+(?:and|but)\s+", re.IGNORECASE)
_WORDS = re.compile(r"\w+")


class Clause(NamedTuple):
    """`captions[caption][start:end]`, and the parts it is made of in lower-case words, to compare by value."""

    caption: int
    start: int
    end: int
    parts: frozenset[str]


def part_spans(caption: str) -> list[tuple[int, int]]:
    """(start, end) of the parts of one caption, in order; a part holds at least one letter or digit.

    >>> text = "is red, and has long sleeves but no collar."
    >>> [text[start:end] for start, end in part_spans(text)]
    ['is red', 'has long sleeves', 'no collar.']
    """
    first = len(caption) - len(caption.lstrip())
    last = len(caption.rstrip())
    gaps = [match.span() for match in _BETWEEN.finditer(caption, first, last)]
    edges = [first, *(edge for gap in gaps for edge in gap), last]
    spans = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in spans if _WORDS.search(caption, start, end)]


def clauses(captions: Sequence[str], mode: str = "first_and_second") -> list[Clause]:
    """The clauses of one row's text as caption mode `mode` reads it, in the order of its captions."""
    split = [(number, part_spans(caption)) for number, caption in enumerate(captions)]
    read = [(number, spans) for number, spans in split if spans]
    if mode in ("first", "second"):
        read = read[:1] if mode == "first" else read[-1:]
    found = []
    for number, spans in read:
        wholes = [spans] if len(read) > 1 else [[span] for span in spans]
        for whole in wholes:
            parts = (" ".join(_WORDS.findall(captions[number][start:end].lower())) for start, end in whole)
            found.append(Clause(number, whole[0][0], whole[-1][1], frozenset(parts)))
    return found


def replace_clause(captions: Sequence[str], clause: Clause, words: str) -> tuple[str, ...]:
    """The captions with `words` in the place of `clause`, and every other character as it was."""
    changed = list(captions)
    caption = changed[clause.caption]
    changed[clause.caption] = caption[: clause.start] + words + caption[clause.end :]
    return tuple(changed)
