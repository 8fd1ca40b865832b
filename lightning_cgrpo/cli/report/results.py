"""Tables of final values and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lightning_cgrpo.cli.report.measures import TOLERANCE, Statistic, statistic, violates
from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.tables import Table
from lightning_cgrpo.objective.bound import Bound
from lightning_cgrpo.run.runs import LAST, Run

REWARD = "reward/mean"
MEASURED = ("rate/", "mean/")
"""Starts of the tags of constraints."""
TRAINING = "training prompts"
RULE = (
    f"!: an enforced rate violates its threshold by more than {TOLERANCE:.0%} of the allowed violations. "
    "Parentheses after a method: its progress, if it is unfinished. Parentheses after a value: the seeds that have it, "
    "if some lack it, and the threshold, if methods differ in it."
)
INTERVALS = (
    "Met, missed: how many seeds have the whole 95 % interval of the rate (prompts as clusters) on that side of the "
    "threshold; undecided: the interval has both sides; !: a seed missed."
)
Values = Callable[[Run], Mapping[str, float]]


def measured(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
    """A tag's statistic over a method's seeds."""
    return statistic([values(run).get(tag) for run in method.runs])


def final_table(methods: Sequence[MethodRuns]) -> Table:
    """Values at the end of training."""
    share = f"1/{1 / LAST:.0f}"
    caption = f"Mean ± standard deviation over seeds of the means over the last {share} of the updates. {RULE}"
    families = ("reward/", *MEASURED, "multiplier/", "effective_weight/")
    return _values_table("Final values", caption, methods, final_of, families)


def test_table(methods: Sequence[MethodRuns]) -> Table | None:
    """Test values, if any; training prompts have a row below."""
    tested, trained = tests_of("test/"), tests_of("test_train/")
    methods = [method for method in methods if any(tested(run) for run in method.runs)]
    if not methods:
        return None
    caption = "Test: mean ± standard deviation over seeds."
    runs = [run for method in methods for run in method.runs]
    if any(trained(run) for run in runs):
        caption += f" Rows '{TRAINING}': the same policies' answers to prompts of training."
    if any(tag.startswith(("rate_low/", "mean_low/")) for run in runs for tag in tested(run)):
        caption += f" {INTERVALS}"
    return _values_table("Test", f"{caption} {RULE}", methods, tested, ("reward/", *MEASURED, "rollout/"), trained)


def final_of(run: Run) -> Mapping[str, float]:
    """A run's values at the end of training, by tag."""
    return run.final


def tests_of(prefix: str) -> Values:
    """A run's test on one set of prompts, such as ``test/``, by tag."""

    def values(run: Run) -> Mapping[str, float]:
        return {tag.removeprefix(prefix): value for tag, value in run.tests.items() if tag.startswith(prefix)}

    return values


def _values_table(
    title: str,
    caption: str,
    methods: Sequence[MethodRuns],
    values: Values,
    families: Sequence[str],
    beside: Values | None = None,
) -> Table:
    """A row per method; values `beside` add a row below."""
    logged = list(dict.fromkeys(tag for method in methods for run in method.runs for tag in values(run)))
    tags: list[str] = []
    for family in families:
        tags += _ordered(logged, family, methods)
    decimals = {tag: _decimals(tag, methods, values) for tag in tags}
    rows = []
    for method in methods:
        seeds = str(len(method.runs))
        cells = [_cell(tag, method, methods, values, decimals[tag]) for tag in tags]
        rows.append([method.title, seeds, *cells])
        if beside is not None and any(beside(run) for run in method.runs):
            cells = [_cell(tag, method, methods, beside, decimals[tag]) for tag in tags]
            rows.append([f"{method.title}, {TRAINING}", seeds, *cells])
    return Table(title, caption, ["method", "seeds", *(_title(tag, methods) for tag in tags)], rows)


