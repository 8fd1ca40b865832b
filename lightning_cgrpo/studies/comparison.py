"""Variants' differences, paired by seed, and costs."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from lightning_cgrpo.reporting.results import REWARD
from lightning_cgrpo.reporting.tables import plain

CONFIDENCE = 0.95
FEWEST = 3
"""Fewest seeds for an interval."""
TRAINING, TEST = "end of training", "test"
Measured = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Values by variant, seed and tag."""


@dataclass(frozen=True)
class Difference:
    """Mean of a variant's values minus the first variant's, over common seeds.

    Args:
        low: lower end of the confidence interval; None below three seeds.
        high: upper end.
        seeds: their number.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def clear(self) -> bool:
        """True if the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.low is None:
            return f"{self.mean:+.4f}"
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


@dataclass(frozen=True)
class Cost:
    """A run's cost of training; unknown values are None.

    Args:
        answers: number sampled.
        peak_mb: peak memory of the process, in MiB.
    """

    updates: int
    answers: int | None
    cpu_seconds: float | None
    peak_mb: float | None


def difference(first: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Mean of other - first by seed, with Student's t; None without a common seed."""
    pairs = [other[seed] - first[seed] for seed in other if seed in first]
    pairs = [value for value in pairs if not math.isnan(value)]
    if not pairs:
        return None
    mean = fmean(pairs)
    if len(pairs) < FEWEST:
        return Difference(mean, None, None, len(pairs))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1) * stats.sem(np.array(pairs)))
    return Difference(mean, mean - half, mean + half, len(pairs))


def differences(measured: Measured) -> dict[str, dict[str, Difference]]:
    """Differences of reward and rates to the first variant, by variant and tag."""
    names = list(measured)
    found: dict[str, dict[str, Difference]] = {}
    for name in names[1:]:
        found[name] = {}
        for tag in tags_of(measured):
            apart = difference(_of(measured[names[0]], tag), _of(measured[name], tag))
            if apart is not None:
                found[name][tag] = apart
    return found


def tags_of(measured: Measured) -> list[str]:
    """Tags of the reward and of all rates."""
    tags = dict.fromkeys(tag for seeds in measured.values() for values in seeds.values() for tag in values)
    return [*(tag for tag in tags if tag == REWARD), *(tag for tag in tags if tag.startswith(("rate/", "mean/")))]


def differences_text(measured: Measured, where: str) -> str:
    """`differences` as a Markdown table under its caption; `where` is their origin."""
    first = next(iter(measured))
    found, tags = differences(measured), tags_of(measured)
    caption = (
        f"Differences to {plain(first)}, {where}: mean over the seeds that both variants have"
        + f", with {CONFIDENCE:.0%} confidence intervals (Student's t over the seeds' differences; none with fewer "
        + f"than {FEWEST} seeds). Bold: the interval leaves 0 out."
    )
    heads = ["variant", "seeds", *(_title(tag) for tag in tags)]
    rows = []
    for name, apart in found.items():
        counts = sorted({one.seeds for one in apart.values()})
        cells = [apart.get(tag) for tag in tags]
        texts = ["-" if one is None else f"**{one}**" if one.clear else str(one) for one in cells]
        rows.append(
            [plain(name), " to ".join(map(str, dict.fromkeys((counts or [0])[:: max(len(counts) - 1, 1)]))), *texts]
        )
    return _table(caption, heads, rows)


def cost_text(costs: Mapping[str, Mapping[int, Cost]], measured: Measured) -> str:
    """A Markdown table: cost beside reward, means over seeds."""
    caption = (
        "Cost of training a run, beside its reward at the end of training: means over seeds. Answers are the rollouts "
        "that were sampled, without groups that were sampled again."
    )
    heads = ["variant", "seeds", "reward", "updates", "answers", "CPU seconds", "peak memory, MB"]
    rows = []
    for name, seeds in costs.items():
        rewards = list(_of(measured.get(name, {}), REWARD).values())
        columns = [
            [getattr(cost, key) for cost in seeds.values()] for key in ("updates", "answers", "cpu_seconds", "peak_mb")
        ]
        texts = [_mean(values, len(seeds)) for values in columns]
        rows.append([plain(name), str(len(seeds)), f"{fmean(rewards):.3f}" if rewards else "-", *texts])
    return _table(caption, heads, rows)


def write_csv(path: Path, measured: Mapping[str, Measured], costs: Mapping[str, Mapping[int, Cost]]) -> None:
    """Write ``differences.csv`` with all digits, and each run's ``cost.csv`` row, into `path`."""
    with (path / "differences.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "first", "measured", "value", "seeds", "difference", "low", "high"])
        for where, values in measured.items():
            for name, apart in differences(values).items():
                for tag, one in apart.items():
                    writer.writerow([name, next(iter(values)), where, tag, one.seeds, one.mean, one.low, one.high])
    with (path / "cost.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "seed", "updates", "answers", "cpu_seconds", "peak_mb"])
        for name, seeds in costs.items():
            for seed, cost in seeds.items():
                writer.writerow([name, seed, cost.updates, cost.answers, cost.cpu_seconds, cost.peak_mb])


def _of(seeds: Mapping[int, Mapping[str, float]], tag: str) -> dict[int, float]:
    return {seed: values[tag] for seed, values in seeds.items() if tag in values}


def _mean(values: Sequence[Any], seeds: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{fmean(known):,.0f}" + (f" ({len(known)}/{seeds})" if len(known) < seeds else "")


def _title(tag: str) -> str:
    return "reward" if tag == REWARD else plain(tag.replace("/", " "))


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [caption, "", _row(heads), "|---|" + "---:|" * (len(heads) - 1), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
