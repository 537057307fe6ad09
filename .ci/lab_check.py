"""Run notebooks as a reader does: in JupyterLab in a browser, all cells, then every kind of control that they offer.

    python .ci/lab_check.py                          notebook 01 and those with controls, short trainings of their own
    python .ci/lab_check.py 03 --full                with the parameters and the runs that are there
    python .ci/lab_check.py 03 --pictures FOLDER     keeps what the browser showed

A notebook is run from a copy, so that the committed one stays clean. It fails on any error output, and where moving a
control does not change the picture above it. Without Chromium it says so and does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from browser import Browser, chromium, end, wait

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("01", "02", "03", "04", "06")
SHORT = {"EPOCHS": 1, "STEPS": 4}
LIMIT = 1800  # seconds for one notebook
SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}}

# what the page is asked; `panel` is the notebook that is open, `cells` its cells
PRELUDE = "const panel = [...jupyterapp.shell.widgets('main')].at(-1); const cells = panel.content.widgets; "
READY = "panel.sessionContext.session.kernel.status === 'idle' && panel.context.isReady"
# the code cells that are done, and the errors among all outputs
STATE = """JSON.stringify({
    left: cells.filter(c => c.model.type === 'code' && c.model.sharedModel.source.trim() &&
                            (c.model.executionCount === null || c.model.executionState !== 'idle')).length,
    errors: cells.filter(c => c.model.type === 'code').flatMap(c => c.model.outputs.toJSON())
        .filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)})"""
# cells with controls, and what each holds
PANELS = """JSON.stringify(cells.map((c, i) => [i, c]).filter(([i, c]) => c.model.type === 'code' &&
    c.model.outputs.toJSON().some(o => 'application/vnd.jupyter.widget-view+json' in (o.data || {})))
    .map(([i]) => i))"""
CONTROLS = {
    "slider": ".widget-hslider .noUi-target",
    "dropdown": ".widget-dropdown select",
    "checkbox": ".widget-checkbox input",
    "button": "button.widget-button",
    "text": ".widget-text input",
}


@contextmanager
def lab(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A JupyterLab over ``folder`` with settings of its own: its address and its token."""
    own = {name: str(folder / ".jupyter" / name) for name in (
        "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
    )}  # fmt: skip
    for place in own.values():
        Path(place).mkdir(parents=True)
    for name, values in SETTINGS.items():
        target = Path(own["JUPYTERLAB_SETTINGS_DIR"]) / f"@jupyterlab/apputils-extension/{name}.jupyterlab-settings"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(values))
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port", "0", "--expose-app-in-browser",
         f"--ServerApp.root_dir={folder}"],
        env=os.environ | own | {"JUPYTER_PREFER_ENV_PATH": "1"} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(iter(server.stdout.readline, "")), daemon=True).start()
    found = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)")
    try:
        match = wait(lambda: next(filter(None, map(found.search, lines)), None), 120, "JupyterLab did not start")
        yield match.group(1), match.group(2)
    finally:
        end(server)


def copied(notebook: Path, folder: Path, short: bool) -> str:
    """Name of a copy in ``folder``, with small numbers in its parameters cell if it is to be short."""
    content = nbformat.read(notebook, 4)
    [cell] = [c for c in content.cells if "parameters" in c.metadata.get("tags", [])]
    for name, value in SHORT.items() if short else ():
        cell.source = re.sub(rf"^{name} = [^#\n]*", f"{name} = {value}  ", cell.source, flags=re.MULTILINE)
    nbformat.write(content, folder / notebook.name)
    return notebook.name


def run_all(browser: Browser) -> list[str]:
    """Run every cell; the errors that came."""
    wait(lambda: browser.ask(READY), 180, "the kernel was not ready")
    browser.ask(
        "(jupyterapp.shell.activateById(panel.id), jupyterapp.commands.execute('notebook:run-all-cells'), true)"
    )

    def done() -> dict | None:
        state = json.loads(browser.ask(STATE) or "{}")
        return state if state and (state["errors"] or not state["left"]) else None

    return wait(done, LIMIT, "the notebook did not end")["errors"]


def place(browser: Browser, node: str) -> list[float]:
    """Scroll to an element; its left, top, width and height once the page has come to rest."""
    seen: list[float] = []

    def at_rest() -> list[float] | None:
        nonlocal seen
        last, seen = (
            seen,
            browser.ask(
                f"((node) => {{ const r = node.getBoundingClientRect();"
                f" if (r.top < 120 || r.bottom > innerHeight - 40) node.scrollIntoView({{block: 'center'}});"
                f" return [r.left, r.top, r.width, r.height, innerHeight]; }})({node})"
            ),
        )
        return seen[:4] if seen == last and 120 <= seen[1] and seen[1] + seen[3] <= seen[4] - 40 else None

    return wait(at_rest, 30, "the page did not come to rest")


