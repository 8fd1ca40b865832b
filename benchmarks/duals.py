"""Controllers of the multipliers on 26 bandits whose constrained optimum a linear program knows.

    python -m benchmarks.duals                 # all problems and controllers, three seeds: 15 minutes of CPU time
    python -m benchmarks.duals --controllers DampedAscent --seeds 10 --problems 2 3

A tabular softmax policy is trained by `ScalarizedAdvantages` and `LagrangianCallback`, as users train, with every
default. Letters: X contexts, A arms, K constraints, T updates, B groups of G answers.

Excess: the largest rate above its threshold d_k in the last quarter, relative to min(d_k, 1 - d_k) (d_k of a mean).
Feasible: an excess of at most 10 %. Regret: the share of the gain over the safest policy that the last quarter's policy
misses; below 0, the policy gains from its excess. Inefficiency: the regret without the worth of unused rates at the
program's prices; at least 0. Rates are exact expectations; the table has medians over seeds. ``Prices`` keeps the
program's prices instead of a dual: its inefficiency is the policy gradient's own. Where costs change, these prices
begin with the change; ``Prices-times=10`` has tenfold prices.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from examples.controllers.exponentiated_gradient import ExponentiatedGradient
from examples.controllers.nupi import NuPI
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Rollouts, Signal
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.multipliers import PID, Controller, DampedAscent, ProjectedAscent, SoftmaxAdam
from lightning_cgrpo.multipliers.controller import normalized
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Constraint, Objective

CLASSES = (DampedAscent, SoftmaxAdam, ExponentiatedGradient, ProjectedAscent, PID, NuPI)
CONTROLLERS = {controller.__name__: controller for controller in CLASSES}
"""``NAME-group`` has advantages of group scale, ``NAME-margin=M`` another setting of the controller; see `Prices`."""
RESULTS = Path(__file__).parent / "results" / "duals.json"
MEASURES = ("excess", "regret", "inefficiency")
ENTROPY, TOLERANCE, SIGMA = 0.001, 0.1, 1.5
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A contextual bandit with constraints.

    Args:
        rewards: mean reward ``[X, A]`` of each arm.
        costs: ``[K, X, A]``, probability of a violation, per step if answers have steps; a mean if `heavy`.
        thresholds: d ``[K]``.
        start: initial logits ``[X, A]``.
        noise: standard deviation of a Gaussian added to the reward.
        draws: violations are drawn independently, by one draw for all, or by a draw and its opposite.
        heavy: costs are lognormal numbers whose mean is bounded.
        lengths: ``[X, A]``, steps of an arm's answer.
        excess: the cost in the advantage is the excess, instead of the sum of violations over steps.
        applies: share of the answers to which each constraint applies.
        before: costs ``[K, X, A]`` in the first half of the updates.
        counted: number of constraints that count, from the first; the others can't be met.
    """

    rewards: Array
    costs: Array
    thresholds: tuple[float, ...]
    updates: int = 500
    prompts: int = 32
    answers: int = 16
    lr: float = 0.05
    start: Array | None = None
    noise: float = 0.0
    draws: Literal["own", "shared", "opposite"] = "own"
    heavy: bool = False
    lengths: Array | None = None
    excess: bool = False
    applies: tuple[float, ...] = ()
    before: Array | None = None
    counted: int | None = None

    @property
    def objective(self) -> Objective:
        kind, cost = "mean_at_most" if self.heavy else "at_most", "excess" if self.excess else "signal"
        constraints = {f"cost{k}": Constraint(cost=cost, **{kind: d}) for k, d in enumerate(self.thresholds)}
        return Objective("reward", constraints)

    @property
    def units(self) -> Array:
        """Units of excesses, ``[K]``."""
        d = np.array(self.thresholds)
        return d if self.heavy else np.minimum(d, 1 - d)

    def violations(self) -> Array:
        """Expected violations beyond the threshold's share ``[K, X, A]``: rates hold where their mean is at most 0."""
        lengths = np.ones_like(self.rewards) if self.lengths is None else self.lengths
        return (self.costs - np.array(self.thresholds)[:, None, None]) * lengths

    def excesses(self, policies: Array) -> Array:
        """Rate above the threshold, in `units`, of policies ``[T, X, A]``: ``[T, K]``."""
        lengths = np.ones_like(self.rewards) if self.lengths is None else self.lengths
        above = np.einsum("txa,kxa->tk", policies, self.violations())
        return above / np.einsum("txa,xa->t", policies, lengths)[:, None] / self.units

    def bounds(self) -> tuple[float, float, Array]:
        """Least reward of the safest policies (the least sum of excesses), the greatest within the thresholds, and the
        rewards ``[K]`` that one violation less costs there.
        """
        (contexts, arms), rewards = self.rewards.shape, self.rewards.ravel() / len(self.rewards)
        counted = self.violations()[: self.counted] / self.units[: self.counted, None, None] / contexts
        rows = counted.reshape(len(counted), -1)
        shares, ones = np.kron(np.eye(contexts), np.ones(arms)), np.ones(contexts)  # probabilities sum to 1
        best = linprog(-rewards, rows, np.zeros(len(rows)), shares, ones)
        assert best.success, "no policy meets the thresholds"
        total = rows.sum(0)
        least = linprog(total, A_eq=shares, b_eq=ones).fun
        safest = linprog(rewards, total[None], [least + 1e-9], shares, ones)
        prices = np.zeros(len(self.thresholds))
        prices[: len(rows)] = -best.ineqlin.marginals / self.units[: len(rows)]
        return float(safest.fun), float(-best.fun), prices


