"""Fixtures of all tests."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What these import registers a device, for the whole process: see test_pretended_device.py.
collect_ignore = [] if "PRETENDED" in os.environ else ["pretended_device.py", "pretended_checks.py"]


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the seed that an earlier test gave to Lightning, which keeps it in the environment."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data, which isn't part of the repository."""
    folder = Path(os.environ.get("LIGHTNING_CGRPO_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set LIGHTNING_CGRPO_SHARED to the folder that holds data/")
    return folder


@pytest.fixture(scope="session")
def launch() -> Callable[..., None]:
    """Runs a script in several processes, see `launch_processes`."""
    return launch_processes


def launch_processes(processes: int, script: Path, folder: Path, *arguments: object, timeout: float = 1800) -> None:
    """As torchrun would, with FOLDER and arguments; output goes to FOLDER. A hang is an error, as is a failure."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    running: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + timeout
    try:
        for rank in range(processes):
            with (folder / f"output_{rank}.txt").open("wb") as output:
                running.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, (script, folder, *arguments))],
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        for rank, process in enumerate(running):
            code = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            assert code == 0, (folder / f"output_{rank}.txt").read_text()[-3000:]
    finally:
        for process in running:
            process.kill()
            process.wait(timeout=10)
