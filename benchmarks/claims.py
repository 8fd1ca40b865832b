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
SAME = {
    "gridworld/paper/scalarized_advantages_lava_0.01_battery_0.01": "gridworld/controllers/softmax_adam",
    "gsm8k/claims/scalarized_advantages_softmax_adam": "gsm8k/paper/scalarized_advantages_softmax_adam",
    "gsm8k/claims/scalarized_rewards_softmax_adam": "gsm8k/paper/scalarized_rewards_softmax_adam",
}
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
    by_seed: dict[int, float] = {}
    for folder in _folders_of(method):
        by_seed |= _values_in(folder, key)
    return by_seed


def _folders_of(method: str) -> list[str]:
    """The runs of a method, after those of another study with equal settings."""
    if method in SAME:
        return [SAME[method], method]
    return [method]


def _values_in(method: str, key: str) -> dict[int, float]:
    stage, _, column = key.partition("/")
    if stage in ("stage_one", "both"):
        folder, name = method.rsplit("/", 1)
        scores = _read_json(RESULTS / folder / "scores.json")
        by_seed = {seed: scores.get(f"{name}_seed{seed}") for seed in SEEDS}
        return {seed: score[stage][column] for seed, score in by_seed.items() if score is not None}
    return {seed: _measure_of(run, key) for seed, run in _runs_by_seed(method)}


def _runs_by_seed(method: str) -> Iterator[tuple[int, dict[str, Any]]]:
    folder, name = method.rsplit("/", 1)
    for seed in SEEDS:
        file = RESULTS / folder / "runs" / f"{name}_seed{seed}.json"
        if file.is_file():
            yield seed, _read_json(file)


def _measure_of(run: dict[str, Any], key: str) -> float:
    if key in OF_SERIES:
        return OF_SERIES[key](run)
    part = "tests" if key.startswith("test/") else "final"
    return float(run[part][key])


def _late_series(run: dict[str, Any], tag: str) -> np.ndarray:
    """A series after its first quarter."""
    series = np.array(run["series"][tag], float)
    return series[len(series) // 4 :]


def _weight_of_constraints(run: dict[str, Any]) -> float:
    return 1 - run["final"]["multiplier/reward"]


def _noise_of_lava(run: dict[str, Any]) -> float:
    return float(np.nanstd(_late_series(run, "effective_weight/lava")))


def _share_of_lava(run: dict[str, Any]) -> float:
    outweighs = _late_series(run, "effective_weight/lava") > _late_series(run, "effective_weight/reward")
    return float(np.nanmean(outweighs))


OF_SERIES: dict[str, Callable[[dict[str, Any]], float]] = {
    "weight of the constraints": _weight_of_constraints,
    "noise of lava's effective weight": _noise_of_lava,
    "share of updates in which lava outweighs goal": _share_of_lava,
}


@cache
def _read_json(file: Path) -> Any:
    return json.loads(file.read_text())


# --- tests


def decide_test(test: Comparison | Spread) -> Outcome:
    if isinstance(test, Spread):
        return _decide_spread(test)
    return _decide_difference(test)


def _decide_difference(test: Comparison) -> Outcome:
    """Mean difference by seed, averaged over the pairs of methods, with Student's interval."""
    by_pair = []
    for method, other in zip(test.methods, test.others, strict=True):
        by_pair.append(_differences_by_seed(test, method, other))
    # One difference for each seed that all pairs have.
    seeds = sorted(seed for seed in by_pair[0] if all(seed in differences for differences in by_pair))
    assert len(seeds) >= 3, f"Expected three common seeds, but got {seeds} of {test}."
    by_seed = []
    for seed in seeds:
        by_seed.append(np.mean([differences[seed] for differences in by_pair]))
    # Student's interval.
    mean = float(np.mean(by_seed))
    error = float(stats.sem(by_seed))
    freedom = len(seeds) - 1
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    low = mean - half
    high = mean + half
    text = f"{test.measure} {format_difference(mean, half)}, {len(seeds)} seeds"
    # Two one-sided tests for equality within the margin.
    if test.expected == "same":
        side = 0
        if -test.margin < low and high < test.margin:
            side = 1
        elif low > test.margin or high < -test.margin:
            side = -1
        nearest = (test.margin - abs(mean)) / error if error else math.inf
        return Outcome(text, side, float(stats.t.sf(abs(nearest), freedom)))
    # One two-sided test for a difference.
    toward = 1 if test.expected == "more" else -1
    side = 0
    if low > 0:
        side = toward
    elif high < 0:
        side = -toward
    p = float(mean == 0)
    if error:
        p = float(2 * stats.t.sf(abs(mean) / error, freedom))
    return Outcome(text, side, p)


def _differences_by_seed(test: Comparison, method: str, other: str | float) -> dict[int, float]:
    first = values(method, test.key)
    if isinstance(other, float):
        return {seed: value - other for seed, value in first.items()}
    second = values(other, test.other_key or test.key)
    return {seed: first[seed] - second[seed] for seed in first if seed in second}


def _decide_spread(test: Spread) -> Outcome:
    """Standard deviations over seeds, compared by all permutations of the seeds between the methods."""
    method = _curves_by_seed(test.methods, test)
    other = _curves_by_seed(test.others, test)
    count = min(method.shape[1], other.shape[1])
    method = method[:, :count]
    other = other[:, :count]
    ratio = _log_ratio(method, other)
    # Each method around its own mean, or the permutations would mix different means.
    centered = np.concatenate([method - method.mean(0), other - other.mean(0)])
    permuted = []
    for chosen in combinations(range(len(centered)), len(method)):
        rest = [row for row in range(len(centered)) if row not in chosen]
        permuted.append(_log_ratio(centered[list(chosen)], centered[rest]))
    # The share of permutations whose deviations are at least as different.
    p = float(np.mean(np.abs(permuted) >= abs(ratio) - 1e-12))
    deviation = float(method.std(0, ddof=1).mean())
    other_deviation = float(other.std(0, ddof=1).mean())
    text = f"{test.measure} ± {deviation:.3f} and ± {other_deviation:.3f} (permutations: p = {p:.3f})"
    side = 0
    if p <= LEVEL:
        side = 1 if ratio > 0 else -1
    return Outcome(text, side, p)


def _curves_by_seed(methods: Sequence[str], test: Spread) -> np.ndarray:
    """A row for each seed: of a method's series, or of all methods' tests."""
    if test.key.startswith("test/"):
        tested = [values(method, test.key) for method in methods]
        rows = []
        for seed in sorted(tested[0]):
            rows.append([by_seed[seed] for by_seed in tested])
        return np.array(rows)
    (method,) = methods
    smoothed: dict[int, np.ndarray] = {}
    for folder in _folders_of(method):
        for seed, run in _runs_by_seed(folder):
            # Means of two logged values, because single ones are noise.
            series = np.array(run["series"][test.key], float)
            smoothed[seed] = np.convolve(series, np.ones(2) / 2, "valid")
    shortest = min(len(series) for series in smoothed.values())
    return np.array([smoothed[seed][:shortest] for seed in sorted(smoothed)])


def _log_ratio(method: np.ndarray, other: np.ndarray) -> float:
    """Logarithm of the other's deviation divided by the method's."""
    return math.log(other.std(0, ddof=1).mean() / method.std(0, ddof=1).mean())


def format_difference(mean: float, half: float) -> str:
    """A difference with its interval: rates with three digits, tokens with one; a rate below 0.01 with four."""
    largest = max(abs(mean), half)
    digits = 3
    if largest >= 1:
        digits = 1
    elif largest < 0.01:
        digits = 4
    return f"{mean:+.{digits}f} ({mean - half:+.{digits}f} to {mean + half:+.{digits}f})"


# --- verdicts


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm, 1979): at most `LEVEL` for a test that holds beside all others."""
    order = sorted(range(len(ps)), key=lambda number: ps[number])
    adjusted = [0.0] * len(ps)
    largest = 0.0
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
    return dict.fromkeys(test for test in _tests_of_page() if not isinstance(test, NotRun))


def _tests_of_page() -> Iterator[Comparison | Spread | NotRun]:
    for section in sections():
        for claim in section.claims:
            for cell in claim.cells:
                yield from cell


def claim_rows() -> Iterator[tuple[Section, list[Row]]]:
    """The rows of each section's table."""
    tests = list(all_tests())
    outcomes = [decide_test(test) for test in tests]
    adjusted = dict(zip(tests, holm([outcome.p for outcome in outcomes]), strict=True))
    outcome_of = dict(zip(tests, outcomes, strict=True))
    for section in sections():
        section_rows = []
        for claim in section.claims:
            cells = []
            verdicts = []
            for cell in claim.cells:
                tests_run = [test for test in cell if not isinstance(test, NotRun)]
                if tests_run:
                    sides = [outcome_of[test].side for test in tests_run]
                    cell_verdict = verdict(sides, [adjusted[test] for test in tests_run])
                    text = f"**{cell_verdict}**: " + "; ".join(outcome_of[test].text for test in tests_run)
                elif cell:
                    cell_verdict = "not run"
                    text = "not run"
                else:
                    cell_verdict = ""
                    text = "-"
                cells.append(text)
                verdicts.append(cell_verdict)
            section_rows.append(Row(claim.text, (cells[0], cells[1]), (verdicts[0], verdicts[1])))
        yield section, section_rows


