"""Generated rollouts and objectives: steps and ragged answers, partly applicable signals, every kind of constraint.

`tests/loops/` measures the same in plain loops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_cgrpo.core.rollout import Examples, PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.objective import Constraint, Objective

examples = settings(max_examples=40, deadline=None)

REWARDS = {
    "one": "goal",
    "partly": "speed",
    "two": {"goal": 1.0, "speed": 0.5},
    "by step": {"effort": 2.0, "polite": -1.0},
}
CONSTRAINTS = {
    # Rates of indicators, of counts and of steps.
    "polite": Constraint(at_least=0.9),
    "lava": Constraint(at_most=0.1),
    "bumps": Constraint(at_most=0.6, aim=0.2),
    "bumped": Constraint(at_least=0.5, signal="bumps"),
    "hits": Constraint(at_most=0.1),
    # Rates of numbers.
    "slow": Constraint(at_most=0.2, signal="speed", violated_below=0.0),
    "fast": Constraint(at_most=0.7, signal="speed", violated_above=0.5),
    "effort": Constraint(at_most=0.3, violated_above=0.25),
    # Means, of a task's signals and of the policy's own.
    "mean": Constraint(mean_at_most=0.5, signal="speed"),
    "least": Constraint(mean_at_least=-0.5, signal="effort"),
    "drift": Constraint(mean_at_most=0.05, signal="kl"),
    "kl": Constraint(mean_at_most=0.02),
    "entropy": Constraint(mean_at_least=0.4),
    # Subsets by a tensor and by a list.
    "small": Constraint(at_most=0.1, signal="hits", where={"size": 1}),
    "kind": Constraint(at_least=0.8, signal="polite", by={"kind": ["a", "b"]}),
    # Limits in a column, and conditions: on a number, a count, steps of a subset, and a mean.
    "over": Constraint(at_most=0.3, signal="speed", violated_above={"column": "limit"}),
    "hasty": Constraint(at_most=0.3, signal="speed", violated_above={"column": "limit"}, given="goal"),
    "burnt": Constraint(at_most=0.4, signal="lava", given="polite"),
    "clear": Constraint(at_least=0.8, signal="hits", given="goal", where={"size": 2}),
    "slowly": Constraint(mean_at_most=0.2, signal="speed", given="polite"),
    # A monitor, and a schedule.
    "seen": Constraint(signal="lava", role="monitor"),
    "later": Constraint(at_least=0.9, signal="polite", start=0.5, over=2, aim=0.95),
}
PARTLY = ("speed", "polite", "lava", "bumps", "hits")
"""Signals that may not apply to an answer."""


@dataclass(frozen=True)
class Batch:
    """An update's prompts, answers and signals, and the policy's outputs at the answers' steps."""

    prompts: PromptGroups
    rollouts: Rollouts
    signals: dict[str, Signal]
    examples: Examples

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rollouts.mask.shape)


@dataclass(frozen=True)
class Run:
    """An objective, and the batches of some updates."""

    objective: Objective
    batches: list[Batch]
    weights: Tensor
    """``[1 + K]``, of sum 1."""

    @property
    def component_weights(self) -> Tensor:
        return self.objective.component_weights(self.weights)


def runs(updates: int = 1, every: bool = False) -> st.SearchStrategy[Run]:
    """Some updates under one objective, by a seed, because drawing each part from Hypothesis repeats small cases.

    `every`: all signals apply to all answers.
    """
    return st.integers(0, 2**32).map(lambda seed: make_run(np.random.default_rng(seed), updates, every))


def make_run(random: np.random.Generator, updates: int, every: bool) -> Run:
    reward = REWARDS[random.choice(list(REWARDS))]
    names = random.permutation(list(CONSTRAINTS))[: random.integers(1, 9)]
    objective = Objective(reward, {name: CONSTRAINTS[name] for name in names.tolist()})
    shape = tuple(random.integers((1, 2, 1), (5, 6, 6)).tolist())
    language = bool(random.integers(2))
    batches = []
    for _ in range(updates):
        kinds = ["all"] if every else ["none", "one", "some", "all"]
        applies = {name: random.choice(kinds, shape[0]).tolist() for name in PARTLY}
        batches.append(make_batch(random, shape, language, applies))
    raw = random.integers(1, 100, len(objective.weight_names)).astype(float)
    return Run(objective, batches, torch.from_numpy(raw / raw.sum()))


