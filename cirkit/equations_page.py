"""docs/equations.md: from each equation of the three papers to the function, the notebook cell and the figure.

``python -m cirkit.equations_page`` writes it. Functions come from docstrings that cite an equation ("ConeSep, eq. N")
and cells from notebook texts that do; :data:`EQUATIONS` adds what neither says. QuRe's and DQE-CIR's equations have no
numbers in the summaries that this study works from, except one that a docstring cites.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from cirkit.paths import atomic_path, project_root

CITED = re.compile(r"(ConeSep|QuRe|DQE-CIR), eq\. (\d+)(?: (to|and) (\d+))?")
IN_CELL = re.compile(r"\beq\. (\d+)")
CONESEP_NOTEBOOKS = ("04", "05", "06")  # whose texts cite "eq. N" without a name


class Equation(NamedTuple):
    """One equation; ``number`` is the paper's, or "" where it is not known.

    ``functions`` ("module:name", below cirkit) and ``sections`` ("notebook number:heading") add to what is found.
    """

    paper: str
    number: str
    says: str
    formula: str
    functions: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()


EQUATIONS = (
    Equation("ConeSep", "2", "noise boundary: mean similarity of random triplets",
             r"\mathbb{B} = \text{mean}_{kl} \max_n {q'_k}^{\top} t'_{l,n}"),
    Equation("ConeSep", "3", "fidelity: how far a triplet lies above the boundary",
             r"\mathcal{F} = r^2 (r - 1) \quad r = \text{ReLU}(s_{ct} - \mathbb{B})"),
    Equation("ConeSep", "4", "robust contrastive loss",
             r"L_{robust} = -\frac{1}{B} \sum_{i \ne j} \log(1 - p_{ij})",
             ("losses:robust_contrastive",), ("05:6 · When the anchor losses reach the encoder",)),
    Equation("ConeSep", "5", "negative anchor: the query once more, with learned negative prompts",
             r"F_{neg} = \text{QFormer}(P_{neg}, ref, mod)", ("methods.conesep:ConeSep.anchors",)),
    Equation("ConeSep", "6", "target-oriented loss: away from the own target, towards the others",
             r"L_{inter} = -\frac{1}{B} \sum_{ij} \log \sigma(T_{ij} x_{ij})"),
    Equation("ConeSep", "7", "query-oriented loss: a band for the similarity of query and anchor",
             r"\alpha_1 \le s(F_c, F_{neg}) \le \alpha_2"),
    Equation("ConeSep", "8", "objective of the warm-up", r"L_{rank} + \zeta L_{intra} + \nu L_{inter}",
             ("methods.conesep:ConeSep.loss",), ("05:A collapse on purpose",)),
    Equation("ConeSep", "9", "joint cost and mask of the transport",
             r"C = [ 1 - s(c_i, t_j) \mid 1 - s(c_i, g_j) ]",
             ("unlearning:transport_mask", "unlearning:unlearning")),
    Equation("ConeSep", "10", "entropic transport, by Sinkhorn's rounds",
             r"P^{\ast} = \arg\min_P \langle P, C \rangle - \epsilon H(P)",
             ("transport:sinkhorn_pot", "transport:sinkhorn_released"),
             ("06:2 · A batch small enough to see", "06:3 · What the marginals do")),
    Equation("ConeSep", "11", "soft labels", r"Y = \gamma P + (1 - \gamma) L", ("unlearning:hard_labels",),
             ("06:4 · What γ and the regularisation do to a label",)),
    Equation("ConeSep", "12", "unlearning loss", r"L_{ul} = \text{KL}(Y \Vert \text{softmax}(S / \tau))",
             ("unlearning:unlearning",),
             ("06:5 · How strongly does it pull?", "06:6 · Unlearning backlash, by experiment")),
    Equation("ConeSep", "13", "final objective", r"L_{robust} + \kappa L_{ul} + \zeta L_{intra}",
             ("methods.conesep:ConeSep.loss",), ("10:1 · The base, and whether a switch does what it says",)),
    Equation("QuRe", "", "score: the best token of an image", r"s_j = \max_n \langle q, t_{jn} \rangle",
             ("scores:max_over_tokens", "methods.qure:QuRe.query"), ("08:2 · The score",)),
    Equation("QuRe", "", "preference (Bradley-Terry)", r"p^{\ast}(I_p \succ I_n) = \sigma(s_p - s_n)",
             ("losses:bradley_terry",), ("08:1 · A preference instead of a contest",)),
    Equation("QuRe", "3", "loss: negative log-likelihood of the preference", r"L = -\log p^{\ast}(I_p \succ I_n)",
             (), ("08:1 · A preference instead of a contest", "08:8 · Training")),
    Equation("QuRe", "", "what scores below the target", r"\lbrace s_j : s_j < s_{target} \rbrace",
             ("two_drops:lower_scores",), ("08:3 · Two drops",)),
    Equation("QuRe", "", "hard negatives: between the two steepest drops",
             r"H = \lbrace j : \min(k_1, k_2) < j \le \max(k_1, k_2) \rbrace",
             ("two_drops:two_drops",), ("08:3 · Two drops", "08:4 · What lies before, between and after")),
    Equation("QuRe", "", "epochs at which the hard set is defined anew",
             r"e > 0 \quad e \bmod \lfloor E / n_{def} \rfloor = 0",
             ("drawn:definition_epochs",), ("08:8 · Training",)),
    Equation("DQE-CIR", "", "query with weighted attribute sub-queries",
             r"q^{\ast} = q + w_{colour} q_{colour} + w_{shape} q_{shape}",
             ("methods.dqe:DQE.compose", "attributes:AttributeWords"), ("09:3 · The query",)),
    Equation("DQE-CIR", "", "target-relative difference", r"\Delta_j = s_{target} - s_j",
             ("mid_zone:delta", "mid_zone:scaled_delta"), ("09:4 · The zone",)),
    Equation("DQE-CIR", "", "mid zone", r"\lbrace j : \alpha \le \Delta'_j \le \beta \rbrace",
             ("mid_zone:mid_zone",), ("09:4 · The zone", "09:5 · What is in the zone?")),
    Equation("DQE-CIR", "", "loss: preference, margin, and the same margin for each sub-query",
             r"L_{KL} + \lambda_{rank} L_{rank} + \lambda_{attr} \sum_a L_a",
             ("methods.dqe:DQE.pair_loss", "losses:bradley_terry"), ("09:6 · The loss, and a run",)),
)  # fmt: skip
PAPERS = {
    "ConeSep": "ConeSep (CVPR 2026, arXiv 2604.20358)",
    "QuRe": "QuRe (ICML 2025, arXiv 2507.12416)",
    "DQE-CIR": "DQE-CIR (no released code; [what its summary leaves open](../notebooks/09_dqe.ipynb))",
}


class Section(NamedTuple):
    """What stands under one heading of a notebook: the equations that its texts cite, and the figures it saves."""

    cites: tuple[str, ...]
    figures: tuple[str, ...]


@cache
def notebook(number: str) -> Path:
    """The notebook of this number. Raises ValueError if there is not exactly one."""
    found = sorted((project_root() / "notebooks").glob(f"{number}_*.ipynb"))
    if len(found) != 1:
        raise ValueError(f"{len(found)} notebooks have the number {number!r}")
    return found[0]


@cache
def sections(number: str) -> dict[str, Section]:
    """Heading -> what stands under it, without the opening; the file is read once."""
    found: dict[str, Section] = {}
    heading = ""
    for cell in json.loads(notebook(number).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if match := re.match(r"#+ (.+)", source):
                heading = "" if source.startswith("# ") else match[1]
            cites, figures = IN_CELL.findall(source), []
        else:
            cites, figures = [], saved_figures(source)
        if heading:
            old = found.get(heading, Section((), ()))
            found[heading] = Section((*old.cites, *cites), (*old.figures, *figures))
    return found


def saved_figures(source: str) -> list[str]:
    """Names that ``plots.save(figure, name, ...)`` gives in a code cell; of two names the one without data."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "plots.save" and len(node.args) > 1:
            name = node.args[1].orelse if isinstance(node.args[1], ast.IfExp) else node.args[1]
            names += [name.value] if isinstance(name, ast.Constant) else []
    return names


