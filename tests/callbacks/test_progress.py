"""The progress bar counts the updates of the run."""

import pytest
from lightning.pytorch import Callback

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.callbacks import Checkpoints, ObjectiveProgressBar
from lightning_cgrpo.callbacks.progress import objective_status
from tests.callbacks.small_runs import Stop, trained


class Watch(Callback):
    """What the bar shows after each update; beside it, how it stands when an update begins."""

    def __init__(self, bar):
        self.bar, self.shown, self.began = bar, [], []

    def on_train_batch_start(self, *_):
        self.began.append(self.bar.train_progress_bar.completed)

    def on_train_batch_end(self, *_):
        task = self.bar.train_progress_bar
        self.shown.append((task.completed, task.total))


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setattr("rich._console", None)  # a console keeps the colors of the terminal that it began with
    monkeypatch.setenv("TTY_COMPATIBLE", "1")


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ({"max_steps": 8}, 8),
        ({"max_steps": -1, "max_epochs": 3}, 9),
        ({"max_steps": 4, "max_epochs": 3}, 4),
        ({"max_steps": -1, "max_epochs": -1, "limit_train_batches": 2}, float("inf")),
    ],
)
def test_it_counts_updates_over_epochs(folder, limits, total):
    bar = ObjectiveProgressBar()
    watch = Watch(bar)
    ends = [Stop(8, "update")] if total == float("inf") else []
    try:
        trained(bar, watch, *ends, enable_progress_bar=True, **limits)
    except ChildProcessError:
        assert ends
    updates = 8 if ends else total
    assert watch.shown == [(update, total) for update in range(1, updates + 1)]
    assert watch.began[0] == 0


@pytest.mark.parametrize("first", [4, 6])  # within an epoch, and at its end
def test_it_counts_on_after_a_resume(folder, first):
    trained(Checkpoints(every_n_train_steps=2, save_last=True), max_steps=first)
    bar = ObjectiveProgressBar()
    watch = Watch(bar)
    trained(bar, watch, Checkpoints(every_n_train_steps=2, save_last=True), enable_progress_bar=True, ckpt_path="last")
    assert watch.began[0] == first
    assert watch.shown == [(update, 8) for update in range(first + 1, 9)]


def test_the_worst_constraint_is_the_one_furthest_beyond_its_threshold():
    """In units of each bound, since 0.02 is twice as much as 0.01 asks for, and 0.6 is nearly 0.59."""
    constraints = {"safe": Constraint(at_least=0.99), "brief": Constraint(mean_at_most=100.0)}
    objective = Objective("goal", {**constraints, "polite": Constraint(at_least=0.1, role="monitor")})
    latest = {"rate/safe": 0.9, "mean/brief": 120.0, "rate/polite": 0.0, "reward/mean": 0.5}
    assert objective_status(objective, latest) == ["0/2 met", "worst safe 0.900 < 0.99", "reward 0.5"]
    latest |= {"rate/safe": 0.98996, "threshold/brief": 110.0}
    assert objective_status(objective, latest)[:2] == ["0/2 met", "worst brief 120 > 110"]
    latest |= {"mean/brief": 1.0}
    assert objective_status(objective, latest)[:2] == ["1/2 met", "worst safe 0.98996 < 0.99"]
    latest |= {"rate/safe": 1.0}
    assert objective_status(objective, latest)[:2] == ["2/2 met", "closest safe 1.000 >= 0.99"]
    assert objective_status(Objective("goal"), latest) == ["reward 0.5"]
