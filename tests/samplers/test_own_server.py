"""A server that a run starts ends with the run, with its workers, files and port, however the run ends."""

import gc
import json
import os
import signal
import socket
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from benchmarks import kill_loop
from benchmarks.run_differences import differences, logs
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.samplers.vllm import keeper, own_server
from lightning_cgrpo.samplers.vllm.own_server import OwnServer
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from tests.samplers.vllm_client import generate, make_policy

FAKE = f"{sys.executable} {Path(__file__).with_name('fake_command.py')} serve"


def server(folder, fault=""):
    return OwnServer(f"{FAKE} --fault={fault}", "a model", [f"--tell={folder / 'processes'}"], {})


def run(folder):
    """A run that has a server, until a signal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    own = server(folder)
    own.wait()
    (folder / "unfinished").write_text(f"{own.folder} {own.address}")
    (folder / "unfinished").rename(folder / "ready")
    time.sleep(1000)


def until(reached, seconds=20):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listens(address):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", urlsplit(address).port)) == 0


def processes(folder):
    return list(map(int, (folder / "processes").read_text().split()))


def check_gone(folder, files, address):
    until(lambda: not any(map(lives, processes(folder))) and not Path(files).exists())
    assert not listens(address)


def test_it_answers_to_its_key_and_ends_with_its_object(tmp_path):
    files, address = used(tmp_path)
    gc.collect()  # the object is in a circle with the exceptions of its first requests
    check_gone(tmp_path, files, address)


def used(tmp_path):
    own = server(tmp_path)
    own.wait()
    assert len(processes(tmp_path)) == 2 and all(map(lives, processes(tmp_path)))
    asked = [httpx.get(f"{own.address}/v1", headers={"Authorization": f"Bearer {key}"}) for key in (own.key, "other")]
    assert [answer.status_code for answer in asked] == [200, 401]
    assert (own.folder / "socket").exists() and own.key not in " ".join(own.command)
    return own.folder, own.address


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGTERM))],
)
def test_nothing_stays_when_the_run_ends(tmp_path, number):
    process = get_context("fork").Process(target=run, args=(tmp_path,))
    process.start()
    until(lambda: (tmp_path / "ready").exists())
    os.kill(process.pid, number)
    check_gone(tmp_path, *(tmp_path / "ready").read_text().split())


def test_a_server_that_was_killed_is_told_and_leaves_no_worker(tmp_path):
    own = server(tmp_path)
    own.wait()
    leader, worker = processes(tmp_path)
    os.kill(leader, signal.SIGKILL)
    until(lambda: not lives(worker) and own._keeper.poll() is not None)
    with pytest.raises(UserError, match=r"to go on, but it ended with status 137, try --ckpt_path=auto, which"):
        own.check("go on")
    check_gone(tmp_path, own.folder, own.address)


def test_a_server_that_does_not_start_shows_its_first_error_and_its_last_lines(tmp_path):
    with pytest.raises(UserError, match="to start, but it ended with status 3, try its options") as caught:
        server(tmp_path, "dies").wait()
    told = str(caught.value).splitlines()[1:]
    assert told == ["ValueError: head size 24 is not supported", *(f"line {number}" for number in range(18, 30))]


def test_a_server_that_never_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(own_server, "STARTING", 0.5)
    own = server(tmp_path, "hangs")
    with pytest.raises(UserError, match=r"to answer within 0\.5 s, but got no answer, try the command by itself"):
        own.wait()
    own.end()
    assert not own.folder.exists()


def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    """In this process, with a run that has ended before."""
    monkeypatch.setattr(keeper, "GRACE", 1.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(keeper.os, "getppid", lambda: 0 if (tmp_path / "processes").exists() else 1)
    command = [*FAKE.split(), "--fault=stubborn", f"--tell={tmp_path / 'processes'}", "--host=127.0.0.1", "--port=0"]
    (files := tmp_path / "files").mkdir()
    try:
        assert keeper.keep(1, str(files), command) == 128 + signal.SIGKILL
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    until(lambda: not any(map(lives, processes(tmp_path))))
    assert not files.exists() and not Path("/dev/shm", (tmp_path / "memory").read_text()).exists()


def test_an_engine_that_died_is_told_with_the_log(served, policy):
    """Its server may live on for a while, and the log is removed at the run's end."""

    class Own:
        def check(self, aim, wait):
            assert not wait

        def last_lines(self):
            return "ValueError: the cause"

    def dead(*_):
        raise RuntimeError("EngineCore encountered an issue.")

    engine = VLLMServer(served.address)
    generate(engine, policy, rows=(0,))
    engine.own, served.engine.faulty = Own(), dead
    with pytest.raises(UserError, match=r"EngineCore .*log ends with:\nValueError: the cause"):
        generate(engine, policy, rows=(0,))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vllm", "to start a server, but got 'vllm', try vllm serve"),
        ("nobody serve", "'nobody' of vLLM .* got none on"),
    ],
)
def test_commands_that_start_nothing(directory, command, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(VLLMServer(command=command), make_policy(directory))
    assert "\n" not in str(caught.value)


ENGINE = (
    f"--model.sampler.engine=VLLMServer --model.sampler.engine.command={sys.executable} -m tests.samplers.fake_vllm"
)
ARGUMENTS = [*ENGINE.split(" ", 1), "--trainer.max_steps=4", "--trainer.limit_val_batches=0", "--ckpt_path=auto"]
ARGUMENTS[1] += " serve"
ARGUMENTS += ["--callbacks.initial_rates=null"]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Starts runs whose servers have their files below `tmp_path`, in folders ``vllm-...``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield lambda name, strategy="auto": kill_loop.Run(tmp_path / name, "language", strategy, *ARGUMENTS)
    until(lambda: not list(tmp_path.glob("vllm-*")))
    assert not fakes(), "all have ended"


def fakes():
    """Processes of fake servers that this test started."""
    names = {int(file.parent.name): file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()}
    return [process for process, name in names.items() if b"tests.samplers.fake_vllm" in name and b"keeper" not in name]


def begun(run, update=2):
    """A run that has reached an update."""
    assert run.until(lambda: f"update {update}" in kill_loop.marks(run.folder), 0.01)
    return run


def check_killed_run_equals_a_whole_run(runs, folder):
    """`runs` starts a run of four updates in a folder below FOLDER."""
    runs("whole").finish()
    begun(runs("killed")).kill(signal.SIGKILL, [0])
    runs("killed").finish()
    assert list(differences(folder / "killed", folder / "whole")) == []
    gaps = logged(folder / "whole", "sampling/log_prob_gap")
    assert len(gaps) == 4 and max(gaps) < 1e-4


def logged(folder, name):
    """Values of a metric by update."""
    return [float(value) for (_, tag), value in logs(folder / "runs/run/version_0").items() if tag == name]


@pytest.mark.slow
def test_a_killed_run_equals_a_whole_run(runs, tmp_path):
    check_killed_run_equals_a_whole_run(runs, tmp_path)


@pytest.mark.slow
def test_processes_share_the_server_of_the_first(runs):
    run = begun(runs("two", "ddp"))
    assert len(fakes()) == 1
    run.finish()


@pytest.mark.slow
def test_a_run_whose_server_is_killed_says_so(runs, tmp_path):
    run = begun(runs("served"), 1)
    os.kill(fakes()[0], signal.SIGKILL)
    assert run.wait() and run.statuses[run.processes[0]] == 2
    told = json.loads((tmp_path / "served/runs/run/version_0/summary.json").read_text())["error"]
    assert "to go on, but it ended with status 137, try --ckpt_path=auto, which starts it anew" in told
    runs("served").finish()
