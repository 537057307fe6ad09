"""Words for scenes: captions that ask for a change, as in CIRR and CIRCO, and descriptions that name everything.

A caption fixes the wanted values once the reference is seen. A scene has a figure and one to three companions of
another shape, so that "the circle" and "the hearts" are always clear. No text says anything about an attribute that
stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from cirkit.data.garment_texts import pick
from cirkit.data.scene_drawing import ALL_VALUES

NUMBERS = ALL_VALUES["count"]
PLURALS = {"cross": "crosses", "hourglass": "hourglasses"}
RELATIONS = {
    "left": ("to the left of", "left of"),
    "right": ("to the right of", "right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
SIZES = {"small": ("small", "little", "smaller"), "large": ("large", "big", "bigger", "larger")}
BACKDROPS = {  # value: (adjectives, nouns)
    "plain": (("plain",), ("nothing", "no pattern")),
    "striped": (("striped",), ("stripes", "wide stripes", "horizontal stripes")),
    "pinstriped": (("pinstriped",), ("pinstripes", "thin lines", "vertical lines")),
    "checked": (("checked",), ("checks", "a grid")),
    "dotted": (("dotted",), ("dots",)),
    "brick": (("brick",), ("bricks", "a brick wall")),
    "zigzag": (("zigzag",), ("zigzags", "zigzag lines")),
}

# Templates of a change, with the names of what is there and `new` and `old` values. Those of KEPT_SAME may follow
# "same scene but".
REPLACE = (
    "replace the {it} with {a_new}",
    "turn the {it} into {a_new}",
    "change the {it} to {a_new}",
    "{a_new} instead of the {it}",
    "there {is_new} {a_new} instead of {an_it}",
    "has {a_new} instead of {an_it}",
)
RECOLOUR = (
    "make the {it} {new}",
    "the {it} {is} {new}",
    "the {it} {turns} {new}",
    "the {it} {is} {new} instead of {old}",
    "the {it} {is} {new} and not {old}",
    "{a_new} {it}",
    "has {a_new} {it}",
    "change the colour of the {it} to {new}",
)
RESIZE = {
    "small": (
        "make the {it} smaller",
        "the {it} is smaller",
        "a smaller {it}",
        "has a smaller {it}",
        "the {it} shrinks",
        "the {it} is small",
        "a small {it} instead of a large {it}",
    ),
    "large": (
        "make the {it} bigger",
        "the {it} is larger",
        "a bigger {it}",
        "has a larger {it}",
        "the {it} grows",
        "the {it} is big",
        "a large {it} instead of a small {it}",
    ),
}
MOVE = (
    "move the {it} {place} the {others}",
    "put the {it} {place} the {others}",
    "the {it} moves {place} the {others}",
    "the {it} is {place} the {others}",
    "the {others} {are} {opposite} the {it}",
    "has the {it} {place} the {others}",
)
COUNT = (
    "{new} {others}",
    "has {new} {others}",
    "there {are} {new} {others}",
    "show {new} {others}",
    "{new} {others} instead of {old}",
    "show {new} {others} and not {old}",
)
MORE = ("add {more}", "has {more} more", "there {is_more} {more} more")
LESS = ("remove {more}", "take away {more}", "has {more} less")
BACKGROUND = (
    "on a {adjective} background",
    "has a {adjective} background",
    "the background is {adjective}",
    "make the background {adjective}",
    "has {noun} in the background",
    "with {noun} behind the {it}",
    "change the background to {noun}",
)
KEPT_SAME = ("the ", "a ", "an ", "there ", "on ", "with ", "one ", "two ", "three ")

# What a text holds is read off its words; CIRCO's ninth aspect, viewpoint, has no meaning in flat scenes.
ASPECTS = {
    "cardinality": r"\b(one|two|three)\b(?! (instead|and not))",
    "addition": r"\b(add|more)\b",
    "negation": r"\b(no|not|nothing|without)\b",
    "direct_addressing": r"\bthe (?!background|colour)\w+",
    "compare_change": r"\b(instead of|replace|turn|turns|change)\b",
    "comparative_statement": r"\b(smaller|bigger|larger|more|less|shrinks|grows)\b",
    "statement_with_conjunction": r"\band\b(?! not)",
    "spatial_relations_background": r"\b(left|right|above|over|below|under|background|behind)\b",
}


def article(words: str) -> str:
    return ("an " if words[0] in "aeiou" else "a ") + words


def noun(name: str, number: int = 1) -> str:
    return name if number == 1 else PLURALS.get(name, name + "s")


def some(words: str, number: int) -> str:
    """One thing has an article, several have none."""
    return article(words) if number == 1 else words


def clause(attribute: str, scene: dict[str, str], new: str, rng: np.random.Generator) -> str:
    """One request: change `attribute` of `scene` to `new`."""
    n, old = NUMBERS.index(scene["count"]) + 1, scene[attribute]
    others = noun(scene["other"], n)
    number = n if attribute in ("other", "other_colour") else 1
    names = {
        "it": others if attribute in ("other", "other_colour") else scene["shape"],
        "is": "is" if number == 1 else "are",
        "turns": "turns" if number == 1 else "turn",
        "others": others,
        "are": "is" if n == 1 else "are",
        "new": new,
        "old": old,
    }
    if attribute in ("shape", "other"):
        templates = REPLACE
        names |= {"a_new": some(noun(new, number), number), "an_it": some(names["it"], number), "is_new": names["is"]}
    elif attribute in ("colour", "other_colour"):
        templates, names["a_new"] = RECOLOUR, some(new, number)
    elif attribute == "size":
        templates = RESIZE[new]
    elif attribute == "relation":
        templates = MOVE
        names |= {"place": pick(RELATIONS[new], rng), "opposite": pick(RELATIONS[OPPOSITE[new]], rng)}
    elif attribute == "count":
        step = NUMBERS.index(new) + 1 - n
        amount, m = abs(step), NUMBERS.index(new) + 1
        templates = COUNT + (MORE if step > 0 else LESS)
        names |= {"others": noun(scene["other"], m), "are": "is" if m == 1 else "are"}
        names |= {"more": f"{NUMBERS[amount - 1]} {noun(scene['other'], amount)}"}
        names |= {"is_more": "is" if amount == 1 else "are"}
    else:
        adjectives, nouns = BACKDROPS[new]
        templates = BACKGROUND
        names |= {"adjective": pick(adjectives, rng), "noun": pick(nouns, rng)}
    return pick(templates, rng).format(**names)


def change_caption(scene: dict[str, str], changes: Sequence[tuple[str, str]], rng: np.random.Generator) -> str:
    """One caption that asks for `changes` of `scene`, a list of one or two (attribute, new value).

    New shapes and numbers are said first, so that a second request can call things by their new names.
    """
    scene, clauses = dict(scene), []
    order = [changes[i] for i in rng.permutation(len(changes))]
    for attribute, new in sorted(order, key=lambda change: change[0] not in ("shape", "other")):
        clauses.append((attribute, new))
    if len(clauses) == 2 and clauses[1][0] == "count" and clauses[0][0] == "other_colour":
        clauses.reverse()
    said = []
    for attribute, new in clauses:
        said.append(clause(attribute, scene, new, rng))
        scene[attribute] = new
    text = " and ".join(said)
    return f"same scene but {text}" if text.startswith(KEPT_SAME) and rng.random() < 0.25 else text


def aspects(text: str) -> list[str]:
    """CIRCO's semantic aspects that the words of `text` carry, in the order of `ASPECTS`."""
    return [name for name, words in ASPECTS.items() if re.search(words, text)]


