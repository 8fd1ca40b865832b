"""The tables of a report: final values, how constraints were kept, and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_cgrpo.constraint import Constraint
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import (
    NEAR_BEST,
    TOLERANCE,
    WINDOW,
    Control,
    Statistic,
    near_best,
    spread,
    statistic,
    time_to,
    tolerance,
    violation,
)
from lightning_cgrpo.reporting.tables import Cell, Column, Table

REWARD = "reward/mean"
RULE = (
    f"Bold: the highest reward among the methods whose constrained rates meet their thresholds (up to "
    f"{TOLERANCE:.0%} of the violations that are allowed). !: the rate violates its threshold by more than that."
)
Values = Callable[[Run], dict[str, float]]


def measured(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
    """A tag's value over the seeds of a method."""
    return statistic([values(run).get(tag) for run in method.runs])


def violates(value: Statistic | None, constraint: Constraint) -> bool:
    """Whether a mean rate is beyond its threshold and the tolerance."""
    if value is None or constraint.bound is None:
        return False
    return violation(value.mean, constraint) > tolerance(constraint) + 1e-9


def feasible(method: MethodRuns, values: Values) -> bool:
    """Whether all constraints that a method enforces were measured and are met by their means over seeds."""
    rates = {name: measured(method, f"rate/{name}", values) for name in method.enforced}
    return all(
        rates[name] is not None and not violates(rates[name], constraint)
        for name, constraint in method.enforced.items()
    )


def final_table(methods: Sequence[MethodRuns], last: float) -> Table:
    """Reward, rates, multipliers and mean effective weights at the end of training."""

    def values(run: Run) -> dict[str, float]:
        return run.final

    caption = f"Mean ± standard deviation over seeds of the means over the last {_share(last)} of the updates. {RULE}"
    families = ("reward/", "rate/", "multiplier/", "effective_weight/")
    return _values_table("final", caption, methods, values, families)


def test_table(methods: Sequence[MethodRuns]) -> Table | None:
    """The tests' values; none if nothing was tested."""
    methods = [method for method in methods if any(_tested(run) for run in method.runs)]
    if not methods:
        return None
    caption = f"Test: mean ± standard deviation over seeds. {RULE}"
    return _values_table("test", caption, methods, _tested, ("reward/", "rate/", "rollout/"))


def _tested(run: Run) -> dict[str, float]:
    return {tag.removeprefix("test/"): v for tag, v in run.evaluations.items() if tag.startswith("test/")}


def _values_table(
    name: str, caption: str, methods: Sequence[MethodRuns], values: Values, families: Sequence[str]
) -> Table:
    found = list(dict.fromkeys(tag for method in methods for run in method.runs for tag in values(run)))
    tags = [tag for family in families for tag in _ordered(found, family, methods)]
    able = [m for m in methods if feasible(m, values) and measured(m, REWARD, values) is not None]
    best = max((v.mean for m in able if (v := measured(m, REWARD, values)) is not None), default=None)
    columns = [Column(_title(tag, methods), _decimals(tag, methods, values)) for tag in tags]
    rows = []
    for method in methods:
        cells = []
        for tag in tags:
            value = measured(method, tag, values)
            constraint = method.constraints.get(tag.removeprefix("rate/")) if tag.startswith("rate/") else None
            marked = constraint is not None and violates(value, constraint)
            bold = tag == REWARD and method in able and value is not None and value.mean == best
            cells.append(Cell(value, bold, marked))
        rows.append((method.label, len(method.runs), cells))
    return Table(name, caption, columns, rows)


def _ordered(tags: Sequence[str], family: str, methods: Sequence[MethodRuns]) -> list[str]:
    """A family's tags: the reward first, then constraints as they are declared."""
    order = ["mean", "reward", *(name for method in methods for name in method.constraints)]
    found = [tag for tag in tags if tag.startswith(family)]
    names = [tag.removeprefix(family) for tag in found]
    rank = [order.index(name) if name in order else len(order) for name in names]
    return [tag for _, tag in sorted(zip(rank, found, strict=True), key=lambda pair: pair[0])]


def _title(tag: str, methods: Sequence[MethodRuns]) -> str:
    family, _, name = tag.partition("/")
    if tag == REWARD:
        return "reward"
    if family != "rate":
        return f"{family.replace('_', ' ')} {name}"
    bounds = {_bound(m.constraints[name]) for m in methods if name in m.constraints}
    return f"rate {name} {bounds.pop()}".strip() if len(bounds) == 1 else f"rate {name}"


def _bound(constraint: Constraint) -> str:
    if constraint.bound is None:
        return ""
    return f"{'≤' if constraint.at_least is None else '≥'} {constraint.bound:g}"


def _decimals(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    found = [abs(v.mean) for m in methods if (v := measured(m, tag, values)) is not None]
    return 1 if max(found, default=0.0) >= 10 else 3


def control_table(methods: Sequence[MethodRuns]) -> Table:
    """How constraints were kept, and how fast and how alike the seeds learned."""
    names = list(dict.fromkeys(name for method in methods for run in method.runs for name in run.control))
    finals = [v.mean for m in methods if (v := measured(m, REWARD, lambda run: run.final)) is not None]
    level = near_best(max(finals)) if finals else None
    reached = f"{level:.3g}" if level is not None else "it"
    caption = (
        f"Time to reward: first update with a reward above {reached}, {NEAR_BEST:.0%} below the best final one (of "
        "binned updates). Spread: standard deviation of the reward over seeds, averaged over training. By constraint, "
        f"of the moving average over {WINDOW} updates (a quarter of runs shorter than {4 * WINDOW}): first feasible: "
        "first update at which the threshold is met; overshoot: largest violation after that; oscillation: standard "
        f"deviation over the second half; held: share of the second half that meets the threshold (up to "
        f"{TOLERANCE:.0%} of the violations that are allowed). In parentheses: how many of the seeds got there, where "
        "not all did."
    )
    columns = [Column("time to reward", 0), Column("reward spread", 3)]
    for name in names:
        columns += [
            Column(f"{name}: first feasible", 0),
            Column(f"{name}: overshoot", 4),
            Column(f"{name}: oscillation", 4),
            Column(f"{name}: held", 2),
        ]
    rows = []
    for method in methods:
        rewards = method.series(REWARD)
        cells = [_reached([None if level is None else time_to(series, level) for series in rewards])]
        found = spread(rewards)
        cells.append(Cell(None if found is None else Statistic(found, 0.0, 1)))
        for name in names:
            measures = [run.control[name] for run in method.runs if name in run.control]
            cells += _control_cells(measures)
        rows.append((method.label, len(method.runs), cells))
    return Table("control", caption, columns, rows)


def _control_cells(measures: Sequence[Control]) -> list[Cell]:
    return [
        _reached([m.first_feasible for m in measures]),
        Cell(statistic([m.overshoot for m in measures])),
        Cell(statistic([m.oscillation for m in measures])),
        Cell(statistic([m.held for m in measures])),
    ]


def _reached(times: Sequence[float | None]) -> Cell:
    """A mean over the seeds that got there, and how many these are where not all did."""
    value = statistic(times)
    got = 0 if value is None else value.seeds
    return Cell(value, note=f" ({got}/{len(times)})" if 0 < got < len(times) else "")


def _share(last: float) -> str:
    parts = 1 / last
    return f"1/{parts:.0f}" if abs(parts - round(parts)) < 1e-6 else f"{last:.0%}"
