"""The progress bar counts the updates of the run."""

import pytest
from lightning.pytorch import Callback

from lightning_cgrpo.callbacks import Checkpoints, ObjectiveProgressBar
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


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ({"max_steps": 8}, 8),
        ({"max_steps": -1, "max_epochs": 3}, 9),
        ({"max_steps": 4, "max_epochs": 3}, 4),
        ({"max_steps": -1, "max_epochs": -1, "limit_train_batches": 2}, float("inf")),
    ],
)
def test_it_counts_updates_over_epochs(tmp_path, monkeypatch, limits, total):
    monkeypatch.chdir(tmp_path)
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
def test_it_counts_on_after_a_resume(tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    trained(Checkpoints(every_n_train_steps=2, save_last=True), max_steps=first)
    bar = ObjectiveProgressBar()
    watch = Watch(bar)
    trained(bar, watch, Checkpoints(every_n_train_steps=2, save_last=True), enable_progress_bar=True, ckpt_path="last")
    assert watch.began[0] == first
    assert watch.shown == [(update, 8) for update in range(first + 1, 9)]
