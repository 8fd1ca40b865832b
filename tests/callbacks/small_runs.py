"""Small runs on the gridworld, and their ends before the end."""

import os
import signal

from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import Constraint
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.gridworld import GridworldTask
from tests.grids import grid_module
from tests.quiet import quiet_trainer

STEPS = 8


class Stop(Callback):
    """Ends a run as SIGKILL would, when an update or a validation begins."""

    def __init__(self, update, hook):
        self.update, self.hook = update, hook

    def on_train_batch_start(self, trainer, *_):
        self.stop(trainer, "update")

    def on_validation_start(self, trainer, *_):
        self.stop(trainer, "validation")

    def stop(self, trainer, hook):
        if (trainer.global_step, hook) == (self.update, self.hook):
            raise ChildProcessError


class Terminate(Callback):
    """SIGTERM to its own process after so many updates, once: in the next update, or in a batch of the validation."""

    def __init__(self, update: int, batch: int | None = None):
        self.at = update, batch

    def on_train_batch_start(self, trainer, *_):
        self.send(trainer.global_step, None)

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, *_):
        self.send(trainer.global_step, batch_idx)

    def send(self, *now):
        if now == self.at:
            self.at = None
            os.kill(os.getpid(), signal.SIGTERM)


def trained(*callbacks, name="run", ckpt_path=None, prompts=12, at_most=0.01, **options):
    """A run to its end; four prompts are an update."""
    task = GridworldTask(cost="sum", rate="steps")
    module = grid_module({"lava": Constraint(at_most=at_most)}, max_steps=20, lr=1e-2, task=task)
    usual = {"max_steps": STEPS, "val_check_interval": 2, "check_val_every_n_epoch": None, "limit_val_batches": None}
    usual |= {"logger": CSVLogger("runs", name), "enable_checkpointing": True, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(LagrangianCallback(SoftmaxAdam(lr=0.1)), *callbacks, **{**usual, **options})
    data = GridworldDataModule(prompts_per_update=4, train_prompts=prompts, val_prompts=8, eval_prompts=4)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer
