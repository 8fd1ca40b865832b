"""Rewards, behavior rates and lengths: sums and metrics by tag."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lightning_cgrpo.distributed import all_sum_named, gathered
from lightning_cgrpo.host import on_host
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.rollout import Rollouts, Signal, Signals
from lightning_cgrpo.verdicts.clustered import ClusteredMean, ClusteredRate


def isolate_faults(signals: Signals) -> tuple[dict[str, Signal], dict[str, Tensor]]:
    """Make answers with non-finite values or counts inapplicable (and 0).

    Returns the signals, and the number of such answers ``[B]`` by signal.
    """
    masks = {name: _finite(signal) for name, signal in signals.items()}
    faults = {name: _by_prompt(~finite) for name, finite in masks.items()}
    some = on_host(*((~finite).any() for finite in masks.values()))
    clean = dict(signals)
    for (name, finite), faulty in zip(masks.items(), some, strict=True):
        signal = signals[name]
        if faulty:
            applicable = finite if signal.applicable is None else signal.applicable & finite
            clean[name] = replace(
                signal,
                value=_where(finite, signal.value),
                count=None if signal.count is None else _where(finite, signal.count),
                opportunities=None if signal.opportunities is None else _where(finite, signal.opportunities),
                applicable=applicable,
            )
    return clean, faults


def _finite(signal: Signal) -> Tensor:
    """``[B, G]`` bool: answers whose value and counts are finite, or inapplicable."""
    finite = _in_all_steps(signal.value.isfinite())
    for counts in (signal.count, signal.opportunities):
        if counts is not None:
            finite &= _in_all_steps(counts.isfinite())
    return finite if signal.applicable is None else finite | ~signal.applicable


def behavior_sums(
    objective: Objective, signals: Signals, rollouts: Rollouts, faults: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """`prompt_sums` over a batch (scalars), and their `moments`."""
    rows = prompt_sums(objective, signals, rollouts, faults)
    return {name: sums.sum() for name, sums in rows.items()} | moments(objective.constraints, rows)


def prompt_sums(
    objective: Objective, signals: Signals, rollouts: Rollouts, faults: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Sums over each prompt's answers by name, float64 ``[B]``, for `behavior_metrics`.

    Args:
        faults: from `isolate_faults`; not counted as inapplicable too.
    """
    violations, opportunities = objective.violations_by_prompt(signals)
    answers = rollouts.mask[..., 0]
    sums = {"answers": _by_prompt(torch.ones_like(answers)), "steps": _by_prompt(rollouts.mask)}
    for row, name in enumerate(objective.constraints):
        sums[f"violations/{name}"], sums[f"opportunities/{name}"] = violations[row], opportunities[row]
    for name in objective.rewards:
        value, applicable = signals[name].total, signals[name].applicable
        sums[f"sum/{name}"] = _by_prompt(value)
        sums[f"count/{name}"] = _by_prompt(torch.ones_like(value) if applicable is None else applicable)
    for name in (name for name in objective.signal_names if name in signals):
        present = signals[name].applicable
        absent = torch.zeros_like(sums["answers"]) if present is None else _by_prompt(~present)
        if faults is not None:
            sums[f"faults/{name}"] = faults[name]
            absent = absent - faults[name]
        sums[f"inapplicable/{name}"] = absent
    return {name: value.to(rollouts.mask.device) for name, value in sums.items()}


