"""The command: a small study from its file to its report, interrupted, resumed, and with a run that fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.study import command
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.run.runs import read_record
from tests.refusals import refused

ROOT = Path(__file__).parents[3]
STUDY = """
base: configs/gridworld.yaml
variants:
  advantages: ""
  rewards: -c configs/ablations/gridworld/scalarized_rewards.yaml
overrides: >-
  --trainer.max_steps={updates} --trainer.log_every_n_steps=1 --trainer.val_check_interval=null
  --callbacks.checkpoints.every_n_train_steps=2 --callbacks.initial_rates=null --callbacks.pictures=null
  --model.sampler.environment.max_steps=10
seeds: 2
at_once: 2
"""
UPDATES = 150
"""More than a run makes before it is interrupted."""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Starts the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments):
        command = [sys.executable, "-m", "lightning_cgrpo", "study", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.mark.slow
def test_from_the_file_to_the_report(study, tmp_path, capsys):
    """Two variants and two seeds, and a third variant that fails; then nothing is left to do."""
    text = STUDY.format(updates=2).replace("overrides", "  bad: --model.group_size=1\noverrides")
    (tmp_path / "mine.yaml").write_text(text + "after: test --ckpt_path=last --data.test_prompts=4\n")
    out, error = (process := study("mine.yaml")).communicate(timeout=600)
    assert process.returncode == 1 and "4 of 6 runs are finished, 2 failed." in out
    told = "failed: Expected argument `group_size` to be at least 2, but got 1. (all output: runs/mine/bad,seed="
    assert error.count(told) == 2
    saved = {path.stem: read_record(path) for path in (tmp_path / "runs/mine/report/runs").iterdir()}
    assert set(saved) == {f"{name}_seed{seed}" for name in ("advantages", "rewards") for seed in range(2)}
    assert all(run.updates == 2 and 0.1 < run.cpu_seconds < 600 for run in saved.values())
    assert all(run.answers == 128 and 50 < run.peak_mb < 50_000 for run in saved.values())
    page = (tmp_path / "runs/mine/report/report.md").read_text()
    assert "Differences to advantages, end of training" in page and "Differences to advantages, test" in page
    assert "(`study --list` says why): bad,seed=0, bad,seed=1.\n" in page
    assert "| rewards | 2 | " in page and "| advantages | 2 | " in page.partition("## Cost")[2]
    main(["study", "mine.yaml", "--list"])
    listed = capsys.readouterr().out
    assert "bad,seed=0: failed: Expected argument" in listed and "advantages,seed=1: finished" in listed
    # On another machine, with the results alone.
    (tmp_path / "runs").rename(tmp_path / "results")
    for folder in (tmp_path / "results/mine").glob("*seed=*"):
        folder.rename(tmp_path / folder.name)
    main(["study", "mine.yaml", "--only", "rewards", "--report", "--results", "results/mine"])
    assert "4 of 6 runs are finished." in capsys.readouterr().out and not Path("runs").exists()
    assert (tmp_path / "results/mine/report/report.md").read_text() == page


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(study, tmp_path):
    (tmp_path / "mine.yaml").write_text(STUDY.format(updates=UPDATES).replace("seeds: 2", "seeds: 1"))
    process = study("mine.yaml", "--only", "advantages")
    folder = tmp_path / "runs/mine/advantages,seed=0"
    while not any(folder.glob("version_0/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=200)
    assert process.returncode == 130 and "study mine.yaml --only advantages" in error, (out, error)
    out, error = (process := study("mine.yaml", "--only", "advantages")).communicate(timeout=600)
    assert process.returncode == 0 and "1 of 2 runs are finished." in out, (out, error)
    assert "Resuming from runs/mine/advantages,seed=0/version_0" in (folder / "output.txt").read_text()
    first, second = (read_record(folder / f"version_{n}" / SUMMARY) for n in range(2))
    assert first.status == "interrupted" and (second.status, second.resumed) == ("finished", "../version_0")
    assert second.answers == 64 * UPDATES and second.cpu_seconds > first.cpu_seconds
    record = read_record(tmp_path / "runs/mine/report/runs/advantages_seed0.json")
    assert record.updates == UPDATES and None not in record.saved.series["reward/mean"]


@pytest.mark.usefixtures("study")
def test_errors_before_anything_is_trained(tmp_path):
    (tmp_path / "mine.yaml").write_text(STUDY.format(updates=2))
    (tmp_path / "runs/mine/rewards,seed=1/version_0").mkdir(parents=True)
    (tmp_path / "runs/mine/rewards,seed=1/version_0/config.yaml").write_text("")
    for arguments, complaint in {
        ("mine.yaml",): "'runs/mine/rewards,seed=1' to hold the run of the same configuration",
        ("mine.yaml", "--only", "nosuch"): "--only",
        ("mine.yaml", "--out", "mine.yaml"): "Expected --out to be a folder",
        ("configs/studies/gsm8.yaml",): "Did you mean 'configs/studies/gsm8k.yaml'",
    }.items():
        assert complaint in refused(main, ["study", *arguments])
    assert [path.name for path in (tmp_path / "runs/mine").iterdir()] == ["rewards,seed=1"]


def test_a_list_neither_trains_nor_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(STUDY.format(updates=2))
    main(["study", "mine.yaml", "--list"])
    open_runs = [f"{variant},seed={seed}: open" for seed in (0, 1) for variant in ("advantages", "rewards")]
    assert capsys.readouterr().out.splitlines() == [*open_runs, "0 of 4 runs are finished."]
    assert not (tmp_path / "runs").exists()


def test_the_line_of_a_minute_counts_updates_and_the_time_left(monkeypatch):
    """A run that has not begun is as long as the longest other run."""
    monkeypatch.setattr(command, "progress", {"a": (100, 300), "b": (200, 300), "c": (0, None)}.get)
    assert command.progress_line(["a", "b", "c"], 0, 600) == "300 of 900 updates, 10 min, 20 min left"
