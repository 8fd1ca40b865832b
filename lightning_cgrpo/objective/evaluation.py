"""Evaluation of a policy on a set of prompts: metrics with standard errors, from sums by prompt."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import all_sum_named, gather_objects, gather_objects_on_first, world
from lightning_cgrpo.core.prompts.fingerprints import cluster_numbers, identities
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.objective.measurement import behavior_metrics, ratio_terms
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
        batches_here = []
        for batch in self._batches:
            batches_here.append({name: sums.cpu() for name, sums in batch.items()})
        batches_of_processes = gather_objects_on_first(batches_here)
        if batches_of_processes is None:
            return None
        batches: list[dict[str, Tensor]] = []
        for of_process in batches_of_processes:
            batches += of_process
        return _concatenated(batches)

    def rates(self, means: Container[str]) -> dict[str, ClusteredRate]:
        """`clustered_rates` of the `best_sums` of all batches and processes. Collective."""
        rows, _ = self._sample_sums()
        names = constraints_of(rows)
        sums = {name: row.sum() for name, row in rows.items()}
        total = all_sum_named(sums | moments(names, rows))
        return clustered_rates(names, total, means)

    def _sample_sums(self) -> tuple[dict[str, Tensor], int]:
        """The sums of this process's samples, ``[N]`` each, and the number of their different prompts. Collective."""
        rows = {name: values.double() for name, values in _concatenated(self._batches).items()}
        _, processes = world()
        if processes > 1 and _shared_between_processes(rows):
            # A sample may have prompts on several processes, so the first process counts all.
            all_rows = self.by_prompt()
            for name, values in rows.items():
                rows[name] = values[:0] if all_rows is None else all_rows[name].to(values)
        if not rows:
            return {}, 0
        # Sum the prompts of each sample.
        identity = rows.pop(IDENTITY)
        cluster = rows.pop(CLUSTER)
        sample_count, sample_of_prompt = number_samples(identity, cluster)
        if sample_count < len(sample_of_prompt):
            for name, values in rows.items():
                rows[name] = values.new_zeros(sample_count).index_add(0, sample_of_prompt, values)
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
        rows, different = self._sample_sums()
        drawn = sum(len(batch[IDENTITY]) for batch in self._batches)
        # Sums over this process's samples, then over all processes in one message.
        sums = {name: row.sum() for name, row in rows.items()} | moments(objective.constraints, rows)
        device = rows["answers"].device
        sums["prompts"] = torch.tensor(len(rows["answers"]), device=device)
        sums["drawn"] = torch.tensor(drawn, device=device)
        sums["different"] = torch.tensor(different, device=device)
        total = all_sum_named(sums)
        metrics = behavior_metrics(objective, total)
        return Evaluation(
            metrics,
            standard_errors=_standard_errors(objective, rows, total),
            prompts=int(total["prompts"]),
            answers=int(total["answers"]),
            rates=clustered_rates(objective.constraints, total, objective.means),
            repeats=int(total["drawn"]) - int(total["prompts"]),
            assumed=self.assumed,
            different=int(total["different"]),
        )


def _concatenated(batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sums of all batches by name, empty without a batch."""
    if not batches:
        return {}
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


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
    for process_identities, process_clusters in gather_objects((identities_here, clusters_here)):
        all_identities += process_identities
        all_clusters += process_clusters
    repeats = len(set(all_identities)) < len(all_identities)
    same_clusters = len(set(all_clusters)) < len(all_clusters)
    return repeats or same_clusters


def _standard_errors(objective: Objective, rows: Mapping[str, Tensor], total: Mapping[str, float]) -> dict[str, float]:
    """Clustered standard errors by tag (see `RunningSums.evaluation`). Collective.

    Args:
        rows: sums of this process's samples.
        total: sums over all processes.
    """
    # Squares of the prompts' shares of the error, and the number of prompts with opportunities.
    sums: dict[str, Tensor] = {}
    observed_tags: list[str] = []
    for tag, terms in ratio_terms(objective).items():
        if not all(total[denominator] for _, _, denominator in terms):
            continue
        observed_tags.append(tag)
        shares = []  # [N] of each term
        observed = []  # [N] bool of each term
        for weight, numerator, denominator in terms:
            # Each prompt's first-order share of the error; the shares sum to 0.
            ratio = total[numerator] / total[denominator]
            shares.append(weight * (rows[numerator] - ratio * rows[denominator]) / total[denominator])
            observed.append(rows[denominator] > 0)
        sums[tag] = torch.stack(shares).sum(0).square().sum()
        sums[f"prompts of {tag}"] = torch.stack(observed).any(0).sum()
    total_sums = all_sum_named(sums)
    errors: dict[str, float] = {}
    for tag in observed_tags:
        prompts = total_sums[f"prompts of {tag}"]
        squares = total_sums[tag]
        if prompts > 1 and squares:  # no error if all prompts agree, as in a rate of 0
            errors[tag] = math.sqrt(prompts / (prompts - 1) * squares)
    return errors


def number_samples(identity: Tensor, cluster: Tensor) -> tuple[int, Tensor]:
    """The number of independent samples, and the sample's number ``[N]`` of each of N prompts.

    Prompts with the same `identities` or of the same cluster are one sample, as are those that are so through others.
    """
    from scipy.sparse import coo_array  # slow to import, and not needed at a start
    from scipy.sparse.csgraph import connected_components

    # A graph of different prompts and clusters, in which each prompt is connected with its cluster.
    distinct, prompt_nodes = identity.unique(return_inverse=True)
    clusters, cluster_of_prompt = cluster.unique(return_inverse=True)
    cluster_nodes = cluster_of_prompt + len(distinct)
    edges = torch.stack([prompt_nodes, cluster_nodes]).cpu().numpy()  # [2, N]
    nodes = len(distinct) + len(clusters)
    graph = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(nodes, nodes))
    # A sample is a connected part of the graph.
    sample_count, sample_of_node = connected_components(graph, directed=False)
    return int(sample_count), torch.from_numpy(sample_of_node).long().to(prompt_nodes.device)[prompt_nodes]
