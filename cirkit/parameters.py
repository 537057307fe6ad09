"""Notebook parameters: a misspelt name or a value of the wrong type stops the notebook before it does anything."""

from __future__ import annotations

import difflib
import warnings
from types import ModuleType

# Some libraries wish for ipywidgets as soon as a notebook imports them; progress here is plain text.
warnings.filterwarnings("ignore", message="IProgress not found")

_IGNORED = {"In", "Out", "exit", "quit", "open"}


def check_parameters(namespace: dict, **defaults) -> dict:
    """The effective parameters of a notebook, in lower case.

    papermill injects any name it is given, known or not, and a notebook that never reads it runs its defaults. This
    compares every plain value in the notebook's namespace with the names and types of the parameters cell. Call it in
    the cell after the parameters.

    Args:
        namespace: ``globals()`` of the notebook.
        defaults: the parameters cell once more, as ``NAME=default``; fixes names and types. A default of None stands
            for True or False that is left to the data set.

    Raises:
        ValueError: a name that is not a parameter, a missing one, or a value of another type than its default.
    """
    for name, value in namespace.items():
        plain = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
        if name in defaults or name.startswith("_") or name in _IGNORED or not plain or isinstance(value, ModuleType):
            continue
        close = difflib.get_close_matches(name.upper(), defaults, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"{name} is not a parameter of this notebook; {hint}Parameters: {', '.join(defaults)}")
    effective = {}
    for name, default in defaults.items():
        if name not in namespace:
            raise ValueError(f"parameter {name} is missing from the parameters cell")
        value, expected = namespace[name], type(default)
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if default is None:
            if value is not None and type(value) is not bool:
                raise ValueError(f"{name} must be True, False or None, got {value!r}")
        elif type(value) is not expected:
            raise ValueError(f"{name} must be {expected.__name__} (such as {default!r}), got {value!r}")
        effective[name.lower()] = value
    return effective
