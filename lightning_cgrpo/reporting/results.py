"""The tables of values: at the end of training, and of tests. Which method is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import ROUNDING, TOLERANCE, Statistic, statistic, tolerance, violation
from lightning_cgrpo.reporting.tables import Cell, Column, Table

REWARD = "reward/mean"
TRAINING = "training prompts"
RULE = (
    "Bold: for each set of enforced constraints and thresholds, the highest reward among the methods whose rates meet "
    f"them (up to {TOLERANCE:.0%} of the violations that are allowed) and whose runs are finished; methods that "
    "enforce nothing are left out where others do. !: an enforced rate violates its threshold by more than that. In "
    "parentheses: of a method, how far unfinished runs are; of a value, how many of the seeds have it where not all "
    "do, and a threshold that not all share."
)
Values = Callable[[Run], dict[str, float]]


def measured(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
    """A tag's value over the seeds of a method."""
    return statistic([values(run).get(tag) for run in method.runs])


def violates(value: Statistic | None, constraint: Constraint) -> bool:
    """Whether a mean rate is beyond its threshold and the tolerance."""
    if value is None or constraint.bound is None:
        return False
    return violation(value.mean, constraint) > tolerance(constraint) + ROUNDING


def feasible(method: MethodRuns, values: Values) -> bool:
    """Whether all constraints that a method enforces were measured and are met by their means over seeds."""
    rates = {name: measured(method, f"rate/{name}", values) for name in method.enforced}
    return all(
        rates[name] is not None and not violates(rates[name], constraint)
        for name, constraint in method.enforced.items()
    )


def best_of(methods: Sequence[MethodRuns], values: Values) -> list[str]:
    """The labels of the methods that are best among those with the same thresholds; see `RULE`."""
    enforcing = any(method.enforced for method in methods)
    groups: dict[frozenset[str], dict[str, float]] = {}
    for method in methods:
        value = measured(method, REWARD, values)
        left_out = enforcing and not method.enforced
        if value is None or left_out or not method.finished or not feasible(method, values):
            continue
        bounds = frozenset(f"{name} {_bound(constraint)}" for name, constraint in method.enforced.items())
        groups.setdefault(bounds, {})[method.label] = value.mean
    return [label for group in groups.values() for label, mean in group.items() if mean == max(group.values())]


def final_table(methods: Sequence[MethodRuns], last: float) -> Table:
    """Reward, rates, multipliers and mean effective weights at the end of training."""

    def values(run: Run) -> dict[str, float]:
        return run.final

    caption = f"Mean ± standard deviation over seeds of the means over the last {_share(last)} of the updates. {RULE}"
    families = ("reward/", "rate/", "multiplier/", "effective_weight/")
    return _values_table("final", caption, methods, values, families)


def test_table(methods: Sequence[MethodRuns]) -> Table | None:
    """The tests' values, of training prompts in a row below if there are any; none if nothing was tested."""
    methods = [method for method in methods if any(_tested(run) for run in method.runs)]
    if not methods:
        return None
    beside = {TRAINING: _tested_in_training} if any(_tested_in_training(r) for m in methods for r in m.runs) else {}
    seen = f" Rows '{TRAINING}': the same policies' answers to prompts of training, never bold." if beside else ""
    caption = f"Test: mean ± standard deviation over seeds.{seen} {RULE}"
    return _values_table("test", caption, methods, _tested, ("reward/", "rate/", "rollout/"), beside)


def _tested(run: Run) -> dict[str, float]:
    return {tag.removeprefix("test/"): v for tag, v in run.evaluations.items() if tag.startswith("test/")}


def _tested_in_training(run: Run) -> dict[str, float]:
    return {tag.removeprefix("test_train/"): v for tag, v in run.evaluations.items() if tag.startswith("test_train/")}


def _values_table(
    name: str,
    caption: str,
    methods: Sequence[MethodRuns],
    values: Values,
    families: Sequence[str],
    beside: Mapping[str, Values] | None = None,
) -> Table:
    """A row per method; and another, called so, of the values `beside` where it has any."""
    found = list(dict.fromkeys(tag for method in methods for run in method.runs for tag in values(run)))
    tags = [tag for family in families for tag in _ordered(found, family, methods)]
    best = best_of(methods, values)
    columns = [Column(_title(tag, methods), _decimals(tag, methods, values)) for tag in tags]
    rows = []
    for method in methods:
        bold = method.label in best
        rows.append((method.title, len(method.runs), [_cell(tag, method, methods, values, bold) for tag in tags]))
        for kind, others in (beside or {}).items():
            if any(others(run) for run in method.runs):
                cells = [_cell(tag, method, methods, others, False) for tag in tags]
                rows.append((f"{method.title}, {kind}", len(method.runs), cells))
    return Table(name, caption, columns, rows)


def _cell(tag: str, method: MethodRuns, methods: Sequence[MethodRuns], values: Values, best: bool) -> Cell:
    value = measured(method, tag, values)
    constraint = method.enforced.get(tag.removeprefix("rate/")) if tag.startswith("rate/") else None
    marked = constraint is not None and violates(value, constraint)
    note = _note(tag, method, methods) if value is not None else ""
    return Cell(value, best and tag == REWARD, marked, note)


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
    bounds = _bounds(name, methods)
    return f"rate {name} {bounds.pop()}" if len(bounds) == 1 else f"rate {name}"


def _note(tag: str, method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """A rate's threshold where not all have that of the column's title, or that the rate was only monitored."""
    family, _, name = tag.partition("/")
    bounds = _bounds(name, methods)
    if family != "rate" or not bounds:
        return ""
    if name not in method.enforced:
        return "monitored"
    return _bound(method.enforced[name]) if len(bounds) > 1 else ""


def _bounds(name: str, methods: Sequence[MethodRuns]) -> set[str]:
    """The thresholds of those that enforce a constraint."""
    return {_bound(method.enforced[name]) for method in methods if name in method.enforced}


def _bound(constraint: Constraint) -> str:
    return f"{'≤' if constraint.at_least is None else '≥'} {constraint.bound:g}"


def _decimals(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    found = [abs(v.mean) for m in methods if (v := measured(m, tag, values)) is not None]
    return 1 if max(found, default=0.0) >= 10 else 3


def _share(last: float) -> str:
    parts = 1 / last
    return f"1/{parts:.0f}" if abs(parts - round(parts)) < 1e-6 else f"{last:.0%}"
