"""The loop: it learns, repeats itself, resumes, and keeps the truth about the noise from those who must not know."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer

from cirkit import checkpoints
from cirkit.data.fashioniq import load_fashioniq
from cirkit.data.images import ImageFolder
from cirkit.features import build_store
from cirkit.methods import REGISTRY, Batch, Method, build_method, method_class
from cirkit.noise import corrupt
from cirkit.retrieval import encode_images, encode_queries
from cirkit.schedule import step_order
from cirkit.similarity import own_similarity
from cirkit.training import CHECKPOINT, TrainConfig, epoch_order, fit

CONFIG = TrainConfig(epochs=3, batch_size=16, lr=2e-3)
BLIND = [name for name in REGISTRY if not method_class(name).uses_ledger]


@pytest.fixture
def world(mini_world, small_backbone):
    triplets = load_fashioniq(mini_world, "train")
    backbone = small_backbone()
    made = backbone, ImageFolder(mini_world), triplets.image_ids()
    return triplets, *(build_store(*made, progress=False, pixels=pixels) for pixels in (False, True))


def train(world, small_backbone, name="infonce", triplets=None, config=CONFIG, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of what a method adds to the backbone, as in a run
        method = build_method(name, small_backbone())
    if method.uses_pixels:
        options["pixels"] = world[2]
    return method, fit(method, triplets or world[0], world[1], config, progress=False, **options)


def losses(history: pd.DataFrame) -> list[float]:
    return history.loss.tolist()


def test_it_learns_and_writes_a_history(world, small_backbone):
    _, history = train(world, small_backbone, config=TrainConfig(epochs=6, batch_size=16, lr=5e-3))
    assert history.epoch.tolist() == [1, 2, 3, 4, 5, 6]
    assert history.loss.iloc[-1] < history.loss.iloc[0]
    assert {"loss", "infonce", "s_ii", "gradient_norm", "lr", "seconds"} <= set(history)


def test_same_seed_same_run_and_other_seed_another(world, small_backbone):
    first, second = (train(world, small_backbone)[1] for _ in range(2))
    assert losses(first) == losses(second)
    other = train(world, small_backbone, config=TrainConfig(epochs=3, batch_size=16, seed=1))[1]
    assert losses(first) != losses(other)


def test_global_random_state_neither_matters_nor_changes(world, small_backbone):
    torch.manual_seed(1)
    first = train(world, small_backbone)[1]
    torch.manual_seed(2)
    expected = torch.rand(2)
    torch.manual_seed(2)
    second = train(world, small_backbone)[1]
    assert torch.equal(torch.rand(2), expected)
    assert losses(first) == losses(second)


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", REGISTRY)
def test_interrupted_run_resumes_to_the_same_numbers(world, small_backbone, tmp_path, name):
    clean = np.ones(len(world[0]), dtype=bool)
    whole, expected = train(world, small_backbone, name, clean=clean)

    def kill_in_second_epoch(epoch, *_):
        if epoch == 1:
            raise Killed
        return {}

    with pytest.raises(Killed):
        train(world, small_backbone, name, folder=tmp_path, clean=clean, on_epoch=kill_in_second_epoch)
    assert (tmp_path / CHECKPOINT).is_file()
    resumed, history = train(world, small_backbone, name, folder=tmp_path, clean=clean)
    assert losses(history) == losses(expected)
    for key, value in whole.trained_state().items():
        assert torch.equal(value, resumed.trained_state()[key]), key


@pytest.fixture
def stopped(world, small_backbone, tmp_path):
    """Folder of a run that stopped after its first epoch."""
    folder = tmp_path / "stopped"

    def stop(epoch, *_):
        if epoch:
            raise Killed
        return {"R@1": np.float64(50)}

    with pytest.raises(Killed):
        train(world, small_backbone, folder=folder, on_epoch=stop)
    return folder


@pytest.mark.parametrize("length", [0, 1, 100, 0.5, -1])
def test_damaged_checkpoint_is_named_with_the_way_out(world, small_backbone, stopped, length):
    path = stopped / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes(content[: int(length * len(content)) if isinstance(length, float) else length])
    message = r"^\S+resume.pt cannot be resumed from \(.+\); delete it to start this run again$"
    with pytest.raises(ValueError, match=message):
        train(world, small_backbone, folder=stopped)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=message):
        train(world, small_backbone, folder=stopped)


def test_one_flipped_byte_of_a_weight_is_noticed(world, small_backbone, stopped):
    path = stopped / CHECKPOINT
    weights = torch.load(path, weights_only=True)["method"]["backbone.query_tokens"].numpy()
    content = bytearray(path.read_bytes())
    content[content.index(weights.tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="delete it to start this run again"):
        train(world, small_backbone, folder=stopped)


def test_checkpoint_with_a_renamed_key_is_refused(world, small_backbone, stopped):
    state = torch.load(stopped / CHECKPOINT, weights_only=True)
    state["method"]["query"] = state["method"].pop("backbone.query_tokens")
    torch.save(state, stopped / CHECKPOINT)
    with pytest.raises(ValueError, match="missing backbone.query_tokens; unexpected query.*; delete it to start"):
        train(world, small_backbone, folder=stopped)
    torch.save({k: v for k, v in state.items() if k != "identity"}, stopped / CHECKPOINT)
    with pytest.raises(ValueError, match="another version of cirkit wrote it"):
        train(world, small_backbone, folder=stopped)


def test_checkpoint_of_another_run_is_refused_and_says_what_differs(world, small_backbone, stopped, monkeypatch):
    noisy = corrupt(world[0], 0.5, "shuffle", seed=1)
    others = {
        "training settings": lambda: train(
            world, small_backbone, folder=stopped, config=TrainConfig(epochs=3, batch_size=16, lr=1e-3)
        ),
        "method": lambda: train(world, small_backbone, "rcl", folder=stopped),
        "starting weights": lambda: train(world, lambda: small_backbone(seed=1), folder=stopped),
        "triplets": lambda: train(world, small_backbone, triplets=noisy.triplets, folder=stopped),
    }
    for part, other in others.items():
        with pytest.raises(ValueError, match=f"resume.pt belongs to another run: different {part}; use another folder"):
            other()
    monkeypatch.setattr(world[1], "key", "0" * 32)
    with pytest.raises(ValueError, match="different image features;"):
        train(world, small_backbone, folder=stopped)


def test_the_loss_scale_of_half_precision_is_kept(world, small_backbone, tmp_path):
    method = build_method("infonce", small_backbone())
    optimizer = torch.optim.AdamW(method.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    one, other = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    checkpoints.save(tmp_path / CHECKPOINT, {}, method, optimizer, schedule, one, [{"epoch": 1}])
    history = checkpoints.resume(tmp_path / CHECKPOINT, {}, method, optimizer, schedule, other)
    assert history == [{"epoch": 1}] and other.get_scale() == 8.0


def test_full_disk_stops_the_run_and_keeps_the_checkpoint(world, small_backbone, stopped):
    resource = pytest.importorskip("resource")
    before, content = resource.getrlimit(resource.RLIMIT_FSIZE), (stopped / CHECKPOINT).read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        with pytest.raises(OSError, match="resume.pt cannot be written .*; the checkpoint of the epoch before stays"):
            train(world, small_backbone, folder=stopped)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in stopped.iterdir()] == [CHECKPOINT]
    assert (stopped / CHECKPOINT).read_bytes() == content


def test_a_cell_run_again_after_an_interrupt_goes_on(world, small_backbone, tmp_path):
    method, expected = build_method("infonce", small_backbone()), losses(train(world, small_backbone)[1])

    def stop(epoch, *_):
        if epoch:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        fit(method, world[0], world[1], CONFIG, tmp_path / "run", on_epoch=stop, progress=False)
    for _ in range(2):
        assert losses(fit(method, world[0], world[1], CONFIG, tmp_path / "run", progress=False)) == expected
    fit(method, world[0], world[1], CONFIG, tmp_path / "later", progress=False)
    with pytest.raises(ValueError, match="different starting weights;"):
        train(world, small_backbone, folder=tmp_path / "later")


def test_an_oracle_goes_on_only_with_the_truth_it_began_with(world, small_backbone, tmp_path):
    clean = np.arange(len(world[0])) % 3 > 0
    train(world, small_backbone, "oracle-infonce", folder=tmp_path, clean=clean)
    assert len(train(world, small_backbone, "oracle-infonce", folder=tmp_path, clean=clean)[1]) == 3
    with pytest.raises(ValueError, match="different truth about the noise;"):
        train(world, small_backbone, "oracle-infonce", folder=tmp_path, clean=~clean)
    train(world, small_backbone, folder=tmp_path / "blind", clean=clean)
    assert len(train(world, small_backbone, folder=tmp_path / "blind", clean=~clean)[1]) == 3


def test_a_checkpoint_that_another_process_takes_away_is_no_error(world, small_backbone, stopped):
    expected = train(world, small_backbone)[1]
    (stopped / CHECKPOINT).unlink()
    assert losses(train(world, small_backbone, folder=stopped)[1]) == losses(expected)


def test_one_process_may_train_in_several_precisions(world, small_backbone):
    full = train(world, small_backbone)[1]
    half = train(world, small_backbone, config=dataclasses.replace(CONFIG, mixed_precision="bf16"))[1]
    assert losses(half) != losses(full)
    assert losses(half) == pytest.approx(losses(full), rel=0.05)
    assert losses(train(world, small_backbone)[1]) == losses(full)


def test_half_precision_without_a_gpu_is_one_sentence(world, small_backbone):
    with pytest.raises(ValueError, match="^mixed_precision 'fp16' needs a GPU; use 'no' or 'bf16' on the CPU$"):
        train(world, small_backbone, config=dataclasses.replace(CONFIG, mixed_precision="fp16"))
    assert len(train(world, small_backbone)[1]) == 3


def test_processes_that_have_not_met_are_refused(world, small_backbone, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^2 processes were launched and have not met: call cirkit.parallel.start"):
        train(world, small_backbone)


def test_a_run_of_few_steps_says_so_and_only_that(world, small_backbone):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(world, small_backbone, config=TrainConfig(epochs=3, batch_size=16))
    with pytest.warns(
        UserWarning, match=r"^this run has 3 optimizer steps in all and trains almost nothing; take more"
    ):
        train(world, small_backbone, config=TrainConfig(epochs=3, batch_size=1000))


def test_a_batch_larger_than_the_set_holds_all_of_it(world, small_backbone):
    probe = Probe(small_backbone())
    fit(probe, world[0], world[1], TrainConfig(epochs=2, batch_size=1000), progress=False)
    assert [sorted(batch.rows.tolist()) for _, batch in probe.batches] == [list(range(len(world[0])))] * 2


def test_only_the_learning_rate_is_scheduled(world, small_backbone):
    seen, optimizers, adamw = [], [], torch.optim.AdamW

    def watched(*arguments, **settings):
        optimizers.append(adamw(*arguments, **settings))
        return optimizers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", watched)
        config = dataclasses.replace(CONFIG, epochs=2)
        fit(
            Probe(small_backbone()), world[0], world[1], config, progress=False,
            on_epoch=lambda *_: seen.append([(g["betas"], g["lr"]) for g in optimizers[0].param_groups]) or {},
        )  # fmt: skip
    assert {betas for groups in seen for betas, _ in groups} == {(0.9, 0.98)}
    assert len({lr for groups in seen for _, lr in groups}) == 2


def test_checkpoint_loads_weights_only_and_without_the_tower(world, small_backbone, tmp_path):
    train(world, small_backbone, folder=tmp_path)
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert not any("vision_model" in key for key in state["method"])


@pytest.mark.parametrize("name", BLIND)
def test_removing_the_ledger_changes_no_loss(world, small_backbone, name):
    noisy = corrupt(world[0], 0.5, "shuffle", seed=1)
    told = train(world, small_backbone, name, noisy.triplets, clean=noisy.ledger.clean)[1]
    untold = train(world, small_backbone, name, noisy.triplets, clean=None)[1]
    lied_to = train(world, small_backbone, name, noisy.triplets, clean=~noisy.ledger.clean)[1]
    assert losses(told) == losses(untold) == losses(lied_to)


def test_epoch_order_visits_rows_once_and_drops_the_rest():
    batches = epoch_order(10, 4, seed=0, epoch=0)
    assert [len(b) for b in batches] == [4, 4] and len(set(np.concatenate(batches))) == 8
    assert len(epoch_order(3, 4, seed=0, epoch=0)[0]) == 3
    assert not np.array_equal(batches[0], epoch_order(10, 4, seed=0, epoch=1)[0])


def test_steps_take_batches_in_a_row_and_the_last_what_is_left():
    order = epoch_order(23, 3, seed=0, epoch=0)
    groups = step_order(order, 3)
    assert [len(group) for group in groups] == [3, 3, 1]
    assert np.array_equal(np.concatenate([rows for group in groups for rows in group]), np.concatenate(order))
    assert step_order(order, 1) == [[rows] for rows in order]
    assert [len(group) for group in step_order(order, 100)] == [7]


def test_an_accumulated_step_is_adamw_on_the_mean_loss_of_its_batches(world, small_backbone):
    """Against the plain torch loop on the same batches: 7 of them, in steps of 3, 3 and 1."""
    config = TrainConfig(epochs=2, batch_size=16, accumulation=3, lr=2e-3, clip_norm=0.5)
    method, history = train(world, small_backbone, config=config)
    plain = build_method("infonce", small_backbone()).train()
    optimizer = torch.optim.AdamW(
        plain.parameter_groups(config.weight_decay), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.lr, total_steps=6, pct_start=config.warmup, cycle_momentum=False
    )
    losses, norms, rates = [], [], []
    for epoch in range(2):
        rates.append(schedule.get_last_lr()[0])
        order = epoch_order(len(world[0]), 16, config.seed, epoch)
        assert len(order) == 7
        for batches in (order[:3], order[3:6], order[6:]):
            found = []
            for rows in batches:
                part = world[0].select(rows)
                images = [world[1].patches(world[1].rows(ids)) for ids in (part.references, part.targets)]
                batch = Batch(torch.from_numpy(rows), images[0], plain.backbone.tokenize(part.texts), images[1])
                found.append(plain.loss(batch, 0)[0])
            torch.stack(found).mean().backward()
            norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), config.clip_norm).item())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses += [loss.item() for loss in found]
    assert history.loss.tolist() == pytest.approx([np.mean(losses[:7]), np.mean(losses[7:])], rel=1e-4)
    assert history.lr.tolist() == pytest.approx(rates)
    assert history.gradient_norm.tolist() == pytest.approx([np.mean(norms[:3]), np.mean(norms[3:])], rel=1e-3)
    for key, value in plain.trained_state().items():
        torch.testing.assert_close(method.trained_state()[key], value, rtol=1e-2, atol=1e-4)


def test_accumulated_batches_have_the_number_of_their_step(world, small_backbone):
    probe = Probe(small_backbone())
    config = dataclasses.replace(CONFIG, epochs=2, accumulation=3)
    with pytest.warns(UserWarning, match="this run has 6 optimizer steps in all"):
        fit(probe, world[0], world[1], config, progress=False)
    assert [step for step, _ in probe.batches] == [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 5]


def test_the_rate_of_an_accumulated_step_is_the_mean_of_what_its_batches_ask_for(world, small_backbone, monkeypatch):
    probe = Probe(small_backbone())
    loss, scales = probe.loss, iter([1.0, 0.5, 0.0, 1.0, 0.25, 0.25, 0.5])

    def scaled(*arguments):
        probe.lr_scale = next(scales)
        return loss(*arguments)

    probe.loss = scaled
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *a: rates.append(self.param_groups[0]["lr"]) or step(self, *a)
    )
    config = TrainConfig(epochs=1, batch_size=16, accumulation=3, schedule="cosine", lr=1e-3)
    with pytest.warns(UserWarning, match="3 optimizer steps"):
        fit(probe, world[0], world[1], config, progress=False)
    assert rates == pytest.approx([0.5e-3, 0.5e-3, 0.5e-3])


def test_a_step_that_overflowed_moves_nothing_and_leaves_no_infinite_norm(world, small_backbone, monkeypatch):
    monkeypatch.setattr(AcceleratedOptimizer, "step_was_skipped", property(lambda self: True))
    _, history = train(world, small_backbone)
    assert history.overflow.tolist() == [1.0, 1.0, 1.0] and "gradient_norm" not in history
    assert history.lr.nunique() == 1, "the schedule waits too"
    assert np.isfinite(history.loss).all()


@pytest.mark.parametrize("name", REGISTRY)
def test_bf16_stays_close_to_float32(world, small_backbone, name):
    clean = np.arange(len(world[0])) % 3 > 0
    # an outlier of HABIT counts for nothing, so that the last digits of a label decide on its whole row
    config = TrainConfig(epochs=2, batch_size=16, lr=1e-5 if name.startswith("habit") else 2e-4)
    full, half = (
        train(world, small_backbone, name, config=dataclasses.replace(config, mixed_precision=precision), clean=clean)
        for precision in ("no", "bf16")
    )
    assert losses(half[1]) != losses(full[1])
    assert losses(half[1]) == pytest.approx(losses(full[1]), rel=0.1, abs=1e-3)
    numbers, expected = (run[1].select_dtypes("number").to_numpy() for run in (half, full))
    assert np.array_equal(np.isfinite(numbers), ~np.isnan(expected)), "NaN only where a phase lacks a term"
    states = (full[0].trained_state(), half[0].trained_state())
    for key, value in states[0].items():
        assert states[1][key].dtype == value.dtype and states[1][key].isfinite().all(), key


@pytest.fixture
def optimizers(monkeypatch):
    """The optimizers that training makes."""
    made, adamw = [], torch.optim.AdamW

    def watched(*arguments, **settings):
        made.append(adamw(*arguments, **settings))
        return made[-1]

    monkeypatch.setattr(torch.optim, "AdamW", watched)
    return made


@pytest.mark.parametrize("name", REGISTRY)
def test_the_frozen_tower_is_in_no_optimizer_and_stays_as_it_was(world, small_backbone, optimizers, tmp_path, name):
    clean, before = np.arange(len(world[0])) % 3 > 0, small_backbone().vision_model.state_dict()
    config = TrainConfig(epochs=1, batch_size=5, lr=1e-2)
    method, _ = train(world, small_backbone, name, config=config, clean=clean, folder=tmp_path)
    tower = {id(p) for p in method.backbone.vision_model.parameters()}
    (optimizer,) = optimizers
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert tower and not tower & {id(p) for p in held} and not tower & {id(p) for p in optimizer.state}
    others = {id(p) for key, p in method.named_parameters() if not key.startswith("backbone.vision_model.")}
    assert {id(p) for p in held} == others and len(held) == len(others)
    for parameter in method.backbone.vision_model.parameters():
        assert parameter.grad is None and not parameter.requires_grad
    after = method.backbone.vision_model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert not method.backbone.vision_model.training
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)["optimizer"]
    assert sum(len(group["params"]) for group in saved["param_groups"]) == len(held)


def test_loss_that_is_not_finite_stops_the_run(world, small_backbone):
    method = build_method("infonce", small_backbone())
    with torch.no_grad():
        method.backbone.query_tokens.fill_(float("nan"))
    with pytest.raises(ValueError, match="loss is nan in epoch 1, step 1"):
        fit(method, world[0], world[1], CONFIG, progress=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, "epochs must be greater than 0, got 0"), ({"batch_size": -1}, "batch_size must be greater"),
        ({"lr": 0.0}, "lr must be greater"), ({"lr": float("nan")}, "lr must be greater than 0, got nan"),
        ({"lr": float("inf")}, "lr must"), ({"epochs": 2.5}, r"epochs must be a whole number, got 2\.5"),
        ({"accumulation": 0}, "accumulation must be greater than 0, got 0"),
        ({"accumulation": 2.0}, r"accumulation must be a whole number, got 2\.0"),
        ({"batch_size": 1}, "batch_size must be at least 2"), ({"seed": -1}, "seed must be from 0"),
        ({"warmup": 0.0}, "warmup is a share"), ({"warmup": 1.0}, "warmup is a share"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"), ({"betas": (0.9, 1.0)}, "betas are two numbers"),
        ({"mixed_precision": "bf8"}, "mixed_precision 'bf8' is none of no, bf16, fp16"), ({"eps": 0.0}, "eps must"),
    ],
)  # fmt: skip
def test_impossible_settings_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**setting)


class Probe(Method):
    """Writes down what training hands to a method."""

    def __init__(self, backbone):
        super().__init__(backbone, Method.Config())
        self.batches, self.views, self.draws = [], [], []

    def start_epoch(self, view):
        self.views.append(view)

    def loss(self, batch, step):
        self.batches.append((step, batch))
        self.draws.append(torch.rand(()).item())
        return self.query(batch.references, batch.texts).sum(), {}


class Oracle(Probe):
    uses_ledger = True


def test_a_step_gets_its_own_references_texts_and_targets(world, small_backbone):
    triplets = world[0].replace(caption_mode="random")
    probe = Probe(small_backbone())
    history = fit(probe, triplets, world[1], CONFIG, progress=False)
    steps = len(epoch_order(len(triplets), CONFIG.batch_size, CONFIG.seed, 0))
    assert [step for step, _ in probe.batches] == list(range(3 * steps))
    for step, batch in probe.batches:
        rows = batch.rows.numpy()
        texts = triplets.epoch_texts(step // steps, CONFIG.seed)
        expected = probe.backbone.tokenize([texts[i] for i in rows])
        assert torch.equal(batch.texts.ids, expected.ids)
        for patches, ids in ((batch.references, triplets.references), (batch.targets, triplets.targets)):
            assert torch.equal(patches, world[1].patches(world[1].rows([ids[i] for i in rows])))
    assert len(set(history.lr)) == 3, "the learning rate follows its schedule"


def test_the_truth_reaches_oracles_and_nobody_else(world, small_backbone):
    clean = np.arange(len(world[0])) % 2 == 0
    blind, oracle = Probe(small_backbone()), Oracle(small_backbone())
    for method in (blind, oracle):
        fit(method, world[0], world[1], CONFIG, clean=clean, progress=False)
    assert all(view.clean is None for view in blind.views)
    assert all(np.array_equal(view.clean.numpy(), clean) for view in oracle.views)
    with pytest.raises(ValueError, match="oracle"):
        fit(Oracle(small_backbone()), world[0], world[1], CONFIG, progress=False)


def test_random_draws_follow_the_seed_and_go_on_after_a_resume(world, small_backbone, tmp_path):
    whole = Probe(small_backbone())
    fit(whole, world[0], world[1], CONFIG, progress=False)

    def kill(epoch, *_):
        if epoch == 1:
            raise Killed
        return {}

    with pytest.raises(Killed):
        fit(Probe(small_backbone()), world[0], world[1], CONFIG, tmp_path, on_epoch=kill, progress=False)
    resumed = Probe(small_backbone())
    fit(resumed, world[0], world[1], CONFIG, tmp_path, progress=False)
    assert resumed.draws == whole.draws[len(whole.draws) // 3 :]


def test_oracle_batches_hold_clean_rows_alone_and_as_many_steps():
    rows = np.array([1, 4, 5, 8, 9, 11, 12])
    batches = epoch_order(40, 3, seed=0, epoch=0, rows=rows)
    assert len(batches) == len(epoch_order(40, 3, seed=0, epoch=0)) == 13
    assert all(len(set(batch)) == 3 and set(batch) <= set(rows) for batch in batches)
    assert {row for batch in batches for row in batch} == set(rows)
    few = epoch_order(40, 8, seed=0, epoch=0, rows=rows)
    assert [len(batch) for batch in few] == [7] * 5


@pytest.mark.parametrize("name", ["oracle-infonce", "oracle-rcl"])
def test_oracles_never_see_a_noisy_row(world, small_backbone, name):
    clean = np.arange(len(world[0])) % 3 == 0
    seen = []

    def look(epoch, method, observed):
        seen.append(np.isfinite(observed["similarity"]))
        return {}

    fit(build_method(name, small_backbone()), world[0], world[1], CONFIG, clean=clean, on_epoch=look, progress=False)
    assert seen and all((rows <= clean).all() and rows.any() for rows in seen)
    with pytest.raises(ValueError, match="would train on 1 of"):
        one = np.arange(len(clean)) == 0
        fit(build_method(name, small_backbone()), world[0], world[1], CONFIG, clean=one, progress=False)


def test_what_is_observed_belongs_to_its_row(world, small_backbone):
    """At a learning rate of next to nothing the similarity observed of a row is that of its own pair."""
    method = build_method("infonce", small_backbone())
    seen = {}
    config = dataclasses.replace(CONFIG, lr=1e-12, epochs=1)
    fit(method, world[0], world[1], config, on_epoch=lambda e, m, o: seen.update(o) or {}, progress=False)
    queries = encode_queries(method, world[0], world[1])
    own = own_similarity(queries, encode_images(method, world[0].targets, world[1])).numpy()
    there = np.isfinite(seen["similarity"])
    assert there.sum() >= len(world[0]) // 2
    assert np.allclose(seen["similarity"][there], own[there], atol=1e-4) and np.ptp(own) > 1e-3
