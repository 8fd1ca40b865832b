"""Trainers and commands that show and write nothing."""

import shlex
from typing import Any

from lightning.pytorch import Trainer

QUIET = "--trainer.enable_progress_bar=false --trainer.enable_model_summary=false"
GRIDWORLD = shlex.split(
    f"-c configs/gridworld.yaml {QUIET} --callbacks.initial_rates=null --callbacks.progress=null "
    "--callbacks.pictures=null --data.prompts_per_update=4 --data.train_prompts=12 --data.val_prompts=6 "
    "--data.eval_prompts=4 --model.group_size=4 --model.policy.hidden=[16] --model.sampler.environment.max_steps=20"
)
"""Three small updates in an epoch; overrides come after."""
AVERAGED = shlex.split(
    "--callbacks.average=lightning.pytorch.callbacks.EMAWeightAveraging --callbacks.average.decay=0.5 "
    "--callbacks.average.use_buffers=false"
)
SILENT = [*QUIET.split(), "--trainer.logger=false"]
CSV = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=runs", "--trainer.log_every_n_steps=1"]


def quiet_trainer(*callbacks: Any, **options: Any) -> Trainer:
    """A trainer on the CPU without bars, summaries, checkpoints, validation and, unless asked for, a logger."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"accelerator": "cpu", "logger": False, "limit_val_batches": 0, "log_every_n_steps": 1, **quiet, **options}
    return Trainer(callbacks=list(callbacks), **given)
