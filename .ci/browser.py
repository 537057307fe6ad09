"""A page of a headless Chromium, driven by its DevTools protocol; for the checks that look at what a reader sees."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import websocket


def chromium() -> str | None:
    """The browser's program, or None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A page of a headless Chromium. ``prelude`` is JavaScript that comes before every expression asked for."""

    def __init__(self, program: str, folder: Path, prelude: str = ""):
        self.prelude = prelude
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
             "--remote-allow-origins=*", "--window-size=1300,1000", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port = folder / "DevToolsActivePort"
        wait(lambda: port.is_file() and port.read_text().strip(), 60, "Chromium did not start")
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        with urllib.request.urlopen(address, timeout=30) as answer:
            page = next(target for target in json.load(answer) if target["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=120)
        self.numbers = count(1)
        self.reports: list[dict] = []  # what it says by itself, of the subjects that were enabled
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.reports.append(message)

    def ask(self, expression: str):
        """The value of a JavaScript expression about the page; None where there is none yet."""
        code = f"(async () => {{ try {{ {self.prelude} return {expression}; }} catch (e) {{ return null; }} }})()"
        return self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)["result"].get(
            "value"
        )

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        code = {"ArrowDown": 40, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        with suppress(Exception):
            self.call("Browser.close")
        end(self.process)


def wait(condition: Callable, seconds: float, otherwise: str):
    """What ``condition`` gives once it is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.3)
    raise TimeoutError(f"{otherwise} within {seconds:g} s")


def end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
