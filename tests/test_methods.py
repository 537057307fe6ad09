"""The registry, what all methods owe, and InfoNCE."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch

from cirkit.backbone import TokenBatch
from cirkit.drawn import DrawnNegatives
from cirkit.losses import bradley_terry, infonce
from cirkit.methods import REGISTRY, Batch, Method, build_method, method_class


def random_batch(backbone, n: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(2 * n, 3, 48, 48, generator=generator)
    patches = backbone.patch_tokens(pixels)
    texts = backbone.tokenize([f"is {colour}" for colour in ("red", "blue", "long and teal", "white", "", "x")][:n])
    return Batch(torch.arange(n), patches[:n], texts, patches[n:], pixels[:n], pixels[n:])


class Patches:
    """A feature store of a few random images."""

    def __init__(self, backbone, count: int = 4):
        generator = torch.Generator().manual_seed(1)
        self.tokens = backbone.patch_tokens(torch.randn(count, 3, 48, 48, generator=generator))

    def patches(self, rows, device="cpu"):
        return self.tokens[rows]


def ready(name: str, backbone, **options) -> Method:
    """A method in training mode; where it draws negatives, the triplets of a random batch have some."""
    method = build_method(name, backbone, **options).train()
    for module in method.modules():
        if isinstance(module, DrawnNegatives):
            module._store = Patches(backbone)
            module.draws, module.since = torch.tensor([[0], [2], [1], [3], [2], [0]]), torch.tensor([0])
    return method


def test_infonce_equals_a_slow_loop():
    similarity = torch.randn(5, 5, dtype=torch.float64)
    tau, total = 0.07, 0.0
    for i in range(5):
        top = max(similarity[i]) / tau
        total -= similarity[i, i] / tau - top - math.log(sum(math.exp(s / tau - top) for s in similarity[i]))
    assert infonce(similarity, tau).item() == pytest.approx(total.item() / 5, rel=1e-5)
    assert infonce(similarity.T, tau).item() != pytest.approx(total.item() / 5, rel=1e-3)


def test_a_drawn_negative_is_one_more_column_of_its_own_row():
    similarity, drawn = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    rows = [torch.cat([similarity[i], drawn[i]]) / 0.07 for i in range(3)]
    expected = -sum(row.log_softmax(0)[i] for i, row in enumerate(rows)) / 3
    assert infonce(similarity, 0.07, drawn=drawn).item() == pytest.approx(expected.item(), rel=1e-6)
    kept = torch.tensor([True, False, True])
    both = -(rows[0].log_softmax(0)[0] + rows[2].log_softmax(0)[2]) / 2
    assert infonce(similarity, 0.07, kept, drawn).item() == pytest.approx(both.item(), rel=1e-6)


def test_bradley_terry_is_the_two_way_softmax():
    positive, negative = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    two_way = torch.stack([positive, negative], dim=1).div(0.3).log_softmax(dim=1)[:, 0]
    assert bradley_terry(positive, negative, 0.3).item() == pytest.approx(-two_way.mean().item(), rel=1e-6)
    extreme = bradley_terry(torch.tensor([-1.0]).half(), torch.tensor([1.0]).half(), 1e-3)
    assert extreme.dtype == torch.float32 and extreme.item() == pytest.approx(2000, rel=1e-3)
    with pytest.raises(ValueError, match=r"\(3,\), \(2,\)"):
        bradley_terry(torch.zeros(3), torch.zeros(2))


@pytest.mark.parametrize("kind", ["random", "twodrop", "midzone"])
def test_infonce_with_a_drawn_negative_by_hand(small_backbone, kind):
    method = ready(f"infonce+{kind}", small_backbone())
    batch = random_batch(method.backbone, 5)
    query, drawn = method.query(batch.references, batch.texts), Patches(method.backbone).tokens[[0, 2, 1, 3, 2]]
    extra = torch.stack([(query[i] @ method.target(drawn)[i].T).max() for i in range(5)])
    expected = infonce(method.similarity(batch), 0.07, drawn=extra[:, None])
    assert method.loss(batch, 0)[0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert expected.item() > infonce(method.similarity(batch), 0.07).item()


def test_drawn_negatives_of_an_unknown_kind_are_refused(small_backbone):
    with pytest.raises(ValueError, match="hardest"):
        build_method("infonce+random", small_backbone(), negatives="hardest")


def test_conesep_takes_drawn_negatives_with_infonce_alone(small_backbone):
    with pytest.raises(ValueError, match="rank_loss='infonce'"):
        build_method("conesep-adapted", small_backbone(), drawn="twodrop", rank_loss="robust")
    plain, more = (ready(name, small_backbone()) for name in ("conesep-adapted", "conesep-adapted+twodrop"))
    batch = random_batch(plain.backbone, 6)
    torch.manual_seed(0)
    loss, _ = plain.loss(batch, 0)
    torch.manual_seed(0)
    higher, logs = more.loss(batch, 0)
    assert higher > loss and "s_drawn" in logs


def test_infonce_wants_a_square_matrix():
    with pytest.raises(ValueError, match=r"\(3, 5\)"):
        infonce(torch.randn(3, 5), 0.07)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("size", [6, 1])
@pytest.mark.parametrize("half", [False, True])
def test_loss_is_a_finite_scalar_with_finite_gradients(small_backbone, name, size, half):
    method = ready(name, small_backbone())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        loss, terms = method.loss(random_batch(method.backbone, size), step=0)
    assert loss.shape == () and loss.isfinite() and all(math.isfinite(v) for v in terms.values())
    loss.backward()
    gradients = {k: p.grad for k, p in method.named_parameters() if p.grad is not None}
    assert gradients and all(g.isfinite().all() for g in gradients.values())
    assert not any(k.startswith("backbone.vision_model.") for k in gradients)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_step_lowers_the_loss_on_its_own_batch(small_backbone, name):
    torch.manual_seed(0)  # the same draws whichever tests ran before
    method = ready(name, small_backbone())
    batch = random_batch(method.backbone, 6)
    optimizer = torch.optim.AdamW(method.parameter_groups(0.0), lr=1e-3)
    losses = []
    for step in range(8):
        loss, _ = method.loss(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_similarity_rows_are_queries(small_backbone):
    method = build_method("infonce", small_backbone()).eval()
    batch = random_batch(method.backbone, 5)
    similarity = method.similarity(batch)
    query = method.query(batch.references, batch.texts)
    target = method.target(batch.targets)
    for i in range(5):
        for j in range(5):
            assert similarity[i, j].item() == pytest.approx(max((target[j] @ query[i]).tolist()), abs=1e-5)


def test_trained_parameters_are_in_exactly_one_group(small_backbone):
    method = build_method("infonce", small_backbone())
    grouped = [id(p) for group in method.parameter_groups(0.05) for p in group["params"]]
    trained = [id(p) for p in method.parameters() if p.requires_grad]
    assert sorted(grouped) == sorted(trained) and len(set(grouped)) == len(grouped)
    tower = {id(p) for p in method.backbone.vision_model.parameters()}
    assert tower and not tower & set(grouped)


def test_unknown_methods_and_options_are_refused(small_backbone):
    with pytest.raises(ValueError, match="unknown method 'infonse'; known: .*infonce"):
        build_method("infonse", small_backbone())
    with pytest.raises(ValueError, match="no option 'temprature' .did you mean 'temperature'"):
        build_method("infonce", small_backbone(), temprature=1.0)


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "0.1"}, "option 'temperature' of method .* must be float, got '0.1'"),
        ({"temperature": True}, "must be float, got True"), ({"temperature": None}, "must be float, got None"),
        ({"temperature": float("nan")}, "must be float, got nan"), ({"temperature": float("inf")}, "got inf"),
        ({"temperature": 0}, r"temperature must be greater than 0, got 0\.0"), ({"temperature": -0.1}, "greater than"),
        ({"variant": 1}, "option 'variant' of method .* must be str, got 1"),
        ({"variant": "papr"}, "has no variant 'papr'; it has (released|paper|adapted|ours)(, adapted)?$"),
    ],
)  # fmt: skip
def test_options_of_the_wrong_type_or_range_are_one_sentence(small_backbone, name, options, message):
    with pytest.raises(ValueError, match=message):
        build_method(name, small_backbone(), **options)


def test_a_whole_number_for_a_float_is_the_same_config(small_backbone):
    one, other = (build_method("infonce", small_backbone(), temperature=t).config for t in (1, 1.0))
    assert type(one.temperature) is float and repr(one) == repr(other)


def test_options_of_every_kind_of_type(small_backbone, monkeypatch):
    class Various(Method):
        variants = ("released", "paper")

        @dataclasses.dataclass(frozen=True)
        class Config(Method.Config):
            steps: int = 1
            rule: Literal["hard", "soft"] = "hard"
            share: float | None = None
            weights: tuple[float, ...] = ()
            band: tuple[float, float] = (0.0, 1.0)
            both: int | str = 0
            on: bool = False

    monkeypatch.setitem(REGISTRY, "various", "x:Various")
    monkeypatch.setattr("cirkit.methods.method_class", lambda name: Various)

    def config(**options):
        return build_method("various", small_backbone(), **options).config

    for options in (
        {"steps": 2},
        {"rule": "soft"},
        {"share": None},
        {"both": "a"},
        {"on": True},
        {"variant": "released"},
    ):
        assert {k: getattr(config(**options), k) for k in options} == options
    assert config(weights=[1, 0.5]).weights == (1.0, 0.5) and config(share=1).share == 1.0
    for options, message in (
        ({"steps": 2.0}, "must be int, got 2.0"), ({"steps": True}, "must be int, got True"),
        ({"rule": "sotf"}, r"must be Literal\['hard', 'soft'\], got 'sotf'"), ({"share": "1"}, "must be float, got"),
        ({"weights": 1.0}, r"must be tuple\[float, \.\.\.\], got 1\.0"), ({"weights": ["a"]}, "must be float, got 'a'"),
        ({"band": [1, 2, 3]}, r"must be tuple\[float, float\], got \[1, 2, 3\]"), ({"on": 1}, "must be bool, got 1"),
        ({"both": 1.5}, r"must be int \| str, got 1\.5"), ({"variant": "adapted"}, "it has released, paper"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            config(**options)


@pytest.mark.parametrize("name", REGISTRY)
def test_config_is_a_frozen_typed_dataclass_with_a_variant(name):
    cls = method_class(name).Config
    assert dataclasses.is_dataclass(cls) and "variant" in {f.name for f in dataclasses.fields(cls)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().variant = "other"


def test_token_batch_rows_cut_padding():
    batch = TokenBatch(torch.tensor([[1, 2, 0, 0], [1, 2, 3, 4]]), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]))
    assert batch.rows(torch.tensor([0])).ids.tolist() == [[1, 2]]


def test_the_temperature_asked_for_is_the_one_used(small_backbone):
    losses = []
    for temperature in (0.07, 0.5):
        method = build_method("infonce", small_backbone(), temperature=temperature)
        batch = random_batch(method.backbone, 5)
        losses.append(method.loss(batch, 0)[0].item())
        assert losses[-1] == pytest.approx(infonce(method.similarity(batch), temperature).item(), abs=1e-5)
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)
