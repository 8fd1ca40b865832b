"""The boundary through which code of the user is called: functions, coroutines, tools, worlds, tasks and data."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ContextDecorator, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError, did_you_mean, first_line

_E = TypeVar("_E", bound=BaseException)
BY_SIGNAL = "raised_by_signal"


class TimeLimitError(TimeoutError):
    """User code is still running after its time limit; Python cannot end its thread."""


class UserCodeError(UserError):
    """User code raised what is no `Exception`, or would end a loop; the cause is what it raised."""


@dataclass
class UserCode(ContextDecorator):
    """Context, or decorator, in which code of the user fails with an `Exception` or not at all.

    A StopIteration would end a loop over batches, and a SystemExit the run, without a word. These and all exceptions
    that are no `Exception` become a `UserCodeError`. Other exceptions pass, and so does what a signal raised.

    Args:
        name: of the code, for the error, such as "the function of signal 'x'".
    """

    name: str

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not _ends_loops(error) or raised_by_signal(error):
            return
        # Rich ends the program where its output is a closed pipe, as after ``fit | head``.
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            return
        raise UserCodeError(
            f"Expected {self.name} to return or to raise an Exception, but it raised {describe_error(error)}, "
            "try `raise ValueError` to end the run."
        ) from error


def by_signal(error: _E) -> _E:
    """Mark an exception that a signal handler raises, which passes through `UserCode`."""
    setattr(error, BY_SIGNAL, True)
    return error


def _ends_loops(error: BaseException) -> bool:
    """True for an exception that would end a loop or the run without a word."""
    return not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration))


def raised_by_signal(error: BaseException) -> bool:
    """True for a marked exception, and for the KeyboardInterrupt of Python's own handler, which marks nothing.

    Where another handler is in force, such as `Termination`, an unmarked KeyboardInterrupt is the code's own.
    """
    if getattr(error, BY_SIGNAL, False):
        return True
    own_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    main_thread = threading.current_thread() is threading.main_thread()  # no other thread has signals
    return isinstance(error, KeyboardInterrupt) and own_handler and main_thread


def _is_cancelled() -> bool:
    """True in a coroutine whose caller has given up waiting."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


def describe_error(error: BaseException) -> str:
    """Class, first line and place of an exception: ``SystemExit: 0 (rewards.py:3, in f)``."""
    name = type(error).__name__
    text = first_line(error)
    description = name if text == name else f"{name}: {text}"
    if isinstance(error, TimeLimitError):  # raised in this file, which says nothing of the user's code
        return description
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return description
    last = frames[-1]
    return f"{description} ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def import_callable(item: str | Callable[..., Any], name: str) -> Callable[..., Any]:
    """A callable, or the callable at the import path ``module.name``.

    Args:
        name: what is imported, for errors.

    Raises:
        UserError: the path cannot be imported.
    """
    if not isinstance(item, str):
        return item
    module, _, attribute = item.rpartition(".")
    try:
        with UserCode(f"the module of {name}"):
            function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        # A path of a file, such as rewards.py:brevity, written as an import path.
        path = re.sub(r"\.py[:.]|[/:]", ".", item)
        remedy = f", try {path}" if path != item else ""
        hint = ""
        if module in sys.modules:
            hint = did_you_mean(attribute, vars(sys.modules[module]))
        if module in sys.stdlib_module_names and Path(f"{module}.py").is_file():
            hint = f" Python's own module {module} comes before {module}.py, try another name of the file."
        raise UserError(
            f"Expected {name} to be a function or its import path, like my_module.my_function, but got '{item}', which "
            f"can't be imported ({first_line(error)}){remedy}.{hint}"
        ) from error
    return function


