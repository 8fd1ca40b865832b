"""A bandit with two constrained behaviors: small enough to know its optimum, enough to tell controllers apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linprog
from torch import Tensor

from lightning_cgrpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.multipliers import Controller, ResilientSlack, WeightBounds
from lightning_cgrpo.objective import Constraint, Objective
from lightning_cgrpo.rollout import Rollouts, Signal

NAMES = ("reward", "first", "second")


@dataclass(frozen=True)
class Bandit:
    """Each arm yields the reward and the two violations independently, with the given probabilities.

    Args:
        arms: for each arm the probabilities of (reward, first violation, second violation).
        thresholds: of the two rates.
    """

    arms: tuple[tuple[float, float, float], ...]
    thresholds: tuple[float, float]

    def optimum(self) -> tuple[float, Tensor]:
        """The greatest reward that meets the thresholds, and the probabilities of the arms there (a linear program)."""
        reward, *violations = zip(*self.arms, strict=True)
        answer = linprog([-r for r in reward], violations, self.thresholds, [[1.0] * len(reward)], [1.0])
        return -answer.fun, torch.tensor(answer.x)

    def lowest_rate(self, constraint: int) -> float:
        """What the rate of one behavior can't fall below."""
        return min(arm[1 + constraint] for arm in self.arms)


@dataclass(frozen=True)
class Outcome:
    """Means over the last part of training."""

    reward: float
    rates: tuple[float, float]
    weights: tuple[float, float, float]
    slack: tuple[float, float]
    wobble: float

    def __str__(self) -> str:
        def digits(numbers: tuple[float, ...]) -> str:
            return "  ".join(f"{number:.3f}" for number in numbers)

        return f"reward {self.reward:.3f}  rates {digits(self.rates)}  weights {digits(self.weights)}  slack {digits(self.slack)} std {self.wobble:.3f}"


def play(
    bandit: Bandit,
    controller: Controller,
    *,
    updates: int = 2000,
    averaged: int = 1000,
    bounds: WeightBounds | None = None,
    slack: ResilientSlack | None = None,
    prompts: int = 32,
    group: int = 16,
    lr: float = 0.3,
    seed: int = 0,
    entropy: float = 0.0,
) -> Outcome:
    """Constrained GRPO with a softmax over the arms as policy.

    One gradient step an update, weights as of before the update's rates: the order of the training step.
    """
    table = torch.tensor(bandit.arms)
    objective = Objective(
        "reward", {name: Constraint(at_most=d) for name, d in zip(NAMES[1:], bandit.thresholds, strict=True)}
    )
    thresholds = torch.tensor(bandit.thresholds, dtype=torch.float64)
    observed = torch.ones(2, dtype=torch.bool)
    estimator = ScalarizedAdvantages()
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(len(table), requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=lr)
    controller.setup(2)
    if bounds is not None:
        bounds.resolve(list(NAMES))
    history = []
    for _ in range(updates):
        weights = controller.weights if bounds is None else bounds(controller.weights)
        log_probs = logits.log_softmax(0)
        actions = torch.multinomial(log_probs.detach().exp(), prompts * group, True, generator=generator)
        drawn = torch.rand(prompts, group, 3, generator=generator) < table[actions].view(prompts, group, 3)
        signals = {name: Signal(value.float()) for name, value in zip(NAMES, drawn.unbind(-1), strict=True)}
        rollouts = Rollouts(actions.view(prompts, group, 1), torch.ones(prompts, group, 1, dtype=torch.bool), {})
        advantages = estimator(rollouts, objective.components(signals), objective.component_weights(weights))
        loss = -(advantages * log_probs[rollouts.actions[..., 0]]).mean() + entropy * (log_probs.exp() * log_probs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        violations, opportunities = objective.violations(signals)
        rates = violations / opportunities
        given = torch.zeros(2) if slack is None else slack.slack(controller.weights)
        v = rates - thresholds
        controller.step(v if slack is None else slack(v, controller.weights), observed)
        history.append(torch.cat([drawn[..., 0].double().mean()[None], rates, weights, given]))
    late=torch.stack(history[-averaged:])
    reward, first, second, *rest = late.mean(0).tolist()
    return Outcome(reward, (first, second), (rest[0], rest[1], rest[2]), (rest[3], rest[4]), late[:,1:3].std(0).max().item())
