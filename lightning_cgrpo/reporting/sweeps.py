"""Sweeps: methods that differ only in fixed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from lightning_cgrpo.cli.configuration import get
from lightning_cgrpo.cli.method import Method, key_of
from lightning_cgrpo.reporting.labels import FIXED, labels_of
from lightning_cgrpo.reporting.runs import MethodRuns

FEWEST = 3
"""Fewest values of a weight in a sweep."""


Point = tuple[float, MethodRuns]


@dataclass(frozen=True)
class Sweep:
    """A sweep over one component's weight.

    Args:
        rows: points (weight, method) with rising weights, by other weights (a title) and further differences (a line).
    """

    weight: str
    rows: dict[str, dict[str, list[Point]]]

    @property
    def methods(self) -> list[MethodRuns]:
        return [method for lines in self.rows.values() for points in lines.values() for _, method in points]


def weights_of(method: Method) -> dict[str, float] | None:
    """A method's fixed weights by component; None without `FixedWeights`."""
    if get(method, FIXED) is None:
        return None
    given = get(method, f"{FIXED}.init_args.weights") or {}
    return {"reward": 1.0, **{str(name): float(weight) for name, weight in given.items()}}


def find_sweeps(methods: Sequence[MethodRuns]) -> list[Sweep]:
    """A sweep over each weight that takes the most different values, at least `FEWEST`."""
    weighted = [(weights, method) for method in methods if (weights := weights_of(method.method)) is not None]
    names = list(dict.fromkeys(name for weights, _ in weighted for name in weights))
    values = {name: {weights.get(name, 0.0) for weights, _ in weighted} for name in names}
    most = max((len(found) for found in values.values()), default=0)
    if most < FEWEST:
        return []
    sweeps = [_sweep(name, names, values, weighted) for name in names if len(values[name]) == most]
    return [sweep for sweep in sweeps if sweep.rows]


def _sweep(
    name: str,
    names: Sequence[str],
    values: dict[str, set[float]],
    weighted: Sequence[tuple[dict[str, float], MethodRuns]],
) -> Sweep:
    others = [other for other in names if other != name and len(values[other]) > 1]
    rests = {key_of(rest): rest for rest in (_rest(method) for _, method in weighted)}
    lines = dict(zip(rests, labels_of(list(rests.values())), strict=True))
    rows: dict[tuple[float, ...], dict[str, list[Point]]] = {}
    for weights, method in weighted:
        row = rows.setdefault(tuple(weights.get(other, 0.0) for other in others), {})
        row.setdefault(lines[key_of(_rest(method))], []).append((weights.get(name, 0.0), method))
    titled = {}
    for row_values in sorted(rows):
        title = ", ".join(f"λ of {other} = {value:g}" for other, value in zip(others, row_values, strict=True))
        # A single choice of weights, such as all equal, is no part of a sweep.
        found = {
            line: sorted(points, key=itemgetter(0))
            for line, points in rows[row_values].items()
            if len(points) >= FEWEST
        }
        if found:
            titled[title] = found
    return Sweep(name, titled)


def _rest(method: MethodRuns) -> Method:
    callbacks = {name: part for name, part in method.method["callbacks"].items() if name != "FixedWeights"}
    return {key: callbacks if key == "callbacks" else part for key, part in method.method.items() if key != "name"}
