"""salesforce-lavis itself against this package: towers everywhere, its Q-Former where transformers is old enough."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers

import cirkit.parity
from cirkit.parity import EXPECTED, TOWERS, compare_all, compare_tower, lavis_modules, main

OLD = transformers.__version__.startswith("4.")


@pytest.mark.parametrize("kind", TOWERS)
@pytest.mark.parametrize("seed", [0, 7])
def test_towers_equal_lavis(kind, seed):
    assert compare_tower(kind, seed) < EXPECTED


@pytest.mark.parametrize("kind", TOWERS)
def test_everything_behind_the_tower_equals_lavis(kind):
    """With transformers 4.57, which `.ci/oldest` brings; with 5 LAVIS's Q-Former does not run, and that is said."""
    if not OLD:
        with pytest.raises(RuntimeError, match="runs with transformers 4.57, not 5.*make parity"):
            compare_all(kind)
        return
    found = compare_all(kind)
    assert len(found) == 8
    assert max(found.values()) < EXPECTED, found


@pytest.mark.parametrize("kind", TOWERS)
@pytest.mark.parametrize("what", ["layer_norm1.weight", "self_attn.qkv.bias", "self_attn.q_proj.bias", "position"])
def test_a_wrong_tower_would_be_seen(monkeypatch, kind, what):
    translate = cirkit.parity.translate_tower

    def damaged(state):
        fields, weights = translate(state)
        names = [name for name in weights if what in name]
        for name in names[:1]:
            weights[name] = weights[name] * 1.1
        return fields, weights

    monkeypatch.setattr(cirkit.parity, "translate_tower", damaged)
    there = what != f"self_attn.{'q_proj' if kind == 'eva' else 'qkv'}.bias"
    assert (compare_tower(kind) > EXPECTED) == there


def test_the_table_names_every_output(capsys):
    assert main() == 0
    printed = capsys.readouterr().out
    for kind in TOWERS:
        assert len([line for line in printed.splitlines() if line.startswith(kind)]) == (8 if OLD else 1)
    assert f"expected at most {EXPECTED:g}" in printed


def test_a_difference_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(cirkit.parity, "_difference", lambda ours, theirs: 2e-5)
    assert main() == 1


def test_lavis_leaves_nothing_behind_and_its_absence_is_one_sentence(monkeypatch):
    with lavis_modules("models.eva_vit") as (module,):
        assert hasattr(module, "VisionTransformer")
    assert not [name for name in sys.modules if name.partition(".")[0] == "lavis"]
    monkeypatch.setattr(cirkit.parity, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="not installed: pip install --no-deps salesforce-lavis"):
        compare_tower("eva")
    assert torch.is_grad_enabled()
