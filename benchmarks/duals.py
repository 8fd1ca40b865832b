"""Controllers of the multipliers on 38 bandits whose constrained optimum a linear program knows.

    python -m benchmarks.duals                 # all problems and controllers, three seeds: 22 minutes of CPU time
    python -m benchmarks.duals --controllers DampedAscent --seeds 10 --problems 2 3

A tabular softmax policy learns by `ConstrainedAdvantages`, as in a loop of a user's own, with every default. The
problems are the 26 of `benchmarks.bandits`, then the twelve of `benchmarks.fresh_bandits`. Letters: X contexts, A arms,
K constraints, T updates.

Excess: the largest rate above its threshold d_k in the last quarter, relative to min(d_k, 1 - d_k) (d_k of a mean).
Feasible: an excess of at most 10 %. Regret: the share of the gain over the safest policy that the last quarter's policy
misses; below 0, the policy gains from its excess. Own regret: the missed share of the most that a policy could gain at
the same rates; at least 0. The larger of both charges for unused rates, and pays nothing for an excess. Rates are exact
expectations; the table has medians over seeds. ``Prices`` keeps the program's prices instead of a dual: its own regret
is the policy gradient's. Where costs change, these prices begin with the change; ``Prices-times=10`` has tenfold
prices.
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
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bandits import Array, Problem, problems_by_name
from benchmarks.fresh_bandits import fresh_problems
from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from examples.controllers.nupi import NuPI
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages
from lightning_cgrpo.multipliers import PID, Controller, DampedAscent, ProjectedAscent, SoftmaxAdam
from lightning_cgrpo.multipliers.controller import normalized_weights

CLASSES = (DampedAscent, SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID, NuPI)
CONTROLLERS = {controller.__name__: controller for controller in CLASSES}
"""``NAME-group`` has advantages of group scale, ``NAME-margin=M`` another setting of the controller; see `Prices`."""
RESULTS = Path(__file__).parent / "results" / "duals.json"
MEASURES = ("excess", "regret", "own regret")
ENTROPY = 0.001
"""Weight of the policy's entropy in the loss."""
TOLERANCE = 0.1
"""Largest excess of a feasible run."""


class Prices(Controller):
    """No dual: prices ``[K]`` of a linear program, as weights of the constraints; 0 before update `since`."""

    def __init__(self, prices: Array, estimator: ScalarizedAdvantages, since: int) -> None:
        super().__init__()
        self.prices = torch.from_numpy(prices)
        self.estimator = estimator
        self.since = since
        self.updates = 0

    @property
    def weights(self) -> Tensor:
        prices = self.prices * (self.updates >= self.since)
        std = self.estimator._std
        return normalized_weights(prices if std is None else prices * std[1:] / std[0])

    def _allocate(self, size: int) -> None:
        self.register_buffer("multipliers", torch.zeros(size, dtype=torch.float64))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        self.updates += 1


def train(
    problem: Problem,
    controller: Controller,
    seed: int,
    estimator: ScalarizedAdvantages | None = None,
    share: float = 1 / 4,
) -> Array:
    """The policies ``[share * T, X, A]`` of the last share of the updates."""
    draw = torch.Generator().manual_seed(seed)
    advantages_of = ConstrainedAdvantages(problem.objective, controller, estimator)
    start = np.zeros_like(problem.rewards) if problem.start is None else problem.start
    logits = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=problem.lr)
    policies = []
    for update in range(problem.updates):
        early = problem.before if update < problem.updates // 2 else None
        costs = torch.from_numpy(problem.costs if early is None else early)
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        policies.append(probs.detach().numpy().copy())
        contexts = torch.randint(len(probs), (problem.prompts,), generator=draw)
        arms = probs.detach()[contexts].multinomial(problem.answers, replacement=True, generator=draw)
        rows = contexts[:, None].expand_as(arms)
        advantages = advantages_of(problem.answered(costs, rows, arms, draw))
        entropy = -(probs * log_probs).sum(-1)[contexts].mean()
        optimizer.zero_grad()
        (-(advantages * log_probs[rows, arms]).mean() - ENTROPY * entropy).backward()
        optimizer.step()
    return np.stack(policies[-int(share * problem.updates) :])


