"""The tables of the data report, each computed from annotations in memory.

A part is a (category, split); `entries` and `galleries` map parts to the content of their two files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

import pandas as pd

from cirkit.data.entries import Entries, Part, targets_outside, used_images

_PART = ["category", "split"]
_PAIR = ["reference", "target"]
_PLACEHOLDERS = {"", "na", "none", "null", "nan", "nil"}
_LETTERS = re.compile(r"[^\W\d_]")


def in_order(parts: Iterable[Part]) -> list[Part]:
    """Parts by category, then train, val, test, then any other split."""
    known = ("train", "val", "test")

    def key(part: Part) -> tuple[str, int, str]:
        return part[0], known.index(part[1]) if part[1] in known else len(known), part[1]

    return sorted(parts, key=key)


def query_frame(entries: dict[Part, Entries]) -> pd.DataFrame:
    """One row per triplet, in part order; target is None where it is not public."""
    rows = [
        (*part, entry, *row)
        for part in in_order(entries)
        for entry, row in enumerate(
            zip(entries[part].references, entries[part].targets, entries[part].captions, strict=True)
        )
    ]
    return pd.DataFrame(rows, columns=[*_PART, "entry", *_PAIR, "captions"])


def listing_frame(galleries: dict[Part, tuple[str, ...]]) -> pd.DataFrame:
    """One row per id of a split file, in part order."""
    rows = [(*part, image) for part in in_order(galleries) for image in galleries[part]]
    return pd.DataFrame(rows, columns=[*_PART, "image"])


def count_table(entries: dict[Part, Entries], galleries: dict[Part, tuple[str, ...]]) -> pd.DataFrame:
    """Sizes per part: triplets, with_target, gallery, union, reference_outside, target_outside."""
    rows = []
    for part in in_order(entries.keys() | galleries.keys()):
        columns = entries.get(part, Entries((), (), ()))
        gallery = set(galleries.get(part, ()))
        n, without_target = len(columns.references), columns.targets.count(None)
        outside = len(set(columns.references) - gallery), len(targets_outside(columns, gallery))
        rows.append((*part, n, n - without_target, len(gallery), len(used_images(columns)), *outside))
    names = ["triplets", "with_target", "gallery", "union", "reference_outside", "target_outside"]
    return pd.DataFrame(rows, columns=[*_PART, *names])


def overlap_table(listings: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    """What two parts share: ids of their galleries, and pairs (reference, target) of their triplets."""
    pairs = queries.dropna(subset=["target"]).drop_duplicates([*_PART, *_PAIR])[[*_PART, *_PAIR]]
    shared = {"ids": _shared(listings, ["image"]), "pairs": _shared(pairs, _PAIR)}
    table = pd.concat(shared, axis=1).fillna(0).astype(int).reset_index()
    return table.sort_values(["category", "other_category", "split", "other_split"], ignore_index=True)


def seen_table(queries: pd.DataFrame) -> pd.DataFrame:
    """Per part other than training: query images that occur in training triplets of any category."""
    training = queries[queries["split"] == "train"]
    trained = set(chain(training["reference"], training["target"].dropna()))
    rows = []
    for part, group in queries[queries["split"] != "train"].groupby(_PART, sort=False):
        images = set(chain(group["reference"], group["target"].dropna()))
        affected = group["reference"].isin(trained) | group["target"].isin(trained)
        rows.append((*part, len(images), len(images & trained), len(group), int(affected.sum())))
    names = ["query_images", "seen_in_training", "queries", "affected_queries"]
    return pd.DataFrame(rows, columns=[*_PART, *names])


def caption_table(queries: pd.DataFrame) -> pd.DataFrame:
    """Blank and placeholder captions, one row each."""
    rows = []
    for row in queries.itertuples(index=False):
        kinds = [caption_kind(caption) for caption in row.captions]
        for slot, kind, caption in zip(("first", "second"), kinds, row.captions, strict=False):
            if kind:
                rows.append((row.category, row.split, row.entry, slot, kind, caption, row.reference, all(kinds)))
    names = ["entry", "slot", "kind", "caption", "reference", "whole_query"]
    return pd.DataFrame(rows, columns=[*_PART, *names])


def caption_kind(caption: str) -> str:
    """ "blank" (nothing but white space), "placeholder" (no letters, or na, n/a, none, null, nil), or ""."""
    if not caption.strip():
        return "blank"
    return "placeholder" if "".join(_LETTERS.findall(caption)).lower() in _PLACEHOLDERS else ""


def duplicate_table(queries: pd.DataFrame) -> pd.DataFrame:
    """Later occurrences of the same query or pair, and triplets whose reference is their target."""
    known = queries.dropna(subset=["target"])
    per_category = known.drop_duplicates([*_PART, *_PAIR])
    kinds = {
        "repeated query": queries[queries.duplicated([*_PART, "reference", "captions"])],
        "repeated pair": known[known.duplicated([*_PART, *_PAIR])],
        "pair in two categories": per_category[per_category.duplicated(["split", *_PAIR])],
        "reference is target": known[known["reference"] == known["target"]],
    }
    table = pd.concat(kinds, names=["kind", "row"]).reset_index()
    return table[["kind", *_PART, "entry", *_PAIR]]


def _shared(rows: pd.DataFrame, keys: list[str]) -> pd.Series:
    """How many `keys` two parts have in common, for those that have any; the lesser part first."""
    rows = rows[rows.duplicated(keys, keep=False)]
    both = rows.merge(rows, on=keys, suffixes=("", "_other"))
    both = both.rename(columns={"category_other": "other_category", "split_other": "other_split"})
    later = (both["category"] == both["other_category"]) & (both["split"] < both["other_split"])
    both = both[(both["category"] < both["other_category"]) | later]
    return both.groupby([*_PART, "other_category", "other_split"]).size()
