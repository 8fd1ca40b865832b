"""Variants' differences, paired by seed, and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from scipy import stats

from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.results import MEASURED, REWARD, Values, final_of, tests_of
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
    pairs = [other[seed] - first[seed] for seed in other if seed in first]
    pairs = [value for value in pairs if not math.isnan(value)]
    half = math.inf
    if len(pairs) >= FEWEST:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1) * stats.sem(np.array(pairs)))
    return Difference(fmean(pairs), half, len(pairs)) if pairs else None


def sections(methods: Sequence[MethodRuns]) -> list[str]:
    """Markdown of the variants' differences to the first variant, and of their costs."""
    parts = ["## Differences between variants\n"] if len(methods) > 1 else []
    for where, values in (("end of training", final_of), ("test", tests_of("test/"))):
        if len(methods) > 1 and any(values(run) for method in methods for run in method.runs):
            parts.append(_differences(methods, where, values))
    return [*parts, "## Cost\n", _costs(methods)]


def _differences(methods: Sequence[MethodRuns], where: str, values: Values) -> str:
    logged = list(dict.fromkeys(tag for method in methods for run in method.runs for tag in values(run)))
    tags = [*(tag for tag in logged if tag == REWARD), *(tag for tag in logged if tag.startswith(MEASURED))]
    first, *others = methods
    caption = (
        f"Differences to {plain(first.label)}, {where}: mean over the seeds that both variants have"
        f", with {CONFIDENCE:.0%} confidence intervals (Student's t over the seeds' differences; none with fewer "
        f"than {FEWEST} seeds). Bold: the interval leaves 0 out."
    )
    heads = ["variant", "seeds", *("reward" if tag == REWARD else plain(tag.replace("/", " ")) for tag in tags)]
    rows = []
    for method in others:
        apart = [difference(_by_seed(first, values, tag), _by_seed(method, values, tag)) for tag in tags]
        counts = sorted({one.seeds for one in apart if one is not None}) or [0]
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        rows.append([plain(method.label), seeds, *("-" if one is None else str(one) for one in apart)])
    return grid(caption, heads, rows)


def _by_seed(method: MethodRuns, values: Values, tag: str) -> dict[int, float]:
    return {run.seed: values(run)[tag] for run in method.runs if run.seed is not None and tag in values(run)}


def _costs(methods: Sequence[MethodRuns]) -> str:
    caption = (
        "Cost of training a run, beside its reward at the end of training: means over seeds. Answers are the rollouts "
        "that were sampled, without groups that were sampled again."
    )
    rows = []
    for method in methods:
        rewards = [run.final[REWARD] for run in method.runs if REWARD in run.final]
        row = [plain(method.label), str(len(method.runs)), f"{fmean(rewards):.3f}" if rewards else "-"]
        for key in COSTS:
            spent = [getattr(run.record, key) for run in method.runs if getattr(run.record, key) is not None]
            some = f" ({len(spent)}/{len(method.runs)})" if 0 < len(spent) < len(method.runs) else ""
            row.append(f"{fmean(spent):,.0f}{some}" if spent else "-")
        rows.append(row)
    return grid(caption, ["variant", "seeds", "reward", *COSTS.values()], rows)
