"""Both sides of each benchmark compute the same; how long they take is for `make bench` to say."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from cirkit import mining
from cirkit.bench import __main__ as bench
from cirkit.bench import cost, scoring, step, store, timing
from cirkit.bench import mining as bench_mining
from cirkit.bench.step import Size, Trainer, Unshared
from cirkit.methods.conesep import ConeSep, ConeSepConfig
from cirkit.scores import max_over_tokens

SMALL = {"queries": 37, "images": 51, "tokens": 3, "dims": 8}


@pytest.mark.parametrize("subsets", [False, True])
def test_ranks_in_blocks_are_those_of_whole_matrices(subsets):
    case = scoring.made(**SMALL, subsets=subsets)
    blocks, places = scoring.in_blocks(case), scoring.by_matrices(case)
    assert len(blocks) == 2 * len(places) == (4 if subsets else 2)
    scoring.compare(blocks, places)
    assert all((better == place).all() and not tied.any()
               for better, tied, place in zip(blocks[::2], blocks[1::2], places, strict=True))  # fmt: skip
    blocks[0][3] += 5
    with pytest.raises(AssertionError, match="1 ranks differ"):
        scoring.compare(blocks, places)


def test_scores_of_the_product_of_lavis_are_ours():
    case = scoring.made(**SMALL)
    torch.testing.assert_close(scoring.as_lavis(case), max_over_tokens(case.queries, case.tokens))


def test_made_cases_are_of_unit_length_and_subsets_hold_reference_and_target():
    case = scoring.made(**SMALL, subsets=True)
    assert torch.allclose(case.tokens.norm(dim=2), torch.ones(51, 3))
    assert (case.subsets[:, 0] == case.reference).all() and (case.subsets[:, 1] == case.target).all()
    assert all(len(set(row.tolist())) == 6 for row in case.subsets) and case.subsets.max() <= 50


def test_zones_are_those_of_the_loop():
    scores, own = bench_mining.made_scores(29, 300)
    for order_of in bench_mining.ORDERS.values():
        found = bench_mining.looped(scores, own, order_of, np.random.default_rng(0))
        assert [size for size, _ in found] == bench_mining.zone_sizes(scores, own)
    assert len({size for size, _ in found}) > 5


def test_mining_a_large_corpus_scores_fewer_queries_at_a_time(monkeypatch):
    assert mining.rows_at_once(512, 1000) == 512 and mining.rows_at_once(512, 123_403) * 123_403 <= mining._SCORES
    assert mining.rows_at_once(512, 10**9) == 1
    case, seen, whole = scoring.made(**SMALL), [], bench_mining.corpus_scores

    def scores(part, tokens):
        seen.append(len(part))
        return whole(part, tokens)

    monkeypatch.setattr(mining, "_SCORES", 51 * 10)
    monkeypatch.setattr(bench_mining, "corpus_scores", scores)
    drawn = bench_mining.mined(case.queries, case.tokens, case.target)
    assert seen == [10, 10, 10, 7] and (drawn[:, 0] != case.target).all()


@pytest.fixture
def size(small_backbone):
    return Size("small", small_backbone(query_tokens=2).config, 6)


def test_a_step_with_the_store_is_the_step_without(size):
    table = pd.DataFrame(step.measure(size, rounds=1))  # which compares the losses itself
    assert list(table["variant"]) == ["released"] * 2 + ["adapted"] * 2
    assert (table["every step, GFLOP"] > table["stored, GFLOP"]).all()
    after = table[table["after warm-up"]]
    assert (after["no pool, GFLOP"] > after["stored, GFLOP"]).all() and after["without the pool"].notna().all()


def test_the_gradients_are_the_same_as_well(size, tmp_path):
    pixels, stored = step.made_images(step.build(size), 18, tmp_path)
    config = ConeSepConfig(start="released", pool=True, draws=6)
    ways = [
        Trainer(kind(step.build(size), config), images, 6) for kind, images in ((ConeSep, stored), (Unshared, pixels))
    ]
    for way in ways:
        way.method.epoch = 2
        way.steps(1)
    for one, other in zip(*(way.method.parameters() for way in ways), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-6)
    assert F.cosine_similarity(*(way.method.negative_prompts.grad.flatten() for way in ways), dim=0) > 0.999


def test_costs_are_predicted(monkeypatch, small_backbone):
    monkeypatch.setattr(step, "load_backbone", lambda name: small_backbone())
    table = pd.DataFrame(cost.measure("small", batch=7, rounds=1))
    for name, within in (("GFLOP", 0.03), ("activations, MB", 0.1), ("state, MB", 0.03)):
        np.testing.assert_allclose(table[f"predicted {name}"], table[name], rtol=within)


def test_the_store_is_measured_at_any_size(monkeypatch, small_backbone):
    monkeypatch.setattr(store, "VIT_G", dataclasses.replace(small_backbone().config, tower_dtype="float16"))
    table = pd.DataFrame(store.measure(images=12, batch=5, rounds=1))
    assert table.value.gt(0).all() and table.value[0] == 36 * 24 * 2 / 1e6


def test_works_are_done_in_turn():
    done = []
    seconds, given = timing.side_by_side({n: lambda n=n: done.append(n) or n.upper() for n in "ab"}, 3)
    assert done == list("abbaab") and given == {"a": "A", "b": "B"} and min(seconds.values()) >= 0


def test_peak_memory_is_that_of_the_work_alone():
    sizes = {"queries": 500, "images": 2000, "tokens": 4, "dims": 16}
    whole = timing.peak_memory("evaluation", whole=True, **sizes)
    # the scores of all tokens, and the made gallery does not count
    assert 4 * 500 * 2000 * 4 < whole < 20 * 500 * 2000 * 4
    with pytest.raises(RuntimeError, match="no-such-case .* failed: .*KeyError"):
        timing.peak_memory("no-such-case")


def test_only_the_record_is_written_and_only_when_asked(tmp_path, monkeypatch, capsys):
    tables = {"steps": ("Steps.", lambda rounds, backbones: pd.DataFrame({"x": [1234.5, 0.01234], "rounds": rounds}))}
    monkeypatch.setattr(bench, "TABLES", tables)
    monkeypatch.setattr(bench, "project_root", lambda: tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--rounds", "2"])
    bench.main()
    assert "Steps." in capsys.readouterr().out and not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "argv", ["bench", "--reference"])
    bench.main()
    folder = tmp_path / "results" / "bench"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "steps.csv"]
    assert pd.read_csv(folder / "steps.csv").x[1] == 0.01234
    assert "1,234" in (page := (folder / "README.md").read_text()) and "0.0123" in page and "(steps.csv)" in page
