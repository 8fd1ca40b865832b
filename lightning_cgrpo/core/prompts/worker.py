"""Batches of prompts, made ahead by another process."""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_cgrpo.core.child_process import ChildProcess
from lightning_cgrpo.core.rollout import PromptGroups

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

    See `ChildProcess`. The process ends with the iteration, and also if the caller is killed.

    Raises:
        Exception: the error of `make`.
        RuntimeError: the process was killed.
    """
    worker = ChildProcess("prompts", _serve_batches, make)

    def ask_for(index: Tensor | None) -> None:
        if index is not None:
            worker.pipe.send(index.tolist())

    try:
        # None ends the batches. One batch is always asked for before the caller gets the batch before.
        following = chain(batches, [None])
        ask_for(next(following))
        for index in following:
            groups = _receive_groups(worker)
            ask_for(index)
            yield groups
    finally:
        worker.end()


def _receive_groups(worker: ChildProcess) -> PromptGroups:
    """The batch that the process has made; its error is raised."""
    try:
        answer = pickle.loads(worker.pipe.recv_bytes())
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(
            f"The process that makes prompts ended with status {worker.status()}, perhaps for lack of memory"
        ) from error
    if isinstance(answer, _Failure):
        raise answer.error from _RemoteError(f"\n{answer.trace}")
    return answer


def _serve_batches(pipe: Connection, make: Make) -> None:
    while True:
        pipe.send_bytes(_make_batch(make, pipe.recv()))


def _make_batch(make: Make, index: list[int]) -> bytes:
    """The pickled batch, or the pickled failure of `make`."""
    try:
        return _pickle_groups(make(torch.tensor(index, dtype=torch.int64)))
    except Exception as error:
        trace = traceback.format_exc()
        place = traceback.extract_tb(error.__traceback__)[-1]
        error.add_note(f"Raised by the process that makes prompts ({place.filename}:{place.lineno}, in {place.name}).")
        try:
            pickled = pickle.dumps(_Failure(error, trace))
            pickle.loads(pickled)
        except Exception:  # an error with arguments of its own
            pickled = pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace))
        return pickled


class _Pickler(pickle.Pickler):
    """Pickles CPU tensors as arrays, twenty times faster."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.device.type == "cpu" and value.dtype is not torch.bfloat16:
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


def _pickle_groups(groups: PromptGroups) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(groups)
    return file.getvalue()
