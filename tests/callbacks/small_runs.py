"""Small runs on the gridworld, and their ends before the end."""

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, Constraint, EnvironmentSampler, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask

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


def trained(*callbacks, name="run", ckpt_path=None, prompts=12, **options):
    """A run to its end; four prompts are an update."""
    torch.manual_seed(0)
    module = ConstrainedGRPO(
        policy=CategoricalMLP(30, 5, [16]),
        sampler=EnvironmentSampler(Gridworld(max_steps=20)),
        task=GridworldTask(cost="sum", rate="steps"),
        objective=Objective("goal", {"lava": Constraint(at_most=0.01)}),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        group_size=4,
    )
    given = {"max_steps": STEPS, "val_check_interval": 2, "check_val_every_n_epoch": None, "log_every_n_steps": 1}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    trainer = Trainer(
        accelerator="cpu",
        logger=CSVLogger("runs", name),
        callbacks=[LagrangianCallback(SoftmaxAdam(lr=0.1)), *callbacks],
        **{**given, **quiet, **options},
    )
    data = GridworldDataModule(prompts_per_update=4, train_prompts=prompts, val_prompts=8, eval_prompts=4)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return trainer
