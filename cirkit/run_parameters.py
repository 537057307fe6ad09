"""The parameters of a run: typed, checked, and the same everywhere: notebook 07, the batch, the record."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

from cirkit.data.splits import DATASETS, SOURCES
from cirkit.evidence import EVIDENCE
from cirkit.gate import FACTOR
from cirkit.training import TrainConfig


@dataclass(frozen=True)
class RunParameters:
    """The parameters of a run: those of notebook 07 in lower case.

    ``dataset`` is an embedded world (rendered here), or ``fashioniq`` or ``cirr`` (any folder in that layout, given by
    ``data_root``; ``image_root`` if the images lie elsewhere). ``noise_seed`` draws the noise, ``seed`` everything
    else. ``accumulation`` is how many batches make up an optimizer step (`cirkit.schedule.TrainConfig`). ``lr`` 0 takes
    the method's own. ``exclude_reference`` is None for the data set's own rule.
    ``method_options`` are the typed options of the method. ``device`` is ``auto`` or a torch device. ``gate`` names the
    evidence by which rows are kept from training (``text``, ``change`` or ``composed``, see `cirkit.gate`), "" for
    none; ``gate_factor`` is how many medians of the mirrored null it has to exceed. ``feature_memory`` is the share
    of a GPU's free memory that the features of the training triplets may take; if they need more, and on the CPU, they
    are read from disk.
    """

    method: str = "infonce"
    backbone: str = "tiny"
    dataset: str = "garments"
    data_root: str = ""
    image_root: str = ""
    device: str = "auto"
    noise_kind: str = "shuffle"
    noise_rate: float = 0.0
    noise_seed: int = 42
    seed: int = 0
    epochs: int = TrainConfig.epochs
    batch_size: int = TrainConfig.batch_size
    accumulation: int = TrainConfig.accumulation
    lr: float = 0.0
    mixed_precision: str = TrainConfig.mixed_precision
    caption_mode: str = "first_and_second"
    gallery_rule: str = "split"
    exclude_reference: bool | None = None
    allow_missing_images: bool = False
    feature_memory: float = 0.5
    gate: str = ""
    gate_factor: float = FACTOR
    method_options: dict = field(default_factory=dict)

    def __post_init__(self):
        for f in dataclasses.fields(self):
            default = f.default if f.default is not dataclasses.MISSING else f.default_factory()
            expected = bool if default is None else type(default)
            value = getattr(self, f.name)
            if expected is float and type(value) is int:
                object.__setattr__(self, f.name, float(value))
            elif type(value) is not expected and not (default is None and value is None):
                raise ValueError(f"{f.name} must be {expected.__name__}, got {value!r}")
        if self.dataset not in DATASETS:
            raise ValueError(f"unknown dataset {self.dataset!r}; known: {', '.join(DATASETS)}")
        if SOURCES[self.dataset].build is None and not self.data_root:
            raise ValueError(f"dataset {self.dataset!r} needs data_root, the folder with captions/ and image_splits/")
        if not 0 <= self.feature_memory <= 1:
            raise ValueError(f"feature_memory is a share, from 0 to 1, got {self.feature_memory}")
        if self.gate not in ("", *EVIDENCE):
            raise ValueError(f"unknown gate {self.gate!r}; known: {', '.join(EVIDENCE)}, or '' for none")
        if not 0 <= self.gate_factor < math.inf:
            raise ValueError(f"gate_factor must be 0 or more, got {self.gate_factor}")
