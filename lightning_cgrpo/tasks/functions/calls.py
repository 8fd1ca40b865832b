"""Import and call reward functions."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_cgrpo.errors import UserError, did_you_mean
from lightning_cgrpo.threads import started, submitted

RewardFunction = Callable[..., Any]


def import_function(path: str, signal: str) -> RewardFunction:
    """Import ``package.module.function``; errors name `signal`.

    Raises:
        UserError: the path cannot be imported, or is no function.
    """
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        hint = "try an import path like my_package.my_module.my_function"
        if "/" in path or Path(path).is_dir():
            hint = (
                "a reward model is given as "
                f"{{class_path: lightning_cgrpo.tasks.functions.RewardModel, init_args: {{model: {path}}}}}"
            )
        raise UserError(
            f"Expected signal '{signal}' to be a function or its import path, but got '{path}', "
            f"which can't be imported ({error}): {hint}."
        ) from error
    if not callable(function) or isinstance(function, type):
        raise UserError(
            f"Expected signal '{signal}' to be a function, but got '{path}', which is {function!r:.80}: "
            "give a class by `class_path` and `init_args`."
        )
    return function  # type: ignore[no-any-return]


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
            accepted = _accepted(signal, function, arguments)
            with _named(signal, arguments):
                if time_limit is None:
                    result = function(**accepted)
                else:
                    result = _result(started(function, accepted, f"signal {signal}"), time_limit, signal)
            results[signal] = submitted(result) if inspect.isawaitable(result) else result
        for signal, result in results.items():
            if isinstance(result, Future):
                with _named(signal, arguments):
                    results[signal] = _result(result, time_limit, signal)
    finally:
        for result in results.values():
            if isinstance(result, Future):
                result.cancel()
    return results


def _result(future: Future[Any], time_limit: float | None, signal: str) -> Any:
    # Not `result(time_limit)`, because a function may raise a TimeoutError itself.
    if not wait([future], time_limit).done:
        raise UserError(
            f"Expected the function of signal '{signal}' to return within {time_limit:g} s, but got no result, try a "
            "larger time_limit, or a timeout in the function, which may return None."
        )
    return future.result()


@contextmanager
def _named(signal: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Add a note to an exception: the signal, and the form of the arguments."""
    try:
        yield
    except Exception as error:
        chats = any(not isinstance(completion, str) for completion in arguments.get("completions", ()))
        shape = ", whose completions are chats: [{'role': 'assistant', 'content': TEXT}]" if chats else ""
        lacking = [name for name, column in arguments.items() if isinstance(column, list) and None in column]
        absent = f", given None where a record has no field {' or '.join(lacking)}" if lacking else ""
        error.add_note(f"Raised by the reward function of signal '{signal}'{shape}{absent}.")
        raise


def _accepted(signal: str, function: RewardFunction, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Some functions written in C have none.
        return arguments
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and (name not in arguments or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if missing:
        raise UserError(
            f"Expected the function of signal '{signal}' to ask for some of {list(arguments)} by name, "
            f"but it requires {missing}: is a column missing in the data?{did_you_mean(missing[0], arguments)}"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}
