"""A bandit with two constrained behaviors: small enough to know its optimum, rich enough to tell controllers apart.

The multipliers are moved by the training's own callback.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from scipy.optimize import linprog

from examples.controllers.bounded_weights import BoundedWeights
from lightning_cgrpo.core.rollout import Rollouts, Signal
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.multipliers import Controller, StallDetector
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Constraint, Objective
from tests.dual_run import DualRun

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
FEASIBLE = Bandit(arms=((0.5, 0.05, 0.05), (0.8, 0.4, 0.05), (0.8, 0.05, 0.4), (0.9, 0.4, 0.4)), thresholds=(0.15, 0.2))

# The second rate can't fall below .30. The arm where it does has little reward and violates the first threshold, which
# the first arm meets easily; the third has the most reward and violates both.
INFEASIBLE = Bandit(arms=((0.95, 0.02, 0.4), (0.25, 0.25, 0.3), (1.0, 0.3, 0.5)), thresholds=(0.05, 0.05))


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
    std: float
    stalled: int | None
    reached: float | None


class Listening(StallDetector):
    """Keeps the constraint that it told of, and the violation that the constraint reached."""

    stalled: int | None = None
    excess = 0.0

    def update(self, *arguments: torch.Tensor) -> int | None:
        stalled = super().update(*arguments)
        if stalled is not None and self.stalled is None:
            self.stalled, self.excess = stalled, self.reached[stalled].item()
        return stalled


def play(bandit: Bandit, controller: Controller, *, floor: float = 0.0, updates: int = 1000, seed: int = 0) -> Outcome:
    """Constrained GRPO with a softmax over the arms as policy; 32 groups of 16 and one gradient step an update.

    In the order of the training step: the advantages use the weights from before the update of the multipliers.
    """
    table = torch.tensor(bandit.arms)
    first, second = bandit.thresholds
    objective = Objective("reward", {"first": Constraint(at_most=first), "second": Constraint(at_most=second)})
    detector = Listening()
    dual = DualRun(BoundedWeights(controller, detector, floor=floor), objective).start()
    estimator = ScalarizedAdvantages("group")
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(len(table), requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=1.0)
    names = ("reward", *objective.constraints)

    history = []
    for _ in range(updates):
        weights = dual.module.weights.clone()
        log_probs = logits.log_softmax(0)
        arms = torch.multinomial(log_probs.detach().exp(), 32 * 16, True, generator=generator).view(32, 16)
        drawn = torch.rand(32, 16, 3, generator=generator) < table[arms]
        signals = {name: Signal(value.float()) for name, value in zip(names, drawn.unbind(-1), strict=True)}

        rollouts = Rollouts(arms[..., None], torch.ones_like(drawn[..., :1]), {})
        statistics = group_statistics(objective.components(signals))
        advantages = estimator(rollouts, statistics, objective.component_weights(weights))
        entropy = -(log_probs.exp() * log_probs).sum()
        loss = -(advantages * log_probs[arms]).mean() - ENTROPY * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        violations, opportunities = objective.violations(signals)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stalls, which the detector keeps
            dual.update(violations.tolist(), opportunities.tolist())
        rates = violations / opportunities
        history.append(torch.cat([drawn[..., 0].double().mean()[None], rates, weights]))

    half = torch.stack(history[updates // 2 :])
    reward, *means = half.mean(0).tolist()
    stalled, reached = detector.stalled, None
    if stalled is not None:
        unit = dual.callback.units.at(dual.callback.targets.in_force)[stalled].item()
        reached = bandit.thresholds[stalled] + detector.excess * unit
    return Outcome(reward, (*means[:2],), (*means[2:],), half[:, 1:3].std(0).max().item(), stalled, reached)
