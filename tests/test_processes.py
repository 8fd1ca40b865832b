"""What is learned depends neither on how many processes there are nor on what they share: one copy of the network each
(DDP), or one of all (FSDP2). All of them have the same multipliers."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests import process_worker
from tests.memory import steady

WORKER = Path(__file__).with_name("process_worker.py")
# Of 8 prompts per update 2 and 4 processes get equal shares; of 7 or 3 somebody gets fewer, of 1 all but one get none.
RUNS = (
    *("gridworld_8", "gridworld_7", "gridworld_1", "grammar_7", "grammar_1", "critic_7", "critic_1"),
    *("worlds_7", "worlds_1", "language_1", "language_3", "measuring_1", "measuring_5", "reader_3"),
    *("supervised_1", "supervised_3", "conversing_1", "conversing_3"),
)
LONGER = ("gridworld_7", "gridworld_1", "grammar_7", "language_3", "measuring_5", "supervised_3")
OF = {
    (2, "ddp"): RUNS,
    (2, "fsdp2"): (*LONGER, "critic_1", "language_1", "reader_3", "supervised_1"),
    (4, "ddp"): LONGER,
    (4, "fsdp2"): LONGER,
}
"""Runs by the number of processes and what they share."""


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """By one process, this one."""
    folder = prepare(tmp_path_factory.mktemp("single"))

    @cache
    def run(name):
        kind, _, number = name.rpartition("_")
        return process_worker.RUNS[kind](folder, int(number))

    return run


def prepare(folder):
    """A model and prompts for the runs on language."""
    make_tiny_model(folder / "model")
    lines = [json.dumps({"prompt": f"Count to {number}.", "completion": "1, 2"[:number]}) for number in range(8)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def several(launch, tmp_path_factory):
    """By several processes: what each of them left, by run."""

    @cache
    def run(processes, strategy):
        folder, names = prepare(tmp_path_factory.mktemp(f"{strategy}_{processes}")), OF[processes, strategy]
        launch(processes, WORKER, folder, strategy, *names)
        files = {name: [folder / f"{name}_rank_{rank}.pt" for rank in range(processes)] for name in names}
        return {name: [torch.load(file, weights_only=True) for file in each] for name, each in files.items()}

    return run


def assert_equal_runs(ranks, alone, prompts):
    """Shares of every update add up to it; rates equal exactly, the rest to float64's rounding."""
    for rank in ranks:
        assert torch.equal(rank["parameters"], ranks[0]["parameters"])
    torch.testing.assert_close(ranks[0]["parameters"], alone["parameters"], rtol=0, atol=1e-9)
    if "multipliers" not in alone:
        return
    shares = [[rank["prompts"][update] for rank in ranks] for update in range(len(alone["prompts"]))]
    assert all(sum(share) == prompts for share in shares)
    assert max(shares[0]) - min(shares[0]) == (prompts % len(ranks) > 0)

    assert rates(ranks[0]["metrics"]) == rates(alone["metrics"])
    torch.testing.assert_close(ranks[0]["multipliers"], alone["multipliers"], rtol=0, atol=1e-12)
    for rank in ranks:
        assert torch.equal(rank["multipliers"], ranks[0]["multipliers"])
        assert rank["pending"].keys() == alone["pending"].keys()
        assert all(torch.equal(rank["pending"][name], counts) for name, counts in alone["pending"].items())
    # What is shown is that of all processes, not of the first.
    for ours, theirs in zip(ranks[0]["metrics"], alone["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        assert steady(ours) == pytest.approx(steady(theirs), rel=1e-9, abs=1e-9)


def rates(metrics):
    kinds = ("rate/", "reward/", "threshold/")
    return [[value for tag, value in update.items() if tag.startswith(kinds)] for update in metrics]


@pytest.mark.slow
def test_runs_differ(single):
    """Rates vary, multipliers move, and runs on other prompts differ."""
    for name in ("gridworld_8", "gridworld_7", "gridworld_1"):
        run = single(name)
        assert run["multipliers"].shape == (20, 3) and len(torch.tensor(rates(run["metrics"])).unique(dim=0)) > 10
        assert (run["multipliers"][-1] - 1 / 3).abs().max() > 0.02
    assert not torch.allclose(single("gridworld_8")["parameters"], single("gridworld_7")["parameters"], atol=1e-4)
    assert {"val/mean/drift", "val/rate/empty/side=0"} <= single("grammar_7")["metrics"][-1].keys()
    language = single("language_1")
    assert language["pending"]["opportunities"].tolist() == [8], "of the two updates since the last dual step"
    assert len(language["multipliers"].unique(dim=0)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "strategy", "name"), [(*several, name) for several, names in OF.items() for name in names]
)
def test_several_processes_learn_as_one(several, single, processes, strategy, name):
    """Counts that wait for a dual step are those of all processes on each, so that any one's checkpoint will do."""
    assert_equal_runs(several(processes, strategy)[name], single(name), int(name[-1]))
