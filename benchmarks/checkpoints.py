"""Rules that choose a checkpoint, on the policies of the 26 bandits (`benchmarks.bandits`).

    python -m benchmarks.checkpoints                       # two sizes of the validation: two minutes of CPU time
    python -m benchmarks.checkpoints --prompts 1000 --problems 1 9

Each policy is trained with the default dual and validated ten times, by new prompts with one answer each. A rule
chooses among the ten: ``best`` is `Selection`; ``by bounds`` is the rule before November 27, 2026, the highest reward
of which all 95 % bounds meet their thresholds; ``point`` is the latest whose estimates meet them; ``near`` is the
latest of these within a standard error of their highest reward; ``last`` is the last.
Problems whose costs change are left out.

A choice is judged by exact expectations: the regret (`benchmarks.duals`), the inefficiency (the regret without the
worth of unused rates at the linear program's prices), the share of choices of which a rate exceeds its threshold by
more than 10 % of min(d, 1 - d), and the probability that 5,000 prompts certify the choice (rates only). The table has
means over validations and seeds, then medians over problems for regret and inefficiency, and means for the other two.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from benchmarks.bandits import Array, Problem, problems_by_name
from benchmarks.duals import TOLERANCE, train
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.multipliers import DampedAscent
from lightning_cgrpo.objective.evaluation import Evaluation
from lightning_cgrpo.objective.measurement import prompt_sums
from lightning_cgrpo.objective.moments import clustered_rates, moments
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.objective.selection import Selection, Standing
from lightning_cgrpo.objective.units import unit_of
from lightning_cgrpo.objective.verdicts.clustered import ClusteredMean, ClusteredRate

CHECKS = 10
REPEATS = 10
CERTIFYING = 5000
RULES = ("best", "by bounds", "point", "near", "last")
MEASURES = ("regret", "inefficiency", "beyond", "certified")
RESULTS = Path(__file__).parent / "results" / "checkpoints.json"


def validated(problem: Problem, policy: Array, prompts: int, draw: torch.Generator) -> Evaluation:
    """A validation of a policy ``[X, A]`` by prompts with one answer each."""
    rows = torch.randint(len(policy), (prompts, 1), generator=draw)
    arms = torch.from_numpy(policy)[rows[:, 0]].multinomial(1, generator=draw)
    signals = problem.answered(torch.from_numpy(problem.costs), rows, arms, draw)
    rollouts = Rollouts(arms[..., None], torch.ones_like(arms[..., None], dtype=torch.bool), {})
    sums = prompt_sums(problem.objective, signals, rollouts)
    total = {name: float(row.sum()) for name, row in sums.items()}
    total |= {name: float(value) for name, value in moments(problem.objective.constraints, sums).items()}
    rates = clustered_rates(problem.objective.constraints, total, problem.objective.means)
    rewards = signals["reward"].value
    error = float(rewards.std()) / prompts**0.5
    return Evaluation({"reward/mean": float(rewards.mean())}, {"reward/mean": error}, prompts, prompts, rates)


def by_bounds(objective: Objective, evaluation: Evaluation) -> tuple[bool, float]:
    """Whether all 95 % bounds meet their thresholds, and the reward, else the worst slack of a bound."""
    slack = np.inf
    for name, constraint in objective.constrained.items():
        unknown = (ClusteredMean if constraint.bound.of_mean else ClusteredRate)(0.0, None, 0, 0.0)
        upper = evaluation.rates.get(name, unknown).bounds(0.05)[1]
        slack = min(slack, (constraint.bound.target - upper) / unit_of(constraint.bound))
    return slack >= 0, evaluation.metrics["reward/mean"] if slack >= 0 else slack


def chosen(problem: Problem, evaluations: Sequence[Evaluation]) -> dict[str, int]:
    """The number of the check that each rule chooses."""
    last = len(evaluations) - 1
    choices = {"last": last, "best": last, "point": last, "near": last}
    highest: tuple[float, float] | None = None
    selection = Selection()
    for number, evaluation in enumerate(evaluations):
        policy = Standing.of(problem.objective, evaluation)
        assert policy is not None
        if selection.chooses(policy):
            choices["best"] = number
        if policy.met:
            choices["point"] = number
            if highest is None or policy.reward > highest[0]:
                highest = policy.reward, policy.error
            if policy.reward >= highest[0] - highest[1]:
                choices["near"] = number
    scores = [by_bounds(problem.objective, evaluation) for evaluation in evaluations]
    return choices | {"by bounds": scores.index(max(scores))}


def certified(problem: Problem, excess: Array) -> float:
    """The probability that `CERTIFYING` prompts certify all counted rates, whose excess is ``[K]``."""
    probability = 1.0
    counted = len(excess)
    for d, scale, above in zip(problem.thresholds, problem.units, excess, strict=False):
        most = np.searchsorted(binom.cdf(np.arange(CERTIFYING + 1), CERTIFYING, d), 0.05 / counted, "right") - 1
        probability *= float(binom.cdf(most, CERTIFYING, d + above * scale)) if most >= 0 else 0.0
    return probability


def judged(name: str, prompts: Sequence[int], seed: int) -> dict[int, dict[str, dict[str, float]]]:
    """The measures of each rule by number of prompts, means over `REPEATS` validations of one run."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    problem = problems_by_name()[name]
    safest, best, prices = problem.bounds()
    policies = train(problem, DampedAscent(), seed, share=1.0)
    policies = policies[np.arange(1, CHECKS + 1) * len(policies) // CHECKS - 1]
    rewards = (policies * problem.rewards).sum(-1).mean(-1)
    excesses = problem.excesses(policies)[:, : problem.counted]
    beyond = np.einsum("txa,kxa->tk", policies, problem.violations()) / len(problem.rewards)
    certificates = [np.nan if problem.heavy else certified(problem, excess) for excess in excesses]
    exact = {
        "regret": (best - rewards) / (best - safest),
        "inefficiency": (best - rewards + beyond @ prices) / (best - safest),
        "beyond": excesses.max(-1) > TOLERANCE,
        "certified": np.array(certificates),
    }
    draw, results = torch.Generator().manual_seed(seed), {}
    for count in prompts:
        choices = []
        for _ in range(REPEATS):
            choices.append(chosen(problem, [validated(problem, policy, count, draw) for policy in policies]))
        results[count] = {
            rule: {key: float(np.mean([values[choice[rule]] for choice in choices])) for key, values in exact.items()}
            for rule in RULES
        }
    return results


def main(argv: Sequence[str] | None = None) -> None:
    problems = problems_by_name()
    names = list(problems)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", type=int, default=range(1, 27), metavar="N", help="by number, from 1")
    parser.add_argument("--prompts", nargs="+", type=int, default=[200, 1000], help="sizes of the validation")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/checkpoints.json for all)")
    options = parser.parse_args(argv)
    asked = [names[number - 1] for number in options.problems]
    runs = list(product([name for name in asked if problems[name].before is None], range(options.seeds)))
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        found = list(pool.map(judged, *zip(*[(name, options.prompts, seed) for name, seed in runs], strict=True)))
    print(f"| validation prompts | rule | {' | '.join(MEASURES)} |\n|---|---|---|---|---|---|")
    results = {}
    for count, rule in product(options.prompts, RULES):
        by_problem: dict[str, dict[str, float]] = {}
        for name in dict.fromkeys(name for name, _ in runs):
            seeds = [scores[count][rule] for (other, _), scores in zip(runs, found, strict=True) if other == name]
            by_problem[name] = {key: round(float(np.mean([seed[key] for seed in seeds])), 4) for key in MEASURES}
        cells = []
        for key in MEASURES:
            middle = np.nanmedian if key in ("regret", "inefficiency") else np.nanmean
            cells.append(f"{100 * middle([scores[key] for scores in by_problem.values()]):.1f}")
        print(f"| {count} | {rule} | {' | '.join(cells)} |")
        results[f"{count} {rule}"] = by_problem
    if out := options.out or (RESULTS if len(options.problems) == len(names) else None):
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
