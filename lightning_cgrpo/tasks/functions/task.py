"""Reward functions as signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from lightning_cgrpo.errors import UserError
from lightning_cgrpo.objective.objective import SignalKind
from lightning_cgrpo.rollout import PromptGroups, Rollouts, Signal
from lightning_cgrpo.tasks.completions import LENGTH_SIGNALS, check_max_completion_tokens, length_signals, texts
from lightning_cgrpo.tasks.functions.calls import call_functions, import_function
from lightning_cgrpo.tasks.task import Task

RESERVED = ("prompts", "completions", "completion_ids")


class FunctionTask(Task):
    """Signals measured by functions ``f(prompts, completions, completion_ids, **columns) -> list[float | None]``.

    The functions are called as TRL's `GRPOTrainer` calls its reward functions, with one element per completion, a
    prompt's G completions one after the other:

    - ``prompts``: texts, or chats (lists of messages).
    - ``completions``: texts; for a chat ``[{"role": "assistant", "content": text}]``.
    - ``completion_ids``: the tokens, lists of int, the end token included.
    - the other columns of the data, by name.

    A function without ``**kwargs`` gets those that it names. Asynchronous functions (``async def``) are awaited
    together. None means that the signal doesn't apply to the completion: it enters no rate, no group statistic and no
    advantage. NaN is a fault, and is passed on as such. TRL's ``trainer_state``, ``log_extra`` and ``log_metric`` are
    not given.

    Besides, there are the signals ``tokens`` and ``truncated``, and ``length`` if `max_completion_tokens` is given.

    Args:
        signals: by name, functions or other callables, as objects or as import paths. A string is always the import
            path of a function; a reward model is a `RewardModel`.
        kinds: which signals are an ``indicator`` (0 or 1) or a ``number``; the others are ``any``, and it is up to
            the user that those with a rate are indicators.
        max_completion_tokens: the sampler's limit, which scales ``length`` to [-1, 0].
        time_limit: seconds that a function may take for a batch; one that takes longer ends the run. Functions then run
            in a thread of their own, in which ``signal.alarm`` (math-verify's timeout) does not work. None: no limit.

    Raises:
        UserError: if a function can't be imported, or a name is unknown or taken; in scoring, if it takes too long or
            returns something else.

    Example:
        >>> def brief(completions):
        ...     return [float(len(text) < 10) for text in completions]
        >>> task = FunctionTask({"brief": brief}, kinds={"brief": "indicator"})
        >>> task.signals
        {'brief': 'indicator', 'tokens': 'number', 'truncated': 'indicator'}
    """

    def __init__(
        self,
        signals: dict[str, str | Callable[..., Any]],
        kinds: dict[str, SignalKind] | None = None,
        max_completion_tokens: int | None = None,
        time_limit: float | None = None,
    ) -> None:
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"Expected argument `time_limit` to be greater than 0, but got {time_limit}.")
        self.time_limit = time_limit
        kinds = kinds or {}
        if taken := sorted(LENGTH_SIGNALS.keys() & signals.keys()):
            raise UserError(f"Expected other names than those of the built-in signals, but got {taken}.")
        if unknown := sorted(kinds.keys() - signals.keys()):
            raise UserError(f"Expected argument `kinds` to name signals of {list(signals)}, but got {unknown}.")
        self.functions = {
            name: import_function(function, name) if isinstance(function, str) else function
            for name, function in signals.items()
        }
        check_max_completion_tokens(max_completion_tokens)
        self.max_completion_tokens = max_completion_tokens
        self.signals: Mapping[str, SignalKind] = {name: kinds.get(name, "any") for name in signals} | {
            name: kind for name, kind in LENGTH_SIGNALS.items() if name != "length" or max_completion_tokens is not None
        }

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        # A process may have got no prompts, and a function need not be made for that.
        outputs: Mapping[str, Any] = dict.fromkeys(self.functions, ())
        if len(prompts):
            outputs = call_functions(self.functions, _arguments(prompts, rollouts), self.time_limit)
        return {
            **{name: self._signal(name, output, rollouts) for name, output in outputs.items()},
            **length_signals(rollouts, self.max_completion_tokens),
        }

    def _signal(self, name: str, output: Any, rollouts: Rollouts) -> Signal:
        shape, device = rollouts.mask.shape[:2], rollouts.actions.device
        values = _numbers(name, output, shape.numel())
        applicable = torch.tensor([value is not None for value in values], dtype=torch.bool, device=device)
        value = torch.tensor([value or 0.0 for value in values], dtype=torch.float32, device=device)
        others = value[(value != 0) & (value != 1) & ~value.isnan()]
        if self.signals[name] == "indicator" and len(others):
            raise UserError(
                f"Expected the function of signal '{name}' to return 0 or 1, since its kind is 'indicator', "
                f"but got {float(others[0]):g}."
            )
        return Signal(value.view(shape), applicable=applicable.view(shape))


def _arguments(prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Any]:
    """What the functions are given, B * G elements each."""
    asked = prompts.column("prompt", "FunctionTask")
    columns = {name: column for name, column in prompts.columns.items() if name != "prompt"}
    if taken := sorted(columns.keys() & RESERVED):
        raise UserError(f"Expected columns of the data to be called other than {RESERVED}, but got {taken}.")
    group = rollouts.mask.shape[1]
    repeated = _repeat(asked, group)
    actions, masks = rollouts.actions.flatten(0, 1).cpu(), rollouts.mask.flatten(0, 1).cpu()
    answers = [text for row in texts(rollouts) for text in row]
    return {
        "prompts": repeated,
        "completions": [
            answer if isinstance(prompt, str) else [{"role": "assistant", "content": answer}]
            for prompt, answer in zip(repeated, answers, strict=True)
        ],
        "completion_ids": [tokens[mask].tolist() for tokens, mask in zip(actions, masks, strict=True)],
        **{name: _repeat(column, group) for name, column in columns.items()},
    }


def _repeat(column: list[Any] | Tensor, times: int) -> list[Any]:
    """Every element `times` times in a row; numbers of a tensor ``[B]`` as such, its rows otherwise."""
    elements = column.tolist() if isinstance(column, Tensor) and column.dim() == 1 else column
    return [element for element in elements for _ in range(times)]


def _numbers(name: str, output: Any, count: int) -> list[float | None]:
    if hasattr(output, "tolist"):  # A tensor or an array.
        output = output.tolist()
    if not isinstance(output, (list, tuple)) or len(output) != count:
        got = f"{len(output)}" if isinstance(output, (list, tuple)) else f"a {type(output).__name__}"
        raise UserError(
            f"Expected the function of signal '{name}' to return a list of {count} numbers, one per completion, "
            f"but got {got}."
        )
    values: list[float | None] = []
    for position, value in enumerate(output):
        if value is not None and not isinstance(value, SupportsFloat):
            raise UserError(
                f"Expected the function of signal '{name}' to return numbers or None, but got {value!r:.80} "
                f"for completion {position}."
            )
        values.append(None if value is None else _number(name, value, position))
    return values


def _number(name: str, value: SupportsFloat, position: int) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats, a fault like infinity
        return math.inf
    except (TypeError, ValueError) as error:  # such as a tensor of several
        raise UserError(
            f"Expected the function of signal '{name}' to return numbers or None, but got {value!r:.80} "
            f"for completion {position} ({error})."
        ) from None
