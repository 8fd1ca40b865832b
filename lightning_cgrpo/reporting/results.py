"""Tables of final values and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lightning_cgrpo.objective.constraint import Constraint
from lightning_cgrpo.objective.standing import Standing, compared
from lightning_cgrpo.reporting.runs import MethodRuns, Run
from lightning_cgrpo.reporting.summary import ROUNDING, TOLERANCE, Statistic, statistic, tolerance, violation
from lightning_cgrpo.reporting.tables import Cell, Column, Table

REWARD = "reward/mean"
MEASURED = ("rate/", "mean/")
"""Starts of the tags of constraints."""
TRAINING = "training prompts"
RULE = (
    "Bold: for each set of enforced constraints and thresholds, the highest reward among the methods whose rates meet "
    f"them (up to {TOLERANCE:.0%} of the violations that are allowed) and whose runs are finished; methods that "
    "enforce nothing are left out where others do. !: an enforced rate violates its threshold by more than that. In "
    "parentheses: of a method, how far unfinished runs are; of a value, how many of the seeds have it where not all "
    "do, and a threshold that not all share."
)
INTERVALS = (
    "Met, missed: how many seeds have the whole 95 % interval of the rate (prompts as clusters) on that side of the "
    "threshold; undecided: the interval has both sides; !: a seed missed."
)
Values = Callable[[Run], dict[str, float]]


def measured(method: MethodRuns, tag: str, values: Values) -> Statistic | None:
    """A tag's statistic over a method's seeds."""
    return statistic([values(run).get(tag) for run in method.runs])


def violates(value: Statistic | None, constraint: Constraint) -> bool:
    """True if a mean rate violates its threshold by more than the tolerance; False without rate or threshold."""
    if value is None or constraint.bound.threshold is None:
        return False
    return violation(value.mean, constraint) > tolerance(constraint) + ROUNDING


def best_of(methods: Sequence[MethodRuns], values: Values) -> list[str]:
    """Labels of the best methods per set of thresholds, see `RULE`."""
    enforcing = any(method.enforced for method in methods)
    groups: dict[frozenset[str], dict[str, float]] = {}
    for method in methods:
        reward = measured(method, REWARD, values)
        if reward is None or not method.finished or (enforcing and not method.enforced):
            continue
        rates = [(measured(method, c.tag(name), values), c) for name, c in method.enforced.items()]
        if all(rate is not None and not violates(rate, constraint) for rate, constraint in rates):
            bounds = frozenset(f"{name} {_bound(constraint)}" for name, constraint in method.enforced.items())
            groups.setdefault(bounds, {})[method.label] = reward.mean
    return [label for group in groups.values() for label, mean in group.items() if mean == max(group.values())]


def final_table(methods: Sequence[MethodRuns], last: float) -> Table:
    """Values at the end of training."""
    parts = 1 / last
    share = f"1/{parts:.0f}" if abs(parts - round(parts)) < 1e-6 else f"{last:.0%}"
    caption = f"Mean ± standard deviation over seeds of the means over the last {share} of the updates. {RULE}"
    families = ("reward/", *MEASURED, "multiplier/", "effective_weight/")
    return _values_table("final", caption, methods, lambda run: run.final, families)


def test_table(methods: Sequence[MethodRuns]) -> Table | None:
    """Test values, if any; training prompts have a row below."""
    tested, trained = _evaluated("test/"), _evaluated("test_train/")
    methods = [method for method in methods if any(tested(run) for run in method.runs)]
    if not methods:
        return None
    beside = {TRAINING: trained} if any(trained(run) for method in methods for run in method.runs) else {}
    seen = f" Rows '{TRAINING}': the same policies' answers to prompts of training, never bold." if beside else ""
    known = any(
        tag.startswith(("rate_low/", "mean_low/")) for method in methods for run in method.runs for tag in tested(run)
    )
    intervals = f" {INTERVALS}" if known else ""
    caption = f"Test: mean ± standard deviation over seeds.{seen}{intervals} {RULE}"
    return _values_table("test", caption, methods, tested, ("reward/", *MEASURED, "rollout/"), beside)


def _evaluated(prefix: str) -> Values:
    return lambda run: {tag.removeprefix(prefix): v for tag, v in run.evaluations.items() if tag.startswith(prefix)}


def _values_table(
    name: str,
    caption: str,
    methods: Sequence[MethodRuns],
    values: Values,
    families: Sequence[str],
    beside: Mapping[str, Values] | None = None,
) -> Table:
    """A row per method; each kind of values `beside` adds a row below."""
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
    constraint = method.enforced.get(tag.partition("/")[2]) if tag.startswith(MEASURED) else None
    marked = constraint is not None and violates(value, constraint)
    note = _note(tag, method, methods) if value is not None else ""
    shown = [_standing(values(run), tag.partition("/")[2], constraint) for run in method.runs if constraint]
    says = [standing.says for standing in shown if standing is not None]
    if says:
        # The intervals of the seeds decide, instead of the tolerance.
        marked = "missed" in says
        note = ", ".join(filter(None, [note, _words(says), str(shown[0]) if len(method.runs) == 1 else ""]))
    return Cell(value, best and tag == REWARD, marked, note)


def _standing(values: Mapping[str, float], name: str, constraint: Constraint) -> Standing | None:
    """The standing of a run's evaluation, which logs the interval of each rate."""
    low, high = (values.get(f"{constraint.bound.kind}_{end}/{name}") for end in ("low", "high"))
    if low is None or high is None:
        return None
    return compared(constraint.bound, low, high)


def _words(says: Sequence[str]) -> str:
    """``met`` if all seeds agree, else ``2 met, 1 undecided``."""
    counts = {word: says.count(word) for word in ("met", "undecided", "missed") if word in says}
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {word}" for word, n in counts.items())


def _ordered(tags: Sequence[str], family: str, methods: Sequence[MethodRuns]) -> list[str]:
    order = ["mean", "reward", *(name for method in methods for name in method.constraints)]

    def rank(tag: str) -> int:
        name = tag.removeprefix(family)
        return order.index(name) if name in order else len(order)

    return sorted((tag for tag in tags if tag.startswith(family)), key=rank)


def _title(tag: str, methods: Sequence[MethodRuns]) -> str:
    family, _, name = tag.partition("/")
    if tag == REWARD:
        return "reward"
    if f"{family}/" not in MEASURED:
        return f"{family.replace('_', ' ')} {name}"
    bounds = _bounds(name, methods)
    return f"{family} {name} {bounds.pop()}" if len(bounds) == 1 else f"{family} {name}"


def _note(tag: str, method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """The rate's own threshold if thresholds differ, or "monitored"."""
    family, _, name = tag.partition("/")
    bounds = _bounds(name, methods)
    if f"{family}/" not in MEASURED or not bounds:
        return ""
    if name not in method.enforced:
        return "monitored"
    return _bound(method.enforced[name]) if len(bounds) > 1 else ""


def _bounds(name: str, methods: Sequence[MethodRuns]) -> set[str]:
    return {_bound(method.enforced[name]) for method in methods if name in method.enforced}


def _bound(constraint: Constraint) -> str:
    return f"{'≥' if constraint.bound.lower else '≤'} {constraint.bound.threshold:g}"


def _decimals(tag: str, methods: Sequence[MethodRuns], values: Values) -> int:
    if tag.startswith(("rate/", "multiplier/")):
        return 4
    found = [abs(v.mean) for m in methods if (v := measured(m, tag, values)) is not None]
    return 1 if max(found, default=0.0) >= 10 else 3
