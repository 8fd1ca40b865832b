"""Two costs for a rate among the answers that meet a condition (`given`), on bandits with a known optimum.

    python -m benchmarks.conditions     # two and a half minutes of CPU time

``excess`` is the package's: every answer is compared, and an answer that misses the condition costs nothing.
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
from scipy.optimize import linprog

from benchmarks.bandits import Array
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages
from lightning_cgrpo.objective.objective import Constraint, Objective

KINDS = ("reward", "only long", "apart", "rare")
CONTEXTS, ARMS = 8, 6
PROMPTS, ANSWERS, UPDATES, RATE = 32, 16, 600, 0.05


@dataclass(frozen=True)
class Conditional:
    """Probabilities ``[X, A]`` of each arm: of the condition, of a violation given the condition, and the reward."""

    holds: Array
    violates: Array
    reward: Array
    threshold: float

    @classmethod
    def drawn(cls, kind: str, seed: int) -> Conditional:
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
        rows = np.arange(CONTEXTS)
        rates = []
        for arms in (violates.argmin(-1), reward.argmax(-1)):
            some = holds[rows, arms]
            rates.append(float((some * violates[rows, arms]).sum() / some.sum()))
        least, greedy = rates
        return cls(holds, violates, reward, least + 0.35 * (greedy - least))

    def bounds(self) -> tuple[float, float]:
        """Least reward of the safest policies, and the greatest within the threshold."""
        shares = np.kron(np.eye(CONTEXTS), np.ones(ARMS))
        rewards = self.reward.ravel() / CONTEXTS
        excess = ((self.violates - self.threshold) * self.holds).ravel()[None]
        best = linprog(-rewards, excess, [0], shares, np.ones(CONTEXTS))
        safest = linprog(excess[0], A_eq=shares, b_eq=np.ones(CONTEXTS)).fun
        worst = linprog(rewards, excess, [safest + 1e-9], shares, np.ones(CONTEXTS))
        return float(worst.fun), float(-best.fun)


def judged(problem: Conditional, among: bool, seed: int) -> tuple[float, float]:
    """Relative excess and lost share of the gain, of the last quarter's policies."""
    draw = torch.Generator().manual_seed(seed)
    condition = None if among else "holds"
    objective = Objective("reward", {"cost": Constraint(at_most=problem.threshold, given=condition)})
    advantages_of = ConstrainedAdvantages(objective)
    logits = torch.zeros(CONTEXTS, ARMS, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=RATE)
    holds, violates, reward = map(torch.from_numpy, (problem.holds, problem.violates, problem.reward))
    policies = []
    for _ in range(UPDATES):
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        policies.append(probs.detach().numpy().copy())
        contexts = torch.randint(CONTEXTS, (PROMPTS,), generator=draw)
        arms = probs.detach()[contexts].multinomial(ANSWERS, replacement=True, generator=draw)
        rows = contexts[:, None].expand_as(arms)

        def happens(chance: torch.Tensor, rows: torch.Tensor = rows, arms: torch.Tensor = arms) -> torch.Tensor:
            return torch.rand(arms.shape, generator=draw, dtype=torch.float64) < chance[rows, arms]

        met, violated = happens(holds), happens(violates)
        rewarded = met if problem.reward is problem.holds else happens(reward)
        cost = Signal(violated.double(), applicable=met if among else None)
        advantages = advantages_of({"reward": rewarded.double(), "holds": met.double(), "cost": cost})
        entropy = -(probs * log_probs).sum(-1)[contexts].mean()
        optimizer.zero_grad()
        (-(advantages * log_probs[rows, arms]).mean() - 0.001 * entropy).backward()
        optimizer.step()
    last = np.stack(policies[-UPDATES // 4 :])
    safest, best = problem.bounds()
    rate = (last * problem.holds * problem.violates).sum() / (last * problem.holds).sum()
    d = problem.threshold
    gained = (last * problem.reward).sum(-1).mean()
    return float((rate - d) / min(d, 1 - d)), float((best - gained) / (best - safest))


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print("| excess, lost share, % | excess | among |\n|---|---|---|")
    for kind in KINDS:
        cells = []
        for among in (False, True):
            runs = [judged(Conditional.drawn(kind, draw), among, seed) for draw in (1, 2, 3) for seed in (0, 1)]
            cells.append(", ".join(f"{100 * middle:.1f}" for middle in np.median(runs, axis=0)))
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
