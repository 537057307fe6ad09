"""A run from parameters to record: complete, repeatable, a no-op when done."""

from __future__ import annotations

import dataclasses
import json
import shutil
import types

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from cirkit import runs
from cirkit.data.triplets import DataError
from cirkit.methods import method_class
from cirkit.noise import corrupt
from cirkit.presets import save_backbone
from cirkit.records import load_metrics, tidy
from cirkit.run_parameters import RunParameters
from cirkit.runs import prepare, train_config, train_or_load
from cirkit.train_scores import detection, detection_by_epoch


@pytest.fixture
def settings(mini_world, small_backbone, tmp_path) -> dict:
    """Parameters of a run of a second: the miniature world as a FashionIQ folder, a random backbone."""
    folder = tmp_path / "backbone"
    save_backbone(small_backbone(), folder)
    return {
        "backbone": str(folder), "dataset": "fashioniq", "data_root": str(mini_world), "noise_rate": 0.5,
        "epochs": 2, "batch_size": 32, "progress": False, "device": "cpu",
    }  # fmt: skip


def test_a_run_leaves_a_complete_record(settings):
    run = train_or_load(**settings)
    assert run.done
    names = {p.name for p in run.folder.iterdir()}
    assert names == {
        "metrics.json",
        "history.csv",
        "model.safetensors",
        "ranks_val.csv",
        "ranks_test.csv",
        "scores_train.csv",
    }
    record = load_metrics(run.folder)
    assert record["run_id"] == run.id == run.folder.name
    assert record["noise"] == {"nominal": 0.5, "realised": run.noisy.ledger.realised_rate}
    assert record["report_on"] == "test" and record["choose_on"] == "val" and record["comparable"]
    assert record["parameters"] == {k: v for k, v in dataclasses.asdict(run.parameters).items()}
    assert {"commit", "versions", "threads"} <= set(record["provenance"])
    assert len(run.history()) == 2


def test_metrics_are_computed_from_the_stored_ranks(settings):
    run = train_or_load(**settings)
    ranks = pd.read_csv(run.folder / "ranks_test.csv")
    table = tidy([run.folder])
    value = table[(table.split == "test") & (table.metric == "R@5") & (table.category == "mean")].value.item()
    by_hand = [
        np.mean([min(max((5 - q.better) / (q.tied + 1), 0), 1) for q in part.itertuples()])
        for _, part in ranks.groupby("category")
    ]
    assert value == pytest.approx(100 * np.mean(by_hand))


def test_finished_run_is_a_no_op_and_gives_the_same_weights(settings, monkeypatch):
    first = train_or_load(**settings)
    monkeypatch.setattr(runs, "fit", lambda *_, **__: pytest.fail("trained again"))
    second = train_or_load(**settings)
    assert second.id == first.id
    for name, value in first.method.trained_state().items():
        assert (second.method.trained_state()[name] == value).all(), name


