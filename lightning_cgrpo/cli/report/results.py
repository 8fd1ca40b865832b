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


def tag_statistic(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
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
    test_values = tests_of("test/")
    training_values = tests_of("test_train/")
    methods = [method for method in methods if any(test_values(run) for run in method.runs)]
    if not methods:
        return None
    caption = "Test: mean ± standard deviation over seeds."
    runs = [run for method in methods for run in method.runs]
    if any(training_values(run) for run in runs):
        caption += f" Rows '{TRAINING}': the same policies' answers to prompts of training."
    if any(tag.startswith(("rate_low/", "mean_low/")) for tag in logged_tags(methods, test_values)):
        caption += f" {INTERVALS}"
    families = ("reward/", *MEASURED, "rollout/")
    return _values_table("Test", f"{caption} {RULE}", methods, test_values, families, training_values)


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
    # A column per tag. Its values have equally many decimals.
    logged = logged_tags(methods, values)
    tags: list[str] = []
    for family in families:
        tags += _order_tags(logged, family, methods)
    decimals = {tag: _decimal_places(tag, methods, values) for tag in tags}
    rows = []
    for method in methods:
        seeds = str(len(method.runs))
        cells = [_value_cell(tag, method, methods, values, decimals[tag]) for tag in tags]
        rows.append([method.title, seeds, *cells])
        if beside is not None and any(beside(run) for run in method.runs):
            cells = [_value_cell(tag, method, methods, beside, decimals[tag]) for tag in tags]
            rows.append([f"{method.title}, {TRAINING}", seeds, *cells])
    heads = ["method", "seeds"]
    heads += [_column_title(tag, methods) for tag in tags]
    return Table(title, caption, heads, rows)


def logged_tags(methods: Sequence[MethodRuns], values: Values) -> list[str]:
    """The tags that have a value in any run, in the order of the logs."""
    tags: dict[str, None] = {}
    for method in methods:
        for run in method.runs:
            tags |= dict.fromkeys(values(run))
    return list(tags)


def _value_cell(tag: str, method: MethodRuns, methods: Sequence[MethodRuns], values: Values, decimals: int) -> str:
    """Mean and deviation over seeds, notes in parentheses, and ``!`` where the threshold is violated."""
    value = tag_statistic(method, tag, values)
    if value is None:
        return "-"
    text = f"{value.mean:,.{decimals}f}"
    if not math.isnan(value.std):
        text += f" ± {value.std:,.{decimals}f}"
    notes = [_threshold_note(tag, method, methods)]
    bound = method.enforced.get(tag.partition("/")[2]) if tag.startswith(MEASURED) else None
    marked = bound is not None and violates(value, bound)
    intervals = _seed_intervals(tag, method, values)
    if bound is not None and intervals:
        # The intervals of the seeds decide, instead of the tolerance.
        sides = [bound.side(low, high) for low, high in intervals]
        marked = "missed" in sides
        notes.append(_count_sides(sides))
        if len(method.runs) == 1:
            notes.append(bound.interval_text(*intervals[0]))
    if value.seeds < len(method.runs):
        notes.append(f"{value.seeds}/{len(method.runs)}")
    notes = [note for note in notes if note]
    if notes:
        text += f" ({', '.join(notes)})"
    return f"{text} !" if marked else text


def _seed_intervals(tag: str, method: MethodRuns, values: Values) -> list[tuple[float, float]]:
    """The interval of each seed that has one."""
    family, _, name = tag.partition("/")
    intervals = []
    for run in method.runs:
        low = values(run).get(f"{family}_low/{name}")
        high = values(run).get(f"{family}_high/{name}")
        if low is not None and high is not None:
            intervals.append((low, high))
    return intervals


def _count_sides(sides: Sequence[str]) -> str:
    """``met`` if all seeds agree, else ``2 met, 1 undecided``."""
    counts = {word: sides.count(word) for word in ("met", "undecided", "missed") if word in sides}
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _order_tags(tags: Sequence[str], family: str, methods: Sequence[MethodRuns]) -> list[str]:
    """The tags of a family: first the reward, then constraints in the order of their declaration, then the others."""
    order = ["mean", "reward"]
    for method in methods:
        order += method.bounds

    def rank_tag(tag: str) -> int:
        name = tag.removeprefix(family)
        return order.index(name) if name in order else len(order)

    return sorted((tag for tag in tags if tag.startswith(family)), key=rank_tag)


def _column_title(tag: str, methods: Sequence[MethodRuns]) -> str:
    """A tag in words, with the threshold and the condition that all methods share."""
    if tag == REWARD:
        return "reward"
    family, _, name = tag.partition("/")
    title = f"{family.replace('_', ' ')} {name}"
    if not tag.startswith(MEASURED):
        return title
    thresholds = _all_thresholds(name, methods)
    if len(thresholds) == 1:
        title += f" {thresholds.pop()}"
    conditions = _all_conditions(name, methods)
    condition = conditions.pop() if len(conditions) == 1 else None
    if condition is not None:
        title += f" given {condition}"
    return title


def _threshold_note(tag: str, method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """The rate's own threshold if thresholds differ, or "monitored"."""
    name = tag.partition("/")[2]
    thresholds = _all_thresholds(name, methods)
    if not tag.startswith(MEASURED) or not thresholds:
        return ""
    if name not in method.enforced:
        return "monitored"
    words = []
    if len(thresholds) > 1:
        words.append(_threshold_text(method.enforced[name]))
    if len(_all_conditions(name, methods)) > 1 and name in method.conditions:
        words.append(f"given {method.conditions[name]}")
    return " ".join(words)


def _all_thresholds(name: str, methods: Sequence[MethodRuns]) -> set[str]:
    return {_threshold_text(method.enforced[name]) for method in methods if name in method.enforced}


def _all_conditions(name: str, methods: Sequence[MethodRuns]) -> set[str | None]:
    return {method.conditions.get(name) for method in methods if name in method.bounds}


def _threshold_text(bound: Bound) -> str:
    relation = "≥" if bound.lower else "≤"
    return f"{relation} {bound.threshold:g}"


def _decimal_places(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    largest = 0.0
    for method in methods:
        value = tag_statistic(method, tag, values)
        if value is not None:
            largest = max(largest, abs(value.mean))
    return 1 if largest >= 10 else 3
