"""Grader: asks a process with limits whether mathematical answers are right."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from lightning_cgrpo.tasks.grading.process import ENDED, RIGHT, UNREADABLE

CPU_SECONDS = 0.9
"""Limit for reading a gold answer, and for grading a completion."""
MEMORY = 2**30
"""Bytes that a worker may take beside math-verify's own."""
PATIENCE = 60.0
"""Seconds to wait for a worker, which may share its core with many processes."""


class GraderError(Exception):
    """An expression reached a limit of time or memory."""


class Grader:
    r"""Grades in a process of `tasks/grading/process.py`, which is started once, and ends with this process.

    Example:
        >>> grader = Grader()
        >>> grader.reads("1/2"), grader.is_right(r"So \boxed{0.5}", "1/2")
        (True, True)
        >>> grader.end()
    """

    def __init__(self) -> None:
        self.limits = [str(CPU_SECONDS), str(MEMORY)]
        self._lock = threading.Lock()  # functions of two signals may run in threads
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._readable: dict[str, bool | None] = {}
        atexit.register(self.end)

    def reads(self, gold: str) -> bool:
        """True if a gold answer can be read; compared with 1, because an expression may be read and take forever.

        Raises:
            GraderError: the gold answer reached a limit, now or before.
        """
        if gold not in self._readable:
            try:
                self._readable[gold] = self._ask_process("$1$", gold) != UNREADABLE
            except GraderError:
                self._readable[gold] = None
        readable = self._readable[gold]
        if readable is None:
            raise GraderError(gold)
        return readable

    def is_right(self, completion: str, gold: str) -> bool:
        """True if a completion's last formula equals a gold answer that `reads`.

        Raises:
            GraderError: the completion reached a limit.
        """
        return self._ask_process(completion, gold) == RIGHT

    def end(self) -> None:
        """End the process; a further request starts another."""
        process = self._process
        self._process = None
        if process is None or self._owner != os.getpid():  # a fork's copy, whose process is the caller's
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its worker
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _ask_process(self, completion: str, gold: str) -> str:
        with self._lock:
            if self._process is None:
                self._process = self._start_process()
            try:
                self._send_line(json.dumps([completion, gold]))
                answer = self._receive_answer()
            except ConnectionError:
                answer = ENDED
                self.end()
        if answer == ENDED:
            raise GraderError(completion)
        return answer

    def _start_process(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        others = [path for path in sys.path if path and path != root]
        process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "lightning_cgrpo.tasks.grading.process", *self.limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *others])},
            start_new_session=True,  # signals to a terminal's or a job's processes are the caller's matter
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            process.kill()
            raise RuntimeError(f"The process that grades answers ended at its start, with status {process.wait()}")
        return process

    def _send_line(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        data = memoryview(f"{line}\n".encode())
        while data:
            written = self._process.stdin.write(data)  # perhaps a part, because a pipe may be full
            data = data[written:]

    def _receive_answer(self) -> str:
        """The next answer; raises a ConnectionError if there is none."""
        assert self._process is not None and self._process.stdout is not None
        ready = select.poll()  # unlike `select`, for any number of open files
        ready.register(self._process.stdout, select.POLLIN)
        if not ready.poll(PATIENCE * 1000):
            raise ConnectionError("no answer")
        line: bytes = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the process has ended")
        return line[:-1].decode()


@functools.cache
def grader_of(process: int) -> Grader:
    """The grader of a process, because a fork must not share its parent's pipes."""
    return Grader()