def drawn(seed: int, *shares: float, contexts: int = 8, arms: int = 6, constraints: int = 2, **others: Any) -> Problem:
    """Arms whose better ones cost more, with thresholds `between`."""
    draw = np.random.default_rng(seed)
    quality = draw.random((contexts, arms))
    rewards = 0.1 + 0.64 * quality + 0.16 * draw.random((contexts, arms))
    costs = 0.02 + 0.49 * quality + 0.21 * draw.random((constraints, contexts, arms))
    return Problem(rewards, costs, between(rewards, costs, *shares), **others)


def between(rewards: Array, costs: Array, *shares: float, lengths: Array | None = None) -> tuple[float, ...]:
    """Thresholds at a share of the range from the least rates to the greedy policy's; one share serves all."""
    steps = np.ones_like(rewards) if lengths is None else lengths

    def rate(cost: Array, arm: Array) -> float:
        rows = np.arange(len(arm))
        return float((cost * steps)[rows, arm].sum() / steps[rows, arm].sum())

    greedy = np.array([rate(cost, rewards.argmax(-1)) for cost in costs])
    least = np.array([rate(cost, cost.argmin(-1)) for cost in costs])
    return tuple((least + np.array(shares) * (greedy - least)).tolist())


def rare(seed: int, thresholds: tuple[float, ...], safe: float, dear: float, **settings: Any) -> Problem:
    """Two arms are (almost) safe for the first constraint, at 0.6 and 0.5 of the best reward; `dear` scales the rest.

    The smaller the costs of the dear arms, the higher is the price that keeps the policy away from them.
    """
    problem = drawn(seed, 0.35, constraints=len(thresholds), **settings)
    problem.rewards[:, :2] = problem.rewards.max(-1, keepdims=True) * (0.6, 0.5)
    problem.costs[0] *= dear
    problem.costs[0, :, :2] = safe
    return replace(problem, thresholds=thresholds)


