"""The book: executed notebooks and pages as a static site that needs no network.

    make book        results/book/index.html

Takes the notebooks of your study where there are all of them, else the committed ones; they are copied, never executed
or changed. The one on your own data is shown without outputs where it was not executed. Links to files that are no
pages become their path in words. A page or picture that is linked and not there stops it with one sentence.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from posixpath import normpath

from cirkit.equations_page import saved_figures
from cirkit.paths import atomic_path, results_dir

ROOT = Path(__file__).resolve().parent.parent
SHOWN_RUN = "07_training-infonce-tiny-garments-shuffle-0.5-seed0"  # of notebook 07 there is a copy for each run
MAY_BE_SOURCE = {"13_own_data"}
PAGES = {  # heading in the contents -> pages, in order
    "Read": ["docs/findings.md", "results/reference/summary.md"],
    "Use": ["docs/running.md", "docs/real.md", "docs/scale.md", "docs/extending.md"],
    "Teach": ["docs/teaching.md", "docs/glossary.md", "docs/equations.md"],
    "Details": [
        "docs/conesep.md", "results/reference/detection.md", "results/reference/paired.md", "results/bench/README.md",
        "docs/citing.md",
    ],
}  # fmt: skip
TITLES = {  # of pages that are a table alone
    "results/reference/summary.md": "All results", "results/reference/detection.md": "How well noise is found",
    "results/reference/paired.md": "Paired differences",
}  # fmt: skip
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
MATHJAX = ("tex-svg-full.js", "core.js", "input", "output", "sre", "a11y", "ui", "loader.js", "startup.js")


class BookError(Exception):
    """One sentence why there is no book."""


def link_targets(page: str, text: str, known: Iterable[str]) -> str:
    """Links of a page (its path in the repository) made fit for the book; what is no page is named by its path.

    Raises:
        BookError: a link to a file that the repository does not have.
    """
    folder, known = Path(page).parent.as_posix(), set(known)

    def convert(match: re.Match) -> str:
        mark, words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        place, _, anchor = target.partition("#")
        path = normpath(f"{folder}/{place}")
        if not (ROOT / path).exists():
            raise BookError(f"{page} links to {target}, and there is no {path}")
        if path == "README.md" or path in known:
            start = "../" * (len(Path(page).parts) - 1)
            name = "index.md" if path == "README.md" else path
            return f"{mark}[{words}]({start}{name}{'#' * bool(anchor)}{anchor})"
        if mark:
            return match[0]
        plain = words.replace("`", "")
        return f"`{path}`" if plain in (path, place, Path(path).name) else f"{words} (`{path}`)"

    parts = re.split(r"(^ *```.*?^ *```)", text, flags=re.S | re.M)  # code is left alone
    return "".join(part if n % 2 else LINK.sub(convert, part) for n, part in enumerate(parts))


def executed_notebooks() -> dict[str, Path]:
    """Notebook -> its executed copy, from one's own study if that has all, else from the committed record."""
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    for folder in (results_dir() / "study" / "notebooks", ROOT / "results" / "reference" / "notebooks"):
        found = {n: folder / f"{SHOWN_RUN if n.startswith('07') else n}.ipynb" for n in names}
        found |= {n: ROOT / "notebooks" / f"{n}.ipynb" for n in MAY_BE_SOURCE & found.keys() if not found[n].is_file()}
        missing = [name for name, path in found.items() if not path.is_file()]
        if not missing:
            return found
    raise BookError(f"no executed copy of notebook {missing[0]}: run make study first")


