"""Words for garments: captions that ask for a change, and descriptions that name every attribute.

A caption always fixes the wanted value once the reference is seen ("longer sleeves" is said only to a garment
with short ones). No text says anything about an attribute that stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cirkit.data.garment_drawing import ATTRIBUTES

NOUNS = {"dress": ("dress",), "shirt": ("shirt",), "toptee": ("top", "tee")}

# Templates of a change to a value: {old} is the reference's value. The first three are brief enough to join.
CHANGES: dict[str, dict[str, tuple[str, ...]]] = {
    "colour": {
        colour: (
            f"is {colour}",
            f"in {colour}",
            f"make it {colour}",
            f"is {colour} instead of {{old}}",
            f"is {colour} not {{old}}",
            f"change it to {colour}",
            f"the same in {colour}",
        )
        for colour in ATTRIBUTES["colour"]
    },
    "sleeve": {
        "sleeveless": ("is sleeveless", "no sleeves", "without sleeves", "has no sleeves", "remove the sleeves"),
        "short": (
            "short sleeves",
            "is short sleeved",
            "has short sleeves",
            "with short sleeves",
            "make the sleeves short",
        ),
        "long": ("long sleeves", "is long sleeved", "has long sleeves", "with long sleeves", "make the sleeves long"),
    },
    "pattern": {
        "solid": ("is plain", "is solid", "no pattern", "has no pattern", "make it plain", "without any pattern"),
        "striped": (
            "is striped",
            "has stripes",
            "with stripes",
            "has wide stripes",
            "make it striped",
            "with horizontal stripes",
        ),
        "pinstriped": (
            "is pinstriped",
            "has pinstripes",
            "with pinstripes",
            "has vertical pinstripes",
            "make it pinstriped",
            "with thin vertical lines",
        ),
        "checked": ("is checked", "is plaid", "has checks", "with a checked pattern", "make it checked"),
        "dotted": ("is dotted", "has dots", "with dots", "has polka dots", "make it dotted", "with polka dots"),
        "floral": (
            "is floral",
            "has flowers",
            "with flowers",
            "with a floral print",
            "make it floral",
            "has flowers on it",
        ),
    },
    "neckline": {
        "round": (
            "a round neck",
            "round neckline",
            "scoop neck",
            "has a round neck",
            "with a round neckline",
            "has a scoop neck",
        ),
        "v": ("a v neck", "is v necked", "v neckline", "has a v neck", "with a v neckline"),
        "collar": ("has a collar", "with a collar", "is collared", "add a collar"),
        "high": ("a high neck", "is a turtleneck", "high neckline", "has a high neck", "with a turtleneck"),
    },
    "length": {
        "short": ("is shorter", "is short", "is cropped", "make it shorter", "has a shorter hem", "shorter in length"),
        "long": ("is longer", "is long", "longer hem", "make it longer", "has a longer hem", "longer in length"),
    },
}
LONGER_SLEEVES = {("short", "long"): "has longer sleeves", ("long", "short"): "has shorter sleeves"}

ADJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "colour": {colour: (colour,) for colour in ATTRIBUTES["colour"]},
    "sleeve": {"sleeveless": ("sleeveless",), "short": ("short sleeved",), "long": ("long sleeved",)},
    "pattern": {
        "solid": ("solid", "plain"),
        "striped": ("striped",),
        "pinstriped": ("pinstriped",),
        "checked": ("checked", "plaid"),
        "dotted": ("dotted",),
        "floral": ("floral",),
    },
    "neckline": {
        "round": ("round neck", "scoop neck"),
        "v": ("v neck", "v necked"),
        "collar": ("collared",),
        "high": ("high neck", "turtleneck"),
    },
    "length": {"short": ("short", "shorter", "cropped"), "long": ("long", "longer")},
}
PHRASES: dict[str, dict[str, tuple[str, ...]]] = {
    "sleeve": {
        "sleeveless": ("no sleeves",),
        "short": ("short sleeves", "shorter sleeves"),
        "long": ("long sleeves", "longer sleeves"),
    },
    "pattern": {
        "solid": ("no pattern",),
        "striped": ("stripes", "wide stripes", "horizontal stripes"),
        "pinstriped": ("pinstripes", "vertical pinstripes", "thin vertical lines"),
        "checked": ("checks", "a checked pattern"),
        "dotted": ("dots", "polka dots"),
        "floral": ("flowers", "a floral print"),
    },
    "neckline": {
        "round": ("a round neck", "a round neckline", "a scoop neck"),
        "v": ("a v neck", "a v neckline"),
        "collar": ("a collar",),
        "high": ("a high neck", "a high neckline", "a turtleneck"),
    },
    "length": {"short": ("a short hem", "a shorter hem"), "long": ("a long hem", "a longer hem")},
}


def pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def change_captions(category: str, changes: Sequence[tuple[str, str, str]], rng: np.random.Generator) -> list[str]:
    """Two captions that ask for `changes`, a list of one or two (attribute, old value, new value).

    One change: both captions say it, in different words. Two changes: with equal chance one caption for each,
    or two different captions that each say both.
    """

    def phrased(change: tuple[str, str, str], brief: bool) -> list[str]:
        attribute, old, new = change
        templates = CHANGES[attribute][new][: 3 if brief else None]
        relative = LONGER_SLEEVES.get((old, new)) if attribute == "sleeve" else None
        templates = [*templates, relative] if relative and not brief else list(templates)
        return [templates[i].format(old=old) for i in rng.permutation(len(templates))]

    def spoken(caption: str) -> str:
        if caption.startswith(("is ", "has ")) and rng.random() < 0.3:
            return pick(["it", f"the {pick(NOUNS[category], rng)}"], rng) + " " + caption
        return caption

    order = rng.permutation(len(changes))
    if len(changes) == 1:
        return [spoken(caption) for caption in phrased(changes[0], brief=False)[:2]]
    if rng.random() < 0.5:
        return [spoken(phrased(changes[i], brief=False)[0]) for i in order]
    first, second = (phrased(changes[i], brief=True) for i in order)
    return [f"{first[0]} and {second[0]}", f"{second[1]} and {first[1]}"]


def description(category: str, values: dict[str, str], rng: np.random.Generator) -> str:
    """One caption that names all five attributes, as adjectives in any order or in "with ..." phrases."""
    noun = pick(NOUNS[category], rng)
    phrased = [a for a, chance in zip(PHRASES, (0.6, 0.4, 0.6, 0.25), strict=True) if rng.random() < chance]
    plain = [a for a in values if a not in phrased]
    adjectives = [pick(ADJECTIVES[plain[i]][values[plain[i]]], rng) for i in rng.permutation(len(plain))]
    phrases = [pick(PHRASES[phrased[i]][values[phrased[i]]], rng) for i in rng.permutation(len(phrased))]
    if rng.random() < 0.3:
        text = f"the {noun} is " + " and ".join(adjectives)
        return f"{text} and has " + " and ".join(phrases) if phrases else text
    text = f"{pick(['a', 'this', 'the'], rng)} " + " ".join([*adjectives, noun])
    return f"{text} with " + " and ".join(phrases) if phrases else text


def vocabulary() -> list[str]:
    """Sorted words of every text this module can make."""
    texts = ["a this the it is and has with", *(n for nouns in NOUNS.values() for n in nouns)]
    texts += LONGER_SLEEVES.values()
    for table in (CHANGES, ADJECTIVES, PHRASES):
        texts += [t for values in table.values() for templates in values.values() for t in templates]
    return sorted({word for text in texts for word in text.replace("{old}", "").split()})