def all_problems() -> dict[str, Problem]:
    return problems_by_name() | fresh_problems()


def judged(name: str, controller: str, seed: int) -> dict[str, float]:
    """Excess and regret of one run."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    problem = all_problems()[name]
    kind, *options = controller.split("-")
    settings: dict[str, float] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if equals:
            settings[key] = float(value)
    estimator = ScalarizedAdvantages("group" if "group" in options else "pooled")
    safest, best, prices = problem.bounds()
    # A component that applies to a share of the answers moves the policy by its share.
    fixed_prices = settings.get("times", 1.0) * prices / (problem.applies or 1.0)
    fixed = Prices(fixed_prices, estimator, 0 if problem.before is None else problem.updates // 2)
    policies = train(problem, fixed if kind == "Prices" else CONTROLLERS[kind](**settings), seed, estimator)
    policy = policies.mean(0)  # rewards and violations are linear in the probabilities
    reward = float((policy * problem.rewards).sum(-1).mean())
    excess = problem.excesses(policies)[:, : problem.counted].mean(0).max()
    missed = np.array([best - reward, problem.best_at_rates_of(policy) - reward]) / (best - safest)
    return dict(zip(MEASURES, np.round([excess, *missed], 4).tolist(), strict=True))


def table(results: dict[str, dict[str, dict[str, Any]]], controllers: Sequence[str]) -> str:
    """Markdown: the measures in percent by problem and controller, feasible ones in bold."""
    lines = [f"| {', '.join(MEASURES)}, % | " + " | ".join(controllers) + " |", "|---" * (1 + len(controllers)) + "|"]
    for problem, scores in results.items():
        cells = []
        for name in controllers:
            excess, *missed = (round(100 * scores[name][key], 1) for key in MEASURES)
            first = f"**{excess:+g}**" if scores[name]["feasible"] else f"{excess:+g}"
            cells.append(", ".join([first, *(f"{share:g}" for share in missed)]))
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    fresh = fresh_problems()
    for title, counted in (("the 26", results.keys() - fresh.keys()), ("the fresh", results.keys() & fresh.keys())):
        if counted:
            rows = {name: results[name] for name in counted}
            sums = [summary(rows, name) for name in controllers]
            lines.append(f"| {title}: feasible, medians of these | " + " | ".join(sums) + " |")
    return "\n".join(lines)


def summary(results: dict[str, dict[str, dict[str, Any]]], controller: str) -> str:
    """The number of feasible problems, and their medians in percent: regret, own regret, the larger of both."""
    feasible = [scores[controller] for scores in results.values() if scores[controller]["feasible"]]
    count = f"{len(feasible)} of {len(results)}"
    if not feasible:
        return count
    pairs = [(score["regret"], score["own regret"]) for score in feasible]
    columns = [*zip(*pairs, strict=True), [max(pair) for pair in pairs]]
    return ", ".join([count, *(f"{100 * median(column):.1f}" for column in columns)])


def main(argv: Sequence[str] | None = None) -> None:
    names = list(all_problems())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", type=int, default=range(1, 39), metavar="N", help="by number, from 1")
    parser.add_argument("--controllers", nargs="+", default=list(CONTROLLERS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/duals.json for all problems)")
    parser.add_argument("--report", action="store_true", help="print the table of the committed results, run nothing")
    options = parser.parse_args(argv)
    if options.report:
        print(table(json.loads(RESULTS.read_text()), options.controllers))
        return
    chosen = [names[number - 1] for number in options.problems]
    runs = list(product(chosen, options.controllers, range(options.seeds)))
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        scores = dict(zip(runs, pool.map(judged, *zip(*runs, strict=True)), strict=True))
    results: dict[str, dict[str, Any]] = {}
    for name, controller in product(chosen, options.controllers):
        seeds = [scores[name, controller, seed] for seed in range(options.seeds)]
        middle = {key: median(score[key] for score in seeds) for key in MEASURES}
        feasible = middle["excess"] <= TOLERANCE
        results.setdefault(name, {})[controller] = {"feasible": feasible, **middle, "seeds": seeds}
    if out := options.out or (RESULTS if len(chosen) == len(names) else None):
        out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results, options.controllers))


if __name__ == "__main__":
    main()
