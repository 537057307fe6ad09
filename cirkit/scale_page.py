"""docs/scale.md: what a study costs at real size, on paper, beside what `make bench` measured.

``python -m cirkit.scale_page`` writes it.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from cirkit import sizing
from cirkit.paths import atomic_path, project_root
from cirkit.sizing import VIT_G, Step


class Device(NamedTuple):
    """Peak of dense half-precision products, memory and its bandwidth, as NVIDIA's data sheets give them."""

    name: str
    flops: float
    memory: float
    bandwidth: float


DEVICES = (
    Device("A40", 149.7e12, 48e9, 696e9),
    Device("A100 80 GB", 312e12, 80e9, 2039e9),
    Device("H200", 989e12, 141e9, 4800e9),
)
TOWER_SHARE, STEP_SHARE = 0.4, 0.25  # of the peak that is assumed to be reached
TEXT = 32  # tokens, as the methods pad to
EPOCHS = 20
BATCHES = (128, 256)


class Study(NamedTuple):
    """Images that training triplets use, that are evaluated beside them, and triplets."""

    name: str
    trained: int
    evaluated: int
    triplets: int
    source: str

    @property
    def images(self) -> int:
        return self.trained + self.evaluated


# counted in the public files; CIRR's training set by its paper
STUDIES = (
    Study("FashionIQ, triplets and val galleries", 25_136, 40_151 - 25_136, 18_000, "25,136 + 15,015"),
    Study("FashionIQ, train and val galleries", 45_429, 60_033 - 45_429, 18_000, "45,429 + 14,604"),
    Study("FashionIQ, all", 45_429, 74_381 - 45_429, 18_000, "every image"),
    Study("CIRR, train and val", 16_939, 2_297, 28_225, "16,939 + 2,297"),
    Study("CIRR with test1", 16_939, 2_297 + 2_316, 28_225, "and 2,316"),
)


def page() -> str:
    """The page as it stands in docs."""
    _, trained = sizing.parameters(VIT_G)
    more = MORE.format(target=f"{VIT_G.query_tokens * VIT_G.width:,}", query=f"{VIT_G.width:,}",
                       gradients=f"{4 * trained / 1e6:.0f}")  # fmt: skip
    parts = [INTRODUCTION, _shapes(), "\n", _checked(), STORE, _stores(), "\n", STEPS, _steps(), "\n"]
    return "".join([*parts, RUNS.format(evaluation=_evaluation()), _runs(), "\n", more])


def optimizer_seconds(trained: int, device: Device) -> float:
    """AdamW reads weight, gradient and both moments and writes three of them, in float32: 28 bytes a number."""
    return 28 * trained / device.bandwidth


def step_seconds(step: Step, batch: int, device: Device, stored: bool, trained: int) -> float:
    """A step of `VIT_G`, with stored features or with the tower in every step."""
    seconds = sizing.step_flops(VIT_G, step, batch, TEXT) / (STEP_SHARE * device.flops)
    frozen = 0.0 if stored else sizing.frozen_flops(VIT_G, step, batch)
    return seconds + frozen / (TOWER_SHARE * device.flops) + optimizer_seconds(trained, device)


def _shapes() -> str:
    tower, config = sizing.tower_flops(VIT_G), VIT_G
    frozen, trained = sizing.parameters(VIT_G)
    target = sizing.memory_flops(config) + sizing.pass_flops(config, 32, 0, "queries")
    composed = sizing.memory_flops(config) + sizing.pass_flops(config, 32, TEXT, "text")
    rows = [
        ("tower, an image", f"{tower / 1e9:.0f} GFLOP", "39 layers of 2 P (4 Dv² + 2 Dv 6,144) + 4 P² Dv, P 257"),
        ("keys and values of an image", f"{sizing.memory_flops(config) / 1e9:.1f} GFLOP", "6 x 2 P 2 Dv H"),
        ("target, with these", f"{target / 1e9:.1f} GFLOP", "32 query tokens"),
        ("composed query, with these", f"{composed / 1e9:.1f} GFLOP", f"and {TEXT} text tokens, the last layer at one"),
        ("tower / target", f"{tower / target:.0f}", ""),
        ("parameters, frozen", f"{frozen / 1e6:.0f} M", "2 bytes each"),
        ("parameters, trained", f"{trained / 1e6:.0f} M", "16 bytes each: weight, gradient, two moments"),
        ("an image in the store", f"{sizing.row_bytes(config) / 1e3:.0f} kB", "P Dv 2 bytes"),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["ViT-g and Q-Former", "", "from"]).to_markdown(index=False)


