"""Import and call reward functions."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from lightning_cgrpo.errors import UserError

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
                result = function(**accepted) if time_limit is None else _within(time_limit, signal, function, accepted)
            results[signal] = _submit(result) if inspect.isawaitable(result) else result
        for signal, result in results.items():
            if isinstance(result, Future):
                with _named(signal, arguments):
                    results[signal] = _result(result, time_limit, signal)
    finally:
        for result in results.values():
            if isinstance(result, Future):
                result.cancel()
    return results


def _within(time_limit: float, signal: str, function: RewardFunction, arguments: Mapping[str, Any]) -> Any:
    outcome: Future[Any] = Future()
    as_here = _torch_state()

    def call() -> None:
        try:
            with as_here():
                outcome.set_result(function(**arguments))
        except BaseException as error:
            outcome.set_exception(error)

    # Not a thread of a pool, because Python waits for those at exit.
    threading.Thread(target=call, name=f"signal {signal}", daemon=True).start()
    return _result(outcome, time_limit, signal)


def _torch_state() -> Callable[[], AbstractContextManager[None]]:
    """A context manager that gives another thread this thread's device, gradient mode and autocast."""
    accelerator, device = _device()
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    types = ["cpu"] if accelerator is None else ["cpu", accelerator]
    casts = [(type_, torch.get_autocast_dtype(type_), torch.is_autocast_enabled(type_)) for type_ in types]

    @contextmanager
    def as_here() -> Iterator[None]:
        _take(device)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for cast in casts:
                stack.enter_context(torch.autocast(*cast))
            yield

    return as_here


def _device() -> tuple[str | None, int]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return (None, 0) if accelerator is None else (accelerator.type, torch.accelerator.current_device_index())


def _take(device: int) -> None:
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(device)


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
            f"but it requires {missing}: is a column missing in the data?"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _submit(awaitable: Awaitable[Any]) -> Future[Any]:
    async def completed() -> Any:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(completed(), _event_loop(os.getpid()))


@functools.cache
def _event_loop(process: int) -> asyncio.AbstractEventLoop:
    """A running loop in a thread, because a notebook's own loop is busy.

    Each process keeps its loop, because clients' connections belong to it and no thread survives a fork.
    """
    loop, (_, device) = asyncio.new_event_loop(), _device()

    def run() -> None:
        _take(device)
        loop.run_forever()

    threading.Thread(target=run, name="asynchronous reward functions", daemon=True).start()
    return loop
