"""The paper's claims, decided by committed runs: docs/claims.md's tables, of which no verdict is typed by hand.

    python -m benchmarks.claims          # seconds; reads docs/results, trains nothing, prints the tables
    python -m benchmarks.claims --write  # the same into docs/claims.md

A measure's difference is paired by seed; Student's 95 % interval over seeds holds for other seeds, not for other
prompts, scenes or models. `VERDICTS` is the rule.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.claims_of_the_paper import Comparison, NotRun, Section, Spread, sections

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
PAGE = ROOT / "docs/claims.md"
MARKS = "<!-- python -m benchmarks.claims --write -->", "<!-- end -->"
SEEDS = range(10)
SAME = {"gridworld/paper/scalarized_advantages_lava_0.01_battery_0.01": "gridworld/controllers/softmax_adam"}
"""Methods whose other seeds are another study's, of equal settings."""
LEVEL = 0.05
VERDICTS = {
    "shown": "every interval agrees with the claim, also after Holm's correction for all tests of the page (5 %)",
    "likely": "every interval agrees, but not after the correction, which three seeds rarely pass",
    "not shown": "an interval agrees with neither the claim nor its opposite",
    "mixed": "one interval agrees, and another has the opposite sign",
    "unlikely": "every interval has the opposite sign, but not after the correction",
    "refuted": "every interval has the opposite sign, also after the correction",
    "not run": "the command is in the last table",
}


@dataclass(frozen=True)
class Outcome:
    """The result of one test, from the files.

    Args:
        text: the difference with its interval.
        side: 1 if the interval agrees with the claim, -1 if it has the opposite sign, 0 if it has both.
        p: two-sided; for "same" the larger of two one-sided ones.
    """

    text: str
    side: int
    p: float


# --- measures of a method, by seed


def values(method: str, key: str) -> dict[int, float]:
    """A measure by seed.

    Args:
        method: folder and name of the runs, such as ``gsm8k/paper/gdpo``.
        key: of the final means; ``test/...`` of the test; ``stage/COLUMN`` of driving's official scores; or a name in
            `OF_SERIES`.
    """
    folders = [SAME[method], method] if method in SAME else [method]
    return {seed: value for folder in folders for seed, value in _values_in(folder, key).items()}


def _values_in(method: str, key: str) -> dict[int, float]:
    folder, name = method.rsplit("/", 1)
    stage, _, column = key.partition("/")
    if stage in ("stage_one", "both"):
        scores = _read_json(RESULTS / folder / "scores.json")
        by_seed = {seed: scores.get(f"{name}_seed{seed}") for seed in SEEDS}
        return {seed: score[stage][column] for seed, score in by_seed.items() if score is not None}
    files = {seed: RESULTS / folder / "runs" / f"{name}_seed{seed}.json" for seed in SEEDS}
    return {seed: _measure_of(_read_json(file), key) for seed, file in files.items() if file.is_file()}


def _measure_of(run: dict[str, Any], key: str) -> float:
    if key in OF_SERIES:
        return OF_SERIES[key](run)
    return float(run["tests" if key.startswith("test/") else "final"][key])


