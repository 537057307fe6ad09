"""Open every page of the book in a browser, on a phone's width and a desk's, in light and dark, and say what is wrong.

    python .ci/book_check.py                        results/book
    python .ci/book_check.py --pictures FOLDER      keeps what the browser showed of each page

Fails on script errors, anything asked of a network, pictures that are broken or without a description, equations that
are not set, error outputs, pages wider than the screen, and a search that finds nothing. Without Chromium it says so
and does nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser, chromium, wait

from cirkit.paths import results_dir

SIZES = {"phone": (400, 800), "desk": (1280, 900)}
# equations are set a moment after the page is there
READY = """document.readyState === 'complete' &&
    [...document.querySelectorAll('.math')].every(m => m.querySelector('mjx-container')) &&
    (!location.search || !!document.querySelector('#search-results li'))"""
FOUND = """JSON.stringify({
    'broken pictures': [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    'pictures without a description': [...document.querySelectorAll('article img')]
        .filter(i => !i.alt || /^[.\\/_]*_images/.test(i.alt)).map(i => i.src),
    'equations that are not set': [...document.querySelectorAll('.math')]
        .filter(m => !m.querySelector('mjx-container') || m.querySelector('mjx-merror, [data-mjx-error]'))
        .map(m => m.textContent.slice(0, 60)),
    'error outputs': [...document.querySelectorAll('.cell_output .traceback')].map(e => e.textContent.slice(0, 60)),
    'wider than the screen': document.documentElement.scrollWidth > WIDTH + 1
        ? [document.documentElement.scrollWidth + ' px', ...[...document.querySelectorAll('article *')]
            .filter(e => e.getBoundingClientRect().right > WIDTH + 1).slice(0, 3)
            .map(e => e.tagName + '.' + e.className)]
        : [],
})"""


def spoken(said: list[dict]) -> dict[str, list[str]]:
    """Errors of scripts and addresses outside the folder, from `Browser.reports`."""
    errors, asked = [], []
    for report in said:
        told = report.get("params", {})
        match report.get("method"):
            case "Network.requestWillBeSent":
                asked.append(told["request"]["url"])
            case "Network.webSocketCreated":
                asked.append(told["url"])
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                errors.append((details.get("exception", {}).get("description") or details["text"]).splitlines()[0])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "assert"):
                errors.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
    local = ("file:", "data:", "about:", "blob:")
    return {"script errors": errors, "asked of a network": [a for a in asked if not a.startswith(local)]}


def findings(browser: Browser, address: str, size: str, scheme: str, picture: Path | None = None) -> dict[str, list]:
    """What is wrong at an address as it is shown on a screen of this size and colour scheme."""
    width, height = SIZES[size]
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.call("Emulation.setDeviceMetricsOverride", **screen)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Page.navigate", url="about:blank")
    browser.reports.clear()
    browser.call("Page.navigate", url=address)
    late = []
    try:
        wait(lambda: browser.ask(READY), 60, "the page was not ready")
    except TimeoutError as error:
        late = [str(error)]
    time.sleep(0.1)  # for what a script does just after
    # the width asked for: a phone's own innerWidth grows with what does not fit
    found = json.loads(browser.ask(FOUND.replace("WIDTH", str(width)))) | {"slow": late} | spoken(browser.reports)
    if picture is not None:
        shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
    return {name: list(dict.fromkeys(values)) for name, values in found.items() if values}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    pictures = parser.parse_args().pictures
    site = results_dir() / "book"
    pages = [p for p in sorted(site.rglob("*.html")) if p.name != "genindex.html"]
    if not pages:
        print(f"there is no book in {site}: make book", file=sys.stderr)
        return 1
    if (program := chromium()) is None:
        print("no Chromium here, so the book was not opened in a browser")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, Path(folder))
        try:
            for subject in ("Page", "Network", "Log", "Runtime"):
                browser.call(f"{subject}.enable")
            for page in pages:
                query = "?q=retrieval" if page.name == "search.html" else ""
                for size, scheme in (("phone", "light"), ("desk", "dark"), ("phone", "dark"), ("desk", "light")):
                    picture = None
                    if pictures:
                        pictures.mkdir(parents=True, exist_ok=True)
                        picture = pictures / f"{page.stem}-{size}-{scheme}.png"
                    for name, values in findings(
                        browser, page.resolve().as_uri() + query, size, scheme, picture
                    ).items():
                        wrong += 1
                        print(f"{page.relative_to(site)}, {size}, {scheme}: {name}: {'; '.join(map(str, values))}")
        finally:
            browser.close()
    print(f"{len(pages)} pages in {2 * len(SIZES)} views, {wrong} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
