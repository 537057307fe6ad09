"""docs/real.md: from nothing to a row of the published FashionIQ tables, with one command per row.

``python -m cirkit.real_page`` writes it.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from cirkit import published, sizing
from cirkit.paths import atomic_path, project_root
from cirkit.scale_page import DEVICES, step_seconds
from cirkit.sizing import VIT_G, Step

TRIPLETS = 18_000
# time of a step by what a method does in it, as far as sizing knows; twice a plain step is taken for those between
_PASSES = {"conesep": "conesep-released", "sprc": None, "tme": None, "habit": "infonce", "intent": "infonce",
           "qure": "infonce", "dqe": None}  # fmt: skip


class Paper(NamedTuple):
    """How a paper trains on FashionIQ: our row, the preset with its backbone, epochs, batch, and its noise rates."""

    name: str
    method: str
    preset: str
    epochs: int
    batch: int
    rates: tuple[float, ...]
    source: str  # part of the source's name in the published record


_NOISY, _CONESEP = (0.0, 0.2, 0.5, 0.8), "ConeSep repository"
PAPERS = (
    Paper("ConeSep", "conesep-released", "blip2-vitg", 20, 128, _NOISY, _CONESEP),
    Paper("SPRC", "sprc", "blip2-vitg", 30, 128, _NOISY, _CONESEP),
    Paper("TME", "tme-released", "blip2-vitg", 30, 128, _NOISY, _CONESEP),
    Paper("HABIT", "habit-released", "blip2-vitg", 20, 256, _NOISY, _CONESEP),
    Paper("INTENT", "intent-released", "blip2-vitg", 20, 128, _NOISY, _CONESEP),
    Paper("QuRe", "qure-released", "blip2-vitl", 30, 32, (0.0,), "QuRe (arXiv"),
    Paper("DQE-CIR", "dqe", "blip2-vitg", 30, 32, (0.0,), "summary of DQE-CIR"),
)


# whose released code draws one of four forms of the two captions, each time anew
RANDOM_CAPTIONS = ("SPRC", "TME")


def command(paper: Paper, rate: float) -> str:
    """The parameters of one row, behind the page's function ``row``; captions and ranking as in its released code."""
    words = f"method={paper.method} noise_rate={rate:g} backbone={paper.preset}"
    words += f" epochs={paper.epochs} batch_size={paper.batch}"
    words += " caption_mode=random" if paper.name in RANDOM_CAPTIONS else ""
    words += " exclude_reference=True" if published.protocols().FashionIQ[paper.name] == "last" else ""
    return f"row {words}"


def rows() -> pd.DataFrame:
    """One line per row of the tables: what the paper has, the hours to expect, and the command."""
    record = published.load()
    averages = record[(record.dataset == "FashionIQ") & record.metric.isin(["Average R@10", "Average R@50"])]
    lines = []
    for paper in PAPERS:
        own = averages[(averages.method == paper.name) & averages.source.str.contains(paper.source, regex=False)]
        for rate in paper.rates:
            cells = own[own.noise == rate].drop_duplicates("metric").set_index("metric").value
            found = [f"{float(cells[k]):.2f}" if k in cells else "–" for k in ("Average R@10", "Average R@50")]
            lines.append({"row": paper.name, "noise": f"{rate:g}", "paper, R@10 / R@50": " / ".join(found),
                          "hours, " + " / ".join(d.name for d in DEVICES): _hours(paper),
                          "command": f"`{command(paper, rate)}`"})  # fmt: skip
    return pd.DataFrame(lines)