def _stores() -> str:
    rows = []
    for study in STUDIES:
        row = {"study": study.name, "images": f"{study.images:,}", "of them": study.source,
               "GB, half precision": f"{study.images * sizing.row_bytes(VIT_G) / 1e9:.1f}",
               "training part, GB": f"{study.trained * sizing.row_bytes(VIT_G) / 1e9:.1f}"}  # fmt: skip
        for device in DEVICES:
            hours = study.images * sizing.tower_flops(VIT_G) / (TOWER_SHARE * device.flops) / 3600
            row[f"hours, {device.name}"] = f"{hours:.2f}"
        rows.append(row)
    return pd.DataFrame(rows).to_markdown(index=False)


def _steps() -> str:
    _, trained = sizing.parameters(VIT_G)
    rows = []
    for batch in BATCHES:
        for name, step in sizing.steps(batch).items():
            own = sizing.step_flops(VIT_G, step, batch, TEXT)
            row = {"batch": batch, "step": name, "TFLOP": f"{own / 1e12:.1f}",
                   "tower besides, TFLOP": f"{sizing.frozen_flops(VIT_G, step, batch) / 1e12:.0f}",
                   "kept, GB": f"{sizing.activation_bytes(VIT_G, step, batch, TEXT, 2) / 1e9:.0f}"}  # fmt: skip
            for device in DEVICES:
                with_store, without = (step_seconds(step, batch, device, s, trained) for s in (True, False))
                row[f"s, {device.name}"] = f"{with_store:.2f} / {without:.2f}"
            rows.append(row)
    return pd.DataFrame(rows).to_markdown(index=False)