def make_batch(
    random: np.random.Generator, shape: tuple[int, int, int], language: bool, applies: dict[str, list[str]]
) -> Batch:
    """Signals on coarse grids, so that a group varies clearly or not at all; NaN wherever nobody may look.

    Args:
        shape: prompts, answers and steps ``(B, G, T)``.
        language: answers are the training units, and the world speaks between their steps.
        applies: by signal, for each group: none, one, some or all of its answers.
    """

    def draw(*values: float, by_step: bool = False) -> Tensor:
        return torch.from_numpy(random.choice(values, shape if by_step else shape[:2]))

    lengths = torch.from_numpy(random.integers(0, shape[2] + 1, shape[:2]))
    mask = torch.arange(shape[2]) < lengths[..., None]
    if language:
        mask = mask & (torch.from_numpy(random.random(shape)) < 0.7)
    size = torch.from_numpy(random.integers(1, 3, shape[0]))
    kind = random.choice(["a", "b", "c"], shape[0]).tolist()
    texts = [f"prompt {number}" for number in random.integers(0, 3, shape[0])]
    limits = torch.from_numpy(random.choice([0.0, 0.25], shape[0]))
    columns = {"prompt": texts, "size": size, "kind": kind, "limit": limits}
    prompts = PromptGroups(torch.arange(shape[0]), columns)
    rollouts = Rollouts(mask.long(), mask, {"observations": torch.from_numpy(random.normal(size=(*shape, 12)))})

    opportunities = draw(1.0, 2.0, 4.0)
    count = (torch.from_numpy(random.random(shape[:2])) * (opportunities + 1)).floor()
    signals = {
        "goal": Signal(draw(0.0, 1.0)),
        "speed": Signal(draw(-0.5, 0.0, 0.25, 1.0)),
        "polite": Signal(draw(0.0, 1.0)),
        "lava": Signal(draw(0.0, 0.5, 3.0), count, opportunities),
        "bumps": Signal(count, opportunities=opportunities),
        "hits": Signal(draw(0.0, 0.0, 1.0, by_step=True)),
        "effort": Signal(draw(-0.5, 0.25, 1.0, by_step=True)),
    }
    for name, kinds in applies.items():
        if kinds != ["all"] * shape[0]:
            signals[name] = partly(signals[name], kinds, random)
    for name in ("hits", "effort"):
        value = torch.where(mask, signals[name].value, torch.nan)
        signals[name] = replace(signals[name], value=value).within(mask)

    outputs = {name: torch.from_numpy(random.random(shape)) for name in ("kl", "entropy")}
    return Batch(prompts, rollouts, signals, units(rollouts, language, outputs))


def partly(signal: Signal, kinds: list[str], random: np.random.Generator) -> Signal:
    """The signal where it applies to none, one, some or all answers of each group, and NaN elsewhere."""
    answers = signal.value.shape[1]
    applicable = np.zeros((len(kinds), answers), dtype=bool)
    for row, kind in zip(applicable, kinds, strict=True):
        if kind == "one":
            row[random.integers(answers)] = True
        elif kind != "none":
            row[:] = True if kind == "all" else random.random(answers) < 0.6
    mask = torch.from_numpy(applicable)
    dirty = signal.mapped(lambda part: torch.where(mask if part.dim() == 2 else mask[..., None], part, torch.nan))
    return replace(dirty, applicable=mask)


def units(rollouts: Rollouts, language: bool, targets: dict[str, Tensor]) -> Examples:
    """Training units: whole answers of a language model, or single steps. Inputs and targets are NaN in the padding."""
    mask = rollouts.mask
    group = torch.arange(len(mask))[:, None, None].expand(mask.shape)
    if not language:
        inputs = {"observations": rollouts.inputs["observations"][mask]}
        kept = {name: target[mask] for name, target in targets.items()}
        return Examples(inputs, rollouts.actions[mask], mask[mask], group[mask], targets=kept)
    padded = {name: torch.where(mask, target, torch.nan).flatten(0, 1) for name, target in targets.items()}
    inputs = {"observations": rollouts.inputs["observations"].flatten(0, 1)}
    whole = rollouts.actions.flatten(0, 1), mask.flatten(0, 1), group[..., 0].flatten()
    return Examples(inputs, *whole, targets=padded)
