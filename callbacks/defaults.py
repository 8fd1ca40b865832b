"""The callbacks that the command line adds to every run."""

from __future__ import annotations

from lightning.pytorch import Callback

from lightning_cgrpo.callbacks.checkpoints import Checkpoints
from lightning_cgrpo.callbacks.evaluation_tables import EvaluationTable
from lightning_cgrpo.callbacks.initial_rates import InitialRates
from lightning_cgrpo.callbacks.predictions import WritePredictions
from lightning_cgrpo.callbacks.progress import ObjectiveProgressBar
from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.callbacks.run_summary import RunSummary
from lightning_cgrpo.callbacks.tensorboard import TensorBoardLayout
from lightning_cgrpo.core.output import quiet_lightning


def default_callbacks(every_n_updates: int = 100) -> list[Callback]:
    """The callbacks of ``configs/defaults.yaml``, and those that `fit` adds; Lightning's advertisements are silenced.

    Args:
        every_n_updates: updates between checkpoints.

    Example::

        callbacks = [LagrangianCallback(), *default_callbacks()]
        trainer = Trainer(max_steps=500, val_check_interval=100, check_val_every_n_epoch=None, callbacks=callbacks)
    """
    quiet_lightning()
    checkpoints = Checkpoints(
        filename="{step}", every_n_train_steps=every_n_updates, monitor="val/merit", mode="max", save_last=True
    )
    shown = [InitialRates(), ObjectiveProgressBar(), TensorBoardLayout(), EvaluationTable()]
    return [*shown, WritePredictions(), checkpoints, RunManifest(), RunSummary()]