def descriptions(folders: Iterable[Path]) -> dict[str, str]:
    """Alternative texts of the figures that notebooks save, by name."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            found.setdefault(path.stem, json.loads(path.read_text(encoding="utf-8"))["alt"])
    return found


def picture_texts(notebook: dict, texts: Mapping[str, str]) -> dict[str, str]:
    """File name that the book gives a picture (the digest of its bytes) -> alternative text, for all outputs."""
    found: dict[str, str] = {}
    section = ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and (headings := re.findall(r"^#+ (.+)$", "".join(cell["source"]), re.M)):
            section = f"figure of the section “{headings[-1]}”"
        names = saved_figures("".join(cell["source"])) if cell["cell_type"] == "code" else []
        named = [next((text for key, text in texts.items() if key.startswith(name)), "") for name in names]
        for output in cell.get("outputs", []):
            if "image/png" in (data := output.get("data", {})):
                digest = hashlib.sha256(b64decode("".join(data["image/png"]))).hexdigest()
                own = output.get("metadata", {}).get("image/png", {}).get("alt")
                if digest not in found:  # one that is shown twice was saved once
                    found[digest] = own or (named.pop(0) if named else "") or section
    return found


def collect(folder: Path) -> dict[str, str]:
    """Write all pages to `folder`; the alternative texts of the notebooks' pictures, by digest."""
    notebooks = executed_notebooks()
    pages = [page for part in PAGES.values() for page in part]
    known = {*pages, *(f"notebooks/{name}.ipynb" for name in notebooks)}
    texts = descriptions([results_dir() / "study" / "figures", ROOT / "figures"])
    alternatives = {}
    for name, path in notebooks.items():
        page = f"notebooks/{name}.ipynb"
        content = json.loads(path.read_text(encoding="utf-8"))
        alternatives |= picture_texts(content, texts)
        for cell in content["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = link_targets(page, "".join(cell["source"]), known)
        if path.parent == ROOT / "notebooks":
            content["cells"][0]["source"] += "\n\n*Shown without outputs: no executed copy was there.*"
        write(folder / page, json.dumps(content))
    for page in pages:
        title = f"# {TITLES[page]}\n\n" if page in TITLES else ""
        write(folder / page, title + link_targets(page, (ROOT / page).read_text(encoding="utf-8"), known))
    readme = link_targets("README.md", (ROOT / "README.md").read_text(encoding="utf-8"), known)
    contents = {"Notebooks": [f"notebooks/{name}.ipynb" for name in notebooks], **PAGES}
    for heading, part in contents.items():
        readme += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n" + "\n".join(part) + "\n```\n"
    write(folder / "index.md", readme)
    for picture in {m[3] for m in LINK.finditer(readme) if m[1]}:
        (folder / picture).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / picture, folder / picture)
    shutil.copy(ROOT / "docs" / "book" / "conf.py", folder)
    (folder / "_static" / "mathjax").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "book" / "book.css", folder / "_static")
    return alternatives


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def build(pages: Path, site: Path) -> None:
    """Sphinx's site of the collected pages; any warning of it is an error."""
    mathjax = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for name in MATHJAX:
        source, target = mathjax / name, pages / "_static" / "mathjax" / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    options = ["-N", "-q", "-W", "--keep-going", "-j", "2", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(pages), str(site)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise BookError(
            "the pages do not fit together: " + (said[0] if said else "Sphinx stopped").replace(f"{pages}/", "")
        )


def describe(site: Path, alternatives: Mapping[str, str]) -> None:
    """Put the alternative texts where Sphinx wrote the file's name."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")

        def named(match: re.Match) -> str:
            digest = match[0].rpartition("_images/")[2].partition(".")[0]
            if not (alt := alternatives.get(digest)):
                return match[0]
            return re.sub(r'alt="[^"]*"', f'alt="{html.escape(alt)}"', match[0])

        page.write_text(re.sub(r"<img [^>]*>", named, text), encoding="utf-8")


def main() -> int:
    needed = ("sphinx", "myst_nb", "furo", "sphinx-mathjax-offline")
    if missing := [name for name in needed if find_spec(name) is None]:
        print(f"book: {', '.join(missing)} not found, of the extra `book`: make install.", file=sys.stderr)
        return 1
    site = results_dir() / "book"
    try:
        with tempfile.TemporaryDirectory() as folder, atomic_path(site.with_name("book.new")) as new:
            pages, made = Path(folder) / "pages", Path(folder) / "site"
            alternatives = collect(pages)
            build(pages, made)
            describe(made, alternatives)
            shutil.copytree(made, new, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    except BookError as error:
        print(f"book: {error}.", file=sys.stderr)
        return 1
    shutil.rmtree(site, ignore_errors=True)
    site.with_name("book.new").rename(site)
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
