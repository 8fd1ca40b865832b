"""Fixtures of all tests."""

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from tests.forked import forked, run_script

# Before the workers import torch: their threads would wait for each other's cores. A configuration may ask for more
# threads, which spin while they wait, unless they are told to sleep, as `python -m lightning_cgrpo` does.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A deadline for each example would measure the machine's load. The fast run has the same examples each time, and
# `--hypothesis-profile=random` has others, at night; a failure prints what repeats it.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")

ROOT = Path(__file__).resolve().parents[1]
# What these import registers a device, for the whole process: see test_pretended_device.py.
collect_ignore = [] if "PRETENDED" in os.environ else ["pretended_device.py", "pretended_checks.py"]

FIRST = "test_pretended_device.py", "test_processes.py", "test_resume.py", "test_termination.py", "test_console.py"


def pytest_configure(config: pytest.Config) -> None:
    """Listen to Ctrl-C, and keep a file's slow tests in one worker, because they share runs of minutes by fixtures."""
    # A shell ignores SIGINT for jobs in the background, and so would all processes that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr == "slow":
        config.option.dist, config.option.loadscopereorder = "loadfile", False


def pytest_xdist_auto_num_workers() -> int:
    """One for each core: a worker rarely waits, and each imports and collects everything."""
    return min(len(os.sched_getaffinity(0)), 12) if hasattr(os, "sched_getaffinity") else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays, so searches for garbage would find none, but look at all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest tests first, so that no worker is left alone with one at the end.

    They fork processes, so the server that forks them (forked.py) is started by few workers.
    """
    items.sort(key=lambda item: not any(item.path.match(name) for name in FIRST))


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the seed that an earlier test gave to Lightning, which keeps it in the environment."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made_in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], object]], Path]:
    """Makes what all tests of a module share in a new folder, and returns the folder."""

    def made(make: Callable[[], object]) -> Path:
        folder = tmp_path_factory.mktemp("made")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            make()
        return folder

    return made


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real data, which isn't part of the repository."""
    folder = Path(os.environ.get("LIGHTNING_CGRPO_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set LIGHTNING_CGRPO_SHARED to the folder that holds data/")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of one small layer, which nobody changes."""
    from lightning_cgrpo.policies.tiny.text import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32, layers=1)


@pytest.fixture(scope="session")
def launch() -> Callable[..., None]:
    """Runs a script in several processes, see `launch_processes`."""
    return launch_processes


def launch_processes(processes: int, script: Path, folder: Path, *arguments: object, timeout: float = 1800) -> None:
    """As torchrun would, with FOLDER and arguments; output goes to FOLDER. A hang is an error, as is a failure."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    environment |= {"GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    deadline = time.monotonic() + timeout
    outputs = [folder / f"output_{rank}.txt" for rank in range(processes)]
    with ExitStack() as stack:
        running = []
        for rank, output in enumerate(outputs):
            own = environment | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            process = forked(run_script, script, folder, *arguments, output=output, environment=own)
            running.append(stack.enter_context(process))
        for process, output in zip(running, outputs, strict=True):
            process.join(max(deadline - time.monotonic(), 0.1))
            assert process.exitcode == 0, output.read_text()[-3000:]
