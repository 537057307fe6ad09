"""Open every page of the book in a browser, on a phone's width and a desk's, in light and dark, and say what is wrong.

    python .ci/book_check.py                        results/book
    python .ci/book_check.py --pictures FOLDER      keeps what the browser showed of each page

Fails on script errors, anything asked of a network, pictures that are broken or without a description, equations that
are not set, error outputs, and pages wider than the phone. Without Chromium it says so and does nothing.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from pathlib import Path

from browser import Browser, chromium, wait

from cirkit.paths import results_dir

SIZES = {"phone": (400, 800), "desk": (1280, 900)}
LISTEN = """window.said = [];
window.addEventListener('error', e => said.push(e.message || 'not found: ' + e.target.src), true);
const loud = console.error; console.error = (...a) => { said.push(a.join(' ')); loud(...a); };"""
# equations are set a moment after the page is there
READY = """document.readyState === 'complete' &&
    [...document.querySelectorAll('.math')].every(m => m.querySelector('mjx-container'))"""
FOUND = """JSON.stringify({
    'script errors': said,
    'asked of a network': [...performance.getEntriesByType('resource').map(e => e.name),
        ...[...document.querySelectorAll('script[src], img[src], link[rel=stylesheet]')].map(e => e.src || e.href)]
        .filter(n => /^https?:/.test(n)),
    'broken pictures': [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
    'pictures without a description': [...document.querySelectorAll('article img')]
        .filter(i => !i.alt || /^[.\\/_]*_images/.test(i.alt)).map(i => i.src),
    'equations that are not set': [...document.querySelectorAll('.math')]
        .filter(m => !m.querySelector('mjx-container') || m.querySelector('mjx-merror, [data-mjx-error]'))
        .map(m => m.textContent.slice(0, 60)),
    'error outputs': [...document.querySelectorAll('.cell_output .traceback')].map(e => e.textContent.slice(0, 60)),
    'wider than the screen': document.scrollingElement.scrollWidth > innerWidth + 1
        ? [...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .slice(0, 3).map(e => e.tagName + '.' + e.className) : [],
})"""


def findings(browser: Browser, page: Path, size: str, scheme: str, picture: Path | None = None) -> dict[str, list]:
    """What is wrong on a page as it is shown on a screen of this size and colour scheme."""
    width, height = SIZES[size]
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.call("Emulation.setDeviceMetricsOverride", **screen)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=page.as_uri())
    late = []
    try:
        wait(lambda: browser.ask(READY), 60, "the equations were not set")
    except TimeoutError as error:
        late = [str(error)]
    found = json.loads(browser.ask(FOUND)) | ({"slow": late} if late else {})
    if picture is not None:
        shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
    return {name: list(dict.fromkeys(values)) for name, values in found.items() if values}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path)
    pictures = parser.parse_args().pictures
    site = results_dir() / "book"
    pages = [p for p in sorted(site.rglob("*.html")) if p.name not in ("genindex.html", "search.html")]
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
            browser.call("Page.enable")
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
            for page in pages:
                for size, scheme in (("phone", "light"), ("desk", "dark"), ("phone", "dark"), ("desk", "light")):
                    picture = None
                    if pictures:
                        pictures.mkdir(parents=True, exist_ok=True)
                        picture = pictures / f"{page.stem}-{size}-{scheme}.png"
                    for name, values in findings(browser, page.resolve(), size, scheme, picture).items():
                        wrong += 1
                        print(f"{page.relative_to(site)}, {size}, {scheme}: {name}: {'; '.join(map(str, values))}")
        finally:
            browser.close()
    print(f"{len(pages)} pages in {2 * len(SIZES)} views, {wrong} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
