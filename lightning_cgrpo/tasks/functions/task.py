"""Reward functions as signals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, SupportsFloat

from torch import Tensor

from lightning_cgrpo.core.errors import UserError, expect, kind_of
from lightning_cgrpo.core.rollout import EXTRA, PromptGroups, Rollouts, Signal, read_steps
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.tasks.completions import LENGTH_SIGNALS, length_signals, texts
from lightning_cgrpo.tasks.functions.calls import call_functions, import_function
from lightning_cgrpo.tasks.functions.values import Values
from lightning_cgrpo.tasks.task import Task

RESERVED = (
    "prompts",
    "completions",
    "completion_ids",
    "environments",
    "trainer_state",
    "log_extra",
    "log_metric",
)


class FunctionTask(Task):
    """Signals of functions ``f(prompts, completions, completion_ids, **columns) -> list[float | None]``.

    Arguments have one element per completion, with a prompt's G completions in a row, as in TRL's `GRPOTrainer`:

    - ``prompts``: texts, or chats (lists of messages), with what an environment said at its ``reset``.
    - ``completions``: texts, or for chats ``[{"role": "assistant", "content": text}]``, in a conversation with tools
      all messages after the prompt.
    - ``completion_ids``: lists of token ids with the end token, and with the results of tools.
    - ``environments``: of `ConversationSampler`, if it has an environment_factory.
    - the other columns of the data, by name.
    - ``trainer_state``: a `TrainerState`, with ``global_step`` and ``max_steps`` in updates.
    - ``log_extra(column, values)``: shows a value per completion beside the answers of `SampleAnswers`.
    - ``log_metric(name, value)``: logs ``functions/<name>``, the mean over
      an update's calls on all processes; ``val/functions/<name>`` over a validation's.

    A function gets the arguments that it names, or all with ``**kwargs``. Asynchronous functions run concurrently. None
    means that a signal does not apply. Further signals: `length_signals`.

    Args:
        signals: callables such as `RewardModel`, or import paths.
        kinds: by signal, ``indicator`` (0 or 1), ``number``, or by default ``any``.
        max_completion_tokens: the sampler's limit, which scales ``length`` to [-1, 0].
        time_limit: seconds for a function per batch; a timeout ends the run. Functions then run in threads, where
            ``signal.alarm`` fails. `math_correct` has limits of its own, after which the run goes on.
        reads: files, folders and packages that the functions read and whose names their code computes: a resume tells
            when their content differs, and `certify` asks anew.

    Raises:
        UserError: a function cannot be imported, or a name is unknown or taken.

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
        reads: list[str] | None = None,
    ) -> None:
        expect(time_limit is None or time_limit > 0, "time_limit", "greater than 0", time_limit)
        shortest = 1 if max_completion_tokens is None else max_completion_tokens
        expect(shortest >= 1, "max_completion_tokens", "at least 1", max_completion_tokens)
        self.time_limit = time_limit
        kinds = kinds or {}
        if not isinstance(signals, Mapping):
            raise UserError(
                f"Expected argument `signals` to be functions by name, but got {kind_of(signals)}, try "
                "{'brief': brief}."
            )
        taken = sorted(LENGTH_SIGNALS.keys() & signals.keys())
        if taken:
            raise UserError(f"Expected other names than those of the built-in signals, but got {taken}.")
        unknown = sorted(kinds.keys() - signals.keys())
        if unknown:
            raise UserError(f"Expected argument `kinds` to name signals of {list(signals)}, but got {unknown}.")
        self.functions = {name: import_function(function, name) for name, function in signals.items()}
        self.max_completion_tokens = max_completion_tokens
        self._logged: dict[str, list[float]] = {}
        all_kinds: dict[str, SignalKind] = {name: kinds.get(name, "any") for name in signals}
        for name, kind in LENGTH_SIGNALS.items():
            if name != "length" or max_completion_tokens is not None:
                all_kinds[name] = kind
        self.signals: Mapping[str, SignalKind] = all_kinds

    def score(self, prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Signal]:
        # A process may have no prompts, which functions need not expect.
        outputs: Mapping[str, Any] = dict.fromkeys(self.functions, ())
        if len(prompts):
            arguments = _function_arguments(prompts, rollouts)
            arguments |= {
                "trainer_state": self.trainer_state,
                "log_extra": functools.partial(_add_column, rollouts),
                "log_metric": self._log_metric,
            }
            outputs = call_functions(self.functions, arguments, self.time_limit)
        signals = {name: self._signal_of(name, output, rollouts) for name, output in outputs.items()}
        return {**signals, **length_signals(rollouts, self.max_completion_tokens)}

    def _log_metric(self, name: str, value: float) -> None:
        self._logged.setdefault(name, []).append(float(value))

    def logged(self) -> dict[str, list[float]]:
        logged = self._logged
        self._logged = {}
        return logged

    def _signal_of(self, name: str, output: Any, rollouts: Rollouts) -> Signal:
        with UserCode(f"the results of signal '{name}'"):  # whose elements may be of the user's own class
            count = rollouts.mask.shape[:2].numel()
            return Signal.of(_read_numbers(name, output, count), rollouts)


