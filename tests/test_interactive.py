"""Figures that a reader moves: the numbers of a state, the picture alone, and the controls driven from Python."""

from __future__ import annotations

import re
import subprocess
import sys

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from cirkit import plots
from cirkit.interactive import HINT, Again, Choice, Panel, Slider, Switch, Words, available, show
from cirkit.what_if import asked_marks, boundary_draws, flags_at, plan_at


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def title(figure) -> str:
    return figure._suptitle.get_text()


# --- noise rate and omega ---------------------------------------------------------------------------------

BOUNDARY = 0.3


@pytest.fixture
def groups():
    """(x, y) of 70 clean and of 55 noisy triplets that overlap."""
    rng = np.random.default_rng(3)
    clean, noisy = rng.normal(0.6, 0.15, 70), np.concatenate([rng.normal(0.3, 0.2, 40), rng.normal(0.6, 0.1, 15)])
    return (rng.uniform(0, 1, 70), clean), (rng.uniform(0, 1, 55), noisy)


@pytest.mark.parametrize(("rate", "omega"), [(0.5, 0.2), (0.3, 0.55), (0.9, 0.0), (0.5, 1.0)])
def test_flags_equal_a_slow_count(groups, rate, omega):
    clean, noisy = groups[0][1], groups[1][1]
    flags = flags_at(clean, noisy, BOUNDARY, rate, omega)
    wrong = int(rate * 55)
    assert (
        len(set(flags.noisy)) == len(flags.noisy) == wrong and len(set(flags.clean)) == len(flags.clean) == 55 - wrong
    )
    shown = [(clean[i], False) for i in flags.clean] + [(noisy[i], True) for i in flags.noisy]
    best = max(s for s, _ in shown)
    flagged, kept = [], []
    for s, is_noisy in shown:
        fidelity = max(s - BOUNDARY, 0) / (best - BOUNDARY)
        (flagged if fidelity < omega else kept).append(is_noisy)
    assert flags.kept == len(kept) / 55
    assert flags.wrong == pytest.approx(sum(kept) / len(kept))
    assert flags.recall == sum(flagged) / wrong
    if flagged:
        assert flags.precision == sum(flagged) / len(flagged)
    else:
        assert np.isnan(flags.precision)
    assert flags.cut == pytest.approx(BOUNDARY + omega * (best - BOUNDARY))


def test_a_higher_rate_exchanges_some_triplets_and_keeps_the_others(groups):
    low, high = (flags_at(groups[0][1], groups[1][1], BOUNDARY, rate, 0.2) for rate in (0.2, 0.6))
    assert set(low.noisy) < set(high.noisy) and set(high.clean) < set(low.clean)


def test_rates_without_noise_or_without_anything_clean(groups):
    nothing, all_ = (flags_at(groups[0][1], groups[1][1], BOUNDARY, rate, 0.2) for rate in (0, 1))
    assert len(nothing.noisy) == 0 and np.isnan(nothing.recall) and nothing.wrong == 0
    assert len(all_.clean) == 0 and all_.precision == 1


def test_the_figure_shows_the_counts_and_the_shares(groups):
    flags = flags_at(groups[0][1], groups[1][1], BOUNDARY, 0.3, 0.4)
    figure = plots.flag_panels(*groups, BOUNDARY, flags)
    shown = [int(number) for number in re.findall(r"(\d+) %", title(figure))]
    assert shown == [round(100 * share) for share in (flags.kept, flags.wrong, flags.precision, flags.recall)]
    left, right = figure.axes
    assert [len(points.get_offsets()) for points in left.collections] == [39, 16]
    text = [label.get_text() for label in figure.legends[0].get_texts()]
    assert "clean (n = 39)" in text and "noisy (n = 16)" in text
    cut, boundary = (line.get_ydata()[0] for line in right.lines)
    assert (cut, boundary) == (pytest.approx(flags.cut), BOUNDARY)


def test_pictures_of_two_states_have_the_same_axes(groups):
    flags = [flags_at(groups[0][1], groups[1][1], BOUNDARY, rate, 0.4) for rate in (0.1, 0.8)]
    limits = [plots.flag_panels(*groups, BOUNDARY, shown).axes[0] for shown in flags]
    assert limits[0].get_xlim() == limits[1].get_xlim() and limits[0].get_ylim() == limits[1].get_ylim()


# --- the boundary's draws ---------------------------------------------------------------------------------