def _late_series(run: dict[str, Any], tag: str) -> np.ndarray:
    """A series after its first quarter."""
    series = np.array(run["series"][tag], float)
    return series[len(series) // 4 :]


OF_SERIES: dict[str, Callable[[dict[str, Any]], float]] = {
    "weight of the constraints": lambda run: 1 - run["final"]["multiplier/reward"],
    "noise of lava's effective weight": lambda run: float(np.nanstd(_late_series(run, "effective_weight/lava"))),
    "share of updates in which lava outweighs goal": lambda run: float(
        np.nanmean(_late_series(run, "effective_weight/lava") > _late_series(run, "effective_weight/reward"))
    ),
}


@cache
def _read_json(file: Path) -> Any:
    return json.loads(file.read_text())


# --- tests


def decide_test(test: Comparison | Spread) -> Outcome:
    return _decide_spread(test) if isinstance(test, Spread) else _decide_difference(test)


def _decide_difference(test: Comparison) -> Outcome:
    """Mean difference by seed, averaged over the pairs of methods, with Student's interval."""
    by_pair = [
        _differences_by_seed(test, method, other) for method, other in zip(test.methods, test.others, strict=True)
    ]
    seeds = sorted(set.intersection(*(set(pair) for pair in by_pair)))
    assert len(seeds) >= 3, f"Expected three common seeds, but got {seeds} of {test}."
    apart = np.array([np.mean([pair[seed] for pair in by_pair]) for seed in seeds])
    mean, error = float(apart.mean()), float(stats.sem(apart))
    freedom = len(seeds) - 1
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    low, high = mean - half, mean + half
    text = f"{test.measure} {shown(mean, half)}, {len(seeds)} seeds"
    if test.expected == "same":
        side = 1 if -test.margin < low and high < test.margin else -1 if low > test.margin or high < -test.margin else 0
        nearest = (test.margin - abs(mean)) / error if error else math.inf
        return Outcome(text, side, float(stats.t.sf(abs(nearest), freedom)))
    toward = 1 if test.expected == "more" else -1
    side = toward if low > 0 else -toward if high < 0 else 0
    p = float(2 * stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Outcome(text, side, p)


def _differences_by_seed(test: Comparison, method: str, other: str | float) -> dict[int, float]:
    first = values(method, test.key)
    if isinstance(other, float):
        return {seed: value - other for seed, value in first.items()}
    second = values(other, test.other_key or test.key)
    return {seed: first[seed] - second[seed] for seed in first if seed in second}


def _decide_spread(test: Spread) -> Outcome:
    """Standard deviations over seeds, compared by all permutations of the seeds between the methods."""
    method, other = (_curves_by_seed(names, test) for names in (test.methods, test.others))
    count = min(method.shape[1], other.shape[1])
    method, other = method[:, :count], other[:, :count]
    # Each method around its own mean, or the permutations would mix different means.
    centred = np.concatenate([method - method.mean(0), other - other.mean(0)])
    ratio = _log_ratio(method, other)
    claim_rows = range(len(centred))
    permuted = [
        _log_ratio(centred[list(chosen)], centred[[row for row in claim_rows if row not in chosen]])
        for chosen in combinations(claim_rows, len(method))
    ]
    p = float(np.mean(np.abs(permuted) >= abs(ratio) - 1e-12))
    deviations = (float(curves.std(0, ddof=1).mean()) for curves in (method, other))
    text = "{} ± {:.3f} and ± {:.3f}".format(test.measure, *deviations) + f" (permutations: p = {p:.3f})"
    side = 0 if p > LEVEL else 1 if ratio > 0 else -1
    return Outcome(text, side, p)


def _curves_by_seed(methods: Sequence[str], test: Spread) -> np.ndarray:
    """A row for each seed: of a method's series, or of all methods' tests."""
    if test.key.startswith("test/"):
        tested = [values(method, test.key) for method in methods]
        return np.array([[of_method[seed] for of_method in tested] for seed in sorted(tested[0])])
    (method,) = methods
    found = {}
    for folder, name in (one.rsplit("/", 1) for one in ([SAME[method], method] if method in SAME else [method])):
        for seed in SEEDS:
            file = RESULTS / folder / "runs" / f"{name}_seed{seed}.json"
            if file.is_file():
                # Means of two logged values, because single ones are noise.
                series = np.array(_read_json(file)["series"][test.key], float)
                found[seed] = np.convolve(series, np.ones(2) / 2, "valid")
    shortest = min(map(len, found.values()))
    return np.array([found[seed][:shortest] for seed in sorted(found)])


def _log_ratio(method: np.ndarray, other: np.ndarray) -> float:
    """Logarithm of the other's deviation divided by the method's."""
    return math.log(other.std(0, ddof=1).mean() / method.std(0, ddof=1).mean())


def format_difference(mean: float, half: float) -> str:
    """A difference with its interval: rates with three digits, tokens with one; a rate below 0.01 with four."""
    largest = max(abs(mean), half)
    digits = 1 if largest >= 1 else 4 if largest < 0.01 else 3
    return f"{mean:+.{digits}f} ({mean - half:+.{digits}f} to {mean + half:+.{digits}f})"


# --- verdicts


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm, 1979): at most `LEVEL` for a test that holds beside all others."""
    order = sorted(range(len(ps)), key=lambda number: ps[number])
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min((len(ps) - rank) * ps[number], 1.0))
        adjusted[number] = largest
    return adjusted


def verdict(sides: Sequence[int], adjusted: Sequence[float]) -> str:
    """The key of `VERDICTS` for the tests of one claim by one method."""
    if 1 in sides and -1 in sides:
        return "mixed"
    if 0 in sides:
        return "not shown"
    holds = max(adjusted) <= LEVEL
    if sides[0] > 0:
        return "shown" if holds else "likely"
    return "refuted" if holds else "unlikely"


@dataclass(frozen=True)
class Row:
    """A claim with the cells of the paper's method and of this package's default, and their verdicts ("" for none)."""

    claim: str
    cells: tuple[str, str]
    verdicts: tuple[str, str]


def all_tests() -> dict[Comparison | Spread, None]:
    """All tests of the page, each once."""
    every = [test for section in sections() for claim in section.claims for cell in claim.cells for test in cell]
    return dict.fromkeys(test for test in every if not isinstance(test, NotRun))


def claim_rows() -> Iterator[tuple[Section, list[Row]]]:
    tests = list(all_tests())
    outcomes = [decide_test(test) for test in tests]
    adjusted = dict(zip(tests, holm([outcome.p for outcome in outcomes]), strict=True))
    found = dict(zip(tests, outcomes, strict=True))
    for section in sections():
        made = []
        for claim in section.claims:
            cells, verdicts = [], []
            for cell in claim.cells:
                ran = [test for test in cell if not isinstance(test, NotRun)]
                if ran:
                    told = verdict([found[test].side for test in ran], [adjusted[test] for test in ran])
                    cells.append(f"**{told}**: " + "; ".join(found[test].text for test in ran))
                else:
                    told = "not run" if cell else ""
                    cells.append("not run" if cell else "-")
                verdicts.append(told)
            made.append(Row(claim.text, (cells[0], cells[1]), (verdicts[0], verdicts[1])))
        yield section, made


def make_tables() -> str:
    """The rule, the tables, and the commands of what was not run."""
    parts = ["| verdict | rule |\n|---|---|"]
    parts[0] += "".join(f"\n| {name} | {rule} |" for name, rule in VERDICTS.items())
    for section, made in claim_rows():
        head = f"| claim | {section.paper} | {section.default} |\n|---|---|---|"
        body = "".join(f"\n| {row.claim} | {row.cells[0]} | {row.cells[1]} |" for row in made)
        parts += [f"## {section.title}", *([section.text] if section.text else []), head + body]
    missing = dict.fromkeys(
        test
        for section in sections()
        for claim in section.claims
        for cell in claim.cells
        for test in cell
        if isinstance(test, NotRun)
    )
    parts.append("## Not run\n\n| what | command | CPU minutes |\n|---|---|---:|")
    parts[-1] += "".join(f"\n| {one.what} | `{one.command}` | {one.minutes} |" for one in missing)
    return "\n\n".join(parts) + "\n"


def count_verdicts() -> str:
    """How many claims have which verdict, by method."""
    columns = list(zip(*(row.verdicts for _, made in claim_rows() for row in made), strict=True))
    texts = [", ".join(f"{count} {name}" for name in VERDICTS if (count := column.count(name))) for column in columns]
    outcomes = [decide_test(test) for test in all_tests()]
    alone, after = sum(one.side != 0 for one in outcomes), sum(p <= LEVEL for p in holm([one.p for one in outcomes]))
    return (
        f"The paper's method: {texts[0]}.\nThis package's default: {texts[1]}.\n"
        f"Of {len(outcomes)} tests, {alone} decide alone, and {after} after Holm's correction."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/claims.md")
    given = parser.parse_args(arguments)
    made = f"{counted()}\n\n{table()}"
    if not given.write:
        print(made)
        return
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{made}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
