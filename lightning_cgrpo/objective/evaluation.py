"""Evaluation of a policy on a set of prompts: metrics with standard errors, from sums by prompt."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum_named, gathered, gathered_on_first, world
from lightning_cgrpo.core.prompts.fingerprints import cluster_numbers, identities
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.objective.measurement import behavior_metrics, ratios
from lightning_cgrpo.objective.moments import clustered_rates, constraints_of, moments
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.verdicts.clustered import ClusteredRate

IDENTITY = "identity"
"""Name of the `identities` among the sums of prompts."""
CLUSTER = "cluster"
"""Name of the `cluster_numbers` among the sums of prompts."""


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
        names = constraints_of(rows)
        total = all_sum_named({name: row.sum() for name, row in rows.items()} | moments(names, rows))
        return clustered_rates(names, total, means)

    def _samples(self) -> tuple[dict[str, Tensor], int]:
        """The sums of this process's samples, ``[N]`` each, and the number of their different prompts. Collective."""
        first = self._batches[0] if self._batches else {}
        rows = {name: torch.cat([batch[name] for batch in self._batches]).double() for name in first}
        if world()[1] > 1 and _shared_between_processes(rows):
            every = self.by_prompt()  # The first process counts all.
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
        sums = {name: row.sum() for name, row in rows.items()} | moments(objective.constraints, rows)
        device = rows["answers"].device
        sums["prompts"] = torch.tensor(len(rows["answers"]), device=device)
        sums["drawn"] = torch.tensor(drawn, device=device)
        sums["different"] = torch.tensor(different, device=device)
        total = all_sum_named(sums)
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


def _shared_between_processes(rows: Mapping[str, Tensor]) -> bool:
    """True if prompts may be of one sample across processes: equal ones, or of one cluster. Collective.

    Equal prompts on one process count, too.

    Args:
        rows: sums of this process's prompts, empty without any.
    """
    identities_here = rows[IDENTITY].tolist() if rows else []
    clusters_here = rows[CLUSTER].tolist() if rows else []
    all_identities: list[float] = []
    all_clusters: list[float] = []
    for of_identities, of_clusters in gathered((identities_here, clusters_here)):
        all_identities += of_identities
        all_clusters += of_clusters
    return any(len(set(numbers)) < len(numbers) for numbers in (all_identities, all_clusters))


def _errors(objective: Objective, rows: Mapping[str, Tensor], total: Mapping[str, float]) -> dict[str, float]:
    """Clustered standard errors by tag (see `RunningSums.evaluation`). Collective.

    Args:
        rows: sums of this process's samples.
        total: sums over all processes.
    """
    squares = {}
    observed = {tag: parts for tag, parts in ratios(objective).items() if all(total[below] for _, _, below in parts)}
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
