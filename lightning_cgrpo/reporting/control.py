"""The control table: speed of learning, and constraint violations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_cgrpo.reporting import summary
from lightning_cgrpo.reporting.results import REWARD, measured
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import KEPT, NEAR_BEST, REST, TOLERANCE, WINDOW
from lightning_cgrpo.reporting.tables import Cell, Column, Table

MEASURES = {"feasible from": 0, "overshoot": 4, "oscillation": 4, "held": 2}
"""Each constraint's measures, and their decimals."""


def control_table(methods: Sequence[MethodRuns]) -> Table:
    """Learning speed, spread over seeds, and every enforced constraint's `MEASURES`, by method."""
    names = list(dict.fromkeys(name for method in methods for name in method.enforced))
    best = [measured(method, REWARD, lambda run: run.final) for method in methods]
    level = max((summary.near_best(value.mean) for value in best if value is not None), default=math.inf)
    columns = [Column("time to reward", 0), Column("time to feasibility", 0), Column("reward spread", 3)]
    columns += [Column(f"{name}: {measure}", digits) for name in names for measure, digits in MEASURES.items()]
    rows = []
    for method in methods:
        found = [_measures(run, method, names, level) for run in method.runs]
        cells = [Cell(summary.statistic(seeds)) for seeds in zip(*found, strict=True)]
        rewards = method.series(REWARD)
        apart = summary.spread(rewards)
        cells.insert(2, Cell(None if apart is None else summary.Statistic(apart, math.nan, len(rewards))))
        rows.append((method.title, len(method.runs), cells))
    return Table("control", _caption(level), columns, rows)


def _measures(run: Run, method: MethodRuns, names: Sequence[str], level: float) -> list[float | None]:
    reward = run.smooth(REWARD)
    start = summary.time_to(reward, level)
    rates = {name: run.smooth(constraint.tag(name)) for name, constraint in method.enforced.items()}
    met = {name: summary.compliance(rates[name], constraint) for name, constraint in method.enforced.items()}
    values = [start, summary.together(list(met.values()), reward, level) if met else None]
    for name in names:
        kept = summary.control(rates[name], method.enforced[name], run.updates) if name in method.enforced else None
        if kept is None:
            values += [None] * len(MEASURES)
        else:
            values += [summary.kept_from(met[name], start, run.updates), kept.overshoot, kept.oscillation, kept.held]
    return values


def _caption(level: float) -> str:
    where = f"at {level:.3g}, " if math.isfinite(level) else ""
    return (
        f"All of moving averages over {WINDOW} updates (a quarter of runs shorter than {4 * WINDOW}). Time to reward: "
        f"first update with a reward {where}{NEAR_BEST:.0%} below the best final one. Time to feasibility: first "
        f"update at which the reward is there and all enforced rates meet their thresholds (up to {TOLERANCE:.0%} of "
        "the violations that are allowed) at once. Reward spread: standard deviation over seeds, averaged over "
        "training. By constraint: feasible from: first update, with the reward reached before, from which on the "
        f"threshold is met (likewise) in {KEPT:.0%} of the time, for the last {REST:.0%} of the updates at least; and "
        "over the second half of training: overshoot, the largest violation; oscillation, the standard deviation "
        "around the rate's own mean; held, the share that meets the threshold (likewise). In parentheses: of a "
        "method, how far unfinished runs are; of a value, how many of the seeds have it where not all do."
    )
