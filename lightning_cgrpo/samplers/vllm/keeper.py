"""Keeps a server for a run: ``python keeper.py RUN FOLDER COMMAND...``.

A process of its own, because a run that is killed ends nothing itself. It imports the standard library alone, and has a
session of its own, so that a terminal's Ctrl-C and a signal to the run's processes reach neither it nor the server.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PAUSE = 0.1
"""Seconds between two looks at the run and the server."""
GRACE = 15.0
"""Seconds for the server and its workers to end after SIGTERM, which lets them remove their files; then SIGKILL."""


def keep(run: int, folder: str, command: list[str]) -> int:
    """Run `command` until it ends, until process `run`, the parent, ends, or until SIGTERM; return its status.

    Then no process of the server's group is left, and `folder` is removed.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        server = subprocess.Popen(command, start_new_session=True)
        while server.poll() is None and os.getppid() == run and not received:
            time.sleep(PAUSE)
        _end_group(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if server.returncode < 0:
        return 128 - server.returncode  # as a shell reports a signal
    return server.returncode


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """End the server's process group, also where its leader has died and left its workers behind."""
    _signal_group(server, signal.SIGTERM)
    _wait_for_group(server)
    # Python's resource tracker then removes the shared memory of the dead.
    for process in _find_workers(server.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    _wait_for_group(server)
    _signal_group(server, signal.SIGKILL)
    server.wait()


def _wait_for_group(server: subprocess.Popen[bytes]) -> None:
    """Wait until no process is left, at most for `GRACE`."""
    until = time.monotonic() + GRACE
    while _signal_group(server, 0) and time.monotonic() < until:
        server.poll()  # a dead leader belongs to the group until its status is read
        time.sleep(PAUSE)


def _find_workers(group: int) -> list[int]:
    """Processes of the group but resource trackers, from Linux' /proc; none elsewhere."""
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        with suppress(OSError):
            if os.getpgid(process) == group and b"resource_tracker" not in (folder / "cmdline").read_bytes():
                workers.append(process)
    return workers


def _signal_group(server: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the server's processes; False if none is left."""
    try:
        os.killpg(server.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses for a group of dead processes
        return False
    return True


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