def make_tables() -> str:
    """The rule, the tables, and the commands of what was not run."""
    rule = ["| verdict | rule |", "|---|---|"]
    rule += [f"| {name} | {text} |" for name, text in VERDICTS.items()]
    parts = ["\n".join(rule)]
    for section, section_rows in claim_rows():
        parts.append(f"## {section.title}")
        if section.text:
            parts.append(section.text)
        lines = [f"| claim | {section.paper} | {section.default} |", "|---|---|---|"]
        lines += [f"| {row.claim} | {row.cells[0]} | {row.cells[1]} |" for row in section_rows]
        parts.append("\n".join(lines))
    missing = dict.fromkeys(test for test in _tests_of_page() if isinstance(test, NotRun))
    lines = ["| what | command | CPU minutes |", "|---|---|---:|"]
    lines += [f"| {study.what} | `{study.command}` | {study.minutes} |" for study in missing]
    parts += ["## Not run", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def count_verdicts() -> str:
    """How many claims have which verdict, by method."""
    of_paper: list[str] = []
    of_default: list[str] = []
    for _, section_rows in claim_rows():
        for row in section_rows:
            of_paper.append(row.verdicts[0])
            of_default.append(row.verdicts[1])
    outcomes = [decide_test(test) for test in all_tests()]
    alone = sum(outcome.side != 0 for outcome in outcomes)
    after = sum(p <= LEVEL for p in holm([outcome.p for outcome in outcomes]))
    return (
        f"The paper's method: {_counts_text(of_paper)}.\nThis package's default: {_counts_text(of_default)}.\n"
        f"Of {len(outcomes)} tests, {alone} decide alone, and {after} after Holm's correction."
    )


def _counts_text(verdicts: Sequence[str]) -> str:
    return ", ".join(f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/claims.md")
    options = parser.parse_args(arguments)
    content = f"{count_verdicts()}\n\n{make_tables()}"
    if not options.write:
        print(content)
        return
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{content}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