def test_a_run_repeats_itself_to_the_last_rank(settings, monkeypatch, tmp_path):
    first = train_or_load(**settings)
    monkeypatch.setenv("CIRKIT_RESULTS", str(tmp_path / "elsewhere"))
    second = train_or_load(**settings)
    assert first.folder != second.folder and first.id == second.id
    for name in ("ranks_val.csv", "ranks_test.csv"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    one, two = (load_metrics(r.folder) for r in (first, second))
    assert one["metrics"] == two["metrics"]


def test_run_interrupted_before_its_record_goes_on(settings, monkeypatch):
    run = prepare(**settings)
    run.fit(progress=False)
    assert not run.done and (run.folder / "resume.pt").is_file()
    again = prepare(**settings)
    history = again.fit(progress=False)
    assert len(history) == 2
    again.record(*again.evaluate())
    assert again.done and not (run.folder / "resume.pt").exists()


@pytest.mark.parametrize(
    "change",
    [{"noise_rate": 0.2}, {"noise_seed": 1}, {"seed": 1}, {"epochs": 3}, {"lr": 1e-3}, {"exclude_reference": True},
     {"gallery_rule": "union"}, {"caption_mode": "first"}, {"method_options": {"temperature": 0.1}}],
)  # fmt: skip
def test_every_effective_parameter_is_in_the_id(settings, change):
    assert prepare(**settings).id != prepare(**(settings | change)).id


def test_clean_runs_are_one_whatever_noise_was_not_applied(settings):
    clean = settings | {"noise_rate": 0.0}
    ids = {prepare(**(clean | c)).id for c in ({}, {"noise_seed": 7}, {"noise_kind": "derange"}, {"noise_rate": 0})}
    assert len(ids) == 1 and "clean" in ids.pop()


def test_the_device_is_not_in_the_id(settings):
    assert (
        prepare(**settings).id == prepare(**(settings | {"device": "auto"})).id
        or __import__("torch").cuda.is_available()
    )


def test_rows_carry_what_they_were_made_with(settings):
    table = tidy([train_or_load(**settings).folder])
    for name in ("method", "variant", "backbone", "dataset", "noise_kind", "noise_rate", "realised_rate", "noise_seed",
                 "seed", "caption_mode", "gallery_rule", "exclude_reference", "commit", "versions", "n"):  # fmt: skip
        assert name in table.columns
    assert table[table.reported].split.unique().tolist() == ["test"]


def test_missing_images_stop_before_training_and_opting_in_marks_the_result(settings, mini_world, tmp_path):
    world = tmp_path / "incomplete"
    shutil.copytree(mini_world, world)
    gallery = json.loads((world / "image_splits" / "split.dress.val.json").read_text())
    for image in gallery[:2]:
        (world / "images" / f"{image}.png").unlink()
    incomplete = settings | {"data_root": str(world)}
    with pytest.raises(DataError, match=gallery[0]):
        prepare(**incomplete)
    run = train_or_load(**incomplete, allow_missing_images=True)
    record = load_metrics(run.folder)
    assert record["comparable"] is False
    assert len(run.data.choose.galleries["dress"]) == len(gallery) - 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_rate": 1.5}, r"1\.5"), ({"noise_kind": "shufle"}, "shufle"), ({"method": "infonse"}, "infonse"),
        ({"dataset": "fashoniq"}, "fashoniq"), ({"data_root": ""}, "data_root"), ({"caption_mode": "thrid"}, "thrid"),
        ({"backbone": "tinny"}, "tinny"), ({"method_options": {"tau": 1}}, "tau"), ({"epochs": 0}, "epochs"),
        ({"noise_rate": "0.5"}, "noise_rate must be float"), ({"seed": 1.5}, "seed must be int"),
    ],
)  # fmt: skip
def test_bad_parameters_are_one_sentence_and_leave_nothing(settings, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepare(**(settings | change))
    assert not (tmp_path / "results").exists()


def test_unknown_parameter_is_refused(settings):
    with pytest.raises(TypeError, match="noise_ratio"):
        prepare(**settings, noise_ratio=0.5)


def test_weights_are_safetensors_without_the_tower(settings):
    state = load_file(train_or_load(**settings).folder / "model.safetensors")
    assert state and not any("vision_model" in name for name in state)


def test_record_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "metrics.json").write_text('{"run_id": ')
    with pytest.raises(ValueError, match="metrics.json is not a finished run"):
        load_metrics(tmp_path)


def test_parameters_are_typed():
    for field in dataclasses.fields(RunParameters):
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        assert field.type == ("bool | None" if default is None else type(default).__name__), field.name


def test_training_gets_the_corrupted_triplets_of_the_noise_seed(settings, monkeypatch):
    seen = {}

    def look(method, triplets, store, config, folder, clean, *_):
        seen.update(triplets=triplets, clean=clean, config=config)
        return pd.DataFrame({"epoch": [1]})

    monkeypatch.setattr(runs, "fit", look)
    run = prepare(**settings, noise_seed=7, seed=3)
    run.fit(progress=False)
    expected = corrupt(run.data.train, 0.5, "shuffle", 7)
    assert seen["triplets"].references == expected.triplets.references != run.data.train.references
    assert seen["triplets"].targets == expected.triplets.targets != run.data.train.targets
    assert (seen["clean"] == expected.ledger.clean).all() and seen["config"].seed == 3


def test_low_similarity_counts_as_suspect(settings):
    noisy = prepare(**settings).noisy
    table = detection(noisy.ledger.clean.astype(float), noisy)
    assert table[(table.metric == "AUROC") & (table.kind == "all")].value.item() == 1


def test_detection_is_recorded_each_epoch_and_at_the_end(settings):
    run = train_or_load(**settings, method="rcl")
    history = run.history()
    for name in ("AUROC similarity shuffle", "AP similarity shuffle", "AUROC loss shuffle", "AP loss shuffle"):
        assert history[name].between(0, 1).all(), name
    scores = pd.read_csv(run.folder / "scores_train.csv")
    assert (scores.noisy == run.noisy.ledger.changed).all()
    again = run.train_similarity()
    assert np.allclose(scores.similarity, again, atol=1e-6)
    table = tidy([run.folder])
    row = table[(table.metric == "AUROC similarity") & (table.category == "shuffle")]
    expected = detection(again, run.noisy).query("metric == 'AUROC' and kind == 'shuffle'").value.item()
    assert row.value.item() == pytest.approx(expected, abs=1e-6) and not row.reported.item()


