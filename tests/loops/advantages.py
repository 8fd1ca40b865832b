"""Plain loops over answers: advantages ``[B, G]`` of each estimator."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean, stdev

from tests.generated import Batch, Run
from tests.loops.components import group, spread, weighted
from tests.loops.counts import Values


def scalarized_advantages(run: Run, batch: Batch) -> Values:
    """The paper's, equation 5: the sum of weighted standardized components."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            members = part.group(b)
            std = spread(list(members.values()))
            for g, value in members.items():
                total[b, g] += weight * (value - fmean(members.values())) / std if std else 0.0
    return total


def pooled_advantages(runs: Iterable[Run]) -> Iterator[Values]:
    """The default: excess over a baseline without the answer, over one deviation for each component; by update."""
    squares, numbers = defaultdict(float), 0.0
    for run in runs:
        [batch] = run.batches
        parts = weighted(run, batch)
        used = {at for _, part in parts for at in part.sums}
        numbers = 0.95 * numbers + len(used)
        total: Values = dict.fromkeys(used, 0.0)
        for j, (weight, part) in enumerate(parts):
            overall = fmean(part.sums.values()) if part.sums else 0.0
            excess, fresh = {}, 0.0
            for b in range(batch.shape[0]):
                members = part.group(b)
                for g, value in members.items():
                    others = [members[other] for other in members if other != g]
                    if len(members) < batch.shape[1]:  # the mean of all prompts is one more value
                        others.append(overall)
                    excess[b, g] = value - fmean(others)
                    fresh += excess[b, g] ** 2 / (1 + (len(members) - 1) / len(others) ** 2)
            squares[j] = 0.95 * squares[j] + fresh
            deviation = math.sqrt(squares[j] / numbers) if numbers else 0.0
            deviation = max(deviation, math.sqrt(fresh / len(used)) / 2 if used else 0.0)
            for at, value in excess.items():
                total[at] += weight * value / deviation if deviation > 1e-9 else 0.0
        yield total


def deviations(run: Run, batch: Batch) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """By answer, the weight and the deviation from its group's mean of each component that applies."""
    out = defaultdict(list)
    for weight, part in weighted(run, batch):
        for at, value in part.sums.items():
            out[at].append((weight, value - fmean(part.group(at[0]).values())))
    return out


def scalarized_rewards(run: Run, batch: Batch, over_batch: bool) -> Values:
    """The sum of weighted components, standardized by the deviation of its group, or of the batch."""
    total = {at: sum(weight * value for weight, value in parts) for at, parts in deviations(run, batch).items()}
    raw: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for at, value in part.sums.items():
            raw[at] += weight * value
    out = {}
    for at, value in total.items():
        std = spread(list(group(total, at[0]).values()))
        if over_batch:
            std = stdev(raw.values()) if len(raw) > 1 else 0.0
        out[at] = value / std if std > 1e-7 else 0.0
    return out


def leave_one_out(run: Run, batch: Batch) -> Values:
    """The sum of weighted components, each minus the mean of the group's other answers."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for (b, g), value in part.sums.items():
            others = [other for i, other in part.group(b).items() if i != g]
            total[b, g] += weight * (value - fmean(others)) if others else 0.0
    return total


def gdpo(run: Run, batch: Batch, eps: float) -> Values:
    """The formula of the public code: components by their sample deviation, and the sum whitened over the batch."""
    total: Values = defaultdict(float)
    for weight, part in weighted(run, batch):
        for b in range(batch.shape[0]):
            members = part.group(b)
            for g, value in members.items():
                std = stdev(members.values()) if len(members) > 1 else 0.0
                total[b, g] += weight * (value - fmean(members.values())) / (std + eps)
    if len(total) < 2:
        return dict.fromkeys(total, 0.0)
    mean, std = fmean(total.values()), stdev(total.values())
    return {at: (value - mean) / (std + eps) for at, value in total.items()}
