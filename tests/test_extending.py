"""The page docs/extending.md, executed as it stands in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from cirkit.data.fashioniq import load_fashioniq
from cirkit.presets import save_backbone

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- (file|line|insert): (\S+)(?: (after|before) (.+?))? -->\n```python\n(.*?)```", re.DOTALL)
DRIVER = """
import json, sys
from cirkit.runs import train_or_load
run = train_or_load(progress=False, **json.loads(sys.argv[1]))
record = json.loads((run.folder / "metrics.json").read_text())
ledger, config = run.noisy.ledger, record["effective"]["method_config"]
print(json.dumps({"id": run.id, "kinds": sorted(set(ledger.kind)), "wrong": int(ledger.changed.sum()),
                  "train": len(run.data.train), "config": config}))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> Path:
    """A copy of the package with everything that the page adds."""
    copy = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "cirkit", copy / "cirkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    blocks = BLOCK.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))
    assert [kind for kind, *_ in blocks] == ["file", "line", "insert", "line", "file", "line", "line"]
    for kind, name, side, anchor, code in blocks:
        path = copy / name
        if kind == "file":
            assert not path.exists()
            path.write_text(code)
            continue
        lines = path.read_text().splitlines(keepends=True)
        (at,) = [i for i, line in enumerate(lines) if line.strip().startswith(anchor)]
        lines.insert(at + (side == "after"), code)
        path.write_text("".join(lines))
    return copy


def run_there(folder: Path, **parameters) -> dict:
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER, json.dumps(parameters)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_what_the_page_adds_trains(extended, mini_world, small_backbone, tmp_path):
    save_backbone(small_backbone(), tmp_path / "backbone")
    data = tmp_path / "my-csv"
    (data / "images").mkdir(parents=True)
    for split in ("train", "val"):
        source = load_fashioniq(mini_world, split)
        rows = pd.DataFrame({"reference": source.references, "text": source.texts, "target": source.targets})
        rows.to_csv(data / f"{split}.csv", index=False)
        for image in {*source.references, *source.targets}:
            shutil.copy(mini_world / "images" / f"{image}.png", data / "images")
    found = run_there(
        extended, method="trimmed", method_options={"drop": 0.25}, noise_kind="stranger", noise_rate=0.5,
        dataset="csv", data_root=str(data), backbone=str(tmp_path / "backbone"), epochs=1, batch_size=16, device="cpu",
    )  # fmt: skip
    assert found["id"].startswith("trimmed-my-csv-stranger-0.5")
    assert found["config"] == {"variant": "adapted", "temperature": 0.07, "drop": 0.25}
    assert found["kinds"] == ["", "stranger"] and found["wrong"] == found["train"] // 2
