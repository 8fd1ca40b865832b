"""Rewards, behavior rates and lengths: sums and metrics by tag."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum_named, gathered, gathered_on_first, on_host, world
from lightning_cgrpo.core.prompts.fingerprints import cluster_numbers, identities
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal, Signals, over_steps
from lightning_cgrpo.objective.moments import clustered_rates, moments
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.subsets import key
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

EVERY = "every threshold"
"""Name of the rate of prompts without an answer that meets the thresholds of all enforced constraints."""


IDENTITY = "identity"
"""Name of the `identities` among the sums of prompts."""
CLUSTER = "cluster"
"""Name of the `cluster_numbers` among the sums of prompts."""


def isolate_faults(signals: Signals) -> tuple[dict[str, Signal], dict[str, Tensor]]:
    """Make answers with non-finite values or counts inapplicable (and 0).

    Returns the signals, and the number of such answers ``[B]`` by signal.
    """
    masks = {name: _finite(signal) for name, signal in signals.items()}
    some = on_host(*((~finite).any() for finite in masks.values()))
    clean = dict(signals)
    for (name, finite), faulty in zip(masks.items(), some, strict=True):
        if faulty:
            signal = signals[name]
            applicable = finite if signal.applicable is None else signal.applicable & finite
            clean[name] = replace(signal.where(finite), applicable=applicable)
    return clean, {name: _by_prompt(~finite) for name, finite in masks.items()}


def _finite(signal: Signal) -> Tensor:
    """``[B, G]`` bool: answers whose value and counts are finite, or inapplicable."""
    parts = [part.isfinite() for part in (signal.value, signal.count, signal.opportunities) if part is not None]
    finite = torch.stack([part if part.dim() == 2 else part.all(-1) for part in parts]).all(0)
    return finite if signal.applicable is None else finite | ~signal.applicable


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
    sums = {"answers": _by_prompt(torch.ones_like(answers)), "steps": _by_prompt(rollouts.mask)}
    for name, pair in (objective.counts(signals) if counts is None else counts).items():
        sums[f"violations/{name}"], sums[f"opportunities/{name}"] = pair
        signal = signals.get(key(name, objective.constraints[name]))
        sums[f"most/{name}"] = sums["answers"] * most_opportunities(signal, longest or rollouts.mask.shape[-1])
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
        signal = signals[key(name, constraint)]
        counts = constraint.violations(signal)
        violations, opportunities = (over_steps(count).double() for count in counts)  # [B, G]
        excess = violations - constraint.bound.target * opportunities
        best = excess.argmin(-1, keepdim=True)
        rows[f"violations/{name}"] = violations.gather(-1, best).squeeze(-1)
        rows[f"opportunities/{name}"] = opportunities.gather(-1, best).squeeze(-1)
        most = most_opportunities(signal, longest or signal.value.shape[-1])
        rows[f"most/{name}"] = torch.full_like(rows[f"opportunities/{name}"], most)
        if constraint.role == "constrain":
            meets = excess <= 0 if meets is None else meets & (excess <= 0)
    if meets is not None:
        none = ~meets.any(-1)
        every = torch.ones_like(none).double()
        rows |= {f"violations/{EVERY}": none.double(), f"opportunities/{EVERY}": every, f"most/{EVERY}": every}
    return rows


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
        if (rate := metrics.get(constraint.bound.tag(name))) is not None:
            metrics[constraint.bound.tag(name)] = constraint.bound.shown(rate)
    for name in objective.signal_names:
        if faults := sums.get(f"faults/{name}"):
            metrics[f"faults/{name}"] = faults
        if sums.get(f"inapplicable/{name}"):
            metrics[f"inapplicable/{name}"] = sums[f"inapplicable/{name}"] / sums["answers"]
    return metrics


def evaluation_tags(objective: Objective) -> list[str]:
    """The tags of `behavior_metrics` that do not depend on faults."""
    return list(_ratios(objective))


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
    prompts: int = 0  # independent ones: repeats of a prompt are one, as are prompts of one sample or cluster
    answers: int = 0
    rates: Mapping[str, ClusteredRate] = field(default_factory=dict)
    repeats: int = 0  # prompts beyond `prompts`, equal to one of them, or of its sample or cluster
    assumed: bool = False  # whether prompts are taken to be independent, because their clusters are not known
    different: int = 0  # different prompts, of which those of one cluster are one of `prompts`


class RunningSums:
    """Sums by prompt of an evaluation's batches on this process."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._batches: list[Mapping[str, Tensor]] = []
        self.assumed = False
        """Whether prompts are taken to be independent, because their clusters are not known."""

    def add(self, sums: Mapping[str, Tensor], prompts: PromptGroups, rollouts: Rollouts | None = None) -> None:
        """Add a batch's `prompt_sums` or `best_sums`; prompts that give `rollouts` equal tokens are repeats.

        Prompts of one sample (`PromptGroups.sample`) are repeats, too, as are those of one cluster.
        """
        device = next((values.device for values in sums.values()), None)
        numbers = identities(prompts, rollouts)
        if prompts.sample is not None:
            numbers = numbers[prompts.sample.cpu()]
        clusters = cluster_numbers(prompts, numbers)
        self.assumed = self.assumed or prompts.clusters is None
        self._batches.append({IDENTITY: numbers.to(device), CLUSTER: clusters.to(device), **sums})

    def extend(self, other: RunningSums) -> None:
        """Add another's batches."""
        self._batches += other._batches
        self.assumed = self.assumed or other.assumed

    def by_prompt(self) -> dict[str, Tensor] | None:
        """The sums of all prompts of all processes, ``[N]`` each, on the CPU; None but on the first. Collective."""
        parts = gathered_on_first([{name: sums.cpu() for name, sums in batch.items()} for batch in self._batches])
        if parts is None:
            return None
        batches = [batch for part in parts for batch in part]
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]} if batches else {}

    def rates(self, means: Container[str]) -> dict[str, ClusteredRate]:
        """`clustered_rates` of the `best_sums` of all batches and processes. Collective."""
        rows, _ = self._samples()
        names = [name.removeprefix("violations/") for name in rows if name.startswith("violations/")]
        total = all_sum_named({name: row.sum() for name, row in rows.items()} | moments(names, rows))
        return clustered_rates(names, total, means)

    def _samples(self) -> tuple[dict[str, Tensor], int]:
        """The sums of this process's samples, ``[N]`` each, and the number of their different prompts. Collective."""
        first = self._batches[0] if self._batches else {}
        rows = {name: torch.cat([batch[name] for batch in self._batches]).double() for name in first}
        if world()[1] > 1:
            here = [rows[name].tolist() for name in (IDENTITY, CLUSTER)] if rows else [[], []]
            parts = gathered(here)
            everywhere = [[number for part in parts for number in part[kind]] for kind in (0, 1)]
            if any(len(set(numbers)) < len(numbers) for numbers in everywhere):  # The first process counts all.
                every = self.by_prompt()
                rows = {n: values[:0] if every is None else every[n].to(values) for n, values in rows.items()}
        if not rows:
            return {}, 0
        identity, cluster = rows.pop(IDENTITY), rows.pop(CLUSTER)
        distinct, numbers = samples(identity, cluster)
        if distinct < len(numbers):
            rows = {n: values.new_zeros(distinct).index_add(0, numbers, values) for n, values in rows.items()}
        return rows, len(identity.unique())

    def evaluation(self, objective: Objective) -> Evaluation:
        r"""Metrics over all batches and processes. Collective.

        Prompts, not answers, are independent samples; repeats of a prompt are one, as are prompts of one sample, such
        as the two frames of a scene, or of one cluster, such as the scenes of a log. Prompt i has numerator a_i and
        denominator b_i. The clustered standard error of a ratio r = Σ a_i / Σ b_i over n prompts (b_i > 0) is

            sqrt(n / (n - 1) · Σ (a_i - r b_i)²) / Σ b_i

        (Cochran, *Sampling Techniques*, 1977, section 6.3; Miller, *Adding Error Bars to Evals*, 2024).
        """
        if not self._batches:
            return Evaluation()
        rows, different = self._samples()
        drawn = sum(len(batch[IDENTITY]) for batch in self._batches)
        numbers = torch.tensor([len(rows["answers"]), drawn, different], device=rows["answers"].device)
        sums = {name: row.sum() for name, row in rows.items()} | moments(objective.constraints, rows)
        total = all_sum_named(sums | dict(zip(("prompts", "drawn", "different"), numbers, strict=True)))
        metrics = behavior_metrics(objective, total)
        return Evaluation(
            metrics,
            standard_errors=_errors(objective, rows, total),
            prompts=int(total["prompts"]),
            answers=int(total["answers"]),
            rates=clustered_rates(objective.constraints, total, objective.means),
            repeats=int(total["drawn"]) - int(total["prompts"]),
            assumed=self.assumed,
            different=int(total["different"]),
        )


