"""Is this interpreter fit to run cirkit? Says in one sentence what is missing. Called by make PY=..."""

import sys
from importlib.util import find_spec

NEEDED = ("torch", "transformers", "papermill", "ipykernel", "snakemake", "pytest", "cirkit")

sys.path.pop(0)  # the folder of this script
missing = [name for name in NEEDED if find_spec(name) is None]
if missing:
    sys.exit(
        f"{sys.executable} (Python {sys.version.split()[0]}) has no {', '.join(missing)}. Install with "
        "'pip install -r requirements.txt' and 'pip install --no-deps -e .', or leave out PY= for a .venv."
    )
