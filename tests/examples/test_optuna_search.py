"""The search tries settings and keeps the best merit."""

import importlib.util
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")


def test_two_trials(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    path = Path(__file__).parents[2] / "examples" / "optuna_search.py"
    spec = importlib.util.spec_from_file_location("optuna_search", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    study = example.main(trials=2, updates=2)
    assert len(study.trials) == 2 and study.best_value == max(trial.value for trial in study.trials)
    assert "Best merit" in capsys.readouterr().out
