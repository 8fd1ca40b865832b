"""A process that grades mathematical answers within limits of CPU time and memory.

    python -m lightning_cgrpo.tasks.grading.process CPU_SECONDS MEMORY_BYTES

reads requests, lines of JSON ``[completion, gold]``. It answers each with a word of `WORDS`.

The process imports math-verify once, and then forks a worker. The kernel ends a worker at its limit, also within an
operation on big integers, which no thread can interrupt. The next worker is forked in milliseconds.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RIGHT, WRONG, UNREADABLE, ENDED = "right", "wrong", "unreadable", "ended"
FAILED = 1
"""Exit status of a worker whose grading raised."""
WORDS = {True: RIGHT, False: WRONG, None: UNREADABLE}
WARM_UP = (r"\boxed{x^2 + \frac{1}{2}}", r"\frac{1}{2} + x^{2}")
"""Graded once before workers are forked, because math-verify builds tables at its first use."""


def serve(cpu_seconds: float, memory: int) -> None:
    """Fork workers until the caller closes standard input."""
    from lightning_cgrpo.tasks.grading.math_answers import is_right

    logging.disable(logging.CRITICAL)  # math-verify logs each formula that it can't read
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever libraries print
    is_right(*WARM_UP)
    _write_answer(answers, "ready")
    while True:
        worker = os.fork()
        if not worker:
            _grade_requests(answers, cpu_seconds, memory)
        _, status = os.waitpid(worker, 0)
        if os.waitstatus_to_exitcode(status) not in (-signal.SIGPROF, FAILED):
            return  # the caller is gone; or the worker was killed, and may have left a part of a request
        _write_answer(answers, ENDED)


def _grade_requests(answers: int, cpu_seconds: float, memory: int) -> None:
    """Answer requests; ends the process."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for line in os.fdopen(0, "rb"):  # the caller sends a line after each answer, so none is lost with a worker
        completion, gold = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            with memory_limit(memory):
                word = _grade_completion(completion, gold)
        except Exception:  # such as a MemoryError
            os._exit(FAILED)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write_answer(answers, word)
    os._exit(0)


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Context: this process can allocate `size` bytes more; no limit where there is no /proc."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + size
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _grade_completion(completion: str, gold: str) -> str:
    from lightning_cgrpo.tasks.grading.math_answers import is_right

    return WORDS[is_right(completion, gold)]


def _write_answer(pipe: int, word: str) -> None:
    os.write(pipe, f"{word}\n".encode())


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
