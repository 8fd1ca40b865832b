"""A logger that keeps the metrics of each update."""

from lightning.pytorch.loggers.logger import DummyLogger


class Memory(DummyLogger):
    def __init__(self):
        super().__init__()
        self.updates = {}

    def log_metrics(self, metrics, step=None):
        self.updates.setdefault(step, {}).update(metrics)
