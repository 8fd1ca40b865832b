"""Two costs for a rate among the answers that meet a condition (`given`), on bandits with a known optimum.

    python -m benchmarks.conditions     # two and a half minutes of CPU time

``excess`` is the package's: every answer is compared by its excess over the batch's rate, and an answer that misses the
condition costs nothing.
``among`` compares only the answers of a group that meet the condition. Four kinds of problems, each with three draws of
arms and two seeds:

    reward      the condition is the reward
    only long   likewise; in half of the contexts the right answers are long
    apart       the reward is another signal
    rare        likewise; the condition holds for 6 % of the answers

The table has medians, in percent: the excess of the last quarter's rate over its threshold d, relative to
min(d, 1 - d), and the share of the gain over the safest policy that is lost. Letters: X contexts, A arms.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.bandits import Problem, between
from benchmarks.duals import train
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.multipliers import DampedAscent
from lightning_cgrpo.objective.objective import Constraint, Objective

KINDS = ("reward", "only long", "apart", "rare")
CONTEXTS, ARMS, UPDATES = 8, 6, 600


@dataclass(frozen=True)
class Conditional(Problem):
    """A bandit whose rate of violation is bounded among the answers that meet a condition.

    The probabilities of the condition are `lengths`, because they weigh the arms' rates as numbers of steps do.

    Args:
        among: compare only the answers that meet the condition.
        rewarded: the reward is the condition.
    """

    among: bool = False
    rewarded: bool = False

    @property
    def objective(self) -> Objective:
        [threshold] = self.thresholds
        return Objective("reward", {"cost": Constraint(at_most=threshold, given=None if self.among else "holds")})

    def answered(self, costs: Tensor, rows: Tensor, arms: Tensor, draw: torch.Generator) -> dict[str, Signal]:
        def happens(chances: Tensor) -> Tensor:
            return torch.rand(arms.shape, generator=draw, dtype=torch.float64) < chances[rows, arms]

        assert self.lengths is not None
        holds = happens(torch.from_numpy(self.lengths))
        violated = happens(costs[0])
        reward = holds if self.rewarded else happens(torch.from_numpy(self.rewards))
        cost = Signal(violated.double(), applicable=holds if self.among else None)
        return {"reward": Signal(reward.double()), "holds": Signal(holds.double()), "cost": cost}


def drawn(kind: str, seed: int, among: bool) -> Conditional:
    """Arms whose better ones violate more often; the threshold is 0.35 of the way to the greedy rate."""
    draw = np.random.default_rng(seed)
    length = draw.random((CONTEXTS, ARMS))
    if kind == "reward":
        holds = ((0.2 + 0.6 * length) * draw.uniform(0.8, 1.2, length.shape)).clip(0.05, 0.95)
        violates = 0.03 + 0.6 * length * draw.random(length.shape)
        reward = holds
    elif kind == "only long":
        holds = 0.2 + 0.6 * length
        violates = 0.02 + 0.3 * length * draw.random(length.shape)
        violates[: CONTEXTS // 2] = 0.4 + 0.5 * length[: CONTEXTS // 2]
        reward = holds
    else:
        share, spread = (0.3, 0.4) if kind == "apart" else (0.03, 0.07)
        holds = share + spread * draw.random(length.shape)
        violates = 0.02 + 0.5 * length + 0.1 * draw.random(length.shape)
        reward = 0.1 + 0.7 * length
    costs = violates[None]
    thresholds = between(reward, costs, 0.35, lengths=holds)
    return Conditional(reward, costs, thresholds, UPDATES, lengths=holds, among=among, rewarded=reward is holds)


def judged(problem: Conditional, seed: int) -> tuple[float, float]:
    """Relative excess and lost share of the gain, of the last quarter's policies."""
    policy = train(problem, DampedAscent(), seed).mean(0)  # rewards and violations are linear in the probabilities
    safest, best, _ = problem.bounds()
    gained = float((policy * problem.rewards).sum(-1).mean())
    return problem.excesses(policy[None]).item(), (best - gained) / (best - safest)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print("| excess, lost share, % | excess | among |\n|---|---|---|")
    for kind in KINDS:
        cells = []
        for among in (False, True):
            runs = [judged(drawn(kind, number, among), seed) for number in (1, 2, 3) for seed in (0, 1)]
            cells.append(", ".join(f"{100 * middle:.1f}" for middle in np.median(runs, axis=0)))
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
