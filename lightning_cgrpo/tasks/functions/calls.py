"""Calls of reward functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.core.user_code import TimeLimitError, UserCode, begin_call, import_callable, wait_within

RewardFunction = Callable[..., Any]


def import_function(function: str | RewardFunction, signal: str) -> RewardFunction:
    """A function, or the function at an import path.

    Raises:
        UserError: the path cannot be imported, or is no function.
    """
    if isinstance(function, str) and ("/" in function or (function and Path(function).is_dir())):
        raise UserError(
            f"Expected signal '{signal}' to be a function or its import path, but got '{function}', try "
            "{class_path: lightning_cgrpo.tasks.functions.RewardModel, init_args: {model: "
            f"{function}}}}} for a reward model."
        )
    called = import_callable(function, f"signal '{signal}'")
    if not callable(called) or isinstance(called, type):
        raise UserError(
            f"Expected signal '{signal}' to be a function, but got '{function}', which is {called!r:.80}, try "
            "`class_path` and `init_args` for a class."
        )
    return called


def call_functions(
    functions: Mapping[str, RewardFunction], arguments: Mapping[str, Any], time_limit: float | None = None
) -> dict[str, Any]:
    """Results by signal; awaitables run concurrently.

    Args:
        time_limit: seconds for each function. The run must end after a timeout, because Python cannot end the
            function's thread.

    Raises:
        UserError: a required argument is missing, or a function takes too long.
    """
    results: dict[str, Any] = {}
    try:
        for signal, function in functions.items():
            accepted = _accepted_arguments(signal, function, arguments)
            with _function_errors(signal, arguments, time_limit):
                results[signal] = begin_call(function, accepted, f"the function of signal '{signal}'", time_limit)
        for signal, result in results.items():
            if isinstance(result, Future):
                with _function_errors(signal, arguments, time_limit):
                    results[signal] = wait_within(time_limit, result)
    finally:
        for result in results.values():
            if isinstance(result, Future):
                result.cancel()
    return results


@contextmanager
def _function_errors(signal: str, arguments: Mapping[str, Any], time_limit: float | None) -> Iterator[None]:
    """Context of a call: exceptions get a note with the signal and the form of the arguments."""
    try:
        with UserCode(f"the function of signal '{signal}'"):
            yield
    except TimeLimitError:
        raise UserError(
            f"Expected the function of signal '{signal}' to return within {time_limit:g} s, but got no result, try a "
            "larger time_limit, or a timeout in the function, which may return None."
        ) from None
    except Exception as error:
        note = f"Raised by the reward function of signal '{signal}'"
        if any(not isinstance(completion, str) for completion in arguments.get("completions", ())):
            note += ", whose completions are chats: [{'role': 'assistant', 'content': TEXT}]"
        with_none = [name for name, column in arguments.items() if isinstance(column, list) and None in column]
        if with_none:
            note += f", given None where a record has no field {' or '.join(with_none)}"
        error.add_note(f"{note}.")
        raise


def _accepted_arguments(signal: str, function: RewardFunction, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments that a function names, or all of them if it takes ``**kwargs``.

    Raises:
        UserError: the function needs another argument.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Some functions written in C have none.
        return arguments
    missing = []
    for name, parameter in parameters.items():
        takes_any = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        is_needed = parameter.default is parameter.empty and not takes_any
        can_be_named = name in arguments and parameter.kind is not parameter.POSITIONAL_ONLY
        if is_needed and not can_be_named:
            missing.append(name)
    if missing:
        raise UserError(
            f"Expected the function of signal '{signal}' to ask for some of {list(arguments)} by name, "
            f"but it requires {missing}: is a column missing in the data?{did_you_mean(missing[0], arguments)}"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}