@cache
def cited() -> dict[tuple[str, str], tuple[str, ...]]:
    """(paper, number) -> "module:name" of every function and class whose docstring cites it, in order of the files."""
    found: dict[tuple[str, str], list[str]] = {}
    package = project_root() / "cirkit"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        for name, node in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
            for key in citations(ast.get_docstring(node) or ""):
                found.setdefault(key, []).append(f"{module}:{name}")
    return {key: tuple(names) for key, names in found.items()}


def citations(text: str) -> list[tuple[str, str]]:
    """(paper, number) of all that a docstring cites; "eq. 9 to 12" are four equations, "eq. 2 and 3" two."""
    found = []
    for paper, first, word, last in CITED.findall(text):
        numbers = range(int(first), int(last) + 1) if word == "to" else [int(n) for n in (first, last) if n]
        found += [(paper, str(n)) for n in numbers]
    return found


def _definitions(tree: ast.AST, above: str = ""):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield above + node.name, node
            yield from _definitions(node, f"{above}{node.name}.")


def functions_of(equation: Equation) -> list[str]:
    """Where it is computed, "module:name" each: named in the table first, then found; none is an error."""
    names = [*equation.functions, *cited().get((equation.paper, equation.number), ())]
    for name in names:
        module, _, attributes = name.partition(":")
        value = import_module(f"cirkit.{module}")
        for attribute in attributes.split("."):
            if not hasattr(value, attribute):
                raise ValueError(f"{equation.paper}, {equation.says}: there is no cirkit.{module}:{attributes}")
            value = getattr(value, attribute)
    if not names:
        raise ValueError(f"{equation.paper}, {equation.says}: no function computes it")
    return list(dict.fromkeys(names))