def _errors(objective: Objective, rows: Mapping[str, Tensor], total: Mapping[str, float]) -> dict[str, float]:
    """Clustered standard errors by tag (see `RunningSums.evaluation`). Collective.

    Args:
        rows: sums of this process's samples.
        total: sums over all processes.
    """
    squares = {}
    ratios = _ratios(objective).items()
    observed = {tag: parts for tag, parts in ratios if all(total[below] for _, _, below in parts)}
    for tag, parts in observed.items():
        # Each prompt's first-order share of the error; the shares sum to 0.
        shares = [
            weight * (rows[above] - total[above] / total[below] * rows[below]) / total[below]
            for weight, above, below in parts
        ]
        squares[tag] = torch.stack(shares).sum(0).square().sum()
        squares[f"prompts of {tag}"] = torch.stack([rows[below] > 0 for _, _, below in parts]).any(0).sum()
    squared = all_sum_named(squares)
    errors = {}
    for tag in observed:
        prompts = squared[f"prompts of {tag}"]
        if prompts > 1 and squared[tag]:  # no error if all prompts agree, as in a rate of 0
            errors[tag] = math.sqrt(prompts / (prompts - 1) * squared[tag])
    return errors


def samples(identity: Tensor, cluster: Tensor) -> tuple[int, Tensor]:
    """The number of independent samples, and the sample's number ``[N]`` of each of N prompts.

    Prompts with the same `identities` or of the same cluster are one sample, as are those that are so through others.
    """
    from scipy.sparse import coo_array  # slow to import, and not needed at a start
    from scipy.sparse.csgraph import connected_components

    distinct, prompts = identity.unique(return_inverse=True)
    clusters, places = cluster.unique(return_inverse=True)
    edges = torch.stack([prompts, places + len(distinct)]).cpu().numpy()
    nodes = len(distinct) + len(clusters)
    graph = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(nodes, nodes))
    number, labels = connected_components(graph, directed=False)
    return int(number), torch.from_numpy(labels).long().to(prompts.device)[prompts]


def _ratios(objective: Objective) -> dict[str, list[tuple[float, str, str]]]:
    """By tag, terms (weight, numerator, denominator) of a metric; the last two name sums in `prompt_sums`."""
    rewards = {name: (f"sum/{name}", f"count/{name}") for name in objective.rewards}
    ratios = {"reward/mean": [(weight, *rewards[name]) for name, weight in objective.rewards.items()]}
    if len(rewards) > 1:
        ratios |= {f"reward/{name}": [(1.0, *sums)] for name, sums in rewards.items()}
    for name, constraint in objective.constraints.items():
        ratios[constraint.bound.tag(name)] = [(1.0, f"violations/{name}", f"opportunities/{name}")]
    return ratios | {"rollout/length": [(1.0, "steps", "answers")]}


def _by_prompt(values: Tensor) -> Tensor:
    return values.double().flatten(1).sum(-1)
