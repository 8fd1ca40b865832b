"""A bandit with two constrained behaviors: small enough to know its optimum, rich enough to tell controllers apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import linprog

from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.multipliers import Controller, ResilientSlack, StallDetector, WeightBounds, standard_units
from lightning_cgrpo.objective.objective import Constraint, Objective
from lightning_cgrpo.rollout import Rollouts, Signal

NAMES = ["reward", "first", "second"]

ENTROPY = 0.1
"""Weight of the policy's entropy. Without it the policy jumps from arm to arm, since the group's standardization leaves
the cost of a rare violation concave in its rate, and rates cycle under every controller."""


@dataclass(frozen=True)
class Bandit:
    """Each arm yields the reward and the two violations independently.

    Args:
        arms: for each arm the probabilities of (reward, first violation, second violation).
        thresholds: of the two rates.
    """

    arms: tuple[tuple[float, float, float], ...]
    thresholds: tuple[float, float]

    def optimum(self) -> float:
        """The greatest reward that meets the thresholds, over all mixtures of arms (a linear program)."""
        reward, *violations = zip(*self.arms, strict=True)
        answer = linprog([-r for r in reward], violations, self.thresholds, [[1.0] * len(reward)], [1.0])
        return float(-answer.fun)


# One safe arm, one that tempts to either violation, one to both. Optimum: 2/7, 2/7, 3/7 and 0 of them.
FEASIBLE = Bandit(
    arms=((0.5, 0.05, 0.05), (0.8, 0.4, 0.05), (0.8, 0.05, 0.4), (0.9, 0.4, 0.4)),
    thresholds=(0.15, 0.2),
)

# The second rate can't fall below .30. The arm where it does has little reward and violates the first threshold, which
# the first arm meets easily; the third has the most reward and violates both.
INFEASIBLE = Bandit(
    arms=((0.95, 0.02, 0.4), (0.25, 0.25, 0.3), (1.0, 0.3, 0.5)),
    thresholds=(0.05, 0.05),
)


@dataclass(frozen=True)
class Outcome:
    """Means over the last half of training.

    Args:
        std: of the rates over updates, the greater of the two; 0.018 of it is the batch's sampling noise.
        stalled: the constraint that the detector told of, if any.
        reached: the rate that it reached, as the detector measured it.
    """

    reward: float
    rates: tuple[float, float]
    weights: tuple[float, float, float]
    slack: tuple[float, float]
    std: float
    stalled: int | None
    reached: float | None


@dataclass(frozen=True)
class Trajectory:
    """Every update of a run.

    Args:
        rewards: ``[updates]`` mean reward.
        rates: ``[updates, 2]`` measured rates.
        weights: ``[updates, 3]`` weights of reward and constraints.
        slack: ``[updates, 2]``.
        stalled: the constraint that the detector told of, if any.
        reached: the rate that it reached, as the detector measured it.
    """

    rewards: torch.Tensor
    rates: torch.Tensor
    weights: torch.Tensor
    slack: torch.Tensor
    stalled: int | None
    reached: float | None


def play(bandit: Bandit, controller: Controller, **how: Any) -> Outcome:
    """Means over the last half of `train`."""
    run = train(bandit, controller, **how)
    half = len(run.rewards) // 2
    rates, weights, slack = (tuple(part[half:].mean(0).tolist()) for part in (run.rates, run.weights, run.slack))
    std = run.rates[half:].std(0).max().item()
    return Outcome(run.rewards[half:].mean().item(), rates, weights, slack, std, run.stalled, run.reached)


def train(
    bandit: Bandit,
    controller: Controller,
    *,
    bounds: WeightBounds | None = None,
    slack: ResilientSlack | None = None,
    updates: int = 1000,
    prompts: int = 32,
    group: int = 16,
    lr: float = 1.0,
    seed: int = 0,
) -> Trajectory:
    """Constrained GRPO with a softmax over the arms as policy, one gradient step an update.

    In the order of the training step: the advantages use the weights from before the update of the multipliers.
    """
    table = torch.tensor(bandit.arms)
    thresholds = torch.tensor(bandit.thresholds, dtype=torch.float64)
    objective = Objective(
        "reward", {name: Constraint(at_most=d) for name, d in zip(NAMES[1:], bandit.thresholds, strict=True)}
    )
    estimator = ScalarizedAdvantages()
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(len(table), requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=lr)
    observed = torch.ones(2, dtype=torch.bool)
    controller.setup(2)
    detector, stalled, reached = StallDetector(), None, None
    detector.setup(2)
    if bounds is not None:
        bounds.resolve(NAMES)

    history = []
    for _ in range(updates):
        weights = controller.weights if bounds is None else bounds(controller.weights)
        log_probs = logits.log_softmax(0)
        arms = torch.multinomial(log_probs.detach().exp(), prompts * group, True, generator=generator)
        arms = arms.view(prompts, group)
        drawn = torch.rand(prompts, group, 3, generator=generator) < table[arms]
        signals = {name: Signal(value.float()) for name, value in zip(NAMES, drawn.unbind(-1), strict=True)}

        rollouts = Rollouts(arms[..., None], torch.ones_like(drawn[..., :1]), {})
        advantages = estimator(rollouts, objective.components(signals), objective.component_weights(weights))
        entropy = -(log_probs.exp() * log_probs).sum()
        loss = -(advantages * log_probs[arms]).mean() - ENTROPY * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        violations, opportunities = objective.violations(signals)
        rates = violations / opportunities
        if bounds is not None:
            controller.adopt(weights)
        highest = controller.highest_weights
        if bounds is not None:
            highest = torch.minimum(highest, bounds.highest_weights())
        for told in detector.update(weights, rates - thresholds, observed, highest):
            stalled, reached = told, (detector.reached + thresholds)[told].item()
        before = controller.weights
        given = torch.zeros(2) if slack is None else slack.slack(before)
        excess = rates - thresholds if slack is None else slack(rates - thresholds, before)
        controller.step(excess / standard_units(thresholds) if controller.standard_units else excess, observed)
        history.append(torch.cat([drawn[..., 0].double().mean()[None], rates, weights, given]))

    rewards, rates, weights, slack = torch.stack(history).split([1, 2, 3, 2], dim=1)
    return Trajectory(rewards[:, 0], rates, weights, slack, stalled, reached)
