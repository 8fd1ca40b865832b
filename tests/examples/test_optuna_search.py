"""The search tries settings and keeps the best merit."""

import pytest

optuna = pytest.importorskip("optuna")


def test_two_trials(folder, capsys):
    from examples.optuna_search import main  # imports Optuna

    study = main(trials=2, updates=2)
    assert len(study.trials) == 2 and study.best_value == max(trial.value for trial in study.trials)
    assert "Best merit" in capsys.readouterr().out