def test_detection_by_epoch_is_of_the_rows_that_were_seen(settings):
    noisy = prepare(**settings).noisy
    perfect = np.where(noisy.ledger.changed, 0.1, 0.9)
    perfect[::3] = np.nan
    columns = detection_by_epoch({"similarity": perfect, "loss": perfect}, noisy)
    assert columns["AUROC similarity shuffle"] == 1 and columns["AUROC loss shuffle"] == 0
    assert detection_by_epoch({"similarity": np.full(len(perfect), np.nan)}, noisy) == {}


def test_copied_record_names_the_kind_that_was_asked_for(settings, tmp_path):
    for kind in ("shuffle", "derange"):
        run = train_or_load(**(settings | {"noise_rate": 0.0, "noise_kind": kind}))
        run.copy_record(tmp_path / f"{kind}.json")
    assert [tidy([tmp_path / f"{kind}.json"]).noise_kind[0] for kind in ("shuffle", "derange")] == [
        "shuffle",
        "derange",
    ]


def test_a_record_that_is_cut_off_is_trained_again(settings):
    run = train_or_load(**settings)
    whole = load_metrics(run.folder)
    (run.folder / "metrics.json").write_text("")
    assert not run.done
    assert load_metrics(train_or_load(**settings).folder)["metrics"] == whole["metrics"]


def test_hard_noise_takes_the_most_alike_image(settings):
    run = prepare(**(settings | {"noise_kind": "hard"}))
    ledger = run.noisy.ledger
    assert set(ledger.slot) == {"none", "target"} and ledger.changed.any()


@pytest.mark.parametrize("name", ["oracle-infonce", "oracle-rcl"])
def test_oracles_train_and_say_so(settings, name):
    run = train_or_load(**(settings | {"method": name}))
    assert run.method.uses_ledger and run.done


def test_a_small_preset_refuses_texts_of_another_world(mini_world, tmp_path):
    world = shutil.copytree(mini_world, tmp_path / "world")
    for path in (world / "captions").iterdir():
        entries = json.loads(path.read_text())
        for entry in entries:
            entry["captions"] = ["the tiny circle moved leftwards"]
        path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="backbone 'tiny' does not know .* words of .*circle"):
        prepare(backbone="tiny", dataset="fashioniq", data_root=str(world), progress=False)


def test_wrong_noise_is_told_before_images_are_encoded(settings, monkeypatch):
    monkeypatch.setattr(runs, "build_store", lambda *_, **__: pytest.fail("encoded already"))
    for change in ({"noise_rate": 1.5}, {"noise_kind": "shufle"}, {"epochs": 0}, {"method_options": {"tau": 1}}):
        with pytest.raises(ValueError):
            prepare(**(settings | change))


def test_a_run_takes_the_learning_rate_of_its_method_unless_it_names_one(settings):
    assert prepare(**settings).config.lr == method_class("infonce").lr
    assert prepare(**settings | {"method": "rcl"}).config.lr == method_class("rcl").lr
    assert prepare(**settings | {"lr": 1e-4}).config.lr == 1e-4
    named = prepare(**settings | {"lr": method_class("infonce").lr})
    assert named.id == prepare(**settings).id
    with pytest.raises(ValueError, match="lr"):
        prepare(**settings | {"lr": -1.0})


@pytest.mark.parametrize("name", ["model.safetensors", "history.csv"])
def test_a_run_without_its_weights_or_history_is_trained_again(settings, name):
    run = train_or_load(**settings)
    (run.folder / name).unlink()
    assert not run.done
    assert train_or_load(**settings).done and (run.folder / name).is_file()


def test_without_a_rate_a_small_backbone_takes_the_methods_and_a_large_one_the_published_one(small_backbone):
    small = small_backbone(name="of one's own")
    large, parts = (
        types.SimpleNamespace(config=dataclasses.replace(small.config, tower=tower))
        for tower in ("vit", "efficientnet-lite0")
    )
    for method in ("infonce", "conesep-paper"):
        for dataset, rate in (("fashioniq", 2e-5), ("cirr", 1e-5)):
            p = RunParameters(method=method, dataset=dataset, data_root="x")
            assert train_config(p, large).lr == rate
            assert train_config(p, small).lr == train_config(p).lr == method_class(method).lr
            assert train_config(dataclasses.replace(p, lr=0.5), large).lr == 0.5
            assert train_config(p, parts).lr == method_class(method).lr / 10
    # an embedded world has the layout, and so the rate, of one of them
    assert train_config(RunParameters(method="rcl"), large).lr == 2e-5
    assert train_config(RunParameters(method="rcl", dataset="scenes"), large).lr == 1e-5