def control(browser: Browser, cell: int, kind: str) -> str:
    """Move the last control of a kind in a cell as a person does: "changed", "same picture" or "" if there is none."""
    node = f"[...cells[{cell}].node.querySelectorAll({CONTROLS[kind]!r})].at(-1)"
    if not browser.ask(f"{node} !== undefined"):
        return ""
    left, top, width, height = place(browser, node)
    image = f"cells[{cell}].node.querySelector('.jp-RenderedImage img').src"
    before = browser.ask(image)
    if kind == "dropdown":
        # its list is drawn by the system, which a browser without a screen has none of
        browser.ask(
            f"((s) => {{ s.selectedIndex = (s.selectedIndex + 1) % s.options.length;"
            f" s.dispatchEvent(new Event('change', {{bubbles: true}})); return true; }})({node})"
        )
    else:
        browser.click(left + width * (0.9 if kind == "slider" else 0.5), top + height / 2)
    if kind == "text":
        browser.call("Input.insertText", text="is red and has stripes")
        browser.press("Enter")
    try:
        wait(lambda: browser.ask(image) not in (before, None), 60, "the picture stayed")
    except TimeoutError:
        return "same picture"
    return "changed"


def check(browser: Browser, url: str, token: str, name: str, pictures: Path | None) -> list[str]:
    """What is wrong with one notebook, in sentences."""
    browser.call("Page.navigate", url=f"{url}/lab/tree/{name}?token={token}&reset")
    wait(lambda: browser.ask(f"panel.context.path === {name!r}"), 180, "JupyterLab did not open the notebook")
    began = time.monotonic()
    if errors := run_all(browser):
        return [f"{name}: {error}" for error in errors]
    print(f"{name}: every cell ran, {time.monotonic() - began:.0f} s", flush=True)
    wrong = []
    for cell in json.loads(browser.ask(PANELS)):
        browser.ask(f"(await panel.content.scrollToItem(panel.content.widgets.indexOf(cells[{cell}]), 'start'), true)")
        wait(lambda cell=cell: browser.ask(f"cells[{cell}].node.querySelector('.jupyter-widgets') !== null"), 60,
             f"{name}: no control appeared")  # fmt: skip
        for kind in CONTROLS:
            result = control(browser, cell, kind)
            if result:
                print(f"{name}: {kind}: {result}", flush=True)
                if pictures:
                    browser.ask(f"(cells[{cell}].node.querySelector('.jupyter-widgets').scrollIntoView(false), true)")
                    time.sleep(1)
                    browser.picture(pictures / f"{name[:2]}_{kind}.png")
            if result == "same picture":
                wrong.append(f"{name}: moving the {kind} did not change the picture")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", default=DEFAULT, help="numbers, such as 03")
    parser.add_argument("--full", action="store_true", help="the parameters and the runs that are there")
    parser.add_argument("--pictures", type=Path, help="folder for what the browser showed")
    options = parser.parse_args()
    program = chromium()
    if program is None:
        print("Skipped: there is no Chromium here to look at notebooks with.")
        return
    notebooks = [path for number in options.notebooks for path in sorted((ROOT / "notebooks").glob(f"{number}*.ipynb"))]
    if len(notebooks) != len(options.notebooks):
        raise SystemExit(f"each number must name one notebook, got {' '.join(options.notebooks)}")
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    # so that nothing is left running where this is stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    wrong = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        environment = {"CIRKIT_WIDGETS": "on"}
        if not options.full:
            environment["CIRKIT_RESULTS"] = str(folder / "results")
        served, profile = folder / "served", folder / "browser"
        served.mkdir()
        names = [copied(path, served, not options.full) for path in notebooks]
        with lab(served, environment) as (url, token):
            browser = Browser(program, profile, PRELUDE)
            try:
                for name in names:
                    try:
                        wrong += check(browser, url, token, name, options.pictures)
                    except TimeoutError as error:
                        wrong.append(f"{name}: {error}")
                        if options.pictures:
                            browser.picture(options.pictures / f"{name[:2]}_stopped.png")
                    # saved, or leaving the page would ask whether to
                    browser.ask("(await panel.context.save(), await panel.sessionContext.shutdown(), true)")
            finally:
                browser.close()
    for sentence in wrong:
        print(sentence)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