def concept(scene: dict[str, str], kept: Sequence[str]) -> str:
    """What a CIRCO-style query keeps, in words: `kept` names attributes of the figure or of the companions."""
    n = NUMBERS.index(scene["count"]) + 1
    parts = []
    if "shape" in kept:
        parts.append(article(" ".join([*(scene[k] for k in ("size", "colour") if k in kept), scene["shape"]])))
    if "other" in kept:
        words = [scene["other_colour"]] if "other_colour" in kept else []
        number = n if "count" in kept else 2
        words = " ".join([*words, noun(scene["other"], number)])
        parts.append(f"{scene['count']} {words}" if "count" in kept else words)
    return " and ".join(parts)


def description(scene: dict[str, str], rng: np.random.Generator) -> str:
    """One caption that names all eight attributes, the figure or the companions first."""
    n = NUMBERS.index(scene["count"]) + 1
    figure = f"{pick(SIZES[scene['size']], rng)} {scene['colour']} {scene['shape']}"
    others = f"{scene['count']} {scene['other_colour']} {noun(scene['other'], n)}"
    adjectives, nouns = BACKDROPS[scene["background"]]
    place, opposite = pick(RELATIONS[scene["relation"]], rng), pick(RELATIONS[OPPOSITE[scene["relation"]]], rng)
    verb = pick(("", "is "), rng)
    verbs = verb if n == 1 else verb.replace("is", "are")
    figure_first = f"{pick(('a', 'the'), rng)} {figure} {verb}{place} {others}"
    core = pick((figure_first, f"{others} {verbs}{opposite} a {figure}"), rng)
    where = pick((f"on a {pick(adjectives, rng)} background", f"with {pick(nouns, rng)} in the background"), rng)
    return pick((f"{core} {where}", f"{where} {core}"), rng)


def vocabulary() -> list[str]:
    """Sorted words of every text this module can make."""
    texts = ["a an the is are turn turns same scene but and", *NUMBERS, *ALL_VALUES["colour"], *ALL_VALUES["shape"]]
    texts += [noun(name, number) for name in ALL_VALUES["other"] for number in (1, 2)]
    texts += [t for group in (RELATIONS, SIZES, RESIZE) for options in group.values() for t in options]
    texts += [t for options in BACKDROPS.values() for group in options for t in group]
    texts += [*REPLACE, *RECOLOUR, *MOVE, *COUNT, *MORE, *LESS, *BACKGROUND, "in background with on"]
    return sorted({word for text in texts for word in re.sub(r"\{\w+\}", "", text).split()})
