"""Bandits of contexts whose constrained optimum a linear program knows: the 26 problems of `benchmarks.duals`.

Letters: X contexts, A arms, K constraints, T policies, B groups of G answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.objective.objective import Constraint, Objective

SIGMA = 1.5
"""Standard deviation of the logarithm of heavy-tailed costs."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A contextual bandit with constraints.

    Args:
        rewards: mean reward ``[X, A]`` of each arm.
        costs: ``[K, X, A]``, probability of a violation, per step if answers have steps; a mean if `heavy`.
        thresholds: d ``[K]``.
        start: initial logits ``[X, A]``.
        noise: standard deviation of a Gaussian added to the reward.
        draws: violations are drawn independently, by one draw for all, or by a draw and its opposite.
        heavy: costs are lognormal numbers whose mean is bounded.
        lengths: ``[X, A]``, steps of an arm's answer.
        excess: the cost in the advantage is the excess, instead of the sum of violations over steps.
        applies: share of the answers to which each constraint applies.
        before: costs ``[K, X, A]`` in the first half of the updates.
        counted: number of constraints that count, from the first; the others can't be met.
    """

    rewards: Array
    costs: Array
    thresholds: tuple[float, ...]
    updates: int = 500
    prompts: int = 32
    answers: int = 16
    lr: float = 0.05
    start: Array | None = None
    noise: float = 0.0
    draws: Literal["own", "shared", "opposite"] = "own"
    heavy: bool = False
    lengths: Array | None = None
    excess: bool = False
    applies: tuple[float, ...] = ()
    before: Array | None = None
    counted: int | None = None

    @property
    def objective(self) -> Objective:
        bound = "mean_at_most" if self.heavy else "at_most"
        constraints = {f"cost{k}": Constraint(**{bound: d}) for k, d in enumerate(self.thresholds)}
        return Objective("reward", constraints)

    @property
    def units(self) -> Array:
        """Units of excesses, ``[K]``."""
        d = np.array(self.thresholds)
        return d if self.heavy else np.minimum(d, 1 - d)

    def violations(self, thresholds: Array | None = None) -> Array:
        """Expected violations beyond the threshold's share ``[K, X, A]``: rates hold where their mean is at most 0."""
        lengths = np.ones_like(self.rewards) if self.lengths is None else self.lengths
        d = np.array(self.thresholds) if thresholds is None else thresholds
        return (self.costs - d[:, None, None]) * lengths

    def excesses(self, policies: Array) -> Array:
        """Rate above the threshold, in `units`, of policies ``[T, X, A]``: ``[T, K]``."""
        lengths = np.ones_like(self.rewards) if self.lengths is None else self.lengths
        above = np.einsum("txa,kxa->tk", policies, self.violations())
        return above / np.einsum("txa,xa->t", policies, lengths)[:, None] / self.units

    def answered(self, costs: Tensor, rows: Tensor, arms: Tensor, draw: torch.Generator) -> dict[str, Signal]:
        """Signals of the arms ``[B, G]`` in contexts ``[B, G]``, with violations by `costs` ``[K, X, A]``."""

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, *arms.shape, generator=draw, dtype=torch.float64)

        reward = (uniform() < torch.from_numpy(self.rewards)[rows, arms]).double()
        if self.noise:
            reward += self.noise * torch.randn(arms.shape, generator=draw, dtype=torch.float64)
        signals = {"reward": Signal(reward)}
        shared = uniform()
        for k, cost in enumerate(costs):
            mean = cost[rows, arms]
            if self.draws == "own":
                luck = uniform()
            elif self.draws == "opposite" and k > 0:
                luck = 1 - shared
            else:
                luck = shared
            value = (luck < mean).double()
            options: dict[str, Tensor] = {}
            if self.heavy:
                normal = torch.randn(arms.shape, generator=draw, dtype=torch.float64)
                value = mean * (SIGMA * normal - SIGMA**2 / 2).exp()
            if self.lengths is not None:
                steps = torch.from_numpy(self.lengths)[rows, arms]
                value = torch.binomial(steps, mean, generator=draw)
                # A count apart from the value keeps the sum as the cost.
                options = {"opportunities": steps} if self.excess else {"count": value, "opportunities": steps}
            if self.applies:
                options["applicable"] = uniform() < self.applies[k]
            signals[f"cost{k}"] = Signal(value, **options)
        return signals

    def bounds(self) -> tuple[float, float, Array]:
        """Least reward of the safest policies (the least sum of excesses), the greatest within the thresholds, and the
        rewards ``[K]`` that one violation less costs there.
        """
        rewards, rows, shares, ones = self._program(np.array(self.thresholds))
        best = linprog(-rewards, rows, np.zeros(len(rows)), shares, ones)
        assert best.success, "no policy meets the thresholds"
        total = rows.sum(0)
        least = linprog(total, A_eq=shares, b_eq=ones).fun
        safest = linprog(rewards, total[None], [least + 1e-9], shares, ones)
        prices = np.zeros(len(self.thresholds))
        prices[: len(rows)] = -best.ineqlin.marginals / self.units[: len(rows)]
        return float(safest.fun), float(-best.fun), prices

    def best_at_rates_of(self, policy: Array) -> float:
        """The greatest reward within the counted rates of a policy ``[X, A]``."""
        reached = np.array(self.thresholds) + self.excesses(policy[None])[0] * self.units
        rewards, rows, shares, ones = self._program(reached)
        best = linprog(-rewards, rows, np.full(len(rows), 1e-9), shares, ones)
        assert best.success, "the policy keeps its own rates"
        return float(-best.fun)

    def _program(self, thresholds: Array) -> tuple[Array, Array, Array, Array]:
        """Linear program of the arms' probabilities: rewards ``[X A]``, the counted constraints' excesses in units
        ``[K, X A]``, the sums of probabilities ``[X, X A]``, which are ones ``[X]``.
        """
        contexts, arms = self.rewards.shape
        counted = self.violations(thresholds)[: self.counted] / self.units[: self.counted, None, None] / contexts
        shares = np.kron(np.eye(contexts), np.ones(arms))
        return self.rewards.ravel() / contexts, counted.reshape(len(counted), -1), shares, np.ones(contexts)


