"""Plain loops over answers and steps: advantages ``[B, G, T]``, without and with a critic."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean, stdev

from torch import Tensor

from tests.generated import Batch, Run
from tests.loops.components import Part, components, weighted
from tests.loops.counts import Values, own_steps


def returns_to_go(run: Run, batch: Batch, gamma: float) -> Values:
    """What follows a step, minus the mean of the group's answers that take the step, over the group's deviation."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            returns = {}
            for g in range(batch.shape[1]):
                rewards = part.steps.get((b, g), [])
                for number, t in enumerate(own_steps(batch, b, g) if rewards else []):
                    returns[g, t] = sum(gamma**i * reward for i, reward in enumerate(rewards[number:]))
            means = {t: fmean(value for (_, at), value in returns.items() if at == t) for _, t in returns}
            excess = {(g, t): value - means[t] for (g, t), value in returns.items()}
            std = math.sqrt(fmean(value**2 for value in excess.values())) if excess else 0.0
            for (g, t), value in excess.items():
                total[b, g, t] += weight * value / std if std > 1e-9 else 0.0
    return total


Predictions = Mapping[tuple[int, int], Tensor]
"""Of a critic, by answer: ``[steps, components]`` before each of its steps."""


def generalized(run: Run, batch: Batch, predicted: Predictions, gamma: float, gae_lambda: float) -> list[Values]:
    """Generalized advantages of each component."""
    out = []
    for j, part in enumerate(components(run, batch)):
        advantages: Values = {}
        for b, g in part.steps:
            steps, rewards = own_steps(batch, b, g), part.steps[b, g]
            values = [*predicted[b, g][:, j].tolist(), 0.0]
            errors = [rewards[i] + gamma * values[i + 1] - values[i] for i in range(len(steps))]
            for i, t in enumerate(steps):
                later = enumerate(errors[i:])
                advantages[b, g, t] = sum((gamma * gae_lambda) ** n * error for n, error in later)
        out.append(advantages)
    return out


def varies(batch: Batch, part: Part, gamma: float) -> bool:
    """Whether any two answers of the batch have another discounted sum of a component."""
    discounted = []
    for (b, g), rewards in part.steps.items():
        steps = own_steps(batch, b, g)
        discounted.append(sum(gamma**t * reward for t, reward in zip(steps, rewards, strict=True)))
    return len(discounted) > 1 and stdev(discounted) > 1e-9


def critic_advantages(
    run: Run, batch: Batch, predicted: Predictions, gamma: float, gae_lambda: float, standardized: bool
) -> Values:
    """Weighted advantages of the components: each standardized over the batch's steps, or their sum."""
    weights = [weight * varies(batch, part, gamma) for weight, part in weighted(run, batch)]
    total: Values = defaultdict(float)
    for weight, values in zip(weights, generalized(run, batch, predicted, gamma, gae_lambda), strict=True):
        mean, std = (fmean(values.values()), stdev(values.values())) if len(values) > 1 else (0.0, 0.0)
        for at, value in values.items():
            if standardized:
                total[at] += weight * (value - mean) / std if std > 1e-9 else 0.0
            else:
                total[at] += weight * value
    if standardized or len(total) < 2:
        return total if standardized else dict.fromkeys(total, 0.0)
    mean, std = fmean(total.values()), stdev(total.values())
    return {at: (value - mean) / std if std > 1e-9 else 0.0 for at, value in total.items()}
