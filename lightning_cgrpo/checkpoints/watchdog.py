"""A small process that ends a training process which can't end itself.

Waiting native code, or a thread that holds Python's lock, blocks signal handlers. The file runs as a script and
imports the standard library alone.
"""

import os
import select
import signal
import sys
import time

WORKS, RESTS = 0xF0, 0xF1
"""Messages of the training process; signal numbers, in the same pipe, are smaller."""
REPEATED = 1.0
"""Seconds within which a repeated signal counts once, because `timeout` and torchrun send two."""
PATIENCE = 10.0
"""Seconds from SIGTERM to SIGKILL."""
POLL = 0.5
FAREWELL = (
    "lightning_cgrpo: the update did not end within {:.0f} s of SIGTERM and is given up; resume from the newest "
    "checkpoint with --ckpt_path=auto."
)


class Clock:
    """Deadline of a training process, from its messages and signals.

    Args:
        grace: seconds that an update may last after SIGTERM; three times the longest update, if longer.
    """

    def __init__(self, grace: float) -> None:
        self.grace, self.longest = grace, 0.0
        self.since: float | None = None
        self.defers = False
        self.first: float | None = None
        self.terminated: float | None = None
        self.forced: float | None = None

    def receive(self, message: int, now: float) -> None:
        if message in (WORKS, RESTS):
            if self.since is not None:
                self.longest = max(self.longest, now - self.since)
            self.since = now if message == WORKS else None
            self.defers = True
        elif message in (signal.SIGINT, signal.SIGTERM):
            # Half a second more than the training process, so that both agree on repetition.
            repeated = self.first is not None and now - self.first < REPEATED + POLL
            if not self.defers or (self.first is not None and not repeated):
                self.forced = now if self.forced is None else self.forced
            elif message == signal.SIGTERM:
                self.terminated = now if self.terminated is None else self.terminated
            self.first = now if self.first is None else self.first

    def allowed(self) -> float:
        """Seconds that an update may last after SIGTERM, or after its later beginning."""
        return max(self.grace, 3 * self.longest)

    def deadline(self) -> float:
        if self.forced is not None:
            return self.forced + PATIENCE
        if self.terminated is None or self.since is None:
            return float("inf")
        return max(self.terminated, self.since) + self.allowed()


def watch(process: int, grace: float) -> None:
    """Read the parent's messages from the standard input, and end the parent at its deadline."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    clock = Clock(grace)
    while os.getppid() == process:
        if select.select([0], [], [], POLL)[0]:
            messages = os.read(0, 4096)
            if not messages:
                return
            for message in messages:
                clock.receive(message, time.monotonic())
        if time.monotonic() > clock.deadline():
            if clock.forced is None:
                print(FAREWELL.format(clock.allowed()), file=sys.stderr, flush=True)
            os.write(1, b"forced")
            end(process)
            return


def end(process: int) -> None:
    """Ask the parent to end, kill its descendants, and after `PATIENCE` seconds the parent."""
    started = [number for number in descendants(process) if number != os.getpid()]
    asked, until = 0.0, time.monotonic() + PATIENCE
    while os.getppid() == process and time.monotonic() < until:
        if time.monotonic() > asked + REPEATED + POLL:
            # Again, because Python runs a delayed handler once for several signals.
            asked = time.monotonic()
            send(process, signal.SIGTERM)
            for number in started:
                send(number, signal.SIGKILL)
        time.sleep(0.05)
    if os.getppid() == process:
        send(process, signal.SIGKILL)


def send(process: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def descendants(process: int) -> list[int]:
    """Process ids of all descendants on Linux; elsewhere []."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of a process, which may hold any character, ends at the last parenthesis.
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
                continue
    family = [process]
    for parent in family:
        family += [child for child, its_parent in parents.items() if its_parent == parent]
    return family[1:]


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