def by_name() -> dict[str, Problem]:
    """The 26 problems of an audit in November 2026, in its order."""
    base, slack = drawn(9, 0.35), drawn(20, 0.35, updates=800)
    conflict, swap, pair = (drawn(seed, 0.35, constraints=1) for seed in (6, 19, 21))
    opposed = {"costs": np.concatenate([conflict.costs, 1 - 0.9 * conflict.costs]), "counted": 1}
    both = {"costs": np.concatenate([pair.costs, 1 - pair.costs]), "draws": "opposite"}
    dear, late = np.tile(np.arange(6) == 0, (8, 1)), np.random.default_rng(7).uniform(0.3, 0.6, (8, 6))
    modes, mode_costs = (np.tile(row, (8, 1)) for row in ((0.5, 0.55, 0.8, 0.85, 0.9), (0.02, 0.03, 0.05, 0.5, 0.7)))
    dull = drawn(15, 0.35, contexts=20, constraints=1)
    dull.rewards[1:], dull.costs[:, 1:] = dull.rewards[1:, :1], dull.costs[:, 1:, :1]
    # The safer an arm's steps, the longer are its answers, so that the arms of the least sum violate most often.
    steps = drawn(23, 0.35, constraints=1)
    lengths = np.round((40 * (steps.costs.min() / steps.costs[0]) ** 1.5).clip(2, 40))
    steps = replace(steps, lengths=lengths, thresholds=between(steps.rewards, steps.costs, 0.35, lengths=lengths))
    uneven = drawn(26, 0.35, contexts=16, constraints=1, updates=800)
    low, span = np.where(np.arange(16)[:, None] < 8, 0.3, 0.01), np.where(np.arange(16)[:, None] < 8, 0.4, 0.04)
    uneven.costs[0] = low + span * (uneven.rewards - 0.1) / 0.8
    return {
        "8 constraints": drawn(1, 0.55, arms=20, constraints=8),
        "threshold .001": rare(2, (0.001,), 0.0, 0.05, prompts=8),
        "threshold .0001": rare(3, (0.0001,), 0.0, 0.05, prompts=8),
        ".999 from .6": rare(4, (0.001, 0.6), 0.0002, 1.0),
        "one loose, one active": drawn(5, 0.9, 0.4),
        "conflict": replace(conflict, thresholds=(*conflict.thresholds, 0.02), **opposed),
        "active late": Problem(
            np.where(dear, 0.9, late), np.where(dear, 0.6, 0.03)[None], (0.15,), 800, start=np.where(dear, -6.0, 0.0)
        ),
        "two modes": Problem(modes, mode_costs[None], (0.1,), start=np.where(modes > 0.8, 4.0, 0.0)),
        "base": base,
        "learning rate x 10": replace(base, lr=0.5),
        "learning rate / 10": replace(base, lr=0.005, updates=1500),
        "16 answers": replace(base, prompts=2, answers=8),
        "groups of 2": replace(base, prompts=256, answers=2),
        "groups of 64": replace(base, prompts=8, answers=64),
        "1 of 20 contexts informative": replace(dull, thresholds=between(dull.rewards, dull.costs, 0.35)),
        "costs share their draw": drawn(16, 0.3, 0.5, draws="shared"),
        "sparse reward": replace(base, rewards=0.02 * base.rewards),
        "noisy reward": replace(base, noise=3.0),
        "costs swap": replace(swap, before=swap.costs[..., [1, 0, 3, 2, 5, 4]], updates=800),
        "slack, then costs x 8": replace(slack, before=slack.costs / 8),
        "a pair .45 to .55": replace(pair, thresholds=(0.55, 0.55), **both),
        "heavy-tailed mean": drawn(22, 0.35, constraints=1, heavy=True),
        "step rate, sum": steps,
        "step rate, excess": replace(steps, excess=True),
        "2 % of answers": drawn(25, 0.35, applies=(1.0, 0.02), updates=800),
        "frequent beside rare": replace(uneven, thresholds=between(uneven.rewards, uneven.costs, 0.35)),
    }


class Prices(Controller):
    """No dual: prices ``[K]`` of a linear program, as weights of the constraints; 0 before update `since`."""

    def __init__(self, prices: Array, estimator: ScalarizedAdvantages, since: int) -> None:
        super().__init__()
        self.prices, self.estimator, self.since, self.updates = torch.from_numpy(prices), estimator, since, 0

    @property
    def weights(self) -> Tensor:
        prices, std = self.prices * (self.updates >= self.since), self.estimator._std
        return normalized(prices if std is None else prices * std[1:] / std[0])

    def _allocate(self, size: int) -> None:
        self.register_buffer("multipliers", torch.zeros(size, dtype=torch.float64))

    def _update(self, violations: Tensor, observed: Tensor) -> None:
        self.updates += 1


class Dual:
    """The estimator and callback that users run, without a Trainer; the only place that knows their hooks."""

    def __init__(
        self, objective: Objective, controller: Controller, estimator: ScalarizedAdvantages | None, updates: int
    ) -> None:
        count = 1 + len(objective.constrained)
        self.objective, self.estimator = objective, estimator or ScalarizedAdvantages()
        self.module: Any = SimpleNamespace(
            objective=objective, weights=torch.full((count,), 1 / count, dtype=torch.float64), thresholds={},
            loggers=[], device=torch.device("cpu"),
        )  # fmt: skip
        self.trainer: Any = SimpleNamespace(
            callbacks=[], global_step=0, estimated_stepping_batches=updates, log_every_n_steps=updates
        )
        self.callback = LagrangianCallback(controller)
        self.callback.setup(self.trainer, self.module, "fit")
        self.callback.on_train_start(self.trainer, self.module)

    def advantages(self, rollouts: Rollouts, signals: dict[str, Signal]) -> Tensor:
        """Advantages ``[B, G]`` by the weights so far; the signals then move the weights."""
        weights = self.objective.component_weights(self.module.weights)
        advantages = self.estimator(rollouts, group_statistics(self.objective.components(signals)), weights)
        violations, opportunities = self.objective.violations(signals)
        self.trainer.global_step += 1
        outputs: Any = {"violations": violations, "opportunities": opportunities, "measured": signals}
        self.callback.on_train_batch_end(self.trainer, self.module, outputs, None, 0)
        return advantages


