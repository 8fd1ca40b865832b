"""The benchmark of the gridworld: its list of runs, its display, and a small one from the start to the report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gridworld.experiments import SETS, paper, sweep
from benchmarks.gridworld.run import GRIDWORLD
from benchmarks.runner.experiment import Run
from benchmarks.runner.ledger import BEGUN, FINISHED, Ledger, begin, finish, saved
from benchmarks.runner.run import Display, main
from lightning_cgrpo.cli.arguments import read_arguments

ROOT = Path(__file__).parents[2]


def test_the_sets_are_those_of_the_paper():
    assert len(paper()) == 3 * 2 * 5 and {run.updates for run in paper()} == {8000}
    assert len(sweep()) == 9 * 2 * 2 * 3 and {run.updates for run in sweep()} == {2000}
    assert len(SETS["choices"]()) == (2 * 3 - 1) * 2 * 3
    names = [run.name for make in SETS.values() for run in make()]
    assert len(set(names)) == len(names)
    assert all(compared in paper() for make in GRIDWORLD.compared.values() for compared in make())


@pytest.mark.parametrize("name", ["paper", "sweep", "controllers", "choices"])
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
    return Run(name, ("configs/gridworld.yaml",), overrides, int(name[-1]), updates)


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


def test_a_failed_run_is_no_progress(capsys):
    runs = [make_run("a_seed0", 100), make_run("b_seed1", 100)]
    with Display(runs) as display:
        display.began -= 600
        display.show("a_seed0", 0, failed=False)
        display.show("b_seed1", 0, failed=False)
        display.show("a_seed0", 20, failed=False)
        display.printed = 1e9
        display.show("a_seed0", 0, failed=True)
        display.printed = 0
        display.show("b_seed1", 30, failed=False)
    # 50 updates took ten minutes, 70 are left.
    assert "130 of 200 updates, 10 min, 14 min left" in capsys.readouterr().out


def test_finished_means_the_same_configuration_and_length(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = make_run("a_seed0", 10)
    longer = make_run("a_seed0", 20)
    other = Run(run.name, run.files, (*run.overrides, "--model.group_size=4"), 0, 10)
    shown = Run(run.name, run.files, (*run.overrides, "--callbacks.layout=null"), 0, 10)
    begin(run, tmp_path)
    assert not Ledger(tmp_path, tmp_path / "results").finished(run)
    finish(run, tmp_path, 1.0, 0.9)
    ledger = Ledger(tmp_path, tmp_path / "results")
    assert ledger.finished(run) and ledger.finished(shown)
    assert not ledger.finished(longer) and not ledger.finished(other)
    begin(shown, tmp_path)
    for changed in (longer, other):
        with pytest.raises(ValueError, match="another configuration or length"):
            begin(changed, tmp_path)
    # The same without the logs, from the results.
    ledger.enter(run)
    ledger.write()
    for file in (BEGUN, FINISHED):
        (tmp_path / run.name / file).unlink()
    ledger = Ledger(tmp_path, tmp_path / "results")
    assert not ledger.finished(run), "a run whose numbers are nowhere is to be made again"
    ledger.saved[run.name] = tmp_path / "run.json"
    assert ledger.finished(run) and not ledger.finished(other)
    assert {"cpu", "torch", "python"} < set(ledger.records[run.name])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["papers"], "Expected sets of paper, sweep"),
        (["--only", "nosuch"], "part of some run's name"),
        (["--lanes", "0"], "positive number"),
    ],
)
def test_wrong_arguments(arguments, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with pytest.raises(SystemExit):
        main(GRIDWORLD)
    assert complaint in capsys.readouterr().err


SCRIPT = """
import sys
from pathlib import Path
from benchmarks.runner.ledger import Ledger
from benchmarks.runner.run import train, write_report
from tests.benchmarks.test_gridworld import make_run

if __name__ == "__main__":
    updates = int(sys.argv[1])
    runs = [make_run(f"run_seed{seed}", updates) for seed in range(3)]
    assert train(runs, Path("logs"), 2, 2) == {}
    write_report(runs, Ledger(Path("logs"), Path("results")), Path("results/paper"))
"""


@pytest.mark.slow
def test_from_training_to_the_report_and_on_from_there(tmp_path):
    """Two processes with three runs; then the runs are longer, and go on from the checkpoints."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def call(updates):
        command = [sys.executable, "script.py", str(updates)]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert "3 of 3 runs, 9 of 9 updates" in call(3)
    assert {path.parent.name for path in tmp_path.glob("logs/*/finished.json")} == {f"run_seed{n}" for n in range(3)}
    assert set(saved(tmp_path / "results")) == {f"run_seed{n}" for n in range(3)}
    # Longer ones would be other runs, unless one says so.
    for begun in tmp_path.glob("logs/*/begun.json"):
        begun.unlink()
    call(5)
    for path in (tmp_path / "results/paper/runs").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["updates"] == 5 and len(record["folders"]) == 2 and "test/reward/mean" in record["evaluations"]
    assert (tmp_path / "results/paper/curves.pdf").stat().st_size > 1000


def test_the_committed_results_are_complete():
    """Every run that the ledger names has its numbers here, and every set its report."""
    ledger = Ledger(Path("none"), ROOT / "docs/results/gridworld")
    assert ledger.records and set(ledger.records) == set(ledger.saved)
    known = {run.name: run for make in SETS.values() for run in make()}
    assert all(ledger.in_results(known[name]) for name in ledger.records)
    assert all((path.parents[1] / "report.md").is_file() for path in ledger.saved.values())
