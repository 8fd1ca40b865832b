"""Tables of final values and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from lightning_cgrpo.cli.report.measures import TOLERANCE, Statistic, statistic, violates
from lightning_cgrpo.cli.report.methods import MethodRuns
from lightning_cgrpo.cli.report.runs import LAST, Run
from lightning_cgrpo.cli.report.tables import Cell, Table
from lightning_cgrpo.objective.bound import Bound

REWARD = "reward/mean"
MEASURED = ("rate/", "mean/")
"""Starts of the tags of constraints."""
TRAINING = "training prompts"
RULE = (
    "Bold: the highest reward among finished methods whose rates meet their thresholds, with a tolerance of "
    f"{TOLERANCE:.0%} of the allowed violations; each set of enforced thresholds has its own. Methods that enforce "
    "nothing are bold only where no method enforces anything. !: an enforced rate violates its threshold by more than "
    "the tolerance. Parentheses after a method: its progress, if it is unfinished. Parentheses after a value: the "
    "seeds that have it, if some lack it, and the threshold, if methods differ in it."
)
INTERVALS = (
    "Met, missed: how many seeds have the whole 95 % interval of the rate (prompts as clusters) on that side of the "
    "threshold; undecided: the interval has both sides; !: a seed missed."
)
Values = Callable[[Run], Mapping[str, float]]


def measured(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
    """A tag's statistic over a method's seeds."""
    return statistic([values(run).get(tag) for run in method.runs])


def best_of(methods: Sequence[MethodRuns], values: Values) -> list[str]:
    """Labels of the best methods per set of thresholds, see `RULE`."""
    enforcing = any(method.enforced for method in methods)
    groups: dict[frozenset[str], dict[str, float]] = {}
    for method in methods:
        reward = measured(method, REWARD, values)
        if reward is None or not method.finished or (enforcing and not method.enforced):
            continue
        rates = [(measured(method, bound.tag(name), values), bound) for name, bound in method.enforced.items()]
        if all(rate is not None and not violates(rate, bound) for rate, bound in rates):
            declared = frozenset(f"{name} {_threshold(bound)}" for name, bound in method.enforced.items())
            groups.setdefault(declared, {})[method.label] = reward.mean
    return [label for group in groups.values() for label, mean in group.items() if mean == max(group.values())]


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
    runs = [run for method in methods for run in method.runs]
    beside = any(trained(run) for run in runs)
    seen = f" Rows '{TRAINING}': the same policies' answers to prompts of training, never bold." if beside else ""
    known = any(tag.startswith(("rate_low/", "mean_low/")) for run in runs for tag in tested(run))
    caption = f"Test: mean ± standard deviation over seeds.{seen}{f' {INTERVALS}' if known else ''} {RULE}"
    families = ("reward/", *MEASURED, "rollout/")
    return _values_table("Test", caption, methods, tested, families, trained)


def final_of(run: Run) -> Mapping[str, float]:
    """A run's values at the end of training, by tag."""
    return run.final


def tests_of(prefix: str) -> Values:
    """A run's test on one set of prompts, such as ``test/``, by tag."""
    return lambda run: {tag.removeprefix(prefix): v for tag, v in run.tests.items() if tag.startswith(prefix)}


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
    tags = [tag for family in families for tag in _ordered(logged, family, methods)]
    best = best_of(methods, values)
    decimals = {tag: _decimals(tag, methods, values) for tag in tags}
    rows = []
    for method in methods:
        head, bold = [Cell(method.title), Cell(str(len(method.runs)))], method.label in best
        cells = [_cell(tag, method, methods, values, decimals[tag]) for tag in tags]
        rows.append([*head, *(Cell(text, bold and tag == REWARD) for tag, text in zip(tags, cells, strict=True))])
        if beside is not None and any(beside(run) for run in method.runs):
            head[0] = Cell(f"{method.title}, {TRAINING}")
            rows.append([*head, *(Cell(_cell(tag, method, methods, beside, decimals[tag])) for tag in tags)])
    return Table(title, caption, ["method", "seeds", *(_title(tag, methods) for tag in tags)], rows)


def _cell(tag: str, method: MethodRuns, methods: Sequence[MethodRuns], values: Values, decimals: int) -> str:
    """Mean and deviation over seeds, notes in parentheses, and ``!`` where the threshold is violated."""
    value = measured(method, tag, values)
    if value is None:
        return "-"
    family, _, name = tag.partition("/")
    bound = method.enforced.get(name) if tag.startswith(MEASURED) else None
    marked = bound is not None and violates(value, bound)
    notes = [_note(tag, method, methods)]
    ends = [[values(run).get(f"{family}_{end}/{name}") for end in ("low", "high")] for run in method.runs]
    intervals = [(low, high) for low, high in ends if low is not None and high is not None]
    if bound is not None and intervals:
        # The intervals of the seeds decide, instead of the tolerance.
        sides = [bound.side(*interval) for interval in intervals]
        marked = "missed" in sides
        notes += [_words(sides), bound.interval_text(*intervals[0]) if len(method.runs) == 1 else ""]
    if value.seeds < len(method.runs):
        notes.append(f"{value.seeds}/{len(method.runs)}")
    numbers = [value.mean] if math.isnan(value.std) else [value.mean, value.std]
    text, note = " ± ".join(f"{number:,.{decimals}f}" for number in numbers), ", ".join(filter(None, notes))
    return text + (f" ({note})" if note else "") + (" !" if marked else "")


def _words(says: Sequence[str]) -> str:
    """``met`` if all seeds agree, else ``2 met, 1 undecided``."""
    counts = {word: says.count(word) for word in ("met", "undecided", "missed") if word in says}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())


def _ordered(tags: Sequence[str], family: str, methods: Sequence[MethodRuns]) -> list[str]:
    order = ["mean", "reward", *(name for method in methods for name in method.bounds)]

    def rank(tag: str) -> int:
        name = tag.removeprefix(family)
        return order.index(name) if name in order else len(order)

    return sorted((tag for tag in tags if tag.startswith(family)), key=rank)


def _title(tag: str, methods: Sequence[MethodRuns]) -> str:
    family, _, name = tag.partition("/")
    if tag == REWARD:
        return "reward"
    thresholds = _thresholds(name, methods) if tag.startswith(MEASURED) else set()
    return f"{family.replace('_', ' ')} {name}" + (f" {thresholds.pop()}" if len(thresholds) == 1 else "")


def _note(tag: str, method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """The rate's own threshold if thresholds differ, or "monitored"."""
    name = tag.partition("/")[2]
    thresholds = _thresholds(name, methods)
    if not tag.startswith(MEASURED) or not thresholds:
        return ""
    if name not in method.enforced:
        return "monitored"
    return _threshold(method.enforced[name]) if len(thresholds) > 1 else ""


def _thresholds(name: str, methods: Sequence[MethodRuns]) -> set[str]:
    return {_threshold(method.enforced[name]) for method in methods if name in method.enforced}


def _threshold(bound: Bound) -> str:
    return f"{'≥' if bound.lower else '≤'} {bound.threshold:g}"


def _decimals(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    means = [abs(v.mean) for method in methods if (v := measured(method, tag, values)) is not None]
    return 1 if max(means, default=0.0) >= 10 else 3
