"""Evidence before training: the formulas against slow loops, one encoding each, and what it sees of hard noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_triplets import make
from sklearn.metrics import roc_auc_score

from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.data.triplets import DataError
from cirkit.evidence import EVIDENCE, change_evidence, evidence_quality, evidence_scores, margin_evidence
from cirkit.features import build_store
from cirkit.noise import corrupt
from cirkit.presets import load_backbone
from cirkit.similarity import similarity_function


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def inner(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def margin_by_hand(query, reference, target) -> float:
    return max(inner(query, token) for token in target) - max(inner(query, token) for token in reference)


def change_by_hand(text, reference, target) -> float:
    means = [
        [sum(token[d] for token in tokens) / len(tokens) for d in range(len(text))] for tokens in (target, reference)
    ]
    change = [a - b for a, b in zip(*means, strict=True)]
    return inner(text, change) / (inner(change, change) * inner(text, text)) ** 0.5


@pytest.mark.parametrize(("fast", "slow"), [(margin_evidence, margin_by_hand), (change_evidence, change_by_hand)])
def test_formulas_are_those_of_a_slow_loop(fast, slow):
    queries, references, targets = unit(3, 7), unit(3, 5, 7, seed=1), unit(3, 5, 7, seed=2)
    expected = [slow(*row) for row in zip(queries.tolist(), references.tolist(), targets.tolist(), strict=True)]
    found = fast(queries, references, targets)
    assert found.shape == (3,) and found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert fast(queries[:1], references[:1], targets[:1]).tolist() == pytest.approx(expected[:1], abs=1e-6)


@pytest.mark.parametrize("fast", [margin_evidence, change_evidence])
def test_the_other_direction_is_the_other_sign_and_one_image_is_no_evidence(fast):
    queries, references, targets = unit(3, 7), unit(3, 5, 7, seed=1), unit(3, 5, 7, seed=2)
    assert torch.equal(fast(queries, references, targets), -fast(queries, targets, references))
    assert fast(queries, references, references).tolist() == [0, 0, 0]


@pytest.mark.parametrize("fast", [margin_evidence, change_evidence])
def test_half_precision_is_computed_in_full(fast):
    halves = [t.half() for t in (unit(3, 7), unit(3, 5, 7, seed=1), unit(3, 5, 7, seed=2))]
    assert torch.equal(fast(*halves), fast(*(t.float() for t in halves)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fast(*halves), fast(*(t.float() for t in halves)))


def test_the_margin_grows_with_the_change_and_its_direction_does_not():
    text, reference, step = unit(1, 7), unit(1, 1, 7, seed=1), unit(1, 1, 7, seed=2)
    near, far = reference + 0.1 * step, reference + 0.5 * step
    assert change_evidence(text, reference, near).item() == pytest.approx(
        change_evidence(text, reference, far).item(), abs=1e-5
    )
    assert abs(margin_evidence(text, reference, far)) > 2 * abs(margin_evidence(text, reference, near))


@pytest.fixture
def world(mini_world, small_backbone):
    triplets, backbone = load_fashioniq(mini_world, "train"), small_backbone()
    return backbone, triplets, build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)


def test_scores_belong_to_their_rows_in_whatever_chunks(world):
    backbone, triplets, store = world
    noisy = corrupt(triplets, 0.5, "shuffle", 1).triplets
    whole = evidence_scores(backbone, noisy, store)
    parts = evidence_scores(backbone, noisy, store, batch_size=7)
    assert list(whole) == list(EVIDENCE)
    for name in EVIDENCE:
        assert whole[name].shape == (len(noisy),) and whole[name].dtype == np.float32 and np.ptp(whole[name]) > 1e-3
        assert np.allclose(whole[name], parts[name], atol=1e-5)
        assert np.array_equal(evidence_scores(backbone, noisy, store, [name])[name], whole[name])
    for row in (0, 5, len(noisy) - 1):
        triplet = noisy[row]
        reference, target = (store.patches(store.rows([i])) for i in (triplet.reference, triplet.target))
        with torch.no_grad():
            tokens = [backbone.encode_target(patches)[0].tolist() for patches in (reference, target)]
            text, composed = backbone.encode_text([triplet.text])[0], backbone.compose(reference, [triplet.text])[0]
        assert whole["text"][row] == pytest.approx(margin_by_hand(text.tolist(), *tokens), abs=1e-5)
        assert whole["composed"][row] == pytest.approx(margin_by_hand(composed.tolist(), *tokens), abs=1e-5)
        assert whole["change"][row] == pytest.approx(change_by_hand(text.tolist(), *tokens), abs=1e-4)


def test_each_image_and_text_is_encoded_once_and_nothing_is_trained(world, monkeypatch):
    backbone, triplets, store = world
    counts = {"encode_target": 0, "encode_text": 0, "compose": 0}

    def counted(name):
        original = getattr(backbone, name)

        def call(first, *rest):
            counts[name] += len(first)
            return original(first, *rest)

        return call

    for name in counts:
        monkeypatch.setattr(backbone, name, counted(name))
    before = backbone.fingerprint()
    several = triplets.select([*range(20), *range(20)])
    evidence_scores(backbone, several, store, batch_size=6)
    images = {*several.references, *several.targets}
    assert counts == {"encode_target": len(images), "encode_text": len(set(several.texts)), "compose": 40}
    assert backbone.fingerprint() == before
    evidence_scores(backbone, several, store, ["text"])
    assert counts["compose"] == 40, "what is not asked for is not encoded"


def test_wrong_names_and_sets_are_one_sentence(world):
    backbone, triplets, store = world
    with pytest.raises(ValueError, match="unknown evidence 'txt'; known: text, change, composed"):
        evidence_scores(backbone, triplets, store, ["text", "txt"])
    with pytest.raises(ValueError, match="nothing to encode"):
        evidence_scores(backbone, triplets.select([]), store)
    with pytest.raises(DataError, match="no public ground truth"):
        evidence_scores(backbone, make(["a"], [("x",)], [None]), store)


def test_quality_judges_each_kind_against_all_clean_rows(world):
    backbone, triplets, store = world
    noisy = corrupt(corrupt(triplets, 0.3, "shuffle", 1), 0.3, "partial", 2)
    table = evidence_quality(backbone, noisy, store, ["change", "text"])
    assert table.columns.tolist() == ["evidence", "metric", "kind", "value", "n", "n_noisy", "low", "high"]
    assert set(zip(table.evidence, table.kind, strict=True)) == {
        (name, kind) for name in ("change", "text") for kind in ("all", "partial", "shuffle")
    }
    ledger, scores = noisy.ledger, evidence_scores(backbone, noisy.triplets, store)
    for row in table[table.metric == "AUROC"].itertuples():
        among = ~ledger.changed | (ledger.kind == row.kind) | (row.kind == "all")
        expected = roc_auc_score(ledger.changed[among], -scores[row.evidence][among])
        assert row.value == pytest.approx(expected) and row.n == among.sum() and row.low <= row.value <= row.high


def test_hard_noise_is_visible_before_training(mini_world):
    """With stage 1 on this kind of pictures a text has evidence that its target is not its reference's look-alike."""
    backbone = load_backbone("tiny")
    triplets = load_fashioniq(mini_world, "train")
    store = build_store(backbone, ImageFolder(mini_world), triplets.image_ids(), progress=False)
    noisy = corrupt(triplets, 0.5, "hard", 0, similarity=similarity_function(backbone, store))
    table = evidence_quality(backbone, noisy, store).query("metric == 'AUROC' and kind == 'hard'")
    assert (table.set_index("evidence").value > 0.7).all(), table