def moments(constraints: Iterable[str], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scalars for `clustered_rates`, from violations and opportunities of prompts ``[B]``."""
    found = {}
    for name in constraints:
        violations, opportunities = rows[f"violations/{name}"], rows[f"opportunities/{name}"]
        found[f"observed/{name}"] = (opportunities > 0).sum()
        found[f"violations squared/{name}"] = violations.square().sum()
        found[f"violations by opportunities/{name}"] = (violations * opportunities).sum()
        found[f"opportunities squared/{name}"] = opportunities.square().sum()
    return found


def clustered_rates(
    constraints: Iterable[str], sums: Mapping[str, float], means: Container[str] = ()
) -> dict[str, ClusteredRate]:
    """Rates of violation with clustered standard errors (see `RunningSums.evaluation`), of observed constraints.

    Args:
        means: names of the constraints that bound means.
    """
    rates = {}
    for name in constraints:
        violations, opportunities = sums[f"violations/{name}"], sums[f"opportunities/{name}"]
        prompts = int(sums[f"observed/{name}"])
        if not opportunities:
            continue
        rate = violations / opportunities
        squares = (
            sums[f"violations squared/{name}"]
            - 2 * rate * sums[f"violations by opportunities/{name}"]
            + rate**2 * sums[f"opportunities squared/{name}"]
        )
        mean = name in means
        scale = sums[f"{'violations' if mean else 'opportunities'} squared/{name}"]
        # What rounding leaves of a sum of zeros is no spread.
        spread = (mean or 0 < rate < 1) and prompts > 1 and squares > 1e-12 * scale
        error = math.sqrt(prompts / (prompts - 1) * squares) / opportunities if spread else None
        rates[name] = (ClusteredMean if mean else ClusteredRate)(rate, error, prompts, opportunities)
    return rates


def behavior_metrics(objective: Objective, sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics by tag, without metrics that have no observations.

    The tags are ``rate/<constraint>`` (of the bounded behavior) or ``mean/<constraint>``, ``reward/mean``,
    ``reward/<signal>`` of several rewards, ``rollout/length``, and nonzero ``inapplicable/<signal>`` (a share) and
    ``faults/<signal>`` (a count).
    """
    metrics = {}
    for tag, parts in _ratios(objective).items():
        if all(sums[below] for _, _, below in parts):
            metrics[tag] = sum(weight * sums[above] / sums[below] for weight, above, below in parts)
    for name, constraint in objective.constraints.items():
        if (rate := metrics.get(constraint.tag(name))) is not None:
            metrics[constraint.tag(name)] = constraint.bound.shown(rate)
    for name in objective.signal_names:
        if faults := sums.get(f"faults/{name}"):
            metrics[f"faults/{name}"] = faults
        if sums.get(f"inapplicable/{name}"):
            metrics[f"inapplicable/{name}"] = sums[f"inapplicable/{name}"] / sums["answers"]
    return metrics


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a policy on a set of prompts.

    Args:
        metrics: by tag, from `behavior_metrics`.
        standard_errors: by tag; left out for a single prompt, or if all prompts agree.
        rates: rates of violation with intervals, by constraint.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    prompts: int = 0
    answers: int = 0
    rates: Mapping[str, ClusteredRate] = field(default_factory=dict)


class RunningSums:
    """`prompt_sums` of an evaluation's batches on this process."""

    def __init__(self) -> None:
        self._batches: list[Mapping[str, Tensor]] = []

    def clear(self) -> None:
        self._batches = []

    def add(self, sums: Mapping[str, Tensor]) -> None:
        self._batches.append(sums)

    def by_prompt(self) -> dict[str, Tensor]:
        """The sums of all prompts of all processes, ``[N]`` each, on the CPU. Collective."""
        parts = gathered([{name: sums.cpu() for name, sums in batch.items()} for batch in self._batches])
        batches = [batch for part in parts for batch in part]
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]} if batches else {}

    def evaluation(self, objective: Objective) -> Evaluation:
        r"""Metrics over all batches and processes. Collective.

        Prompts, not answers, are independent samples. Prompt i has numerator a_i and denominator b_i. The clustered
        standard error of a ratio r = Σ a_i / Σ b_i over n prompts (b_i > 0) is

            sqrt(n / (n - 1) · Σ (a_i - r b_i)²) / Σ b_i

        (Cochran, *Sampling Techniques*, 1977, section 6.3; Miller, *Adding Error Bars to Evals*, 2024).
        """
        if not self._batches:
            return Evaluation()
        rows = {name: torch.cat([batch[name] for batch in self._batches]).double() for name in self._batches[0]}
        prompts = torch.tensor(len(rows["answers"]), device=rows["answers"].device)
        sums = {name: row.sum() for name, row in rows.items()} | moments(objective.constraints, rows)
        total = all_sum_named(sums | {"prompts": prompts})
        metrics = behavior_metrics(objective, total)
        squares = {}
        for tag, parts in _ratios(objective).items():
            if tag in metrics:
                # Each prompt's first-order share of the error; the shares sum to 0.
                shares = [
                    weight * (rows[above] - total[above] / total[below] * rows[below]) / total[below]
                    for weight, above, below in parts
                ]
                squares[tag] = torch.stack(shares).sum(0).square().sum()
                observed = torch.stack([rows[below] > 0 for _, _, below in parts]).any(0)
                squares[f"prompts of {tag}"] = observed.sum()
        squared = all_sum_named(squares)
        counts = {tag: squared[f"prompts of {tag}"] for tag in metrics if tag in squared}
        # No error if all prompts agree, as in a rate of 0.
        errors = {tag: math.sqrt(n / (n - 1) * squared[tag]) for tag, n in counts.items() if n > 1 and squared[tag]}
        rates = clustered_rates(objective.constraints, total, objective.means)
        return Evaluation(metrics, errors, int(total["prompts"]), int(total["answers"]), rates)


def _ratios(objective: Objective) -> dict[str, list[tuple[float, str, str]]]:
    """By tag, terms (weight, numerator, denominator) of a metric; the last two name sums in `prompt_sums`."""
    rewards = {name: (f"sum/{name}", f"count/{name}") for name in objective.rewards}
    ratios = {"reward/mean": [(weight, *rewards[name]) for name, weight in objective.rewards.items()]}
    if len(rewards) > 1:
        ratios |= {f"reward/{name}": [(1.0, *sums)] for name, sums in rewards.items()}
    for name, constraint in objective.constraints.items():
        ratios[constraint.tag(name)] = [(1.0, f"violations/{name}", f"opportunities/{name}")]
    return ratios | {"rollout/length": [(1.0, "steps", "answers")]}


def _in_all_steps(flags: Tensor) -> Tensor:
    return flags if flags.dim() == 2 else flags.all(-1)


def _where(answers: Tensor, values: Tensor) -> Tensor:
    """The values ``[B, G]`` or ``[B, G, T]`` of `answers` ``[B, G]``, otherwise 0."""
    return torch.where(answers if values.dim() == 2 else answers[..., None], values, 0)


def _by_prompt(values: Tensor) -> Tensor:
    return values.double().flatten(1).sum(-1)
