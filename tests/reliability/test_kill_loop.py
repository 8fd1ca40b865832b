"""Four kills of the loop in benchmarks/kill_loop.py, and that it sees a difference."""

import shutil

import pytest
import torch

from benchmarks import kill_loop
from benchmarks.run_differences import differences


@pytest.mark.slow
def test_killed_runs_go_on_as_if_they_had_not_been(monkeypatch):
    """Three kinds, both tasks, one process and two; the third leaves a part of a directory."""
    for number in (5, 10, 11, 15):
        (trial,) = kill_loop.main(["--kills=1", f"--first={number}", "--seed=1"])
        assert trial.differences == []


def test_what_differs_is_told(tmp_path):
    runs = []
    for name in ("run", "whole"):
        version = tmp_path / name / "runs/run/version_0"
        (version / "checkpoints").mkdir(parents=True)
        state = {"callbacks": {"Checkpoints{}": name}, "state_dict": {"a": torch.zeros(2)}, "loops": [1, {"b": 2}]}
        torch.save(state, version / "checkpoints/last.ckpt")
        (version / "metrics.csv").write_text("rate,step,time/score\n0.5,0,1\n0.25,1,2\n")
        runs.append(tmp_path / name)
    assert list(differences(*runs)) == []
    torch.save({**state, "loops": [1, {"b": 3}]}, runs[0] / "runs/run/version_0/checkpoints/last.ckpt")
    (runs[0] / "runs/run/version_0/metrics.csv").write_text("rate,step,time/score\n0.5,0,9\n")
    shutil.copytree(runs[0] / "runs/run/version_0", runs[0] / "runs/run/version_1")
    (runs[0] / "runs/run/version_1/metrics.csv").write_text("rate,step,time/score\n0.75,0,9\n")
    assert list(differences(*runs)) == [
        "checkpoint.loops[1].b: 3, not 2",
        "(0, 'rate') logged as 0.5 and 0.75",
        "(1, 'rate') logged as None, not 0.25",
    ]