def drawn(seed: int, *shares: float, contexts: int = 8, arms: int = 6, constraints: int = 2, **others: Any) -> Problem:
    """Arms whose better ones cost more, with thresholds `between`."""
    draw = np.random.default_rng(seed)
    quality = draw.random((contexts, arms))
    rewards = 0.1 + 0.64 * quality + 0.16 * draw.random((contexts, arms))
    costs = 0.02 + 0.49 * quality + 0.21 * draw.random((constraints, contexts, arms))
    return Problem(rewards, costs, between(rewards, costs, *shares), **others)


def between(rewards: Array, costs: Array, *shares: float, lengths: Array | None = None) -> tuple[float, ...]:
    """Thresholds at a share of the range from the least rates to the greedy policy's; one share serves all."""
    steps = np.ones_like(rewards) if lengths is None else lengths

    def rate(cost: Array, arm: Array) -> float:
        rows = np.arange(len(arm))
        return float((cost * steps)[rows, arm].sum() / steps[rows, arm].sum())

    greedy = np.array([rate(cost, rewards.argmax(-1)) for cost in costs])
    least = np.array([rate(cost, cost.argmin(-1)) for cost in costs])
    return tuple((least + np.array(shares) * (greedy - least)).tolist())


def rare(seed: int, thresholds: tuple[float, ...], safe: float, dear: float, **settings: Any) -> Problem:
    """Two arms are (almost) safe for the first constraint, at 0.6 and 0.5 of the best reward; `dear` scales the rest.

    The smaller the costs of the dear arms, the higher is the price that keeps the policy away from them.
    """
    problem = drawn(seed, 0.35, constraints=len(thresholds), **settings)
    problem.rewards[:, :2] = problem.rewards.max(-1, keepdims=True) * (0.6, 0.5)
    problem.costs[0] *= dear
    problem.costs[0, :, :2] = safe
    return replace(problem, thresholds=thresholds)


