"""What is learned does not depend on how many processes there are, and all of them have the same multipliers."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.policies.tiny import make_tiny_model

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


def prepare(folder):
    """A model and prompts for the language run."""
    make_tiny_model(folder / "model")
    lines = [json.dumps({"prompt": f"Count to {number}.", "completion": "1, 2"[:number]}) for number in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def launch(processes, folder, timeout=120):
    """As torchrun would; a hang is an error. Returns what each rank left, by number of prompts, or ``language``."""
    prepare(folder)
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
    learned = {name: name for name in ("language", "supervised_1", "supervised_3")}
    names = {**learned, **{prompts: f"{prompts}_prompts" for prompts in PROMPTS}}
    return {
        key: [torch.load(folder / f"{name}_rank_{rank}.pt", weights_only=True) for rank in range(processes)]
        for key, name in names.items()
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


def test_language_with_a_process_that_has_no_prompts(pair, tmp_path):
    """Counts that wait for a dual step are those of all processes on each, so that any one's checkpoint will do."""
    alone, ranks = load_worker().train_language(prepare(tmp_path)), pair["language"]
    assert sorted(rank["prompts"] for rank in ranks) == [[0] * 8, [1] * 8]
    torch.testing.assert_close(ranks[0]["parameters"], alone["parameters"], rtol=0, atol=1e-9)
    for rank in ranks:
        assert torch.equal(rank["parameters"], ranks[0]["parameters"])
        torch.testing.assert_close(rank["multipliers"], alone["multipliers"], rtol=0, atol=1e-12)
        assert rank["pending"].keys() == alone["pending"].keys()
        assert all(torch.equal(rank["pending"][name], counts) for name, counts in alone["pending"].items())
    assert alone["pending"]["opportunities"].tolist() == [8], "of the two updates since the last dual step"
    assert len(alone["multipliers"].unique(dim=0)) == 3


@pytest.mark.parametrize("prompts", [1, 3])
def test_supervised_with_uneven_shares(pair, tmp_path, prompts):
    """One process has more passes than the other, or all of them."""
    alone, ranks = load_worker().train_supervised(prepare(tmp_path), prompts), pair[f"supervised_{prompts}"]
    for rank in ranks:
        torch.testing.assert_close(rank["parameters"], alone["parameters"], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_four_processes(tmp_path, single):
    four = launch(4, tmp_path, timeout=240)
    for prompts in PROMPTS:
        assert_equal_runs(four[prompts], single[prompts], prompts)
