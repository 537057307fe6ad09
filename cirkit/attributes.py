"""Words of an attribute in a modification text, and the text that is left if only they are kept.

Matching is on token ids, so that training can cut batches of them out of ready token ids, with any tokenizer of word
pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cirkit.backbone import Backbone, TokenBatch

_NECKS = ("neck", "necks", "necked", "neckline", "necklines")

# Ours: the summary of the paper names the attributes, not their words. What mostly means something else is left out
# ("top", "line", "house", and "wide", which is said of stripes); flowers count as a pattern.
WORDS: dict[str, tuple[str, ...]] = {
    "colour": (
        *("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink", "brown", "white", "black", "grey"),
        *("gray", "beige", "tan", "navy", "gold", "golden", "silver", "cream", "maroon", "burgundy", "turquoise"),
        *("aqua", "mint", "olive", "peach", "coral", "magenta", "lavender", "violet", "ivory", "khaki", "mustard"),
        *("colorful", "colourful", "multicolored", "multicoloured", "rainbow", "monochromatic", "neon", "pastel"),
        *("dark", "darker", "light", "lighter", "bright", "brighter", "pale", "paler", "faded", "vibrant"),
        *("whiter", "blacker", "deeper", "reddish", "blueish", "bluish", "greenish", "yellowish", "brownish"),
    ),
    "shape": (
        *("sleeve", "sleeves", "sleeved", "sleeveless", "strap", "straps", "strapless", "strappy", "spaghetti"),
        *_NECKS, *(f"{kind} {neck}" for kind in ("v", "u", "t", "high", "low", "crew", "turtle") for neck in _NECKS),
        *("collar", "collars", "collared", "collarless", "turtleneck", "scoop", "halter", "hood", "hooded"),
        *("long", "longer", "short", "shorter", "cropped", "hem", "hemline", "length", "maxi", "midi", "mini"),
        *("fitted", "fitting", "tight", "tighter", "loose", "looser", "slim", "slimmer", "flowing", "flowy", "flared"),
        *("wider", "narrower", "ruffle", "ruffles", "ruffled", "pleated", "belt", "belted"),
        *("waist", "shoulder", "shoulders", "round", "rounded", "circular", "square", "triangle", "triangular"),
        *("circle", "diamond", "star", "heart", "cross", "ring", "moon", "dome", "arrow", "hourglass", "oval"),
        *("squares", "triangles", "circles", "diamonds", "stars", "hearts", "crosses", "rings", "moons", "arrows"),
        *("domes", "hourglasses", "rectangular"),
    ),
    "pattern": (
        *("solid", "plain", "pattern", "patterns", "patterned", "print", "prints", "printed", "striped", "stripes"),
        *("stripe", "pinstriped", "pinstripes", "checked", "checks", "checkered", "plaid", "flannel", "dot", "dots"),
        *("dotted", "polka", "floral", "flower", "flowers", "flowery", "paisley", "chevron", "geometric", "abstract"),
        *("zigzag", "zigzags", "brick", "bricks", "leopard", "zebra", "cheetah", "animal print", "tie dye", "lines"),
        *("logo", "graphic", "graphics", "text", "lettering", "letters", "writing", "words", "design", "designs"),
    ),
    "size": ("small", "smaller", "little", "large", "larger", "big", "bigger", "huge", "tiny", "shrinks", "grows"),
    "number": (
        *("one", "two", "three", "four", "five", "six", "single", "pair", "several", "many", "more", "less", "fewer"),
        *("multiple", "another", "group"),
    ),
    "position": (
        *("left", "right", "above", "over", "below", "under", "behind", "front", "next to", "between", "top of"),
        *("inside", "outside", "near", "facing"),
    ),
}  # fmt: skip
NEGATIONS = ("no", "not", "without", "not a", "without a", "without any", "instead of", "rather than", "less", "more")


class SubTexts(NamedTuple):
    """``tokens`` of B shortened texts, "[CLS] [SEP]" where nothing is kept; ``present`` [B]: whether any word is."""

    tokens: TokenBatch
    present: Tensor


class AttributeWords(nn.Module):
    """Keeps of each text the words of one attribute, in their order.

    A word counts only as a whole, also where the tokenizer has several pieces for it; a phrase as it stands, or with
    hyphens.

    Args:
        backbone: its tokenizer and vocabulary decide the pieces; what the tokenizer cannot read is left out.
        words: words and phrases.
        negations: kept where one of ``words`` follows directly, so that "no sleeves" does not become "sleeves".

    Raises:
        ValueError: no word, or none that the tokenizer can read.
    """

    def __init__(self, backbone: Backbone, words: Sequence[str], negations: Sequence[str] = NEGATIONS):
        super().__init__()
        continues = torch.tensor([piece.startswith("##") for piece in backbone.config.vocabulary])
        self.register_buffer("continues", continues.to(backbone.device), persistent=False)
        self.lengths = {name: self._keep(name, backbone, these) for name, these in
                        (("words", words), ("negations", negations))}  # fmt: skip
        if not self.lengths["words"]:
            raise ValueError(f"the tokenizer of {backbone.config.name!r} reads none of these words: {list(words)[:4]}")

    def _keep(self, name: str, backbone: Backbone, phrases: Sequence[str]) -> list[int]:
        """Register the phrases' pieces, those of one length in one buffer, and return the lengths."""
        both = dict.fromkeys(spelt for phrase in phrases for spelt in (phrase, phrase.replace(" ", "-")))
        by_length: dict[int, list[list[int]]] = {}
        unknown = backbone.config.vocabulary.index("[UNK]")
        if both:
            tokens = backbone.tokenize(list(both))
            for ids, mask in zip(tokens.ids.tolist(), tokens.mask.sum(dim=1).tolist(), strict=True):
                pieces = ids[1 : mask - 1]
                if pieces and unknown not in pieces:
                    by_length.setdefault(len(pieces), []).append(pieces)
        for length, pieces in by_length.items():
            self.register_buffer(f"{name}_{length}", torch.tensor(pieces, device=backbone.device), persistent=False)
        return sorted(by_length)

    def forward(self, texts: TokenBatch) -> SubTexts:
        """Token ids [B,L] -> what is left of them, [B,L'], padded to the longest."""
        kept = torch.zeros_like(texts.mask, dtype=torch.bool)
        for rows, start, length in self._found("words", texts.ids):
            _mark(kept, rows, start, length)
        present = kept.any(dim=1)
        for rows, start, length in self._found("negations", texts.ids):
            leads = kept[rows, (start + length).clamp(max=kept.shape[1] - 1)]
            _mark(kept, rows[leads], start[leads], length)
        kept[:, 0] = True
        kept[torch.arange(len(kept), device=kept.device), texts.mask.sum(dim=1) - 1] = True
        order = kept.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, : int(kept.sum(1).max())]
        mask = kept.gather(1, order).to(texts.mask.dtype)
        return SubTexts(TokenBatch(texts.ids.gather(1, order) * mask, mask), present)

    def _found(self, name: str, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Where the phrases stand: rows and first places, [M] each, of those with so many pieces."""
        for length in self.lengths[name]:
            if length > ids.shape[1]:
                return
            phrases, windows = getattr(self, f"{name}_{length}"), ids.unfold(1, length, 1)
            rows, start = torch.nonzero(torch.isin(windows[:, :, 0], phrases[:, 0]), as_tuple=True)
            equal = (windows[rows, start][:, None] == phrases).all(dim=2).any(dim=1)
            after = (start + length).clamp(max=ids.shape[1] - 1)
            equal &= ~self.continues[ids[rows, after]] | (start + length == ids.shape[1])
            yield rows[equal], start[equal], length


def attribute_list(attribute: str) -> tuple[str, tuple[str, ...]]:
    """Name and words of an attribute: one of :data:`WORDS`, or one of your own as ``"name=word,another word"``.

    Raises:
        ValueError: neither of them.
    """
    name, given, words = (part.strip() for part in attribute.partition("="))
    own = tuple(word for word in (w.strip() for w in words.split(",")) if word)
    if name and given and own:
        return name, own
    if given or name not in WORDS:
        raise ValueError(
            f"attribute {attribute!r} is none of {', '.join(WORDS)}; write one of your own as 'name=word,another word'"
        )
    return name, WORDS[name]


def _mark(kept: Tensor, rows: Tensor, start: Tensor, length: int) -> None:
    for offset in range(length):
        kept[rows, start + offset] = True
