"""Rewards, behavior rates and lengths: sums and metrics by tag."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Rollouts, Signal, Signals, over_steps
from lightning_cgrpo.objective.moments import faults_of, moments, most_of, opportunities_of, violations_of
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import signal_key

EVERY = "every threshold"
"""Name of the rate of prompts without an answer that meets the thresholds of all enforced constraints."""


def behavior_sums(
    objective: Objective,
    signals: Signals,
    rollouts: Rollouts,
    faults: Mapping[str, Tensor] | None = None,
    counts: Mapping[str, Tensor] | None = None,
    longest: int | None = None,
) -> dict[str, Tensor]:
    """`prompt_sums` over a batch (scalars), and their `moments`."""
    rows = prompt_sums(objective, signals, rollouts, faults, counts, longest)
    sums = {name: row.sum() for name, row in rows.items()}
    return sums | moments(objective.constraints, rows)


def prompt_sums(
    objective: Objective,
    signals: Signals,
    rollouts: Rollouts,
    faults: Mapping[str, Tensor] | None = None,
    counts: Mapping[str, Tensor] | None = None,
    longest: int | None = None,
) -> dict[str, Tensor]:
    """Sums over each prompt's answers by name, float64 ``[B]``, for `behavior_metrics`.

    Args:
        faults: from `isolate_faults`; not counted as inapplicable too.
        counts: from `Objective.counts`, if they are known already.
        longest: steps of the longest answer, as declared; None takes the longest of the batch.
    """
    answers = rollouts.mask[..., 0]  # [B, G]
    sums = {"answers": by_prompt(torch.ones_like(answers)), "steps": by_prompt(rollouts.mask)}
    # Violations and opportunities of the constraints.
    if counts is None:
        counts = objective.counts(signals)
    longest = longest or rollouts.mask.shape[-1]
    for name, (violations, opportunities) in counts.items():
        sums[violations_of(name)] = violations
        sums[opportunities_of(name)] = opportunities
        signal = signals.get(signal_key(name, objective.constraints[name]))
        sums[most_of(name)] = sums["answers"] * most_opportunities(signal, longest)
    # Rewards, and the number of answers that have them.
    for name in objective.rewards:
        value = signals[name].total
        applicable = signals[name].applicable
        sums[f"sum/{name}"] = by_prompt(value)
        sums[f"count/{name}"] = by_prompt(torch.ones_like(value) if applicable is None else applicable)
    # Answers to which a signal does not apply; faults are counted apart.
    for name in objective.signal_names:
        if name not in signals:
            continue
        applicable = signals[name].applicable
        inapplicable = torch.zeros_like(sums["answers"]) if applicable is None else by_prompt(~applicable)
        if faults is not None:
            sums[faults_of(name)] = faults[name]
            inapplicable = inapplicable - faults[name]
        sums[f"inapplicable/{name}"] = inapplicable
    return {name: value.to(rollouts.mask.device) for name, value in sums.items()}


def most_opportunities(signal: Signal | None, longest: int) -> int:
    """The largest number of opportunities that an answer can have."""
    if signal is None or signal.of_whole_answers:
        return 1
    return longest


def best_sums(objective: Objective, signals: Signals, longest: int | None = None) -> dict[str, Tensor]:
    """Violations and opportunities ``[B]`` of each prompt's best answer, by bounded constraint of the task's signals.

    The best answer has the least count - d * opportunities. If these choices violate a threshold d, no other choice of
    answers meets the threshold. `EVERY` counts the prompts without an answer that meets all enforced thresholds.

    Args:
        longest: steps of the longest answer, as declared; None takes the steps of the signals.
    """
    sums: dict[str, Tensor] = {}
    meets_all: Tensor | None = None  # [B, G], answers that meet the thresholds so far
    for name, constraint in objective.bounded.items():
        if name in objective.policy_signals:
            continue
        signal = signals[signal_key(name, constraint)]
        violations, opportunities = constraint.violations(signal)
        violations = over_steps(violations).double()  # [B, G]
        opportunities = over_steps(opportunities).double()  # [B, G]
        # The counts of each prompt's best answer.
        excess = violations - constraint.bound.target * opportunities
        best = excess.argmin(-1, keepdim=True)  # [B, 1]
        sums[violations_of(name)] = violations.gather(-1, best).squeeze(-1)
        sums[opportunities_of(name)] = opportunities.gather(-1, best).squeeze(-1)
        most = most_opportunities(signal, longest or signal.value.shape[-1])
        sums[most_of(name)] = torch.full_like(sums[opportunities_of(name)], most)
        if constraint.role == "constrain":
            meets = excess <= 0
            meets_all = meets if meets_all is None else meets_all & meets
    if meets_all is None:
        return sums
    return sums | _sums_of_every(meets_all)


def _sums_of_every(meets: Tensor) -> dict[str, Tensor]:
    """The sums ``[B]`` of `EVERY`: a prompt is one opportunity, and a violation if none of its answers meets all.

    Args:
        meets: ``[B, G]``, True for answers that meet the thresholds of all enforced constraints.
    """
    none = ~meets.any(-1)
    ones = torch.ones_like(none).double()
    return {violations_of(EVERY): none.double(), opportunities_of(EVERY): ones, most_of(EVERY): ones}


def behavior_metrics(objective: Objective, sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics by tag, without metrics that have no observations.

    The tags are ``rate/<constraint>`` (of the bounded behavior) or ``mean/<constraint>``, ``reward/mean``,
    ``reward/<signal>`` of several rewards, ``rollout/length``, and nonzero ``inapplicable/<signal>`` (a share) and
    ``faults/<signal>`` (a count).
    """
    metrics: dict[str, float] = {}
    for tag, terms in ratio_terms(objective).items():
        if all(sums[denominator] for _, _, denominator in terms):
            metrics[tag] = sum(weight * sums[numerator] / sums[denominator] for weight, numerator, denominator in terms)
    # Rates of violation in the user's orientation.
    for name, constraint in objective.constraints.items():
        tag = constraint.bound.tag(name)
        if tag in metrics:
            metrics[tag] = constraint.bound.shown(metrics[tag])
    for name in objective.signal_names:
        faults = sums.get(faults_of(name))
        if faults:
            metrics[f"faults/{name}"] = faults
        inapplicable = sums.get(f"inapplicable/{name}")
        if inapplicable:
            metrics[f"inapplicable/{name}"] = inapplicable / sums["answers"]
    return metrics


def evaluation_tags(objective: Objective) -> list[str]:
    """The tags of `behavior_metrics` that do not depend on faults."""
    return list(ratio_terms(objective))


def ratio_terms(objective: Objective) -> dict[str, list[tuple[float, str, str]]]:
    """By tag, terms (weight, numerator, denominator) of a metric; the last two name sums in `prompt_sums`."""
    rewards = objective.rewards
    terms = {"reward/mean": [(weight, f"sum/{name}", f"count/{name}") for name, weight in rewards.items()]}
    if len(rewards) > 1:
        for name in rewards:
            terms[f"reward/{name}"] = [(1.0, f"sum/{name}", f"count/{name}")]
    for name, constraint in objective.constraints.items():
        terms[constraint.bound.tag(name)] = [(1.0, violations_of(name), opportunities_of(name))]
    terms["rollout/length"] = [(1.0, "steps", "answers")]
    return terms


def by_prompt(values: Tensor) -> Tensor:
    """Sums ``[B]`` float64 over answers and steps."""
    return values.double().flatten(1).sum(-1)
