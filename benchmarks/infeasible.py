"""The costs of an infeasible constraint for the default dual, on bandits whose best policies a linear program knows.

    python -m benchmarks.infeasible            # four minutes of CPU time

One threshold of each problem lies below the least possible rate. `DampedAscent` trains for 600 and 1,000 updates, as in
`benchmarks.duals`. A stalled constraint is held at the rate that it reached, plus 0.06 standard units.

Lost: the share of the gain of the best unconstrained policy over the safest policy that the last quarter's policy
misses. At its rates: what the best policy with the same rates misses, so the difference is the dual's fault. Held: what
the best policy at the least possible rate plus 0.06 standard units misses, which is the price of holding; "-" where no
policy meets the other threshold there.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
from scipy.optimize import linprog

from benchmarks.bandits import Array, Problem, drawn
from benchmarks.duals import train
from lightning_cgrpo.multipliers import DampedAscent
from lightning_cgrpo.multipliers.targets import EASIER

UPDATES = (600, 1000)


def least_rates(problem: Problem) -> Array:
    """The least possible rate ``[K]`` of each constraint alone."""
    return problem.costs.min(-1).mean(-1)


def infeasible_problems() -> dict[str, tuple[Problem, int]]:
    """Problems by name, with the index of the constraint that can't be met."""
    problems: dict[str, tuple[Problem, int]] = {}
    for seed in (19, 41):
        alone = drawn(seed, 0.35, constraints=1)
        problems[f"the only constraint, {seed}"] = (_out_of_reach(alone, 0), 0)
    for seed in (9, 31, 32):
        second = drawn(seed, 0.35)
        problems[f"the second of two, {seed}"] = (_out_of_reach(second, 1), 1)
    # One draw violates either the one or the other constraint, so the two rates sum to 1.
    single = drawn(6, 0.35, constraints=1)
    both = np.concatenate([single.costs, 1 - single.costs])
    pair = replace(single, costs=both, thresholds=(0.3, 0.3), draws="opposite")
    problems["a pair that excludes each other"] = (pair, 1)
    return problems


def _out_of_reach(problem: Problem, k: int) -> Problem:
    """With half of the least possible rate as the threshold of constraint k."""
    thresholds = list(problem.thresholds)
    thresholds[k] = 0.5 * float(least_rates(problem)[k])
    return replace(problem, thresholds=tuple(thresholds))


def best_reward(problem: Problem, rates: Array) -> float:
    """The greatest mean reward of a policy whose rates are at most `rates` ``[K]``."""
    contexts, arms = problem.rewards.shape
    rows = problem.costs.reshape(len(rates), -1) / contexts
    one_per_context = np.kron(np.eye(contexts), np.ones(arms))
    best = linprog(-problem.rewards.ravel() / contexts, rows, rates + 1e-9, one_per_context, np.ones(contexts))
    return -float(best.fun) if best.success else float("nan")


def judged(name: str, updates: int, seed: int) -> dict[str, float]:
    """Shares of the reward's gain that are lost, and the rate of the infeasible constraint."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    problem, k = infeasible_problems()[name]
    policy = train(replace(problem, updates=updates), DampedAscent(), seed).mean(0)
    rates = np.einsum("xa,kxa->k", policy, problem.costs) / len(policy)
    # What holding asks for at least.
    held = np.array(problem.thresholds)
    least = float(least_rates(problem)[k])
    # A hold gives way in the unit of the held rate.
    held[k] = least + EASIER * (least * (1 - least)) ** 0.5
    top = float(problem.rewards.max(-1).mean())
    safest = float(problem.rewards[np.arange(len(policy)), problem.costs[k].argmin(-1)].mean())

    def lost(reward: float) -> float:
        return (top - reward) / (top - safest)

    return {
        "lost": lost(float((policy * problem.rewards).sum(-1).mean())),
        "at its rates": lost(best_reward(problem, rates)),
        "held": lost(best_reward(problem, held)),
        "rate": float(rates[k]),
        "least": float(least_rates(problem)[k]),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--updates", nargs="+", type=int, default=UPDATES)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    runs = list(product(infeasible_problems(), options.updates, range(options.seeds)))
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        scores = dict(zip(runs, pool.map(judged, *zip(*runs, strict=True)), strict=True))
    print("| mean over seeds | updates | lost, % | at its rates, % | held, % | rate (least possible) |")
    print("|---|---|---|---|---|---|")
    for name, updates in product(infeasible_problems(), options.updates):
        seeds = [scores[name, updates, seed] for seed in range(options.seeds)]
        mean = {key: float(np.mean([score[key] for score in seeds])) for key in seeds[0]}
        cells = []
        for key in ("lost", "at its rates", "held"):
            cells.append("-" if np.isnan(mean[key]) else f"{100 * mean[key]:.0f}")
        print(f"| {name} | {updates:,} | {' | '.join(cells)} | {mean['rate']:.3f} ({mean['least']:.3f}) |")


if __name__ == "__main__":
    main()
