"""Variants' differences, paired by seed, and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import stats

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.results import MEASURED, REWARD, Values, final_of, logged_tags, tests_of
from lightning_cgrpo.cli.report.tables import grid, plain

CONFIDENCE = 0.95
FEWEST = 3
"""Fewest seeds for an interval."""
COSTS = {"updates": "updates", "answers": "answers", "cpu_seconds": "CPU seconds", "peak_mb": "peak memory, MB"}


class Difference(NamedTuple):
    """Mean of a variant's values minus the first variant's, over common seeds.

    Args:
        half: half the width of the confidence interval; infinite below three seeds.
    """

    mean: float
    half: float
    seeds: int

    def __str__(self) -> str:
        if self.half == math.inf:
            return f"{self.mean:+.4f}"
        text = f"{self.mean:+.4f} ({self.mean - self.half:+.4f} to {self.mean + self.half:+.4f})"
        return f"**{text}**" if abs(self.mean) > self.half else text


def difference(first: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Mean of other - first by seed, with Student's t; None without a common seed."""
    differences = [other[seed] - first[seed] for seed in other if seed in first]
    differences = [value for value in differences if not math.isnan(value)]
    if not differences:
        return None
    half = math.inf
    if len(differences) >= FEWEST:
        quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(differences) - 1)
        half = float(quantile * stats.sem(np.array(differences)))
    return Difference(fmean(differences), half, len(differences))


def sections(methods: Sequence[MethodRuns]) -> list[str]:
    """Markdown of the variants' differences to the first variant, and of their costs."""
    parts = []
    if len(methods) > 1:
        parts.append("## Differences between variants\n")
        for where, values in (("end of training", final_of), ("test", tests_of("test/"))):
            tags = logged_tags(methods, values)
            if tags:
                parts.append(_difference_table(methods, where, values, tags))
    return [*parts, "## Cost\n", _cost_table(methods)]


def _difference_table(methods: Sequence[MethodRuns], where: str, values: Values, logged: Sequence[str]) -> str:
    """Markdown of a row per variant but the first, with its difference in reward and in each measured constraint."""
    tags = [REWARD] if REWARD in logged else []
    tags += [tag for tag in logged if tag.startswith(MEASURED)]
    first, *others = methods
    caption = (
        f"Differences to {plain(first.label)}, {where}: mean over the seeds that both variants have"
        f", with {CONFIDENCE:.0%} confidence intervals (Student's t over the seeds' differences; none with fewer "
        f"than {FEWEST} seeds). Bold: the interval leaves 0 out."
    )
    heads = ["variant", "seeds"]
    for tag in tags:
        heads.append("reward" if tag == REWARD else plain(tag.replace("/", " ")))
    rows = []
    for method in others:
        cells = []
        counts = set()  # numbers of common seeds, which differ where a run lacks a tag
        for tag in tags:
            apart = difference(_by_seed(first, values, tag), _by_seed(method, values, tag))
            if apart is None:
                cells.append("-")
            else:
                cells.append(str(apart))
                counts.add(apart.seeds)
        fewest = min(counts, default=0)
        most = max(counts, default=0)
        seeds = str(fewest) if fewest == most else f"{fewest} to {most}"
        rows.append([plain(method.label), seeds, *cells])
    return grid(caption, heads, rows)


def _by_seed(method: MethodRuns, values: Values, tag: str) -> dict[int, float]:
    by_seed = {}
    for run in method.runs:
        if run.seed is not None and tag in values(run):
            by_seed[run.seed] = values(run)[tag]
    return by_seed


def _cost_table(methods: Sequence[MethodRuns]) -> str:
    """Markdown of a row per variant, with its costs and its reward."""
    caption = (
        "Cost of training a run, beside its reward at the end of training: means over seeds. Answers are the rollouts "
        "that were sampled, without groups that were sampled again."
    )
    rows = []
    for method in methods:
        rewards = [run.final[REWARD] for run in method.runs if REWARD in run.final]
        reward = f"{fmean(rewards):.3f}" if rewards else "-"
        row = [plain(method.label), str(len(method.runs)), reward]
        for key in COSTS:
            costs = [getattr(run.record, key) for run in method.runs]
            known = [cost for cost in costs if cost is not None]
            # The number of seeds follows if some runs have no record of the cost.
            cell = f"{fmean(known):,.0f}" if known else "-"
            if 0 < len(known) < len(costs):
                cell += f" ({len(known)}/{len(costs)})"
            row.append(cell)
        rows.append(row)
    return grid(caption, ["variant", "seeds", "reward", *COSTS.values()], rows)