def _function_arguments(prompts: PromptGroups, rollouts: Rollouts) -> dict[str, Any]:
    """The arguments of reward functions, with an element for each completion; see `FunctionTask`."""
    texts_or_chats = prompts.column("prompt", "FunctionTask")
    columns = {name: column for name, column in prompts.columns.items() if name != "prompt"}
    taken = sorted(columns.keys() & RESERVED)
    if taken:
        raise UserError(f"Expected columns of the data to be called other than {RESERVED}, but got {taken}.")
    group_size = rollouts.mask.shape[1]
    repeated = _repeat_elements(rollouts.info.get("prompts", texts_or_chats), group_size)
    actions = rollouts.actions.flatten(0, 1).cpu()
    masks = rollouts.mask.flatten(0, 1).cpu()
    arguments: dict[str, Any] = {
        "prompts": repeated,
        "completions": _list_completions(repeated, rollouts),
        "completion_ids": [tokens[read_steps(mask)].tolist() for tokens, mask in zip(actions, masks, strict=True)],
    }
    if "environments" in rollouts.info:
        arguments["environments"] = _join_groups(rollouts.info["environments"])
    for name, column in columns.items():
        arguments[name] = _repeat_elements(column, group_size)
    return arguments


def _list_completions(prompts: list[Any], rollouts: Rollouts) -> list[Any]:
    """Texts after text prompts, and messages after chats: a conversation's own, or a single message."""
    answers = _join_groups(texts(rollouts))
    conversations: list[Any] = [None] * len(answers)
    if "messages" in rollouts.info:
        conversations = _join_groups(rollouts.info["messages"])
    completions = []
    for prompt, answer, messages in zip(prompts, answers, conversations, strict=True):
        if isinstance(prompt, str):
            completions.append(answer)
        else:
            completions.append(messages or [{"role": "assistant", "content": answer}])
    return completions


def _join_groups(groups: list[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(groups))


def _add_column(rollouts: Rollouts, column: str, values: list[Any]) -> None:
    batch, group = rollouts.mask.shape[:2]
    if len(values) != batch * group:
        raise UserError(
            f"Expected log_extra('{column}') to get {batch * group} values, one per completion, but got {len(values)}."
        )
    rollouts.info[EXTRA + column] = [list(values[row * group : (row + 1) * group]) for row in range(batch)]


def _repeat_elements(column: list[Any] | Tensor, times: int) -> list[Any]:
    """Repeat every element, ``[a, b]`` to ``[a, a, b, b]``; a tensor ``[B]`` gives Python numbers."""
    elements = column.tolist() if isinstance(column, Tensor) and column.dim() == 1 else column
    repeated: list[Any] = []
    for element in elements:
        repeated += [element] * times
    return repeated


def _read_numbers(name: str, output: Any, count: int) -> list[float | None]:
    if hasattr(output, "tolist"):  # a tensor or an array
        output = output.tolist()
    if not isinstance(output, (list, tuple)) or len(output) != count:
        got = len(output) if isinstance(output, (list, tuple)) else f"a {type(output).__name__}"
        raise UserError(
            f"Expected the function of signal '{name}' to return a list of {count} numbers, one per completion, "
            f"but got {got}."
        )
    values: list[float | None] = []
    faults = output.faults if isinstance(output, Values) else ()
    for position, value in enumerate(output):
        if position in faults:
            values.append(math.nan)  # left out, and counted
            continue
        if value is None:
            values.append(None)
            continue
        try:
            if not isinstance(value, SupportsFloat):  # float() takes strings
                raise TypeError("no number")
            values.append(float(value))
        except OverflowError:  # an integer beyond all floats, a fault like infinity
            values.append(math.inf)
        except (TypeError, ValueError) as error:  # such as a tensor of several numbers
            raise UserError(
                f"Expected the function of signal '{name}' to return numbers or None, but got {value!r:.80} "
                f"for completion {position} ({error})."
            ) from None
    return values
