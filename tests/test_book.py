"""The book: links fit the site or become words, figures are described, and nothing of it asks for a network."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import sys

import nbformat
import numpy as np
import pytest
from PIL import Image

from cirkit.paths import project_root

SPEC = importlib.util.spec_from_file_location("book", project_root() / ".ci" / "book.py")
book = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(book)

KNOWN = {"notebooks/03_cone_histograms.ipynb", "docs/findings.md"}


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("docs/findings.md", "[three](../notebooks/03_cone_histograms.ipynb#x)", "same"),
        ("docs/findings.md", "[home](../README.md)", "[home](../index.md)"),
        ("docs/findings.md", "[web](https://example.org/a_b)", "same"),
        ("docs/findings.md", "[above](#there)", "same"),
        ("docs/findings.md", "the [licence](../LICENSE) says", "the licence (`LICENSE`) says"),
        ("docs/findings.md", "[`runs.py`](../cirkit/runs.py)<br>[`a`](../cirkit/runs.py)",
         "`cirkit/runs.py`<br>`a` (`cirkit/runs.py`)"),
        ("notebooks/03_cone_histograms.ipynb", "[f](../docs/findings.md) [g](../figures)",
         "[f](../docs/findings.md) g (`figures`)"),
        ("README.md", "![triplets](figures/00_triplets.png)", "same"),
        ("README.md", "```\n[no](link.md)\n```", "same"),
    ],
)  # fmt: skip
def test_links_fit_the_book_or_become_words(page, text, expected):
    assert book.link_targets(page, text, KNOWN) == (text if expected == "same" else expected)


def test_a_link_to_nothing_is_one_sentence():
    with pytest.raises(book.BookError, match=r"^docs/a.md links to ../gone.md, and there is no gone.md$"):
        book.link_targets("docs/a.md", "[x](../gone.md)", KNOWN)


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((5, 7, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def executed() -> nbformat.NotebookNode:
    """A notebook with an equation, a table, a described picture and one that is described where it was saved."""
    v4 = nbformat.v4
    show = [v4.new_output("display_data", {"image/png": base64.b64encode(picture(v)).decode()}) for v in (10, 10, 200)]
    show[2]["metadata"] = {"image/png": {"alt": 'told "here"'}}
    code = v4.new_code_cell('plots.save(figure, "03_cone", "see")', outputs=show, execution_count=1)
    table = v4.new_output("display_data", {"text/html": "<table><tr><td>7.25</td></tr></table>"})
    text = "# A title\n\nwith $x_i$ and the [licence](../LICENSE)\n\n"
    text += "<details><summary>Solution</summary>\n\n**bold**\n</details>"
    return v4.new_notebook(
        cells=[v4.new_markdown_cell(text), code, v4.new_code_cell("t", outputs=[table])],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )


def test_a_small_book(tmp_path, monkeypatch, capsys):
    notebooks, results = tmp_path / "executed", tmp_path / "results"
    notebooks.mkdir()
    paths = {}
    for name in ("03_cone_histograms", "04_boundary_estimation"):
        paths[name] = notebooks / f"{name}.ipynb"
        nbformat.write(executed(), paths[name])
    before = [path.read_bytes() for path in paths.values()]
    monkeypatch.setattr(book, "executed_notebooks", lambda: paths)
    monkeypatch.setattr(book, "PAGES", {"Read": ["docs/glossary.md"]})
    only = {f"notebooks/{name}.ipynb" for name in paths} | {"docs/glossary.md"}
    whole = book.link_targets
    glossary = "# Words\n\n| a | b |\n|---|---|\n| [three](../notebooks/03_cone_histograms.ipynb) | 图像 |\n"
    monkeypatch.setattr(
        book, "link_targets",
        lambda page, text, known: whole(page, glossary if page.startswith("docs") else text, only),
    )  # fmt: skip
    monkeypatch.setenv("CIRKIT_RESULTS", str(results))
    assert book.main() == 0, capsys.readouterr().err
    assert "pages: " in capsys.readouterr().out and [path.read_bytes() for path in paths.values()] == before
    assert [path.name for path in results.iterdir()] == ["book"]
    page = (results / "book" / "notebooks" / "03_cone_histograms.html").read_text()
    alt = json.loads((project_root() / "figures" / "03_cone.json").read_text())["alt"]
    shown = re.findall(r'<img [^>]*alt="([^"]*)"[^>]*_images/|<img [^>]*_images/[^>]*alt="([^"]*)"', page)
    assert [one or other for one, other in shown] == [alt, alt, "told &quot;here&quot;"]
    assert "7.25" in page and "<strong>bold</strong>" in page and "LICENSE" in page and 'class="math' in page
    assert (results / "book" / "_static" / "mathjax" / "tex-svg-full.js").is_file()
    assert "图像" in (results / "book" / "docs" / "glossary.html").read_text()
    for path in (results / "book").rglob("*.html"):
        assets = re.findall(r'<(?:script|img|link)\b[^>]*?(?:src|href)="(https?:[^"]*)"', path.read_text())
        assert assets == [], path

    monkeypatch.setattr(book, "PAGES", {"Read": ["docs/glossary.md", "docs/teaching.md"]})
    glossary = "# Words\n\n[nowhere](#not-there)\n"
    assert book.main() == 1
    assert re.fullmatch(
        r"book: the pages do not fit together: docs/\S+: WARNING: .*not-there.*\n", capsys.readouterr().err
    )
    assert (results / "book" / "index.html").is_file(), "the book of before stays"


def test_a_picture_that_nobody_described_is_named_by_its_section():
    notebook = executed()
    notebook.cells[1].source = "figure"
    found = book.picture_texts(notebook, {"03_cone": "the cone"})
    assert list(found.values()) == ["figure of the section “A title”", 'told "here"']


def test_packages_that_are_not_there_are_named(monkeypatch, capsys):
    monkeypatch.setattr(book, "find_spec", lambda name: None if name == "furo" else sys)
    assert book.main() == 1
    assert capsys.readouterr().err == "book: furo not found, of the extra `book`: make install.\n"


def test_without_executed_notebooks_it_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(book, "SHOWN_RUN", "07_training-none")
    with pytest.raises(book.BookError, match="no executed copy of notebook 07_training: run make study first"):
        book.executed_notebooks()
