"""Solutions of the exercises are run; boxes, glossary, teacher's notes and the page of equations say what is there."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import textwrap
from pathlib import Path

import nbformat
import pytest

from cirkit import equations_page
from cirkit.equations_page import EQUATIONS, Equation, citations, cited, figures_of, functions_of, page, sections_of

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TAUGHT = [path for path in NOTEBOOKS if path.name[:2] <= "12"]
every_taught = pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.stem)
SOLUTION = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def markdown(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]


def exercises(path: Path) -> str:
    [found] = [source for source in markdown(path) if re.match(r"#+ Exercises", source)]
    return found


def solutions(path: Path) -> list[tuple[int, str, str]]:
    """(number of the exercise, code, what the text says it prints) of all hidden solutions that have code."""
    found = []
    for item in re.split(r"^(?=\d\. )", exercises(path), flags=re.MULTILINE)[1:]:
        for details in re.findall(r"<details>.*?</details>", item, re.DOTALL):
            number, dedented = int(item[0]), textwrap.dedent(" " * 3 + details)
            found += [(number, code, printed) for code, printed in SOLUTION.findall(dedented)]
    return found


ALL = [pytest.param(*solution, id=f"{path.name[:2]}-{solution[0]}") for path in TAUGHT for solution in solutions(path)]


# --- solutions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code", "printed"), ALL)
def test_a_solution_prints_what_the_text_says(number, code, printed):
    assert printed.strip(), "the text says what it prints"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, f"exercise {number}", "exec"), {"__name__": "solution"})
    assert [line.rstrip() for line in out.getvalue().strip().splitlines()] == [
        line.rstrip() for line in printed.strip().splitlines()
    ]


@every_taught
def test_at_least_two_exercises_have_a_solution_that_runs_and_every_one_has_something_hidden(path):
    assert len({number for number, _, _ in solutions(path)}) >= 2
    text = exercises(path)
    items = re.split(r"^(?=\d\. )", text, flags=re.MULTILINE)[1:]
    assert text.count("<details><summary>") == text.count("</details>") == len(items)
    for item in items:
        question, _, answer = item.partition("<details>")
        assert "```" not in question, "a solution stands open"
        assert re.match(r"<summary>(Solution|Hint)</summary>", answer)


@every_taught
def test_a_solution_stands_alone(path):
    """It imports what it uses: pasted into an empty cell it runs, and it is as wide as the rest."""
    for _, code, _ in solutions(path):
        assert ast.parse(code) and max(map(len, code.splitlines())) <= 120
        assert not re.search(r"/work|/home|\bplots\.save\b|train_or_load", code)


def test_solutions_hidden_in_a_list_are_found(tmp_path):
    """The extraction itself: code and output of an indented block, and none of a question's or of a hint."""
    text = """## Exercises

1. Ask
   <details><summary>Solution</summary>

   ```python
   if True:
       print(2)
   ```

   ```text
   2
   ```
   </details>
2. Ask
   <details><summary>Hint</summary>none</details>
"""
    cell = nbformat.v4.new_markdown_cell(text)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "made.ipynb")
    assert solutions(tmp_path / "made.ipynb") == [(1, "if True:\n    print(2)\n", "2\n")]


# --- texts ------------------------------------------------------------------------------------------------


@every_taught
def test_one_common_misunderstanding_resolved_in_three_sentences(path):
    boxes = [s for s in markdown(path) if "**Common misunderstanding.**" in s]
    assert len(boxes) == 1 and all(line.startswith(">") for line in boxes[0].splitlines())
    text = re.sub(r"\s+", " ", re.sub(r"^> ?", "", boxes[0], flags=re.MULTILINE))
    said = re.fullmatch(r'\*\*Common misunderstanding\.\*\* "([^"]+[.])" (.+)', text)
    assert said, "it quotes the misunderstanding and resolves it"
    assert 1 <= len(re.findall(r"[.?!](?= |$)", said[2])) <= 3


def table(page: str) -> list[list[str]]:
    """Cells of all rows of a page's tables, without heads and rules."""
    rows = [line.strip().strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in row] for row in rows]
    return [row for before, row in zip([[], *rows], rows, strict=False) if not set(row[0]) <= set(":-")][1:]


