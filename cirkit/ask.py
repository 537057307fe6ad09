"""Ask one's own gallery with an image and a text: ``python -m cirkit.ask RUN IMAGE "text" --gallery FOLDER``.

RUN is the folder of a finished run (notebook 07, 13 or `make grid`), whose trained weights answer. The gallery's
features are kept in the feature store, so that only the first question waits for them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure

from cirkit.data.images import open_rgb
from cirkit.data.picture_tree import PictureTree, check_pictures
from cirkit.features import FeatureStore, build_store
from cirkit.methods import Method, build_method
from cirkit.paths import atomic_path, check_target
from cirkit.plots.pictures import image_strip
from cirkit.presets import WORLD_ONLY, load_backbone, read_weights, unknown_words
from cirkit.records import changed_files, load_metrics
from cirkit.retrieval import encode_images
from cirkit.scores import top_k


def load_run(folder: str | Path, device: str = "auto") -> Method:
    """The trained model of a finished run, in eval mode.

    Raises:
        ValueError: no finished run there, weights that are damaged or do not fit, or a backbone that is no longer the
            one it was trained from. FileNotFoundError: weights that are gone.
    """
    folder = Path(folder)
    record = load_metrics(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} is missing: the run was finished, but its weights are gone; train it again")
    if changed_files(folder, record, [weights.name]):
        raise ValueError(f"{weights} is not what the run wrote: copy it again or train it again")
    parameters = record["parameters"]
    backbone = load_backbone(parameters["backbone"], device)
    if backbone.fingerprint()[:16] != record["effective"]["backbone_weights"]:
        raise ValueError(
            f"{folder} was trained from other weights than the backbone {parameters['backbone']!r} has now"
        )
    method = build_method(parameters["method"], backbone, **parameters["method_options"])
    method.load_trained_state(read_weights(weights), str(weights))
    return method.eval()


class Gallery:
    """A model and the images it searches, encoded once.

    Args:
        method: of :func:`load_run`, or any other.
        folder: with images at any depth, or their tree; every one is decoded once before any is encoded.

    Raises:
        DataError: a folder that is not there, has no image, or has one that cannot be read.
    """

    def __init__(self, method: Method, folder: str | Path | PictureTree, progress: bool = True):
        self.method = method
        self.images = folder if isinstance(folder, PictureTree) else PictureTree(folder)
        self.ids = self.images.ids
        if not self.ids:
            raise ValueError(f"there is nothing to search: {self.images.tried()}")
        where = {image: f"the gallery {self.images.root}" for image in self.ids}
        check_pictures(self.images, self.ids, where, progress)
        self.store: FeatureStore = build_store(method.backbone, self.images, self.ids, progress=progress)
        self.tokens = encode_images(method, self.ids, self.store)  # [G,N,D]

    def file(self, image: str | Path) -> Path:
        """The file of an image of the gallery, by its id, or of any other, by its path."""
        return self.images.path(image) if str(image) in self.images else Path(image)

    @torch.inference_mode()
    def ask(self, image: str | Path, text: str, top: int = 10) -> pd.DataFrame:
        """The images that answer best, best first: columns rank, id, score; the asked image itself is left out.

        Args:
            image: an image file, or the id of an image of the gallery.
            top: at most so many.

        Raises:
            DataError: the image cannot be read. ValueError: a blank text, words the backbone does not know, or a
                number below 1.
        """
        method = self.method
        check_question(method, text, top)
        path = self.file(image)
        pixels = method.backbone.preprocess(open_rgb(path))[None].to(method.backbone.device)
        query = method.query(method.backbone.patch_tokens(pixels), [text])
        own = [place for place, other in enumerate(self.ids) if self.images.path(other).resolve() == path.resolve()]
        excluded = torch.tensor(own) if own else None
        count = min(top, len(self.ids) - len(own))
        if not count:
            raise ValueError(f"the gallery {self.images.root} holds the asked image and no other")
        scores, places = top_k(query, self.tokens, count, excluded)
        ids = [self.ids[place] for place in places[0].tolist()]
        return pd.DataFrame({"rank": range(1, count + 1), "id": ids, "score": scores[0].float().cpu().numpy()})


def check_question(method: Method, text: str, top: int) -> None:
    """Raises ValueError for a question that cannot be asked."""
    if not text.strip():
        raise ValueError("the text is blank: say what should change")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    unknown = unknown_words(method.backbone, [text])
    if unknown and 2 * len(unknown) >= len(set(text.lower().split())):
        raise ValueError(f"the backbone {method.backbone.config.name!r} does not know the words {', '.join(unknown)}")


def answer_strip(gallery: Gallery, image: str | Path, text: str, answers: pd.DataFrame, right: str = "") -> Figure:
    """The asked image and its answers as one row of pictures; the image ``right`` among them is framed."""
    pictures = [open_rgb(gallery.file(image)), *map(gallery.images.load, answers.id)]
    captions = ["asked", *(f"{row.rank}: {row.score:.2f}" for row in answers.itertuples())]
    marks = [False, *(answers.id == right)]
    return image_strip([pictures], [captions], [f"“{text}”"], [marks])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of this module; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cirkit.ask", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("image", metavar="IMAGE", help="image file, or the name of one in the gallery")
    parser.add_argument("text", metavar="TEXT", help="what should change")
    parser.add_argument("--gallery", required=True, metavar="FOLDER", help="folder with the images to search")
    parser.add_argument("--top", type=int, default=10, help="how many answers (default 10)")
    parser.add_argument("--out", metavar="PNG", help="write the pictures of question and answers there")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    options = parser.parse_args(arguments)
    try:
        if options.out:
            check_target(options.out, "--out")
        method = load_run(options.run, options.device)
        check_question(method, options.text, options.top)
        tree = PictureTree(options.gallery)
        image = options.image if Path(options.image).is_file() else tree.find(options.image)
        if image is None:
            raise ValueError(f"{options.image} is neither an image file nor an image of {options.gallery}")
        if (name := method.backbone.config.name) in WORLD_ONLY:
            print(f"note: the backbone {name!r} has seen drawings of one embedded world and nothing else; on other"
                  " pictures its answers mean nothing", file=sys.stderr)  # fmt: skip
        gallery = Gallery(method, tree)
        answers = gallery.ask(image, options.text, options.top)
        print(answers.to_string(index=False, float_format="{:.3f}".format))
        if options.out:
            with atomic_path(options.out) as path:
                answer_strip(gallery, image, options.text, answers).savefig(path, format="png")
            print(f"wrote {options.out}")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