def _hours(paper: Paper) -> str:
    count, (_, trained) = paper.epochs * (TRIPLETS // paper.batch), sizing.parameters(VIT_G)
    name = _PASSES[paper.method.partition("-")[0]]
    known = sizing.steps(paper.batch)
    step, times = (known[name], 1) if name else (Step(), 2)
    hours = [times * count * step_seconds(step, paper.batch, d, True, trained) / 3600 for d in DEVICES]
    return " / ".join(f"{h:.1f}" if h >= 0.1 else "< 0.1" for h in hours)


def page() -> str:
    """The page as it stands in docs."""
    return TEXT + rows().to_markdown(index=False, disable_numparse=True) + "\n" + NOTES


TEXT = """# From nothing to a row of the published tables

Written by `python -m cirkit.real_page`; a test keeps it current. **We have run nothing on this page at full size:**
neither the weights nor the images can be fetched where this study was made. Every step was tried with small random
weights in the same file formats (`tests/test_real_runs.py`), and the numbers of the methods' released code are matched
by the tests. If a row comes out otherwise for you, that is a finding.

You need a GPU with 24 GB or more (48 GB for a batch of 256), 60 GB of disk, and a day for the images.

## 1. Set up

```console
make install && source .venv/bin/activate
```

## 2. FashionIQ

The annotations are the folders `captions` and `image_splits` of the repository XiaoxiaoGuo/fashion-iq (branch master).
The images are not in it: its `image_url` folder lists shop addresses, many of which are dead; the archives that people
pass on hold 74,381 images, which is all of them, although the nine split files list 77,683 (3,302 are named twice).
Any of these layouts is found: `images/<id>.png` or `.jpg`, `resized_image/<category>/<id>.jpg`,
`image_data/<category>/<id>.jpg`.

```text
data/fashioniq/captions/cap.dress.train.json  …
data/fashioniq/image_splits/split.dress.train.json  …
data/fashioniq/images/<id>.png
```

```console
python -m cirkit check data/fashioniq
```

Expect 18,000 triplets to train on and 6,016 queries, galleries of 3,817, 6,346 and 5,373 images, and no missing image.
Missing ones stop a run before it begins; `allow_missing_images=True` goes on without them and marks the record
as not comparable.

## 3. Weights

One of these:

| preset | files |
|---|---|
| `blip2-vitg` | of LAVIS `blip2_pretrained.pth` and `eva_vit_g.pth`; or `hf download Salesforce/blip2-itm-vit-g` |
| `blip2-vitl` | of LAVIS `blip2_pretrained_vitL.pth` and `clip_vit_L.pth` |
| `blip` | `hf download Salesforce/blip-itm-base-coco` |

What `hf download` fetches stays in the Hugging Face cache and is found there. LAVIS's two files go into a folder
`.cache/weights/<preset>` (`CIRKIT_WEIGHTS` names another place than `.cache/weights`), and `vocab.txt` of
`bert-base-uncased` beside them, unless the cache has it. `make parity` compares this package's passes with LAVIS's own,
on small random weights. LAVIS's files and those for transformers differ in one constant (of a LayerNorm, 1e-5 against
1e-6), so that a row made from one is another run than from the other.

```console
python -c "from cirkit.presets import load_backbone; print(load_backbone('blip2-vitg').config)"
```

## 4. A trial

One epoch of the plain loss: the images are encoded once, with a bar that says how long it takes, and kept
(43 GB, [docs/scale.md](scale.md)); every later run reads them.

```console
python -m cirkit.train epochs=1 backbone=blip2-vitg dataset=fashioniq data_root=data/fashioniq mixed_precision=bf16
```

## 5. The rows

```bash
row() {
    python -m cirkit.train dataset=fashioniq data_root=data/fashioniq mixed_precision=bf16 "$@" \\
        --result "results/study/runs/fashioniq-$(echo "$*" | tr ' =' '-_').json"
}
```

Epochs and batches are those of each paper, learning rates too (`published_lr` of each method); the schedule is this
study's one-cycle for all but QuRe, and the last epoch counts, where released code takes the best on the very split
that it reports. Several seeds: `seed=1 noise_seed=43`, and so on. An interrupted command goes on where it stopped. On
several GPUs: `accelerate launch --multi_gpu --num_processes 4 -m cirkit.train` instead of `python -m cirkit.train`.
Hours are arithmetic for the steps alone, on features that are there ([docs/scale.md](scale.md)), ViT-g's for all rows;
INTENT's first two epochs also run the tower on every reference, which is not counted.

"""
NOTES = """
Then `python -m cirkit.publish results/study` writes the table, with intervals. R@10 and R@50 are means over the three
categories of the validation split, on galleries of the split files. Whether the reference is ranked
(`exclude_reference=True` masks it) and how two captions are joined (`caption_mode=random`; first "and" second by
default) follows each method's released code, as far as it is known
([notebook 11](../notebooks/11_comparison.ipynb), section 5): compare only rows of one protocol with each other.

What else differs from the papers: no paper gives seeds or intervals; `clip4cir` is on this study's backbone, not on
CLIP, so that its published row cannot be made; DQE-CIR gives neither code nor settings, and QuRe's are taken for it.
"""


def main() -> None:
    with atomic_path(project_root() / "docs" / "real.md") as path:
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