def test_the_glossary_names_each_term_once_in_both_languages_and_where_it_is():
    rows = table((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert 45 <= len(rows) <= 70
    for english, chinese, meaning, where in rows:
        assert english and meaning.endswith(".") and meaning.count(". ") == 0, english
        assert re.search(r"[\u4e00-\u9fff]", chinese) or chinese in english, english  # some stay English in Chinese
        places = re.findall(r"\[(\d\d)\]\((.+?)\)", where)
        assert places, english
        for number, link in places:
            assert (ROOT / "docs" / link).is_file() and f"/{number}_" in link, english
    assert len({row[0] for row in rows}) == len(rows)


def test_the_teachers_notes_speak_of_notebooks_that_exist_with_their_own_run_times():
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(\.\./notebooks/([^)#]+)\)", text))
    assert {path.name for path in TAUGHT} <= links <= {path.name for path in NOTEBOOKS}
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / "docs" / link).exists(), link
    for row in (row for row in table(text) if re.match(r"\[\d\d\]", row[0])):
        [path] = [path for path in NOTEBOOKS if path.name[:2] == row[0][1:3]]
        said = re.search(r"\*\*Time:\*\* about (\d+) (s|minutes)", markdown(path)[0])
        assert row[2] == f"{said[1]} {said[2].replace('minutes', 'min')}", f"{row[0]}: run time"


# --- equations --------------------------------------------------------------------------------------------


def test_the_page_of_equations_is_current():
    assert (ROOT / "docs" / "equations.md").read_text(encoding="utf-8") == page()


def test_every_figure_of_the_page_is_in_the_folder_and_every_link_leads_somewhere():
    text = page()
    assert [name for e in EQUATIONS for name in figures_of(e) if not (ROOT / "figures" / f"{name}.png").is_file()] == []
    for link in re.findall(r"\]\((.+?)\)", text):
        assert (ROOT / "docs" / link).exists(), link
    assert "\\{" not in text and "\\," not in text  # markdown eats the backslash before mathematics is read


def test_every_equation_of_the_papers_that_code_cites_has_a_row():
    rows = {(e.paper, e.number) for e in EQUATIONS}
    assert {str(n) for n in range(2, 14)} == {number for paper, number in rows if paper == "ConeSep"}
    assert set(cited()) <= rows
    for path in (ROOT / "cirkit").rglob("*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        module = ".".join(path.relative_to(ROOT / "cirkit").with_suffix("").parts)
        for key in citations(docstring):
            found = [f for e in EQUATIONS if (e.paper, e.number) == key for f in functions_of(e)]
            assert any(f.startswith((f"{module}:", "transport:")) for f in found), (module, key)


def test_citations_are_read_with_their_ranges():
    assert citations("as (ConeSep, eq. 9 to 11), or QuRe, eq. 3.") == [
        ("ConeSep", "9"), ("ConeSep", "10"), ("ConeSep", "11"), ("QuRe", "3"),
    ]  # fmt: skip
    assert citations("ConeSep, eq. 2 and 5; eq. 7") == [("ConeSep", "2"), ("ConeSep", "5")]


def test_what_does_not_exist_is_one_sentence():
    wrong = Equation("QuRe", "", "made up", "x", ("losses:no_such",), ("08:No such heading",))
    with pytest.raises(ValueError, match="there is no cirkit.losses:no_such"):
        functions_of(wrong)
    with pytest.raises(ValueError, match="notebook 08 has no heading 'No such heading'"):
        sections_of(wrong)
    with pytest.raises(ValueError, match="no function computes it"):
        functions_of(wrong._replace(functions=()))
    with pytest.raises(ValueError, match="no notebook derives it"):
        sections_of(wrong._replace(sections=()))
    with pytest.raises(ValueError, match="0 notebooks have the number '99'"):
        equations_page.notebook("99")


def test_figures_are_found_where_they_are_saved():
    code = 'plots.save(f, "a")\nif x:\n    plots.save(\n        g, "c" if data else "b", "see")\nplots.save(h, name)'
    assert equations_page.saved_figures(code) == ["a", "b"]


@every_taught
def test_what_is_read_as_html_holds_no_markdown(path):
    """Up to the first blank line a hidden block is HTML: a backtick or a formula there is shown as it stands."""
    for answer in re.findall(r"</summary>(.*?)</details>", exercises(path), re.DOTALL):
        assert not re.search(r"[`$*]", answer.partition("\n\n")[0]), answer


def test_inline_html_of_the_exercises_is_closed():
    for path in TAUGHT:
        text = re.sub(r"```.*?```", "", exercises(path), flags=re.DOTALL)
        for tag in ("code", "i", "b", "em"):
            assert text.count(f"<{tag}>") == text.count(f"</{tag}>"), (path.name, tag)
