"""The benchmark of the gridworld: its list of runs, its display, and a small one from the start to the report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gridworld.experiments import SETS, STANDARD, Run, paper, sweep
from benchmarks.gridworld.run import COMPARED, Display, saved
from lightning_cgrpo.__main__ import read_arguments

ROOT = Path(__file__).parents[2]


def test_the_sets_are_those_of_the_paper():
    assert len(paper()) == 3 * 2 * 5 and {run.updates for run in paper()} == {8000}
    assert len(sweep()) == 9 * 2 * 2 * 3 and {run.updates for run in sweep()} == {2000}
    assert len(SETS["choices"]()) == (2 * 3 - 1) * 2 * 3
    names = [run.name for make in SETS.values() for run in make()]
    assert len(set(names)) == len(names)
    assert all(compared in paper() for name in COMPARED for compared in COMPARED[name]())


@pytest.mark.parametrize("name", STANDARD)
def test_every_configuration_is_accepted_and_is_what_its_name_says(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    seen = {}
    for run in SETS[name]():
        if run.seed:
            continue
        config, _ = read_arguments("fit", run.arguments("logs"))
        model = config["model"]["init_args"]
        rewards = model["estimator"]["class_path"].endswith("ScalarizedRewards")
        assert rewards == ("scalarized_rewards" in run.name)
        assert model["seed"] == config["data"]["init_args"]["seed"] == run.seed
        assert config["trainer"]["max_steps"] == run.updates
        seen[json.dumps([config["model"], config["callbacks"]], sort_keys=True, default=str)] = run.name
        if name == "sweep":
            weights = config["callbacks"]["multipliers"]["init_args"]["weights"]
            assert f"lava_{weights['lava']}_battery_{weights['battery']}_" in run.name and weights["reward"] == 1
        if name == "choices":
            task = model["task"]["init_args"]
            assert f"rate_{task['rate']}_cost_{task['cost']}_" in run.name
    assert len(seen) == sum(run.seed == 0 for run in SETS[name]()), "two runs have the same configuration"


def make_run(name, updates):
    overrides = (
        "--trainer.log_every_n_steps=1",
        "--trainer.val_check_interval=null",
        "--callbacks.checkpoints.every_n_train_steps=2",
        "--model.sampler.environment.max_steps=10",
        "--data.test_prompts=20",
    )
    return Run(name, (), overrides, int(name[-1]), updates)


def test_display_counts_what_this_sitting_did(capsys):
    runs = [make_run("a_seed0", 100), make_run("b_seed1", 100)]
    with Display(runs) as display:
        display.began -= 600  # ten minutes ago
        display.show("a_seed0", 60, failed=False)  # goes on from a checkpoint
        display.show("a_seed0", 100, failed=False)
        display.show("b_seed1", 40, failed=False)
        display.printed = 0
        display.show("b_seed1", 90, failed=False)
    lines = capsys.readouterr().out.splitlines()
    # 60 + 40 updates were done before (a run's first message says where it begins), 40 + 50 in these ten minutes.
    assert lines[-1] == "1 of 2 runs, 190 of 200 updates, 10 min, 1 min left"


def test_a_failed_run_does_not_hold_up_the_end():
    with Display([make_run("a_seed0", 100)]) as display:
        display.show("a_seed0", 30, failed=True)
    assert display.over == {"a_seed0"}


def test_only_finished_and_evaluated_runs_count_as_saved(tmp_path):
    folder = tmp_path / "paper" / "runs"
    folder.mkdir(parents=True)
    whole = {"updates": 10, "max_updates": 10, "evaluations": {"test/reward/mean": 1.0}}
    for name, change in {"whole": {}, "part": {"updates": 9}, "untested": {"evaluations": {}}}.items():
        (folder / f"{name}.json").write_text(json.dumps({**whole, "folders": [f"{name}_seed0/version_0"], **change}))
    assert saved(tmp_path) == {"whole_seed0": folder / "whole.json"}


SCRIPT = """
import sys
from pathlib import Path
from benchmarks.gridworld.run import train, write_report
from tests.benchmarks.test_gridworld import make_run

if __name__ == "__main__":
    updates = int(sys.argv[1])
    runs = [make_run(f"run_seed{seed}", updates) for seed in range(3)]
    assert train(runs, Path("logs"), 2, 2) == []
    write_report("paper", runs, Path("logs"), Path("results"))
"""


@pytest.mark.slow
def test_from_training_to_the_report_and_on_from_there(tmp_path):
    """Two processes with three runs; then longer ones, which go on from the checkpoints."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def call(updates):
        command = [sys.executable, "script.py", str(updates)]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert "3 of 3 runs, 9 of 9 updates" in call(3)
    assert {path.parent.name for path in tmp_path.glob("logs/*/finished.json")} == {f"run_seed{n}" for n in range(3)}
    assert set(saved(tmp_path / "results")) == {f"run_seed{n}" for n in range(3)}
    call(5)
    for path in (tmp_path / "results/paper/runs").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["updates"] == 5 and len(record["folders"]) == 2 and "test/reward/mean" in record["evaluations"]
    assert (tmp_path / "results/paper/curves.pdf").stat().st_size > 1000