def problems_by_name() -> dict[str, Problem]:
    """The 26 problems of an audit in November 2026, in its order."""
    base = drawn(9, 0.35)
    slack = drawn(20, 0.35, updates=800)
    swap = drawn(19, 0.35, constraints=1)
    # The second constraint can't be met where the first is.
    conflict = drawn(6, 0.35, constraints=1)
    opposed = {"costs": np.concatenate([conflict.costs, 1 - 0.9 * conflict.costs]), "counted": 1}
    # A rate between two bounds: one draw violates either the one or the other.
    pair = drawn(21, 0.35, constraints=1)
    both = {"costs": np.concatenate([pair.costs, 1 - pair.costs]), "draws": "opposite"}
    dear = np.tile(np.arange(6) == 0, (8, 1))
    late = np.random.default_rng(7).uniform(0.3, 0.6, (8, 6))
    modes = np.tile((0.5, 0.55, 0.8, 0.85, 0.9), (8, 1))
    mode_costs = np.tile((0.02, 0.03, 0.05, 0.5, 0.7), (8, 1))
    # In 19 of the 20 contexts all arms are alike.
    dull = drawn(15, 0.35, contexts=20, constraints=1)
    dull.rewards[1:] = dull.rewards[1:, :1]
    dull.costs[:, 1:] = dull.costs[:, 1:, :1]
    # The safer an arm's steps, the longer are its answers, so that the arms of the least sum violate most often.
    steps = drawn(23, 0.35, constraints=1)
    lengths = np.round((40 * (steps.costs.min() / steps.costs[0]) ** 1.5).clip(2, 40))
    steps = replace(steps, lengths=lengths, thresholds=between(steps.rewards, steps.costs, 0.35, lengths=lengths))
    # Violations are frequent in the first half of the contexts, and rare in the second.
    uneven = drawn(26, 0.35, contexts=16, constraints=1, updates=800)
    frequent = np.arange(16)[:, None] < 8
    uneven.costs[0] = np.where(frequent, 0.3, 0.01) + np.where(frequent, 0.4, 0.04) * (uneven.rewards - 0.1) / 0.8
    return {
        "8 constraints": drawn(1, 0.55, arms=20, constraints=8),
        "threshold .001": rare(2, (0.001,), 0.0, 0.05, prompts=8),
        "threshold .0001": rare(3, (0.0001,), 0.0, 0.05, prompts=8),
        ".999 from .6": rare(4, (0.001, 0.6), 0.0002, 1.0),
        "one loose, one active": drawn(5, 0.9, 0.4),
        "conflict": replace(conflict, thresholds=(*conflict.thresholds, 0.02), **opposed),
        "active late": Problem(
            np.where(dear, 0.9, late), np.where(dear, 0.6, 0.03)[None], (0.15,), 800, start=np.where(dear, -6.0, 0.0)
        ),
        "two modes": Problem(modes, mode_costs[None], (0.1,), start=np.where(modes > 0.8, 4.0, 0.0)),
        "base": base,
        "learning rate x 10": replace(base, lr=0.5),
        "learning rate / 10": replace(base, lr=0.005, updates=1500),
        "16 answers": replace(base, prompts=2, answers=8),
        "groups of 2": replace(base, prompts=256, answers=2),
        "groups of 64": replace(base, prompts=8, answers=64),
        "1 of 20 contexts informative": replace(dull, thresholds=between(dull.rewards, dull.costs, 0.35)),
        "costs share their draw": drawn(16, 0.3, 0.5, draws="shared"),
        "sparse reward": replace(base, rewards=0.02 * base.rewards),
        "noisy reward": replace(base, noise=3.0),
        "costs swap": replace(swap, before=swap.costs[..., [1, 0, 3, 2, 5, 4]], updates=800),
        "slack, then costs x 8": replace(slack, before=slack.costs / 8),
        "a pair .45 to .55": replace(pair, thresholds=(0.55, 0.55), **both),
        "heavy-tailed mean": drawn(22, 0.35, constraints=1, heavy=True),
        "step rate, sum": steps,
        "step rate, excess": replace(steps, excess=True),
        "2 % of answers": drawn(25, 0.35, applies=(1.0, 0.02), updates=800),
        "frequent beside rare": replace(uneven, thresholds=between(uneven.rewards, uneven.costs, 0.35)),
    }
