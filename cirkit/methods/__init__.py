"""One method a file. Adding a method is one file here and one line in ``REGISTRY``."""

from __future__ import annotations

import dataclasses
import difflib
import math
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cirkit.backbone import Backbone
from cirkit.methods.base import Batch, Method, TrainingView

REGISTRY = {
    "infonce": "infonce:InfoNCE",
    "rcl": "rcl:RCL",
    "qure": "qure:QuRe",
    "qure-released": "qure:QuReReleased",
    "dqe": "dqe:DQE",
    "infonce+random": "infonce_drawn:InfoNCERandom",
    "infonce+twodrop": "infonce_drawn:InfoNCETwoDrop",
    "infonce+midzone": "infonce_drawn:InfoNCEMidZone",
    "conesep-adapted": "conesep:ConeSep",
    "conesep-adapted+twodrop": "conesep:ConeSepTwoDrop",
    "conesep-adapted+midzone": "conesep:ConeSepMidZone",
    "conesep-paper": "conesep:ConeSepPaper",
    "conesep-released": "conesep:ConeSepReleased",
    "clip4cir": "clip4cir:CLIP4CIR",
    "sprc": "sprc:SPRC",
    "habit": "habit:HABIT",
    "habit-released": "habit:HABITReleased",
    "intent": "intent:INTENT",
    "intent-released": "intent:INTENTReleased",
    "tme": "tme:TME",
    "tme-released": "tme:TMEReleased",
    "oracle-infonce": "oracle:OracleInfoNCE",
    "oracle-rcl": "oracle:OracleRCL",
}

__all__ = ["REGISTRY", "Batch", "Method", "TrainingView", "build_method", "method_class", "method_config"]


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
    """A method on a backbone, with the options that :func:`method_config` takes."""
    return method_class(name)(backbone, method_config(name, **options))


def method_config(name: str, **options) -> Method.Config:
    """The config of a method with these options, all else at its defaults; needs no backbone, so it can be early.

    Types are those of the config's fields; a whole number is taken for a float. ``variant`` is one of the method's
    ``variants``, which are just the config's default where it declares none.

    Raises:
        ValueError: unknown method, an option it does not have, or a value of the wrong type or out of its range.
    """
    cls = method_class(name)
    known = [f.name for f in dataclasses.fields(cls.Config)]
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"method {name!r} has no option {option!r}{hint}; its options: {', '.join(known)}")
    types = get_type_hints(cls.Config)
    values = {
        option: _typed(f"option {option!r} of method {name!r}", v, types[option]) for option, v in options.items()
    }
    config = cls.Config(**values)
    variants = getattr(cls, "variants", (cls.Config().variant,))
    if config.variant not in variants:
        raise ValueError(f"method {name!r} has no variant {config.variant!r}; it has {', '.join(variants)}")
    return config


def _typed(what: str, value: Any, kind: Any) -> Any:
    """The value as the type says: an int for a float becomes one, a list for a tuple too; anything else is refused."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        rest = [k for k in inner if k is not NoneType]
        if len(rest) == 1:
            return _typed(what, value, rest[0])
        fits = type(value) in rest
    elif origin is Literal:
        fits = value in inner
    elif origin is tuple:
        fits = isinstance(value, (list, tuple))
        if fits:
            kinds = inner[:1] * len(value) if Ellipsis in inner else inner
            if len(kinds) == len(value):
                return tuple(_typed(what, v, k) for v, k in zip(value, kinds, strict=True))
            fits = False
    elif kind is float:
        fits = type(value) in (int, float) and math.isfinite(value)
        value = float(value) if fits else value
    else:
        fits = type(value) is (origin or kind)
    if not fits:
        expected = kind.__name__ if isinstance(kind, type) and not inner else str(kind).replace("typing.", "")
        raise ValueError(f"{what} must be {expected}, got {value!r}")
    return value
