"""One method a file. Adding a method is one file here and one line in ``REGISTRY``."""

from __future__ import annotations

import dataclasses
import difflib
from importlib import import_module

from cirkit.backbone import Backbone
from cirkit.methods.base import Batch, Method, TrainingView

REGISTRY = {
    "infonce": "infonce:InfoNCE",
}

__all__ = ["REGISTRY", "Batch", "Method", "TrainingView", "build_method", "method_class"]


def method_class(name: str) -> type[Method]:
    """The class registered under ``name``.

    Raises:
        ValueError: unknown name, with the known ones.
    """
    if name not in REGISTRY:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(REGISTRY)}")
    module, cls = REGISTRY[name].split(":")
    return getattr(import_module(f".{module}", __name__), cls)


def build_method(name: str, backbone: Backbone, **options) -> Method:
    """A method on a backbone, with its options checked against its config.

    Raises:
        ValueError: unknown method, or an option it does not have.
    """
    cls = method_class(name)
    known = [f.name for f in dataclasses.fields(cls.Config)]
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"method {name!r} has no option {option!r}{hint}; its options: {', '.join(known)}")
    return cls(backbone, cls.Config(**options))