def answered(problem: Problem, costs: Tensor, rows: Tensor, arms: Tensor, draw: torch.Generator) -> dict[str, Signal]:
    """Signals of the arms ``[B, G]`` in contexts ``[B, G]``."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, *arms.shape, generator=draw, dtype=torch.float64)

    reward = (uniform() < torch.from_numpy(problem.rewards)[rows, arms]).double()
    if problem.noise:
        reward += problem.noise * torch.randn(arms.shape, generator=draw, dtype=torch.float64)
    signals, shared = {"reward": Signal(reward)}, uniform()
    for k, cost in enumerate(costs):
        mean = cost[rows, arms]
        luck = uniform() if problem.draws == "own" else shared if k == 0 or problem.draws == "shared" else 1 - shared
        value = (luck < mean).double()
        options: dict[str, Tensor] = {}
        if problem.heavy:
            normal = torch.randn(arms.shape, generator=draw, dtype=torch.float64)
            value = mean * (SIGMA * normal - SIGMA**2 / 2).exp()
        if problem.lengths is not None:
            steps = torch.from_numpy(problem.lengths)[rows, arms]
            value = torch.binomial(steps, mean, generator=draw)
            options = {"count": value, "opportunities": steps}
        if problem.applies:
            options["applicable"] = uniform() < problem.applies[k]
        signals[f"cost{k}"] = Signal(value, **options)
    return signals


def train(
    problem: Problem,
    controller: Controller,
    seed: int,
    estimator: ScalarizedAdvantages | None = None,
    share: float = 1 / 4,
) -> Array:
    """The policies ``[share * T, X, A]`` of the last share of the updates."""
    draw = torch.Generator().manual_seed(seed)
    start = np.zeros_like(problem.rewards) if problem.start is None else problem.start
    logits = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=problem.lr)
    dual, policies = Dual(problem.objective, controller, estimator, problem.updates), []
    for update in range(problem.updates):
        early = problem.before if update < problem.updates // 2 else None
        costs = torch.from_numpy(problem.costs if early is None else early)
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        policies.append(probs.detach().numpy().copy())
        contexts = torch.randint(len(probs), (problem.prompts,), generator=draw)
        arms = probs.detach()[contexts].multinomial(problem.answers, replacement=True, generator=draw)
        rows = contexts[:, None].expand_as(arms)
        rollouts = Rollouts(arms[..., None], torch.ones_like(arms[..., None], dtype=torch.bool), {})
        advantages = dual.advantages(rollouts, answered(problem, costs, rows, arms, draw))
        entropy = -(probs * log_probs).sum(-1)[contexts].mean()
        optimizer.zero_grad()
        (-(advantages * log_probs[rows, arms]).mean() - ENTROPY * entropy).backward()
        optimizer.step()
    return np.stack(policies[-int(share * problem.updates) :])


def judged(name: str, controller: str, seed: int) -> dict[str, float]:
    """Excess and regret of one run."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    problem = by_name()[name]
    name, *options = controller.split("-")
    settings = {option.partition("=")[0]: float(option.partition("=")[2]) for option in options if "=" in option}
    estimator = ScalarizedAdvantages("group" if "group" in options else "pooled")
    safest, best, prices = problem.bounds()
    # A component that applies to a share of the answers moves the policy by its share.
    fixed_prices = settings.get("times", 1.0) * prices / (problem.applies or 1.0)
    fixed = Prices(fixed_prices, estimator, 0 if problem.before is None else problem.updates // 2)
    made = fixed if name == "Prices" else CONTROLLERS[name](**settings)
    policies = train(problem, made, seed, estimator)
    reward = float((policies * problem.rewards).sum(-1).mean())
    excess = problem.excesses(policies)[:, : problem.counted].mean(0).max()
    beyond = np.einsum("xa,kxa->k", policies.mean(0), problem.violations()) / len(problem.rewards)
    missed = np.array([best - reward, best - reward + prices @ beyond]) / (best - safest)
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
    sums = []
    for name in controllers:
        regrets = [scores[name]["regret"] for scores in results.values() if scores[name]["feasible"]]
        middle = 100 * median(regrets) if regrets else math.nan
        sums.append(f"{len(regrets)} of {len(results)}, {middle:.1f}")
    return "\n".join([*lines, "| feasible, their median regret | " + " | ".join(sums) + " |"])


def main(argv: Sequence[str] | None = None) -> None:
    names = list(by_name())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", type=int, default=range(1, 27), metavar="N", help="by number, from 1")
    parser.add_argument("--controllers", nargs="+", default=list(CONTROLLERS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/duals.json for all problems)")
    options = parser.parse_args(argv)
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
