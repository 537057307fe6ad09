"""Both Sinkhorns: the released code's plans, each other's on solvable problems, and what has no solution."""

from __future__ import annotations

import math
import warnings
from itertools import permutations

import pytest
import torch
from golden_tensors import tensors

from cirkit.transport import sinkhorn_pot, sinkhorn_released

SOLVERS = (sinkhorn_pot, sinkhorn_released)


def problem(rows: int = 3, columns: int = 5, seed: int = 0):
    """Cost, marginals of unequal masses, and a mask that leaves every row and column several ways."""
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(rows, columns, generator=generator) * 0.2
    a, b = (torch.rand(n, generator=generator) + 0.5 for n in (rows, columns))
    mask = torch.ones(rows, columns, dtype=torch.bool)
    mask[torch.arange(rows), torch.arange(rows)] = False
    return cost, a / a.sum(), b / b.sum(), mask


@pytest.mark.parametrize(
    ("expected", "marginals", "mask", "reg"),
    [
        ("plan_unmasked_out", "uniform", None, 0.03),
        ("plan_masked_out", "uniform", "mask", 0.03),
        ("plan_masked_random_marginals_out", "random", "mask", 0.03),
        ("plan_reg01_out", "uniform", None, 0.1),
        ("plan_dead_last_column_out", "uniform", "mask_with_dead_last_column", 0.03),
    ],
)
def test_plans_of_the_released_code(golden, expected, marginals, mask, reg):
    g = tensors(golden("conesep_sinkhorn"))
    rows, columns = g[f"p_{marginals}"], g[f"q_{marginals}"]
    rounds, threshold = int(g["niter"]), g["thresh"].item()
    plan = sinkhorn_released(g["cost"], rows, columns, None if mask is None else g[mask], reg, rounds, threshold)
    torch.testing.assert_close(plan, g[expected], rtol=0, atol=1e-5)


def test_a_column_that_nothing_reaches_stays_empty_in_the_released_code_and_is_refused_by_pot(golden):
    g = tensors(golden("conesep_sinkhorn"))
    cost, mask = g["cost"], g["mask_with_dead_last_column"]
    rows, columns = g["p_uniform"], g["q_uniform"]
    assert (g["plan_dead_last_column_out"][:, -1] == 0).all() and columns[-1] > 0
    with pytest.raises(ValueError, match=r"^1 rows or columns with mass have no open entry: .* no solution$"):
        sinkhorn_pot(cost, rows, columns, mask)
    with pytest.raises(ValueError, match="no solution"):
        sinkhorn_pot(cost.T, columns, rows, mask.T)


@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize("size", [(3, 5), (4, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_marginals_are_kept_and_closed_entries_stay_0(solve, size, turned):
    cost, rows, columns, mask = problem(*size)
    if turned:
        cost, rows, columns, mask = cost.T, columns, rows, mask.T
    options = {"rounds": 3000} | ({"threshold": 0.0} if solve is sinkhorn_released else {})
    plan = solve(cost, rows, columns, mask, 0.05, **options)
    assert plan.dtype == cost.dtype and (plan[~mask] == 0).all() and (plan[mask] > 0).all()
    torch.testing.assert_close(plan.sum(dim=1), rows, rtol=0, atol=1e-5)
    torch.testing.assert_close(plan.sum(dim=0), columns, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("masked", [False, True])
def test_both_agree_where_there_is_a_solution(seed, masked):
    cost, rows, columns, mask = problem(seed=seed)
    mask = mask if masked else None
    exact = sinkhorn_pot(cost.double(), rows.double(), columns.double(), mask, 0.05, 3000)
    own = sinkhorn_released(cost.double(), rows.double(), columns.double(), mask, 0.05, 3000, 0.0)
    torch.testing.assert_close(own, exact, rtol=0, atol=1e-5)


def test_pot_equals_a_slow_loop():
    cost, rows, columns, mask = problem()
    u, v = [1.0] * 3, [1.0] * 5
    kernel = [[math.exp(-cost[i, j].item() / 0.1) if mask[i, j] else 0.0 for j in range(5)] for i in range(3)]
    for _ in range(500):
        u = [rows[i].item() / sum(kernel[i][j] * v[j] for j in range(5)) for i in range(3)]
        v = [columns[j].item() / sum(kernel[i][j] * u[i] for i in range(3)) for j in range(5)]
    expected = torch.tensor([[u[i] * kernel[i][j] * v[j] for j in range(5)] for i in range(3)])
    torch.testing.assert_close(sinkhorn_pot(cost, rows, columns, mask, 0.1, 500), expected, rtol=0, atol=1e-5)


def test_rows_and_columns_without_mass_stay_empty_and_change_nothing_else():
    cost, rows, columns, mask = problem()
    wide, more = torch.full((4, 7), 0.1), torch.ones(4, 7, dtype=torch.bool)
    wide[:3, :5], more[:3, :5] = cost, mask
    more[:, 6] = more[3] = False  # closed besides, which is no contradiction where no mass is asked for
    nothing = torch.zeros(2)
    plan = sinkhorn_pot(wide, torch.cat([rows, nothing[:1]]), torch.cat([columns, nothing]), more)
    assert (plan[3] == 0).all() and (plan[:, 5:] == 0).all()
    torch.testing.assert_close(plan[:3, :5], sinkhorn_pot(cost, rows, columns, mask))


def test_unequal_masses_are_refused():
    cost, rows, columns, _ = problem()
    with pytest.raises(ValueError, match="the marginals hold different masses: 1 and 2"):
        sinkhorn_pot(cost, rows, 2 * columns)


@pytest.mark.parametrize("reg", [0.001, 0.0001])
def test_a_small_regularisation_does_not_empty_the_plan(reg):
    """Costs up to 100, where exp(-cost / reg) is 0 in every float."""
    cost = 100 * torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    mass = torch.full((4,), 0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = sinkhorn_pot(cost, mass, mass, reg=reg, rounds=1000)
    assert plan.isfinite().all()
    for side in (0, 1):
        torch.testing.assert_close(plan.sum(dim=side), mass, rtol=0, atol=0.01)
    cheapest = min(permutations(range(4)), key=lambda p: sum(cost[i, p[i]].item() for i in range(4)))
    assert tuple(row.argmax().item() for row in plan) == cheapest


def test_plans_take_no_gradient():
    cost, rows, columns, mask = problem()
    for solve in SOLVERS:
        assert not solve(cost.clone().requires_grad_(), rows, columns, mask).requires_grad


@pytest.mark.parametrize("solvable", [True, False])
def test_a_plan_that_misses_its_marginals_is_refused(solvable):
    """Two rows that may only use the first column, which has room for one; every row and column has an open entry."""
    mask = torch.tensor([[1, 0, 0], [1, solvable, 0], [1, 1, 1]]) > 0
    mass = torch.full((3,), 1 / 3)
    cost = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    if solvable:
        plan = sinkhorn_pot(cost, mass, mass, mask, reg=0.3, rounds=5000)
        torch.testing.assert_close(plan.sum(dim=0), mass, rtol=0, atol=1e-2)
        return
    with pytest.raises(ValueError, match=r"^after 1000 rounds 33% of the mass is in the wrong columns: .* few rounds$"):
        sinkhorn_pot(cost, mass, mass, mask)
