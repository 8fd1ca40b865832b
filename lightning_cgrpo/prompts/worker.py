"""Batches of prompts, made ahead by another process."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_cgrpo.rollout import PromptGroups

AVAILABLE = sys.platform == "linux"
"""Windows cannot fork, and macOS's libraries fail in forked processes."""

Make = Callable[[Tensor], PromptGroups]


class _Failure(NamedTuple):
    error: Exception
    trace: str


class _RemoteError(Exception):
    """Traceback of another process, as the cause of an error."""


def made_ahead(make: Make, batches: Iterable[Tensor]) -> Iterator[PromptGroups]:
    """Yield the prompts of each index ``[B]``. A process makes a batch while the caller uses the batch before.

    The process is forked, because sources hold functions, which can't be pickled, and because importing torch takes
    seconds. A forked process has none of the caller's threads, so it computes on one thread. It must not use a GPU.
    The process ends with the iteration, and also if the caller is killed.

    Raises:
        Exception: the error of `make`.
        RuntimeError: the process was killed.
    """
    worker = _Worker(make)
    try:
        following = chain(batches, [None])
        worker.ask(next(following))
        for index in following:
            made = worker.receive()
            worker.ask(index)
            yield made
    finally:
        worker.end()


class _Worker:
    def __init__(self, make: Make) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(make, theirs, self._pipe), name="prompts", daemon=True)
        self._process.start()
        theirs.close()  # then reading ends when the process dies
        # Before multiprocessing's own end of children, which would wait for this one.
        self.end = Finalize(self, _end, (self._process, self._pipe), exitpriority=1)

    def ask(self, index: Tensor | None) -> None:
        if index is not None:
            self._pipe.send(index.tolist())

    def receive(self) -> PromptGroups:
        try:
            made = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise RuntimeError(
                f"The process that makes prompts ended with status {self._process.exitcode}, perhaps for lack of memory"
            ) from error
        if isinstance(made, _Failure):
            raise made.error from _RemoteError(f"\n{made.trace}")
        return made  # type: ignore[no-any-return]


def _end(process: Any, pipe: Connection) -> None:
    process.kill()
    process.join()
    pipe.close()


def _serve(make: Make, pipe: Connection, theirs: Connection) -> None:
    # Signals to a terminal's or a job's processes are the caller's matter: it finishes its update.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    theirs.close()  # then reading ends when the caller dies
    gc.freeze()  # the caller's garbage is the caller's
    torch.set_num_threads(1)
    try:
        while True:
            pipe.send_bytes(_answer(make, pipe.recv()))
    except (EOFError, ConnectionError):
        os._exit(0)


def _answer(make: Make, index: list[int]) -> bytes:
    try:
        return _pickled(make(torch.tensor(index, dtype=torch.int64)))
    except Exception as error:
        trace = traceback.format_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        error.add_note(f"Raised by the process that makes prompts ({place.filename}:{place.lineno}, in {place.name}).")
        try:
            packed = pickle.dumps(_Failure(error, trace))
            pickle.loads(packed)
        except Exception:  # an error with arguments of its own
            packed = pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace))
        return packed


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays, twenty times faster."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.device.type == "cpu" and value.dtype is not torch.bfloat16:
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


def _pickled(groups: PromptGroups) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(groups)
    return file.getvalue()
