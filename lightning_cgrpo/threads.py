"""Calls of a user's functions in other threads, and coroutines in an event loop."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch


def started(function: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> Future[Any]:
    """Call a function in a thread of this name, with this thread's device, gradient mode and autocast.

    Python cannot end the thread of a function that hangs.
    """
    outcome: Future[Any] = Future()
    as_here = _torch_state()

    def call() -> None:
        try:
            with as_here():
                outcome.set_result(function(**arguments))
        except BaseException as error:
            outcome.set_exception(error)

    # Not a thread of a pool, because Python waits for those at exit.
    threading.Thread(target=call, name=name, daemon=True).start()
    return outcome


def submitted(awaitable: Awaitable[Any]) -> Future[Any]:
    """Run an awaitable in this process's event loop."""

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

    threading.Thread(target=run, name="asynchronous functions", daemon=True).start()
    return loop


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
