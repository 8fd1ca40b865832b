"""What is learned does not depend on how many processes there are, and all of them have the same multipliers."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).with_name("process_worker.py")
# 8 prompts per update are an even share for 2 and 4 processes; of 7 somebody gets fewer, of 1 all but one get none.
PROMPTS = (8, 7, 1)


def load_worker():
    spec = importlib.util.spec_from_file_location("process_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def single():
    """By one process, this one."""
    worker = load_worker()
    return {prompts: worker.train(prompts) for prompts in PROMPTS}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(processes, folder, timeout=120):
    """As torchrun would; a hang is an error. Returns what each rank left, by number of prompts."""
    environment = {
        **os.environ,
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    running = []
    deadline = time.monotonic() + timeout
    try:
        for rank in range(processes):
            with (folder / f"output_{rank}.txt").open("wb") as output:
                running.append(
                    subprocess.Popen(
                        [sys.executable, str(WORKER), str(folder), *map(str, PROMPTS)],
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
    return {
        prompts: [
            torch.load(folder / f"{prompts}_prompts_rank_{rank}.pt", weights_only=True) for rank in range(processes)
        ]
        for prompts in PROMPTS
    }


def assert_equal_runs(ranks, alone, prompts):
    """Shares of every update add up to it; rates equal exactly, the rest to float64's rounding."""
    shares = [[rank["prompts"][update] for rank in ranks] for update in range(len(alone["prompts"]))]
    assert all(sum(share) == prompts for share in shares)
    assert max(shares[0]) - min(shares[0]) == (prompts % len(ranks) > 0)

    assert torch.equal(*[torch.tensor(rates(run["metrics"])) for run in (ranks[0], alone)])
    torch.testing.assert_close(ranks[0]["multipliers"], alone["multipliers"], rtol=0, atol=1e-12)
    for rank in ranks:
        assert torch.equal(rank["multipliers"], ranks[0]["multipliers"])
        assert torch.equal(rank["parameters"], ranks[0]["parameters"])
    torch.testing.assert_close(ranks[0]["parameters"], alone["parameters"], rtol=0, atol=1e-9)
    # What is shown is that of all processes, not of the first.
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        for tag in ours:
            if not tag.startswith(("time/", "throughput/")):
                assert ours[tag] == pytest.approx(theirs[tag], rel=1e-9, abs=1e-9), tag


def rates(metrics):
    return [[update[tag] for tag in ("rate/lava", "rate/battery", "reward/mean")] for update in metrics]


def test_the_comparison_sees_something(single):
    """Rates vary, multipliers move, and runs on other prompts differ."""
    for run in single.values():
        assert run["multipliers"].shape == (20, 3) and len(torch.tensor(rates(run["metrics"])).unique(dim=0)) > 10
        assert (run["multipliers"][-1] - 1 / 3).abs().max() > 0.02
    assert not torch.allclose(single[8]["parameters"], single[7]["parameters"], atol=1e-4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return launch(2, tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("prompts", PROMPTS)
def test_two_processes(pair, single, prompts):
    assert_equal_runs(pair[prompts], single[prompts], prompts)


@pytest.mark.slow
def test_four_processes(tmp_path, single):
    four = launch(4, tmp_path, timeout=240)
    for prompts in PROMPTS:
        assert_equal_runs(four[prompts], single[prompts], prompts)