def _cell(tag: str, method: MethodRuns, methods: Sequence[MethodRuns], values: Values, decimals: int) -> str:
    """Mean and deviation over seeds, notes in parentheses, and ``!`` where the threshold is violated."""
    value = measured(method, tag, values)
    if value is None:
        return "-"
    text = f"{value.mean:,.{decimals}f}"
    if not math.isnan(value.std):
        text += f" ± {value.std:,.{decimals}f}"
    notes = [_note(tag, method, methods)]
    bound = method.enforced.get(tag.partition("/")[2]) if tag.startswith(MEASURED) else None
    marked = bound is not None and violates(value, bound)
    intervals = _intervals(tag, method, values)
    if bound is not None and intervals:
        # The intervals of the seeds decide, instead of the tolerance.
        sides = [bound.side(low, high) for low, high in intervals]
        marked = "missed" in sides
        notes.append(_words(sides))
        if len(method.runs) == 1:
            notes.append(bound.interval_text(*intervals[0]))
    if value.seeds < len(method.runs):
        notes.append(f"{value.seeds}/{len(method.runs)}")
    note = ", ".join(filter(None, notes))
    if note:
        text += f" ({note})"
    return f"{text} !" if marked else text


def _intervals(tag: str, method: MethodRuns, values: Values) -> list[tuple[float, float]]:
    """The interval of each seed that has one."""
    family, _, name = tag.partition("/")
    found = []
    for run in method.runs:
        low = values(run).get(f"{family}_low/{name}")
        high = values(run).get(f"{family}_high/{name}")
        if low is not None and high is not None:
            found.append((low, high))
    return found


def _words(sides: Sequence[str]) -> str:
    """``met`` if all seeds agree, else ``2 met, 1 undecided``."""
    counts = {word: sides.count(word) for word in ("met", "undecided", "missed") if word in sides}
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _ordered(tags: Sequence[str], family: str, methods: Sequence[MethodRuns]) -> list[str]:
    order = ["mean", "reward", *(name for method in methods for name in method.bounds)]

    def rank(tag: str) -> int:
        name = tag.removeprefix(family)
        return order.index(name) if name in order else len(order)

    return sorted((tag for tag in tags if tag.startswith(family)), key=rank)


def _title(tag: str, methods: Sequence[MethodRuns]) -> str:
    if tag == REWARD:
        return "reward"
    family, _, name = tag.partition("/")
    title = f"{family.replace('_', ' ')} {name}"
    thresholds = _thresholds(name, methods) if tag.startswith(MEASURED) else set()
    title = f"{title} {thresholds.pop()}" if len(thresholds) == 1 else title
    conditions = _conditions(name, methods) if tag.startswith(MEASURED) else set()
    given = conditions.pop() if len(conditions) == 1 else None
    return title if given is None else f"{title} given {given}"


def _note(tag: str, method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """The rate's own threshold if thresholds differ, or "monitored"."""
    name = tag.partition("/")[2]
    thresholds = _thresholds(name, methods)
    if not tag.startswith(MEASURED) or not thresholds:
        return ""
    if name not in method.enforced:
        return "monitored"
    given = f"given {method.given[name]}" if len(_conditions(name, methods)) > 1 and name in method.given else ""
    threshold = _threshold(method.enforced[name]) if len(thresholds) > 1 else ""
    return f"{threshold} {given}".strip()


def _thresholds(name: str, methods: Sequence[MethodRuns]) -> set[str]:
    return {_threshold(method.enforced[name]) for method in methods if name in method.enforced}


def _conditions(name: str, methods: Sequence[MethodRuns]) -> set[str | None]:
    return {method.given.get(name) for method in methods if name in method.bounds}


def _threshold(bound: Bound) -> str:
    return f"{'≥' if bound.lower else '≤'} {bound.threshold:g}"


def _decimals(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    largest = 0.0
    for method in methods:
        value = measured(method, tag, values)
        if value is not None:
            largest = max(largest, abs(value.mean))
    return 1 if largest >= 10 else 3
