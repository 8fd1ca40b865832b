"""What each update of a training leaves."""

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from lightning_cgrpo.policies.sharding import whole_tensor


def flat(module):
    """A copy of all weights of a network, as one vector."""
    return torch.cat([whole_tensor(parameter.detach()).clone().flatten() for parameter in module.parameters()])


def steady(metrics):
    """Metrics, or a row of them, without times."""
    return {tag: value for tag, value in metrics.items() if not tag.startswith(("time/", "throughput/"))}


class Memory(Callback, DummyLogger):
    """Keeps outputs, and the weights of policy and objective after each update; as a logger, the metrics.

    Of the objective, the weights before the first update, too.
    """

    def __init__(self):
        super().__init__()
        self.updates, self.outputs, self.parameters, self.weights, self.steps = {}, [], [], [], []

    @property
    def metrics(self):
        return list(self.updates.values())

    def log_metrics(self, metrics, step=None):
        self.updates.setdefault(step, {}).update(metrics)

    def on_train_start(self, trainer, pl_module):
        self.first_weights = pl_module.weights.clone()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)
        self.parameters.append(flat(pl_module.policy))
        self.weights.append(pl_module.weights.clone())
        self.steps.append(trainer.global_step)
