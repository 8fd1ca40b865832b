"""A vLLM server that a run starts for itself, and that ends with the run."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info

from lightning_cgrpo.core.errors import UserError, printable
from lightning_cgrpo.core.json_client import JSONClient
from lightning_cgrpo.samplers.vllm import keeper

STARTING = 1500.0
"""Seconds until a server must answer: less than the half hour for which other processes wait for the first one."""
ENDING = 2 * keeper.GRACE + 5.0
"""Seconds until the keeper of a dead server has ended its workers, too."""
LAST_LINES = 12
"""Lines of the server's log in an error."""
OF_THE_RUN = re.compile(
    r"(LOCAL_|GROUP_|NODE_|MASTER_|TORCHELASTIC_)\w+|RANK|WORLD_SIZE|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF"
)
"""Environment variables of the run's own processes: ranks, and settings of memory that vLLM's sleep mode refuses."""


class OwnServer:
    """``vllm serve`` on a free port of this machine, with a random key.

    A keeper (`keeper.py`) starts the server, and ends the server with its workers when this object or this process
    ends, also by SIGKILL.

    Args:
        command: words up to ``serve``, and further options of the user.
        model: a directory or a name.
        options: more options, which the user's override.
        environment: further variables.

    Attributes:
        address: its URL.
        key: sent as a bearer token.
        folder: for files of the server, removed at its end.
    """

    def __init__(self, command: str, model: str, options: Sequence[str], environment: Mapping[str, str]) -> None:
        before, after = _split_command(command)
        port = _find_port()
        self.address = f"http://127.0.0.1:{port}"
        self.key = secrets.token_urlsafe(32)
        self.command = [*before, model, *options, *after, "--host=127.0.0.1", f"--port={port}"]
        self.folder = Path(tempfile.mkdtemp(prefix="vllm-"))
        # Read by its descriptor, because the keeper removes the folder.
        self._log = os.open(self.folder / "log.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        variables = {name: value for name, value in os.environ.items() if not OF_THE_RUN.fullmatch(name)}
        variables |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": self.key, "TMPDIR": str(self.folder), **environment}
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", keeper.__file__, str(os.getpid()), str(self.folder), *self.command],
            env=variables,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.end = Finalize(self, _end_keeper, (self._keeper, self._log, self.folder), exitpriority=1)

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            UserError: it has ended, or does not answer within `STARTING`.
        """
        rank_zero_info(f"Starting `{shlex.join(self.command)}`; its log until its end: {self.folder}/log.txt.")
        client = JSONClient(self.address, 10.0, "a vLLM server")
        until = time.monotonic() + STARTING
        while time.monotonic() < until:
            self.check("start")
            with suppress(UserError):
                client.get("/health")
                self.check("start")  # or another server took the port
                return
            time.sleep(0.2)
        raise UserError(
            f"Expected `{shlex.join(self.command)}` to answer within {STARTING:g} s, but got no answer, try the "
            f"command by itself, and its address here. Its log ends with:\n{self.last_lines()}"
        )

    def check(self, aim: str, wait: bool = False) -> None:
        """Raise a `UserError` with the log's last lines if the server has ended.

        Args:
            aim: what was expected of it, "start" or "go on".
            wait: it may be ending, because it no longer answers.
        """
        try:
            status = self._keeper.wait(ENDING if wait else 0)
        except subprocess.TimeoutExpired:
            return
        remedy = "its options in `command`" if aim == "start" else "--ckpt_path=auto, which starts it anew"
        raise UserError(
            f"Expected `{shlex.join(self.command)}` to {aim}, but it ended with status {status}, try {remedy}. Its log "
            f"ends with:\n{self.last_lines()}"
        )

    def last_lines(self) -> str:
        """The log's last lines, after the first error above them, because vLLM ends with errors that followed."""
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, 2**20, max(size - 2**20, 0)).decode(errors="replace")
        lines = [printable(line) for line in text.splitlines() if line.strip()]
        last = lines[-LAST_LINES:]
        for line in lines:
            # A warning may quote an error that did not happen.
            if re.search(r"\w(Error|Exception): ", line) and " WARNING " not in line:
                if line not in last:
                    last = [line, *last]
                break
        return "\n".join(last)


def _find_port() -> int:
    """A free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _split_command(command: str) -> tuple[list[str], list[str]]:
    """The words of `command` up to ``serve``, and after it."""
    words = shlex.split(command)
    if "serve" not in words[1:]:
        raise UserError(f"Expected command to start a server, but got '{command}', try vllm serve, with options.")
    if shutil.which(words[0]) is None:
        raise UserError(
            f"Expected the program '{words[0]}' of vLLM for a server that this run starts, but got none on the path, "
            "try command: FOLDER/bin/vllm serve, or the address of a server that runs."
        )
    after = words.index("serve", 1) + 1
    return words[:after], words[after:]


def _end_keeper(process: subprocess.Popen[bytes], log: int, folder: Path) -> None:
    process.terminate()
    process.wait()
    os.close(log)
    shutil.rmtree(folder, ignore_errors=True)  # of a keeper that ended before it began
