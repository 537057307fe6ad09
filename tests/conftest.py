"""What every test may ask for."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from cirkit.backbone import Backbone, BackboneConfig
from cirkit.data.garments import GarmentsRecipe, build_garments, vocabulary
from cirkit.tokens import build_vocabulary

# tensors of tests are so small that a second thread only waits, and waits long where the cores are shared
torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
MINI_RECIPE = GarmentsRecipe(train_images=24, gallery_images=20, train_triplets=40, eval_triplets=9)


@pytest.fixture(autouse=True)
def _seeded():
    """What a test draws does not depend on which tests drew before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden():
    """Arrays that the released code of a method gave, by file name without suffix."""

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as archive:
            return dict(archive)

    return load


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the public annotation files (``CIRKIT_DATA`` or ../shared/data); tests skip without it."""
    folder = Path(os.environ.get("CIRKIT_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("the public annotation files are not at hand (set CIRKIT_DATA)")
    return folder


@pytest.fixture(scope="session")
def mini_world(tmp_path_factory) -> Path:
    """A garments world of a few dozen images, in the real layout."""
    return build_garments(tmp_path_factory.mktemp("worlds"), MINI_RECIPE, progress=False)


@pytest.fixture
def small_backbone():
    """Maker of random backbones for 48-pixel images, small enough for a training step in milliseconds."""

    def make(seed: int = 0, **changes) -> Backbone:
        config = BackboneConfig(
            "small", build_vocabulary(vocabulary()), width=24, layers=2, intermediate=48, query_tokens=3,
            embed_dim=7, vision_width=24, vision_layers=1,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Backbone(dataclasses.replace(config, **changes)).eval()

    return make


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """Tests write features and results into their own folder, never into the checkout."""
    monkeypatch.setenv("CIRKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CIRKIT_RESULTS", str(tmp_path / "results"))
