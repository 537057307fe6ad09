"""A figure that a reader moves: a picture first, and sliders below it where there is somebody to move them.

The picture is a plain output of the cell, so it is kept in an executed notebook and shown by everything that shows
notebooks. The controls are an output of their own; moving one draws the picture anew in its place. Without ipywidgets,
or with ``CIRKIT_WIDGETS=off`` (as batch runs have it), the picture is all there is.
"""

from __future__ import annotations

import html
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

HINT = "Controls appear here where this notebook is run in JupyterLab."
_STYLE = {"description_width": "9em"}


@dataclass(frozen=True)
class Slider:
    """One of some numbers in ascending order."""

    label: str
    values: Sequence[float]
    start: float

    def __post_init__(self):
        if self.start not in self.values:
            raise ValueError(f"{self.label}: {self.start!r} is none of the values {list(self.values)}")

    def widget(self, widgets: ModuleType) -> Any:
        options = [(f"{value:g}", value) for value in self.values]
        # drawn when the handle is let go, so that pictures do not queue up behind it
        return widgets.SelectionSlider(options=options, value=self.start, continuous_update=False)


@dataclass(frozen=True)
class Choice:
    """One of several things, given by name (a mapping) or as they are."""

    label: str
    options: Mapping[str, Any] | Sequence[Any]
    start: Any

    def __post_init__(self):
        known = list(self.options.values() if isinstance(self.options, Mapping) else self.options)
        if self.start not in known:
            raise ValueError(f"{self.label}: {self.start!r} is none of {known}")

    def widget(self, widgets: ModuleType) -> Any:
        named = isinstance(self.options, Mapping)
        return widgets.Dropdown(options=list(self.options.items() if named else self.options), value=self.start)


@dataclass(frozen=True)
class Switch:
    """On or off."""

    label: str
    start: bool

    def widget(self, widgets: ModuleType) -> Any:
        return widgets.Checkbox(value=self.start)


@dataclass(frozen=True)
class Words:
    """A text to write; taken when the reader is done with it."""

    label: str
    start: str = ""
    hint: str = ""

    def widget(self, widgets: ModuleType) -> Any:
        return widgets.Text(value=self.start, placeholder=self.hint, continuous_update=False)


@dataclass(frozen=True)
class Again:
    """A button; its state is how often it was pressed, for example the seed of a draw."""

    label: str
    start: int = 0

    def widget(self, widgets: ModuleType) -> Any:
        return widgets.Button(icon="refresh")


Control = Slider | Choice | Switch | Words | Again


def available() -> ModuleType | None:
    """The module ipywidgets, or None where it is not installed or ``CIRKIT_WIDGETS`` is "off".

    Raises:
        ValueError: ``CIRKIT_WIDGETS`` is neither "on" nor "off".
    """
    setting = os.environ.get("CIRKIT_WIDGETS") or "on"
    if setting not in ("on", "off"):
        raise ValueError(f"CIRKIT_WIDGETS must be 'on' or 'off', got {setting!r}")
    if setting == "off":
        return None
    try:
        import ipywidgets
    except ImportError:
        return None
    return ipywidgets


class Panel:
    """A figure, the state it was drawn for, and the widgets that change the state (none where there are none).

    ``figure`` is the latest picture, ``state`` the value of each control, ``widgets`` each control's widget, and
    ``message`` the sentence why the latest state has no picture, or "".
    """

    def __init__(self, draw: Callable[..., Figure], alt: str, controls: Mapping[str, Control]):
        self.draw, self.alt, self.message = draw, alt, ""
        self.state = {name: control.start for name, control in controls.items()}
        self.figure = self._drawn()
        self.widgets: dict[str, Any] = {}
        self._box = self._note = self._handle = None
        if widgets := available():
            for name, control in controls.items():
                widget = self.widgets[name] = control.widget(widgets)
                widget.description = control.label
                if isinstance(control, Again):
                    widget.layout.margin = "2px 2px 2px 9.6em"  # below the others' handles
                    widget.on_click(lambda _, name=name: self.set(name, self.state[name] + 1))
                else:
                    widget.style, widget.layout.width = _STYLE, "min(38em, 100%)"
                    widget.observe(lambda change, name=name: self.set(name, change["new"]), "value")
            self._note = widgets.HTML()
            self._box = widgets.VBox([*self.widgets.values(), self._note])

    def set(self, name: str, value: Any) -> None:
        """Take a new value of one control and draw again; the picture stays where the state has none."""
        self.state[name] = value
        try:
            self.figure, self.message = self._drawn(), ""
        except ValueError as error:
            self.message = str(error)
        if self._note is not None:
            self._note.value = html.escape(self.message)
        if self._handle is not None and not self.message:
            self._handle.update(self.figure, metadata=self._metadata())

    def display(self) -> None:
        """Show the picture and, below it, the controls."""
        from IPython.display import display

        self._handle = display(self.figure, metadata=self._metadata(), display_id=True)
        if self._box is not None:
            # what shows the notebook later without a kernel falls back on the text
            display(self._box._repr_mimebundle_() | {"text/plain": HINT}, raw=True)

    def _drawn(self) -> Figure:
        figure = self.draw(**self.state)
        plt.close(figure)
        return figure

    def _metadata(self) -> dict:
        return {"image/png": {"alt": self.alt}}


def show(draw: Callable[..., Figure], alt: str, **controls: Control) -> Panel:
    """Show what ``draw`` gives for the start of each control, and the controls where they can be moved.

    Args:
        draw: takes the value of each control under its name and returns a Figure; where a state has none, it raises
            ValueError in one sentence, which is shown beside the controls.
        alt: describes the picture to people who do not see it.
        controls: one per parameter of ``draw``.

    Raises:
        ValueError: a parameter without a control, or a control without a parameter; and as ``draw``.
    """
    parameters = set(inspect.signature(draw).parameters)
    if parameters != set(controls):
        lacking, unknown = sorted(parameters - set(controls)), sorted(set(controls) - parameters)
        raise ValueError(
            f"every parameter of {draw.__name__} needs one control:"
            f" lacking {', '.join(lacking) or 'none'}, unknown {', '.join(unknown) or 'none'}"
        )
    panel = Panel(draw, alt, controls)
    panel.display()
    return panel
