"""Signals of Gymnasium worlds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.composition import SignalKind
from lightning_cgrpo.tasks.functions.calls import call_functions, import_function
from lightning_cgrpo.tasks.task import Task

BUILT_IN: Mapping[str, SignalKind] = {
    "reward": "number",
    "return": "number",
    "length": "number",
    "terminated": "indicator",
    "truncated": "indicator",
}
EVENTS = ("above", "below", "outside")


@dataclass(frozen=True)
class Declared:
    """A signal made of a fact of steps.

    Args:
        inside: bounds, beyond which a step is an event; None takes the fact itself.
        summed: over the episode.
    """

    fact: str
    inside: tuple[float, float] | None = None
    summed: bool = False


class GymnasiumTask(Task):
    """Signals of `Gymnasium`: built-in signals, and signals made of facts about steps.

    Built-in signals of episodes are ``return`` (sum of rewards), ``length`` (steps), ``terminated`` and ``truncated``.
    ``reward`` is the reward by step, for critics.

    Facts about steps are ``reward``, ``terminated``, ``truncated``, ``action``, ``observation`` (reached by the step)
    and ``info.NAME``. A number of an action or observation is ``action.0`` or ``observation.0``.

    Args:
        signals: by name: ``{above: {FACT: limit}}``, ``{below: {FACT: limit}}`` and ``{outside: {FACT: [low, high]}}``
            are events of steps. ``{sum: FACT}`` and ``{sum: EVENT}`` are numbers of an episode, such as the steps above
            a limit. An import path or function gets facts ``[B, G, T, ...]`` by name, and returns ``[B, G, T]`` of
            steps or ``[B, G]`` of episodes; its argument ``info_NAME`` is ``info.NAME``.

    Raises:
        UserError: a signal is declared wrongly, or names an unknown fact.

    Example:
        >>> GymnasiumTask({"far": {"outside": {"observation.0": [-0.5, 0.5]}}}).signals["far"]
        'indicator'
    """

    def __init__(self, signals: dict[str, str | dict[str, Any] | Callable[..., Any]] | None = None) -> None:
        signals = signals or {}
        if taken := sorted(BUILT_IN.keys() & signals.keys()):
            raise UserError(f"Expected other names than those of the built-in signals, but got {taken}.")
        self.made: dict[str, Declared] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        kinds: dict[str, SignalKind] = {}
        for name, declared in signals.items():
            if isinstance(declared, Mapping):
                self.made[name] = _read(name, declared)
                kinds[name] = "number" if "sum" in declared else "indicator"
            else:
                self.functions[name] = import_function(declared, name) if isinstance(declared, str) else declared
                kinds[name] = "any"
        self.signals = {**BUILT_IN, **kinds}

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        facts: dict[str, Tensor] = {
            name: values for name, values in rollouts.info.items() if isinstance(values, Tensor)
        }
        named = {name.replace(".", "_"): values for name, values in facts.items()}
        results = call_functions(self.functions, {**named, "mask": rollouts.mask})
        shapes = {rollouts.mask.shape, rollouts.mask.shape[:2]}
        for name, result in results.items():
            if not isinstance(result, Tensor) or result.shape not in shapes:
                got = tuple(result.shape) if isinstance(result, Tensor) else f"a {type(result).__name__}"
                raise UserError(
                    f"Expected the function of signal '{name}' to return a tensor {tuple(rollouts.mask.shape)} of "
                    f"steps or {tuple(rollouts.mask.shape[:2])} of episodes, but got {got}."
                )
        return {
            "reward": Signal(facts["reward"]),
            "return": Signal(facts["reward"].sum(-1)),
            "length": Signal(rollouts.lengths.to(facts["reward"].dtype)),
            "terminated": Signal(facts["terminated"].any(-1).float()),
            "truncated": Signal(facts["truncated"].any(-1).float()),
            **{name: _made(name, facts, rollouts.mask, declared) for name, declared in self.made.items()},
            **{name: Signal(result.to(facts["reward"].dtype)) for name, result in results.items()},
        }


def _read(name: str, declared: Mapping[str, Any]) -> Declared:
    operation, operand = next(iter(declared.items())) if len(declared) == 1 else ("", None)
    if operation == "sum" and isinstance(operand, str):
        return Declared(operand, summed=True)
    if operation == "sum" and isinstance(operand, Mapping) and "sum" not in operand:
        return replace(_read(name, operand), summed=True)
    if operation in EVENTS and isinstance(operand, Mapping) and len(operand) == 1:
        [(fact, limits)] = operand.items()
        numbers = limits if isinstance(limits, (list, tuple)) else [limits]
        right = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
        if right and len(numbers) == (2 if operation == "outside" else 1):
            low, high = {"outside": limits, "above": (-math.inf, limits), "below": (limits, math.inf)}[operation]
            return Declared(str(fact), (float(low), float(high)))
    hint = did_you_mean(operation, (*EVENTS, "sum"))
    if operation in (*EVENTS, "sum") or len(declared) > 1:
        hint = " Declare one operation on one fact; files and overrides are merged by key."
    raise UserError(
        f"Expected signal '{name}' to be like {{above: {{reward: 0.5}}}}, {{below: {{observation.0: 0}}}}, "
        f"{{outside: {{action.0: [-1, 1]}}}}, {{sum: info.cost}} or {{sum: {{above: {{info.speed: 3}}}}}}, but got "
        f"{dict(declared)}.{hint}"
    )


def _made(name: str, facts: Mapping[str, Tensor], mask: Tensor, declared: Declared) -> Signal:
    """A declared signal, with values ``[B, G, T]``. Events are counted by step, and a sum is a number of an episode."""
    values = _fact(name, facts, declared.fact)
    if declared.inside is not None:
        low, high = declared.inside
        values = ((values < low) | (values > high)).float()
    if not declared.summed:
        return Signal(values)
    total = torch.where(mask, values, 0).sum(-1)
    return Signal(values, count=total, opportunities=torch.ones_like(total))


def _fact(name: str, facts: Mapping[str, Tensor], fact: str) -> Tensor:
    if fact in facts and facts[fact].dim() == 3:
        return facts[fact]
    whole, _, number = fact.rpartition(".")
    if whole in facts and number.isdigit() and facts[whole].dim() == 4 and int(number) < facts[whole].shape[-1]:
        return facts[whole][..., int(number)]
    names = [
        fact if values.dim() == 3 else f"{fact}.0 to {fact}.{values.shape[-1] - 1}" for fact, values in facts.items()
    ]
    raise UserError(f"Expected signal '{name}' to name a fact of steps, {', '.join(names)}, but got '{fact}'.")
