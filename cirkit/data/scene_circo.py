"""The CIRCO-style part of `scenes`: images of held-out values only, and queries with several right answers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cirkit.data.scene_drawing import ATTRIBUTES, HELD_OUT
from cirkit.data.scene_groups import NAMES
from cirkit.data.scene_texts import aspects, change_caption, concept, noun

MOST_ANSWERS = 14  # of a query, as in CIRCO
# What queries keep, the shared concept; everything neither kept nor asked for nor named is left open.
CONCEPTS = (("shape", "colour"), ("other", "other_colour"), ("shape", "other"), ("size", "shape"), ("count", "other"))


def circo_table(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """One row for each of `n` images: id (a number as str), number, attributes; all vectors distinct."""
    values = [HELD_OUT.get(name, known) for name, known in ATTRIBUTES.items()]
    counts = [len(known) for known in values]
    vectors = np.stack(np.unravel_index(rng.permutation(int(np.prod(counts)))[:n], counts), axis=1)
    ids = rng.choice(600_000, n, replace=False)
    table = pd.DataFrame({"id": ids.astype(str), "number": np.arange(n)})
    for column, name in enumerate(NAMES):
        table[name] = np.array(values[column], dtype=object)[vectors[:, column]]
    return table


def named(text: str, scene: dict[str, str], changes: dict[str, str]) -> set[str]:
    """What `text` says of the reference `scene` beside its `changes`: shape, other, several (companions, not one)."""
    words = set(text.split())
    said = {name for name in ("shape", "other") if words & {noun(scene[name]), noun(scene[name], 2)}}
    others = {noun(other, number) for other in (scene["other"], changes.get("other", "")) for number in (1, 2)}
    if words & others and "count" not in changes:
        said.add("several")
    return said - set(changes)


def circo_queries(images: pd.DataFrame, n: int, rng: np.random.Generator) -> list[dict]:
    """CIRCO entries: a concept that stays, one or two requests, and every one of `images` that meets both.

    What a text names it keeps: "the dome is left of the flowers" has right answers with domes and several flowers only.
    Fewer than `n` if the images do not give more.
    """
    table = images[list(NAMES)].assign(several=images["count"] != "one")
    values, ids = table.to_numpy(), images["id"].astype(int).to_numpy()
    entries: list[dict] = []
    asked = set()
    for _ in range(1000 * len(images)):
        if len(entries) == n:
            break
        reference, target = rng.integers(len(images), size=2)
        kept = CONCEPTS[rng.integers(len(CONCEPTS))]
        scene, wanted = (dict(zip(table, values[i], strict=True)) for i in (reference, target))
        differ = [name for name in NAMES if scene[name] != wanted[name]]
        if set(kept) & set(differ):
            continue
        changes = {differ[i]: wanted[differ[i]] for i in rng.permutation(len(differ))[: rng.integers(1, 3)]}
        if not changes or (reference, *sorted(changes)) in asked:
            continue
        # Without "same scene but", which is not so of answers that differ in what is left open.
        text = change_caption(scene, list(changes.items()), rng).removeprefix("same scene but ")
        stays = named(text, scene, changes)
        if any(scene[name] != wanted[name] for name in stays) or not (found := aspects(text)):
            continue
        columns = [table.columns.get_loc(name) for name in {*kept, *changes, *stays}]
        answers = ids[(values[:, columns] == values[target, columns]).all(axis=1)]
        if len(answers) > MOST_ANSWERS:
            continue
        asked.add((reference, *sorted(changes)))
        entries.append(
            {
                "reference_img_id": int(ids[reference]),
                "target_img_id": int(ids[target]),
                "relative_caption": text,
                "shared_concept": concept(scene, kept),
                "gt_img_ids": [int(ids[target]), *(int(i) for i in answers if i != ids[target])],
                "id": len(entries),
                "semantic_aspects": found,
            }
        )
    return entries
