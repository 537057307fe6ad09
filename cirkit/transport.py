"""Entropic optimal transport in the log domain, with closed entries."""

from __future__ import annotations

import warnings

import ot
import torch
from torch import Tensor


@torch.no_grad()
def sinkhorn_released(
    cost: Tensor,
    rows: Tensor,
    columns: Tensor,
    mask: Tensor | None = None,
    reg: float = 0.03,
    rounds: int = 100,
    threshold: float = 1e-4,
) -> Tensor:
    """ConeSep's own Sinkhorn loop, whose early stop is part of what it computes.

    A round updates the row potentials, then the column potentials; it ends when the row potentials change by less than
    ``threshold`` in sum. The logarithm of a sum has 1e-10 added inside, so a column that nothing may reach keeps mass
    0 whatever its marginal: such a plan does not have the marginals that were asked for.

    Args:
        cost: [A,B]. rows, columns: marginals [A] and [B], each with sum 1.
        mask: [A,B], True or 1 where transport is open; everywhere by default.

    Returns:
        Plan [A,B].
    """
    base = -cost / reg if mask is None else (-cost / reg).masked_fill(~mask.bool(), -torch.inf)
    mass, u, v = torch.empty_like(base), torch.zeros_like(rows), torch.zeros_like(columns)

    def exponential() -> Tensor:
        torch.add(base, (u / reg)[:, None], out=mass)
        return mass.add_(v / reg).exp_()

    for _ in range(rounds):
        before = u
        u = reg * (rows.log() - (exponential().sum(dim=1) + 1e-10).log()) + u
        v = reg * (columns.log() - (exponential().sum(dim=0) + 1e-10).log()) + v
        if (u - before).abs().sum() < threshold:
            break
    return exponential()


@torch.no_grad()
def sinkhorn_pot(
    cost: Tensor, rows: Tensor, columns: Tensor, mask: Tensor | None = None, reg: float = 0.03, rounds: int = 1000
) -> Tensor:
    """The same problem by POT (``ot.sinkhorn``, method ``sinkhorn_log``), in float64.

    ``min_P <P, C> + reg * sum P (log P - 1)`` with row sums ``rows`` and column sums ``columns`` and P = 0 where
    closed. Rows and columns of mass 0 are left out of the problem and stay 0.

    Args, returns: as :func:`sinkhorn_released`.

    Raises:
        ValueError: masses that differ in sum, a mass that no open entry can serve, or a plan whose columns are still
            off by a twentieth of all mass after ``rounds``.
    """
    total = float(rows.sum()), float(columns.sum())
    if abs(total[0] - total[1]) > 1e-4:
        raise ValueError(f"the marginals hold different masses: {total[0]:.4g} and {total[1]:.4g}")
    open_ = torch.ones_like(cost, dtype=torch.bool) if mask is None else mask.bool()
    keep = rows > 0, columns > 0
    c, open_ = cost[keep[0]][:, keep[1]].double(), open_[keep[0]][:, keep[1]]
    stuck = int((~open_.any(dim=1)).sum() + (~open_.any(dim=0)).sum())
    if stuck:
        raise ValueError(f"{stuck} rows or columns with mass have no open entry: this transport has no solution")
    c = c.masked_fill(~open_, float("inf"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the number of rounds is limited on purpose
        inner = ot.sinkhorn(
            rows[keep[0]].double(), columns[keep[1]].double(), c, reg, method="sinkhorn_log", numItermax=rounds,
            stopThr=1e-6,
        )  # fmt: skip
    # rows are right after each round, so what the columns lack or have too much is all that is wrong
    astray = float((inner.sum(dim=0) - columns[keep[1]]).abs().sum()) / 2
    if not astray < 0.05 * total[0]:
        raise ValueError(
            f"after {rounds} rounds {astray / total[0]:.0%} of the mass is in the wrong columns: this transport has no"
            " solution, or reg is too small for so few rounds"
        )
    plan = torch.zeros_like(cost, dtype=torch.float64)
    plan[keep[0].nonzero(), keep[1].nonzero().T] = inner
    return plan.to(cost.dtype)
