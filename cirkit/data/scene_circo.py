"""The CIRCO-style part of `scenes`: images of held-out values only, and queries with several right answers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cirkit.data.scene_drawing import ATTRIBUTES, HELD_OUT
from cirkit.data.scene_groups import NAMES
from cirkit.data.scene_texts import aspects, change_caption, concept

MOST_ANSWERS = 14  # of a query, as in CIRCO
# What queries keep, the shared concept; everything neither kept nor asked for is left open.
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


def circo_queries(images: pd.DataFrame, n: int, rng: np.random.Generator) -> list[dict]:
    """CIRCO entries: a concept that stays, one or two requests, and every one of `images` that meets both.

    Fewer than `n` if the images do not give more.
    """
    values, ids = images[list(NAMES)].to_numpy(), images["id"].astype(int).to_numpy()
    entries: list[dict] = []
    asked = set()
    for _ in range(1000 * len(images)):
        if len(entries) == n:
            break
        reference, target = rng.integers(len(images), size=2)
        kept = CONCEPTS[rng.integers(len(CONCEPTS))]
        differ = [name for name, a, b in zip(NAMES, values[reference], values[target], strict=True) if a != b]
        if set(kept) & set(differ):
            continue
        changes = [differ[i] for i in rng.permutation(len(differ))[: rng.integers(1, 3)]]
        if not changes or (reference, *sorted(changes)) in asked:
            continue
        columns = [NAMES.index(name) for name in (*kept, *changes)]
        answers = ids[(values[:, columns] == values[target, columns]).all(axis=1)]
        if len(answers) > MOST_ANSWERS:
            continue
        scene = dict(zip(NAMES, values[reference], strict=True))
        text = change_caption(scene, [(name, values[target, NAMES.index(name)]) for name in changes], rng)
        if not (found := aspects(text)):
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
