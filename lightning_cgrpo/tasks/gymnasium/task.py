"""Signals of Gymnasium worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.functions.calls import call_functions, import_function
from lightning_cgrpo.tasks.task import Task

BUILT_IN: Mapping[str, SignalKind] = {
    "reward": "number",
    "return": "number",
    "length": "number",
    "terminated": "indicator",
    "truncated": "indicator",
}


class GymnasiumTask(Task):
    """Signals of `Gymnasium`: built-in signals, and signals made of facts about steps.

    Built-in signals of episodes are ``return`` (sum of rewards), ``length`` (steps), ``terminated`` and ``truncated``.
    ``reward`` is the reward by step, for critics.

    Facts about steps are ``reward``, ``terminated``, ``truncated``, ``action``, ``observation`` (reached by the step)
    and ``info.NAME``. A number of an action or observation is ``action.0`` or ``observation.0``.

    Args:
        signals: by name: ``{sum: FACT}`` is a number of an episode, the sum over its steps. An import path or function
            gets facts ``[B, G, T, ...]`` by name, and returns a tensor ``[B, G, T]`` of steps or ``[B, G]`` of
            episodes, or a `Signal`; its argument ``info_NAME`` is ``info.NAME``, and ``mask`` has an episode's steps.

    Raises:
        UserError: a signal is declared wrongly, or names an unknown fact.

    Example:
        >>> far = lambda observation: observation[..., 0].abs() > 0.5
        >>> GymnasiumTask({"far": far, "cost": {"sum": "info.cost"}}).signals["cost"]
        'number'
    """

    def __init__(self, signals: dict[str, str | dict[str, Any] | Callable[..., Any]] | None = None) -> None:
        signals = signals or {}
        taken = sorted(BUILT_IN.keys() & signals.keys())
        if taken:
            raise UserError(f"Expected other names than those of the built-in signals, but got {taken}.")
        self.sums: dict[str, str] = {}
        """Facts that are summed over an episode, by signal."""
        self.functions: dict[str, Callable[..., Any]] = {}
        kinds: dict[str, SignalKind] = {}
        for name, declared in signals.items():
            if isinstance(declared, Mapping):
                self.sums[name] = _summed_fact(name, declared)
                kinds[name] = "number"
            else:
                self.functions[name] = import_function(declared, name) if isinstance(declared, str) else declared
                kinds[name] = "any"
        self.signals = {**BUILT_IN, **kinds}

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        facts = {name: values for name, values in rollouts.info.items() if isinstance(values, Tensor)}
        # 1. Signals by functions, whose arguments have underscores for dots.
        named = {name.replace(".", "_"): values for name, values in facts.items()}
        results = call_functions(self.functions, {**named, "mask": rollouts.mask})
        shapes = {rollouts.mask.shape, rollouts.mask.shape[:2]}
        signals: dict[str, Signal] = {}
        for name, result in results.items():
            if isinstance(result, Signal):
                signals[name] = result
                continue
            if not isinstance(result, Tensor) or result.shape not in shapes:
                got = tuple(result.shape) if isinstance(result, Tensor) else f"a {type(result).__name__}"
                raise UserError(
                    f"Expected the function of signal '{name}' to return a tensor {tuple(rollouts.mask.shape)} of "
                    f"steps or {tuple(rollouts.mask.shape[:2])} of episodes, or a Signal, but got {got}."
                )
            signals[name] = Signal(result.to(facts["reward"].dtype))
        # 2. Sums of facts, and the built-in signals.
        for name, fact in self.sums.items():
            signals[name] = _sum_steps(_find_fact(name, facts, fact), rollouts.mask)
        return {
            "reward": Signal(facts["reward"]),
            "return": Signal(facts["reward"].sum(-1)),
            "length": Signal(rollouts.lengths.to(facts["reward"].dtype)),
            "terminated": Signal(facts["terminated"].any(-1).float()),
            "truncated": Signal(facts["truncated"].any(-1).float()),
            **signals,
        }


def _summed_fact(name: str, declared: Mapping[str, Any]) -> str:
    """The fact of ``{sum: FACT}``."""
    if list(declared) == ["sum"] and isinstance(declared["sum"], str):
        return declared["sum"]
    raise UserError(
        f"Expected signal '{name}' to be {{sum: FACT}}, like {{sum: info.cost}}, or the import path of a function of "
        f"facts, but got {dict(declared)}, try a function for steps above a limit: def fast(observation): return "
        "observation[..., 0] > 0.5."
    )


def _sum_steps(values: Tensor, mask: Tensor) -> Signal:
    """A number of an episode, with values ``[B, G, T]`` by step for a critic."""
    total = torch.where(mask, values, 0).sum(-1)
    return Signal(values, count=total)


def _find_fact(name: str, facts: Mapping[str, Tensor], fact: str) -> Tensor:
    """Values ``[B, G, T]`` of a fact, or of a number of an action or observation, such as ``action.0``."""
    if fact in facts and facts[fact].dim() == 3:
        return facts[fact]
    whole, _, number = fact.rpartition(".")
    if whole in facts and number.isdigit() and facts[whole].dim() == 4:
        values = facts[whole]  # [B, G, T, numbers]
        if int(number) < values.shape[-1]:
            return values[..., int(number)]
    names = []
    for known, values in facts.items():
        names.append(known if values.dim() == 3 else f"{known}.0 to {known}.{values.shape[-1] - 1}")
    raise UserError(f"Expected signal '{name}' to name a fact of steps, {', '.join(names)}, but got '{fact}'.")