def called(function: Callable[..., Any], arguments: Mapping[str, Any], name: str, time_limit: float | None) -> Any:
    """The result of a function, also of an asynchronous one, which gets copies of its arguments.

    Args:
        time_limit: seconds for the call, and for its awaitable; None calls in this thread, without a limit.

    Raises:
        TimeLimitError: the function is still running.
        Exception: raised by the function.
    """
    with UserCode(name):
        result = begin_call(function, arguments, name, time_limit)
        if not isinstance(result, Future):
            return result
        try:
            return wait_within(time_limit, result)
        finally:
            result.cancel()


def begin_call(function: Callable[..., Any], arguments: Mapping[str, Any], name: str, time_limit: float | None) -> Any:
    """The result of a function, or the future of an asynchronous one; arguments as of `called`, which are copied."""
    arguments = copied(dict(arguments))
    if time_limit is None:
        result = function(**arguments)
    else:
        result = wait_within(time_limit, call_in_thread(function, arguments, name))
    # The call of an asynchronous function returns an awaitable.
    if inspect.isawaitable(result):
        return run_in_loop(result, name)
    return result


def wait_within(time_limit: float | None, future: Future[Any]) -> Any:
    """The future's result.

    Raises:
        TimeLimitError: there is none after `time_limit` seconds.
    """
    # Not `result(time_limit)`, because a function may raise a TimeoutError itself.
    if not wait([future], time_limit).done:
        raise TimeLimitError(f"No result within {time_limit:g} s.")
    return future.result()


def call_in_thread(function: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Future[Any]:
    """Call a function in a thread of this name, with this thread's device, gradient mode and autocast."""
    outcome: Future[Any] = Future()
    same_torch_state = _torch_state()

    def call() -> None:
        try:
            with UserCode(name), same_torch_state():
                outcome.set_result(function(**arguments))
        except BaseException as error:
            outcome.set_exception(error)

    # Not a thread of a pool, because Python waits for those at exit.
    threading.Thread(target=call, name=name, daemon=True).start()
    return outcome


def run_in_loop(awaitable: Awaitable[Any], name: str) -> Future[Any]:
    """Run an awaitable in this process's event loop for user code."""

    async def wait_for_result() -> Any:
        with UserCode(name):
            return await awaitable

    loop = event_loop(os.getpid(), "asynchronous functions")
    return asyncio.run_coroutine_threadsafe(wait_for_result(), loop)


@functools.cache
def event_loop(process: int, name: str) -> asyncio.AbstractEventLoop:
    """A running loop in a thread, because a notebook's own loop is busy.

    Each process keeps its loop, because clients' connections belong to it and no thread survives a fork.
    """
    loop = asyncio.new_event_loop()
    _, device = _current_device()

    def run() -> None:
        _set_device(device)
        while not loop.is_closed():
            # A task that a coroutine started raises SystemExit here.
            with contextlib.suppress(BaseException):
                loop.run_forever()

    threading.Thread(target=run, name=name, daemon=True).start()
    return loop


def _torch_state() -> Callable[[], AbstractContextManager[None]]:
    """A context manager that gives another thread this thread's device, gradient mode and autocast."""
    accelerator, device = _current_device()
    has_gradients = torch.is_grad_enabled()
    has_inference_mode = torch.is_inference_mode_enabled()
    device_types = ["cpu"] if accelerator is None else ["cpu", accelerator]
    autocasts: list[tuple[str, torch.dtype, bool]] = []
    for device_type in device_types:
        dtype = torch.get_autocast_dtype(device_type)
        autocasts.append((device_type, dtype, torch.is_autocast_enabled(device_type)))

    @contextmanager
    def same_torch_state() -> Iterator[None]:
        _set_device(device)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(has_inference_mode))
            stack.enter_context(torch.set_grad_enabled(has_gradients))
            for device_type, dtype, enabled in autocasts:
                stack.enter_context(torch.autocast(device_type, dtype, enabled))
            yield

    return same_torch_state


def _current_device() -> tuple[str | None, int]:
    """The accelerator's type and this thread's device; (None, 0) without an accelerator."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None, 0
    return accelerator.type, torch.accelerator.current_device_index()


def _set_device(device: int) -> None:
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(device)
