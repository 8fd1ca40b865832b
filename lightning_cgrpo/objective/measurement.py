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
    return {name: sums.sum() for name, sums in rows.items()} | moments(objective.constraints, rows)


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
    answers = rollouts.mask[..., 0]
    sums = {"answers": by_prompt(torch.ones_like(answers)), "steps": by_prompt(rollouts.mask)}
    for name, pair in (objective.counts(signals) if counts is None else counts).items():
        sums[violations_of(name)], sums[opportunities_of(name)] = pair
        signal = signals.get(signal_key(name, objective.constraints[name]))
        sums[most_of(name)] = sums["answers"] * most_opportunities(signal, longest or rollouts.mask.shape[-1])
    for name in objective.rewards:
        value, applicable = signals[name].total, signals[name].applicable
        sums[f"sum/{name}"] = by_prompt(value)
        sums[f"count/{name}"] = by_prompt(torch.ones_like(value) if applicable is None else applicable)
    for name in (name for name in objective.signal_names if name in signals):
        present = signals[name].applicable
        absent = torch.zeros_like(sums["answers"]) if present is None else by_prompt(~present)
        if faults is not None:
            sums[faults_of(name)] = faults[name]
            absent = absent - faults[name]
        sums[f"inapplicable/{name}"] = absent
    return {name: value.to(rollouts.mask.device) for name, value in sums.items()}


def most_opportunities(signal: Signal | None, longest: int) -> int:
    """The largest number of opportunities that an answer can have."""
    return 1 if signal is None or signal.of_whole_answers else longest


def best_sums(objective: Objective, signals: Signals, longest: int | None = None) -> dict[str, Tensor]:
    """Violations and opportunities ``[B]`` of each prompt's best answer, by bounded constraint of the task's signals.

    The best answer has the least count - d * opportunities. If these choices violate a threshold d, no other choice of
    answers meets the threshold. `EVERY` counts the prompts without an answer that meets all enforced thresholds.

    Args:
        longest: steps of the longest answer, as declared; None takes the steps of the signals.
    """
    rows: dict[str, Tensor] = {}
    meets: Tensor | None = None
    for name, constraint in objective.bounded.items():
        if name in objective.policy_signals:
            continue
        signal = signals[signal_key(name, constraint)]
        counts = constraint.violations(signal)
        violations, opportunities = (over_steps(count).double() for count in counts)  # [B, G]
        excess = violations - constraint.bound.target * opportunities
        best = excess.argmin(-1, keepdim=True)
        rows[violations_of(name)] = violations.gather(-1, best).squeeze(-1)
        rows[opportunities_of(name)] = opportunities.gather(-1, best).squeeze(-1)
        most = most_opportunities(signal, longest or signal.value.shape[-1])
        rows[most_of(name)] = torch.full_like(rows[opportunities_of(name)], most)
        if constraint.role == "constrain":
            meets = excess <= 0 if meets is None else meets & (excess <= 0)
    return rows if meets is None else rows | _sums_of_every(meets)


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
    metrics = {}
    for tag, parts in ratios(objective).items():
        if all(sums[below] for _, _, below in parts):
            metrics[tag] = sum(weight * sums[above] / sums[below] for weight, above, below in parts)
    for name, constraint in objective.constraints.items():
        if (rate := metrics.get(constraint.bound.tag(name))) is not None:
            metrics[constraint.bound.tag(name)] = constraint.bound.shown(rate)
    for name in objective.signal_names:
        if faults := sums.get(faults_of(name)):
            metrics[f"faults/{name}"] = faults
        if sums.get(f"inapplicable/{name}"):
            metrics[f"inapplicable/{name}"] = sums[f"inapplicable/{name}"] / sums["answers"]
    return metrics


def evaluation_tags(objective: Objective) -> list[str]:
    """The tags of `behavior_metrics` that do not depend on faults."""
    return list(ratios(objective))


def ratios(objective: Objective) -> dict[str, list[tuple[float, str, str]]]:
    """By tag, terms (weight, numerator, denominator) of a metric; the last two name sums in `prompt_sums`."""
    rewards = {name: (f"sum/{name}", f"count/{name}") for name in objective.rewards}
    ratios = {"reward/mean": [(weight, *rewards[name]) for name, weight in objective.rewards.items()]}
    if len(rewards) > 1:
        ratios |= {f"reward/{name}": [(1.0, *sums)] for name, sums in rewards.items()}
    for name, constraint in objective.constraints.items():
        ratios[constraint.bound.tag(name)] = [(1.0, violations_of(name), opportunities_of(name))]
    return ratios | {"rollout/length": [(1.0, "steps", "answers")]}


def by_prompt(values: Tensor) -> Tensor:
    """Sums ``[B]`` float64 over answers and steps."""
    return values.double().flatten(1).sum(-1)