@pytest.fixture
def block():
    return np.random.default_rng(0).normal(0.4, 0.1, (3, 11, 5))


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_draw_takes_whole_queries_and_whole_targets(block, count):
    draws = boundary_draws(block, count, seed=6)
    assert draws.similarity.shape == (count, count)
    columns = {tuple(block[r, t]): (r, t) for r in range(3) for t in range(11)}
    for row in draws.similarity:  # all of a row's entries belong to one reference and one text
        assert any(set(row) <= set(whole) for whole in columns)
    for i in range(count):  # and all of a column's to one target
        assert len({int(np.argwhere(block == value)[0][2]) for value in draws.similarity[:, i]}) == 1
    slow = sum(draws.similarity[i, j] for i in range(count) for j in range(count)) / count**2
    assert draws.boundary == pytest.approx(slow)
    matched = boundary_draws(block, count, 6, "matched")
    assert matched.boundary == pytest.approx(sum(draws.similarity[i, i] for i in range(count)) / count)


def test_draws_repeat_with_their_seed_and_come_near_the_mean_with_many(block):
    assert boundary_draws(block, 4, 1).boundary == boundary_draws(block, 4, 1).boundary
    assert boundary_draws(block, 4, 1).boundary != boundary_draws(block, 4, 2).boundary
    assert boundary_draws(block, 3000, 0).boundary == pytest.approx(block.mean(), abs=0.005)


@pytest.mark.parametrize("pairs", ["all", "matched"])
def test_the_boundary_figure_counts_who_stands_below(groups, block, pairs):
    clean, noisy = groups[0][1], groups[1][1]
    draws = boundary_draws(block, 4, 7, pairs)
    figure = plots.boundary_panel(clean, noisy, block, draws)
    above, below = figure.axes
    text = [label.get_text() for label in above.get_legend().get_texts()]
    for name, values in (("clean", clean), ("noisy", noisy)):
        share = 100 * sum(v <= draws.boundary for v in values) / len(values)
        assert f"{name}, {share:.0f} % at or below it" in text
    marks = below.collections[0].get_offsets()[:, 0]
    used = draws.similarity if pairs == "all" else draws.similarity.diagonal()
    np.testing.assert_allclose(np.sort(marks), np.sort(used.ravel()))
    between = sum((v <= draws.boundary) != (v <= block.mean()) for v in [*clean, *noisy])
    assert f"{100 * between / 125:.0f} % of the triplets" in title(figure)
    assert f"boundary {draws.boundary:.3f}" in title(figure)


# --- a plan and its mask ----------------------------------------------------------------------------------