def _runs() -> str:
    _, trained = sizing.parameters(VIT_G)
    rows = []
    for study in (STUDIES[1], STUDIES[3]):
        for name, step in sizing.steps(BATCHES[0]).items():
            count = EPOCHS * (study.triplets // BATCHES[0])
            row = {"data": study.name.partition(",")[0], "step": name, "steps": f"{count:,}"}
            for device in DEVICES:
                hours = [count * step_seconds(step, BATCHES[0], device, s, trained) / 3600 for s in (True, False)]
                row[f"hours, {device.name}"] = f"{hours[0]:.2f} / {hours[1]:.1f}"
            rows.append(row)
    return pd.DataFrame(rows).to_markdown(index=False)


def _checked() -> str:
    """Predicted and counted on presets, from the committed table of `make bench`."""
    path = project_root() / "results" / "bench" / "cost.csv"
    text = "\n## The same arithmetic where it can be counted\n\n"
    if not path.is_file():
        return text + "`make bench` has not been run yet.\n"
    table = pd.read_csv(path)
    shown = table[["backbone", "step", "batch", "text tokens"]].copy()
    for name, digits in (("GFLOP", ".2f"), ("activations, MB", ".1f"), ("state, MB", ".2f"), ("ms", ".0f")):
        pairs = zip(table[f"predicted {name}"], table[name], strict=True)
        shown[name] = [f"{predicted:{digits}} / {found:{digits}}" for predicted, found in pairs]
    return text + CHECKED + shown.to_markdown(index=False) + "\n"


INTRODUCTION = """# At real size

Written by `python -m cirkit.scale_page`; a test keeps it current. The formulas stand in `cirkit/sizing.py`, a few lines
each. All of this page but the checks against counted steps is arithmetic, not measurement: no GPU was at hand.

## Shapes

"""
CHECKED = """Predicted / found on one thread: FLOPs of products, without those inside fused attention, which torch does
not count on the CPU; what autograd keeps; weights, gradients and moments; and time, predicted as if everything ran at
the rate of one large product, which small steps do not reach. The Gaussian images of `conesep-released` are encoded in
every step here.

"""
STORE = """
## The store

A study needs the patch tokens of every image that it trains on or ranks. Target tokens of gallery images cannot be
stored instead: the trained Q-Former makes them, so they change with every step. A run also encodes the galleries of the
training split, which only `qure` draws from; FashionIQ's triplets and val galleries alone would need a third less. Its
test split has no public targets and is not encoded, nor is that of CIRR, unless you make a submission. Features are
stored in half precision where the tower computes in it. Hours are those of the tower at 40 % of the peak; a fast GPU
waits for the processor cores that open and resize the pictures (the table `store` of `make bench` has their time).

"""
STEPS = """
An encoding that was interrupted goes on where it stopped; until it is done it is a folder `.<key>.partial` among the
features, which may be deleted to begin anew. Before it begins, the room it needs is compared with what is free.

A run holds the features of its training triplets on the GPU if they take at most `FEATURE_MEMORY` (half) of what is
free there, and reads them from a memory map otherwise. From the map, a step of 128 triplets reads 256 images, 185 MB:
0.06 s from a disk that gives 3 GB/s, less from the page cache.

## A step

Seconds with the store / with the tower in every step, at 25 % of the peak for the Q-Former and 40 % for the tower, plus
what AdamW reads and writes, 28 bytes a number. Texts of 32 tokens, negations of 2 more. What is kept for the backward
pass counts two bytes a number, as under autocast; norms keep more, so it is a lower bound. The tower keeps nothing.

"""
RUNS = """
## A run of 20 epochs, batches of 128

Hours of steps, with the store / without. Evaluation comes on top:
{evaluation}.

"""
MORE = """
## Several processes, accumulation

- **Processes.** Each holds a replica and computes its share of the rows of every Q-Former pass (`cirkit/parallel.py`);
  what a batch is does not change. FLOPs of the passes and what they keep for the backward pass divide by the number of
  processes; scores, losses, AdamW and its 16 bytes a number do not. A step adds a gathering of each pass's last states
  ({target} numbers a row for targets, {query} for a composed query) and the averaging of the gradients
  ({gradients} MB). All processes read the store; one encodes it while the others wait.
- **Accumulation.** k batches make up a step: memory stays that of one batch, FLOPs and reads are those of k, AdamW runs
  once. Negatives come from one batch alone, so k batches of B are not one of kB.
- **Evaluation.** Scores are computed in blocks (`cirkit/exact_scores.py`), so that memory is that of the gallery's
  tokens: 32 x 256 numbers an image, 208 MB for 6,346 images in float32.

Peaks without sparsity, memory and bandwidth are from NVIDIA's data sheets: A40 (149.7 TFLOPS in bfloat16, 48 GB,
696 GB/s), A100 80 GB SXM (312, 80 GB, 2,039 GB/s), H200 SXM (989, 141 GB, 4.8 TB/s). Shares of the peak are assumed.
"""


def _evaluation() -> str:
    """How evaluation compares with training steps, in words."""
    target = sizing.memory_flops(VIT_G) + sizing.pass_flops(VIT_G, VIT_G.query_tokens, 0, "queries")
    steps = 15_415 * target / sizing.step_flops(VIT_G, Step(), BATCHES[0], TEXT)
    return f"target passes for FashionIQ's val galleries, 15,415 images, cost as much as {steps:.0f} steps of `infonce`"


def main() -> None:
    with atomic_path(project_root() / "docs" / "scale.md") as path:
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
