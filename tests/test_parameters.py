"""A misspelt, untyped or missing notebook parameter stops the notebook with one sentence."""

from __future__ import annotations

import math

import pytest

from cirkit.parameters import check_parameters

DEFAULTS = {"METHOD": "infonce", "NOISE_RATE": 0.2, "SEED": 0, "MASK": False, "OPTIONS": {}}


def notebook(**injected) -> dict:
    return {"__name__": "__main__", "_i1": "x", "In": [], "math": math, "load": len, **DEFAULTS, **injected}


def test_effective_values_in_lower_case():
    assert check_parameters(notebook(NOISE_RATE=0.5), **DEFAULTS) == {
        "method": "infonce", "noise_rate": 0.5, "seed": 0, "mask": False, "options": {},
    }  # fmt: skip


def test_whole_numbers_serve_as_rates():
    value = check_parameters(notebook(NOISE_RATE=0), **DEFAULTS)["noise_rate"]
    assert value == 0.0 and isinstance(value, float)


@pytest.mark.parametrize("name", ["NOISE_RATIO", "noise_rate", "Noise_Rate"])
def test_misspelt_names_are_refused_with_a_guess(name):
    with pytest.raises(ValueError, match=f"{name} is not a parameter.*did you mean NOISE_RATE"):
        check_parameters(notebook(**{name: 0.9}), **DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("NOISE_RATE", "0.2x"), ("SEED", 1.5), ("MASK", 1), ("METHOD", 3), ("SEED", True), ("OPTIONS", "a=1")],
)
def test_wrong_types_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        check_parameters(notebook(**{name: value}), **DEFAULTS)


def test_missing_parameter_is_named():
    namespace = notebook()
    del namespace["SEED"]
    with pytest.raises(ValueError, match="SEED is missing"):
        check_parameters(namespace, **DEFAULTS)
