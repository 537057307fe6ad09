"""Runs every command that README.md and docs/running.md show in a ```bash block, in order, and says how many passed.

Some are run in a shorter form: `make test` has just been run by whoever calls this, `make study` is planned but
not run (`make grid` trains, the tests run the notebooks; `--all` runs it), `make lab` is stopped once
it answers, and `make pretrain` takes two steps into another folder instead of the whole recipe.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN_DATA = ROOT / "data" / "my-fashioniq"


def commands() -> list[str]:
    text = "".join((ROOT / page).read_text() for page in ("README.md", "docs/running.md"))
    blocks = re.findall(r"^```bash\n(.*?)^```", text, flags=re.S | re.M)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def run(command: str) -> bool:
    return subprocess.run(["bash", "-c", command], cwd=ROOT).returncode == 0


def lab_answers(command: str) -> bool:
    """Start the server and wait until it prints its address, at most 90 seconds."""
    server = subprocess.Popen(
        ["bash", "-c", f'{command} ARGS="--no-browser --allow-root --port 0"'],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    limit = threading.Timer(90, os.killpg, (server.pid, signal.SIGKILL))
    limit.start()
    answered = any("?token=" in line for line in server.stdout)
    limit.cancel()
    if answered:
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    return answered


def exercise(command: str) -> bool:
    if command == "make test":
        return "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
    if command == "make study" and "--all" not in sys.argv:
        return run(f"{sys.executable} -m snakemake study --cores 2 --nolock --dry-run --quiet > {os.devnull}")
    if command == "make lab":
        return lab_answers(command)
    if command == "make pretrain":
        with tempfile.TemporaryDirectory() as folder:
            return run(f'{command} ARGS="--steps 2 --out {folder}"')
    return run(command)


def write_own_data() -> None:
    """A few pictures in the layout that docs/running.md describes, for the commands on one's own data."""
    sys.path.insert(0, str(ROOT / "tests"))
    from mini_fashioniq import write_annotations, write_images

    if not OWN_DATA.exists():
        write_images(write_annotations(OWN_DATA))


def main() -> None:
    made = not OWN_DATA.exists()
    write_own_data()
    failed = []
    try:
        for command in commands():
            print(f"\n===== {command}", flush=True)
            began = time.perf_counter()
            if not exercise(command):
                failed.append(command)
            print(
                f"===== {'FAILED' if command in failed else 'ok'} after {time.perf_counter() - began:.0f} s", flush=True
            )
    finally:
        if made:
            shutil.rmtree(OWN_DATA)
    for command in failed:
        print(f"failed: {command}")
    print(f"{len(commands()) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
