"""Reader of the CIRCO layout: queries with several right answers among the unlabeled images of COCO 2017.

    <root>/annotations/<split>.json    [{"id", "reference_img_id", "relative_caption", "shared_concept",
                                         "target_img_id", "gt_img_ids", "semantic_aspects"}]
    <root>/COCO2017_unlabeled/annotations/image_info_unlabeled2017.json    {"images": [{"id", "file_name"}]}
    <root>/COCO2017_unlabeled/unlabeled2017/<file_name>
    <root>/dataset.json                optional, {"name": ...}

The info file lists the gallery, 123,403 images by the data set's own description; it comes with COCO, not with CIRCO.
Image ids are the numbers of COCO as strings, "271520". Entries of the test split have no target and no right answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cirkit.data.annotations import (
    DataError,
    first_ids,
    image_id,
    image_ids,
    kind_of,
    query_id,
    read_entry_list,
    read_json,
    stored_name,
)
from cirkit.data.listed_images import ListedImages
from cirkit.data.triplet_checks import check_gallery_rule
from cirkit.data.triplets import TripletSet

TEXT_FORMS = {"caption": "{caption}", "concept": "{concept} that {caption}", "photo": "a photo of $ that {caption}"}
INFO_FILES = (
    "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json",
    "annotations/image_info_unlabeled2017.json",
)


class Queries(NamedTuple):
    """One annotation file as columns of equal length; target, ground truths and aspects only where public."""

    query_ids: tuple[str, ...]
    references: tuple[str, ...]
    texts: tuple[str, ...]
    concepts: tuple[str, ...]
    targets: tuple[str | None, ...]
    ground_truths: tuple[tuple[str, ...], ...]
    aspects: tuple[tuple[str, ...], ...]


def load_circo(
    root: str | Path,
    split: str,
    text: str = "caption",
    gallery_rule: str = "split",
    exclude_reference: bool = False,
    name: str | None = None,
) -> TripletSet:
    """Read one split of a folder in CIRCO layout; there is one category, "".

    Args:
        root: folder with annotations/ and COCO2017_unlabeled/.
        split: "val" or "test".
        text: "caption" is the relative caption as it is; "concept" puts what both images share before it, "<concept>
            that <caption>"; "photo" is the form of the released QuRe code, "a photo of $ that <caption>". A form other
            than "caption" is part of the recorded name.
        gallery_rule: "split" ranks all images of the info file; "union" only references and right answers, which needs
            no info file and gives far higher numbers.
        exclude_reference: take the reference out of the ranking. The released evaluator ranks it (False); it is never
            a right answer on val.
        name: recorded data set name; default is the name in dataset.json, else "circo".

    Raises:
        DataError: a file is missing or malformed, a rule or form is unknown, the target is not among the right
            answers, or an image of a query is not in the gallery.
    """
    root = Path(root).expanduser()
    check_gallery_rule(gallery_rule)
    if text not in TEXT_FORMS:
        raise DataError(f"text {text!r} is unknown; choose one of {', '.join(TEXT_FORMS)}.")
    path = root / "annotations" / f"{split}.json"
    queries = read_queries(path)
    used = {*queries.references}.union(*queries.ground_truths)
    public = None not in queries.targets
    if gallery_rule == "split":
        gallery = tuple(read_image_info(root))
        if outside := sorted(used.difference(gallery)):
            raise DataError(f"{info_file(root)} lacks {len(outside):,} images of {path.name} ({first_ids(outside)}).")
    elif public:
        gallery = tuple(sorted(used))
    else:
        raise DataError(f"{path} has no targets, so gallery_rule 'union' would lack the right answers; use 'split'.")
    name = name or stored_name(root) or "circo"
    form = TEXT_FORMS[text]
    pairs = zip(queries.texts, queries.concepts, strict=True)
    return TripletSet(
        name=name if text == "caption" else f"{name}-{text}",
        split=split,
        references=queries.references,
        captions=tuple((form.format(caption=caption, concept=concept),) for caption, concept in pairs),
        targets=queries.targets,
        categories=("",) * len(queries.references),
        galleries={"": gallery},
        gallery_rule=gallery_rule,
        exclude_reference=exclude_reference,
        ground_truths=queries.ground_truths if public else None,
        query_ids=queries.query_ids,
        aspects=queries.aspects if public else None,
    )


def circo_images(root: str | Path, image_root: str | Path | None = None) -> ListedImages:
    """The images of a folder in CIRCO layout, by the file names in the info file (`image_root`: default `root`)."""
    paths = {image: f"unlabeled2017/{file}" for image, file in read_image_info(root).items()}
    return ListedImages(image_root or root, paths, ("COCO2017_unlabeled",))


def has_image_info(root: str | Path) -> bool:
    """Whether COCO's list of images is there, so that the whole gallery can be ranked."""
    return any((Path(root).expanduser() / file).is_file() for file in INFO_FILES)


def info_file(root: str | Path) -> Path:
    """COCO's list of images; `DataError` says what is missing and where it was looked for."""
    tried = [Path(root).expanduser() / file for file in INFO_FILES]
    for path in tried:
        if path.is_file():
            return path
    raise DataError(
        f"COCO's image_info_unlabeled2017.json, which lists the gallery of CIRCO, is missing (looked for"
        f" {', '.join(map(str, tried))}); fetch it with the unlabeled images of COCO 2017, or, for a val split, use"
        " gallery_rule='union' to rank only images of its queries."
    )


def read_image_info(root: str | Path) -> dict[str, str]:
    """Image id -> file name, in file order, from the info file.

    Raises:
        DataError: there is none, or it does not hold {"images": [{"id", "file_name"}]}.
    """
    path = info_file(root)
    content = read_json(path)
    listed = content.get("images") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(e, dict) and {"id", "file_name"} <= e.keys() for e in listed):
        raise DataError(f'{path} does not hold {{"images": [{{"id", "file_name"}}, ...]}}.')
    ids = image_ids([entry["id"] for entry in listed], str(path))
    return dict(zip(ids, (str(entry["file_name"]) for entry in listed), strict=True))


def read_queries(path: str | Path) -> Queries:
    """Read an annotation file.

    Raises:
        DataError: the file is no list of entries with "id", "reference_img_id" and "relative_caption", an id stands
            twice, a target is not among "gt_img_ids", or some entries have a target and others none.
    """
    columns: dict[str, tuple] = {}
    for row, entry in enumerate(read_entry_list(path, ("id", "reference_img_id", "relative_caption"))):
        where = f"{path}, entry {row}"
        texts = entry["relative_caption"], entry.get("shared_concept", "")
        for text in texts:
            if not isinstance(text, str):
                raise DataError(f"{where}: a text is {kind_of(text)}, not a string.")
        target, truths = entry.get("target_img_id"), ()
        if target is not None:
            target = image_id(target, f"{where}, target_img_id")
            truths = image_ids(entry.get("gt_img_ids"), f"{where}, gt_img_ids")
            if target not in truths:
                raise DataError(f"{where}: gt_img_ids lacks the target {target}.")
        query = query_id(entry, "id", where, columns)
        reference = image_id(entry["reference_img_id"], f"{where}, reference_img_id")
        aspects = tuple(map(str, entry.get("semantic_aspects") or ()))
        columns[query] = (query, reference, *texts, target, truths, aspects)
    if not columns:
        raise DataError(f"{path} has no queries.")
    queries = Queries(*zip(*columns.values(), strict=True))
    if None in queries.targets and any(queries.targets):
        row = queries.targets.index(None)
        raise DataError(f"{path}, entry {row} has no 'target_img_id', but other entries have one.")
    return queries