NOISY = np.array([False, True, False])
OPENED = np.array([[1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=bool)


@pytest.fixture
def similarity():
    return np.random.default_rng(1).uniform(0, 0.8, (3, 6))


def sinkhorn(cost, columns, opened, reg):
    """By hand: rows and columns scaled in turn, entry by entry."""
    kernel = [[np.exp(-cost[i, j] / reg) * opened[i, j] for j in range(6)] for i in range(3)]
    u, v = [1.0] * 3, [1.0] * 6
    for _ in range(4000):
        u = [1 / 3 / sum(kernel[i][j] * v[j] for j in range(6)) for i in range(3)]
        v = [columns[j] / sum(kernel[i][j] * u[i] for i in range(3)) for j in range(6)]
    return 3 * np.array([[u[i] * kernel[i][j] * v[j] for j in range(6)] for i in range(3)])


@pytest.mark.parametrize("opened", [OPENED, None], ids=["mask", "no mask"])
def test_a_plan_equals_sinkhorn_by_hand(similarity, opened):
    plan = plan_at(similarity, NOISY, opened, 0.2)
    by_hand = sinkhorn(1 - similarity, [1 / 6] * 6, np.ones((3, 6)) if opened is None else opened, 0.2)
    np.testing.assert_allclose(plan, by_hand, atol=1e-4)
    assert (plan[~OPENED] > 0.01).all() if opened is None else (plan[~OPENED] == 0).all()
    assert plan_at(similarity, NOISY, opened, 0.2, "labels").sum(axis=0) == pytest.approx([1, 0, 1, 0, 1, 0], abs=1e-4)


def test_the_bars_are_the_sums_of_the_plan(similarity):
    plan = plan_at(similarity, NOISY, OPENED, 0.1)
    figure = plots.plan_panel(plan, NOISY, OPENED, 0.1)
    above, _, heat, side = figure.axes
    heights, widths = [p.get_height() for p in above.patches], [p.get_width() for p in side.patches]
    from_clean, from_noisy = plan[0] + plan[2], plan[1]
    np.testing.assert_allclose(heights, [*from_clean, *from_noisy])
    own = [plan[0, 0], plan[1, 1], plan[2, 2], plan[0, 3], plan[1, 4], plan[2, 5]]
    np.testing.assert_allclose(widths[:6], own)
    np.testing.assert_allclose(np.reshape(widths, (3, 3)).sum(axis=0), 1, atol=1e-6)
    marks = np.array([text.get_text() for text in heat.texts]).reshape(3, 6)
    assert ((marks == "×") == ~OPENED).all()
    assert marks[0, 0] == f"{plan[0, 0]:.2f}".removeprefix("0")
    clean = 100 * (plan[0, 3:].sum() + plan[2, 3:].sum()) / 2
    assert f"clean rows {clean:.0f} %, noisy rows {100 * plan[1, 3:].sum():.0f} %" in title(figure)
    assert "mask on" in title(figure)
    assert "mask off" in title(plots.plan_panel(plan, NOISY, None, 0.1))


# --- what was retrieved -----------------------------------------------------------------------------------


def test_marks_say_which_asked_attributes_hold():
    truth = pd.DataFrame(
        {"colour": ["red", "blue", "blue", "red"], "sleeve": ["long", "none", "long", "long"], "length": ["short"] * 4},
        index=["reference", "target", "half", "twin"],
    )
    images = ["half", "target", "twin"]
    assert asked_marks(truth, "reference", "target", images) == [
        "✓ colour blue\n✗ sleeve long", "✓ colour blue\n✓ sleeve none", "✗ colour red\n✗ sleeve long",
    ]  # fmt: skip
    assert asked_marks(truth, "reference", None, images) == [
        "colour blue", "colour blue\nsleeve none", "as the reference",
    ]  # fmt: skip


# --- states without a picture -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda g, b, s: flags_at(g[0][1], g[1][1], 0.3, 0.5, 1.2), r"omega must lie in \[0, 1\], got 1.2"),
        (lambda g, b, s: flags_at(g[0][1], g[1][1], 0.3, 0.5, -0.1), r"omega must lie in \[0, 1\], got -0.1"),
        (
            lambda g, b, s: flags_at(g[0][1], g[1][1], 0.3, 1.5, 0.2),
            r"noise rate must be a number in \[0, 1\], got 1.5",
        ),
        (lambda g, b, s: flags_at(g[0][1], np.empty(0), 0.3, 0.5, 0.2), "need clean and noisy triplets, got 70 and 0"),
        (lambda g, b, s: boundary_draws(b, 0, 0), "at least one draw a side, got K = 0"),
        (lambda g, b, s: boundary_draws(b, 4, 0, "some"), "pairs must be 'all' or 'matched', got 'some'"),
        (lambda g, b, s: plan_at(s, NOISY, OPENED, 0.0), "regularisation must be positive, got 0.0"),
        (lambda g, b, s: plan_at(s, NOISY, OPENED, 0.1, "rows"), "marginals must be 'uniform' or 'labels', got 'rows'"),
    ],
)
def test_a_bad_state_is_one_sentence(groups, block, similarity, call, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        call(groups, block, similarity)
    assert "\n" not in str(caught.value)


# --- the panel --------------------------------------------------------------------------------------------


class Shown(list):
    """Stands for IPython's display: what was shown, and by which updates it was replaced."""

    def __init__(self):
        super().__init__()
        self.updates = []

    def __call__(self, thing, **options):
        self.append((thing, options))
        return self

    def update(self, thing, **options):
        self.updates.append((thing, options))


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.delenv("CIRKIT_WIDGETS", raising=False)
    record = Shown()
    monkeypatch.setattr("IPython.display.display", record)
    return record


def bars(height, name, doubled, text, again):
    """A figure with one bar whose height the controls decide."""
    if height == 3:
        raise ValueError("there is no bar of <3>")
    figure, axis = plt.subplots()
    axis.bar([name], [(2 if doubled else 1) * height + 10 * again])
    axis.set_title(text)
    return figure


def height(panel: Panel) -> float:
    return panel.figure.axes[0].patches[0].get_height()


def shown_bars() -> Panel:
    return show(
        bars, "one bar", height=Slider("height", (1, 2, 3), 2), name=Choice("name", {"first": "a", "second": "b"}, "b"),
        doubled=Switch("doubled", False), text=Words("title", "none"), again=Again("again"),
    )  # fmt: skip


def test_moving_a_control_draws_anew_in_the_place_of_the_picture(shown):
    panel = shown_bars()
    (first, options), (controls, _) = shown
    assert first is panel.figure and height(panel) == 2 and options["metadata"] == {"image/png": {"alt": "one bar"}}
    assert controls["text/plain"] == HINT and "application/vnd.jupyter.widget-view+json" in controls
    assert not plt.get_fignums()  # or the kernel would show the figure once more at the end of the cell

    panel.widgets["height"].value = 1
    assert height(panel) == 1 and shown.updates[-1] == (panel.figure, {"metadata": options["metadata"]})
    panel.widgets["doubled"].value = True
    assert height(panel) == 2
    panel.widgets["again"].click()
    panel.widgets["again"].click()
    assert height(panel) == 22 and panel.state["again"] == 2
    panel.widgets["name"].value = "a"
    assert panel.figure.axes[0].get_xticklabels()[0].get_text() == "a"
    panel.widgets["text"].value = "mine"
    assert panel.figure.axes[0].get_title() == "mine"
    assert len(shown.updates) == 6 and len(shown) == 2 and not plt.get_fignums()


def test_a_state_without_a_picture_is_said_and_leaves_the_last_one(shown):
    panel = shown_bars()
    panel.widgets["height"].value = 3
    assert height(panel) == 2 and shown.updates == []
    assert panel.message == "there is no bar of <3>" and panel._note.value == "there is no bar of &lt;3&gt;"
    panel.widgets["height"].value = 1
    assert height(panel) == 1 and panel.message == panel._note.value == ""


@pytest.mark.parametrize("way", ["not installed", "switched off"])
def test_without_ipywidgets_there_is_the_picture_alone(shown, monkeypatch, way):
    if way == "not installed":
        monkeypatch.setitem(sys.modules, "ipywidgets", None)
    else:
        monkeypatch.setenv("CIRKIT_WIDGETS", "off")
    panel = shown_bars()
    assert [thing for thing, _ in shown] == [panel.figure]
    assert height(panel) == 2 and panel.widgets == {} and available() is None
    panel.set("height", 1)
    assert height(panel) == 1


def test_ipywidgets_is_found_unless_it_is_switched_off(monkeypatch):
    monkeypatch.delenv("CIRKIT_WIDGETS", raising=False)
    assert available() is ipywidgets
    monkeypatch.setenv("CIRKIT_WIDGETS", "maybe")
    with pytest.raises(ValueError, match="CIRKIT_WIDGETS must be 'on' or 'off', got 'maybe'"):
        available()


def test_wrong_controls_are_refused(shown):
    with pytest.raises(ValueError, match="lacking name, unknown nmae"):
        show(lambda name: None, "", nmae=Switch("name", True))
    with pytest.raises(ValueError, match=r"ω: 0.25 is none of the values \[0, 0.5\]"):
        Slider("ω", (0, 0.5), 0.25)
    with pytest.raises(ValueError, match=r"model: 'third' is none of \[1, 2\]"):
        Choice("model", {"first": 1, "second": 2}, "third")
    assert not shown


def test_importing_needs_neither_ipywidgets_nor_ipython():
    code = "import sys; sys.modules |= {'ipywidgets': None, 'IPython': None}; import cirkit.interactive"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


IMPORTS = """
import os
import matplotlib.pyplot as plt
from cirkit.interactive import Slider, show
"""
CELL = """
os.environ["CIRKIT_WIDGETS"] = {setting!r}
panel = show(lambda k: plt.subplots(figsize=(k, 1))[0], "empty axes", k=Slider("k", (1, 2), 2))
"""


@pytest.mark.notebook
def test_an_executed_notebook_reads_well_without_a_kernel(monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a kernel chooses its own
    sources = [IMPORTS, *(CELL.format(setting=setting) for setting in ("off", "on")), "panel.widgets['k'].value = 1"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3", timeout=120).execute()
    off, on, moved = (cell.outputs for cell in notebook.cells[1:])
    assert [set(output.data) for output in off] == [{"image/png", "text/plain"}]
    assert off[0].metadata["image/png"]["alt"] == "empty axes"
    assert on[0].data["image/png"] != off[0].data["image/png"]  # the control was moved, and the cell keeps the last
    assert on[1].data["text/plain"] == HINT and moved == []

    notebook.metadata.pop("widgets")  # as in a notebook that was saved without the state of its widgets
    page = HTMLExporter(template_name="classic").from_notebook_node(notebook)[0]
    assert page.count('alt="empty axes"') == 2 and HINT in page
    assert "Error" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
