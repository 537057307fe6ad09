"""BTU, boundary-based targeted unlearning (ConeSep): where each query shall go, as a transport problem.

Mass of B queries is moved to 2B places: the B targets and the B negative anchors. A noisy query may not go to its own
target, a clean one not to its own anchor. The plan, mixed with the hard choice, is the label that the query's
similarities are trained towards. ConeSep, eq. 9 to 12; column j is target j, column B + j is anchor j.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from cirkit.transport import sinkhorn_pot, sinkhorn_released

Mask = Literal["own_anchor", "last_column"]
Marginals = Literal["uniform", "labels"]
Solver = Literal["pot", "released"]


def transport_mask(noisy: Tensor, form: Mask = "own_anchor", partial: Tensor | None = None) -> Tensor:
    """Open entries of the transport, bool [B,2B].

    - ``own_anchor``: noisy row i may not use column i, clean row i not column B + i (the paper).
    - ``last_column``: noisy row i may not use column i; the last column is closed for clean rows and open for noisy
      ones (the released code).

    Rows that are ``partial``, bool [B], may use both (ours): a target that fits half of the text is neither to be
    believed nor to be unlearnt as a whole.
    """
    size = len(noisy)
    mask = torch.ones(size, 2 * size, dtype=torch.bool, device=noisy.device)
    rows = torch.arange(size, device=noisy.device)
    mask[rows[noisy], rows[noisy]] = False
    if form == "own_anchor":
        mask[rows[~noisy], size + rows[~noisy]] = False
    elif form == "last_column":
        mask[~noisy, -1] = False
    else:
        raise ValueError(f"mask must be 'own_anchor' or 'last_column', got {form!r}")
    if partial is not None:
        mask[partial] = True
    return mask


def hard_labels(noisy: Tensor, form: Mask = "own_anchor", partial: Tensor | None = None) -> Tensor:
    """L, float [B,2B]: 1 at a clean row's own target, and at a noisy row's own anchor (or the last column).

    A ``partial`` row (:func:`transport_mask`) has half of its label on each.
    """
    size = len(noisy)
    rows = torch.arange(size, device=noisy.device)
    anchor = size + rows if form == "own_anchor" else torch.full_like(rows, 2 * size - 1)
    labels = F.one_hot(torch.where(noisy, anchor, rows), 2 * size).float()
    if partial is not None:
        halves = (F.one_hot(rows, 2 * size) + F.one_hot(anchor, 2 * size)).float() / 2
        labels[partial] = halves[partial]
    return labels


def soft_labels(plan: Tensor, labels: Tensor, gamma: float = 0.7) -> Tensor:
    """``Y = gamma * P + (1 - gamma) * L`` with the rows of P scaled to sum 1 (ConeSep, eq. 11); [B,2B].

    A row of P without mass gives NaN.
    """
    return gamma * plan / plan.sum(dim=1, keepdim=True) + (1 - gamma) * labels


class Unlearning(NamedTuple):
    """L_ul (scalar) and all that it was made of, [B,2B] each, without gradient."""

    loss: Tensor
    cost: Tensor
    mask: Tensor
    plan: Tensor
    hard: Tensor
    label: Tensor


def unlearning(
    positive: Tensor,
    negative: Tensor,
    noisy: Tensor,
    temperature: float = 0.07,
    gamma: float = 0.7,
    reg: float = 0.03,
    mask: Mask = "own_anchor",
    marginals: Marginals = "uniform",
    solver: Solver = "pot",
    scale_cost: bool = False,
    resoftmax: bool = False,
    both_directions: bool = False,
    partial: Tensor | None = None,
) -> Unlearning:
    """L_ul: ``KL(Y || softmax(S / tau))`` of each row with ``S = [positive | negative]``, mean over rows.

    The defaults are the paper's description; :data:`RELEASED` holds what the released code does instead.

    Args:
        positive, negative: the two blocks [B,B]. In the paper s(c_i, t_j) and s(c_i, g_j), and the cost of an entry is
            1 - similarity. In the released code softmax_j(s(c_i, t_j) / tau), and s(g_j, t_i), so that the composed
            query never meets the anchors.
        noisy: bool [B].
        temperature: of the predictions; 1 in the released code, which leaves them nearly uniform.
        mask: see :func:`transport_mask`.
        marginals: of the columns. ``uniform``: 1/2B each, so half of all mass goes to anchors however few rows are
            noisy. ``labels``: what the hard labels send there, so that a clean row's mass has a target to go to.
        solver: ``pot``, or the ``released`` loop with its early stop.
        scale_cost: divide the costs by the largest.
        resoftmax: put the labels through a softmax once more.
        both_directions: average with the same loss of the transposed problem, which has a plan of its own.
        partial: bool [B], rows believed in part, see :func:`transport_mask`.

    Raises:
        ValueError: a batch of one, whose closed path leaves it nowhere to go.
    """
    size = len(noisy)
    if marginals not in get_args(Marginals) or solver not in get_args(Solver):
        raise ValueError(
            f"marginals are 'uniform' or 'labels', solvers 'pot' or 'released'; got {marginals!r}, {solver!r}"
        )
    if size < 2:
        raise ValueError("unlearning needs at least two triplets: alone, a closed path leaves nowhere to go")
    scores = torch.cat([positive, negative], dim=1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    opened, hard = transport_mask(noisy, mask, partial), hard_labels(noisy, mask, partial).to(scores.dtype)
    cost = 1 - scores.detach()
    cost = cost / cost.max() if scale_cost else cost
    rows = cost.new_full((size,), 1 / size)
    columns = {"uniform": cost.new_full((2 * size,), 0.5 / size), "labels": hard.sum(dim=0) / size}[marginals]
    solve = {"pot": sinkhorn_pot, "released": sinkhorn_released}[solver]

    def one_way(scores: Tensor, cost: Tensor, a: Tensor, b: Tensor, opened: Tensor, hard: Tensor):
        plan = solve(cost, a, b, opened, reg)
        label = soft_labels(plan, hard, gamma)
        label = label.softmax(dim=1) if resoftmax else label
        held = a > 0  # an anchor that nobody is sent to has no label
        scores, label = scores[held], label[held]
        return F.kl_div((scores / temperature).log_softmax(dim=1), label, reduction="batchmean"), plan, label

    loss, plan, label = one_way(scores, cost, rows, columns, opened, hard)
    if both_directions:
        loss = (loss + one_way(scores.T, cost.T, columns, rows, opened.T, hard.T)[0]) / 2
    return Unlearning(loss, cost, opened, plan, hard, label)


# what the released code does; its blocks differ too
RELEASED = {
    "temperature": 1.0, "mask": "last_column", "solver": "released", "scale_cost": True, "resoftmax": True,
    "both_directions": True,
}  # fmt: skip