def sections_of(equation: Equation) -> list[tuple[str, str]]:
    """(notebook number, heading) where it is derived: cells that cite it, then those of the table; none is an error."""
    numbers = CONESEP_NOTEBOOKS if equation.paper == "ConeSep" else ()
    found = [(n, h) for n in numbers for h, section in sections(n).items() if equation.number in section.cites]
    for place in equation.sections:
        number, _, heading = place.partition(":")
        if heading not in sections(number):
            raise ValueError(f"{equation.paper}, {equation.says}: notebook {number} has no heading {heading!r}")
        found.append((number, heading))
    if not found:
        raise ValueError(f"{equation.paper}, {equation.says}: no notebook derives it")
    return list(dict.fromkeys(found))


def figures_of(equation: Equation) -> list[str]:
    """Names of the figures that its sections save; maybe none."""
    return list(
        dict.fromkeys(f for number, heading in sections_of(equation) for f in sections(number)[heading].figures)
    )


def page() -> str:
    """The page as it stands in docs. Raises ValueError for a function, heading or notebook that does not exist."""
    parts = [INTRODUCTION]
    for paper, title in PAPERS.items():
        parts.append(f"\n## {title}\n\n| eq. | says | formula | function | notebook, section | figure |\n"
                     "|---|---|---|---|---|---|\n")  # fmt: skip
        for equation in (e for e in EQUATIONS if e.paper == paper):
            functions = [_function_link(name) for name in functions_of(equation)]
            places = [f"[{number}](../notebooks/{notebook(number).name}): {heading}" for number, heading
                      in sections_of(equation)]  # fmt: skip
            figures = [f"[{name}](../figures/{name}.png)" for name in figures_of(equation)]
            cells = [equation.number or "–", equation.says, f"${equation.formula}$", *("<br>".join(c) or "–" for c in
                     (functions, places, figures))]  # fmt: skip
            parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts)


def _function_link(name: str) -> str:
    module, _, attribute = name.partition(":")
    return f"[`{attribute}`](../cirkit/{module.replace('.', '/')}.py)"


INTRODUCTION = """# From equation to code

Written by `python -m cirkit.equations_page`; a test keeps it current. A number is the paper's own; – stands where the
summary that this study works from gives none. The formula is the paper's. Where paper, released code and this package
differ, the notebook says so, and for ConeSep the [list of differences](conesep.md). Figures are of the section beside
them.
"""


def main() -> None:
    with atomic_path(project_root() / "docs" / "equations.md") as path:
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
