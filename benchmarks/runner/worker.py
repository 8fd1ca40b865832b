"""A process that trains runs from a list, several at a time in lockstep."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.runner.experiment import Run
from benchmarks.runner.ledger import begin, finish
from benchmarks.runner.lockstep import Lockstep, LockstepSampler
from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.command_line import CommandLine
from lightning_cgrpo.cli.configuration import ConfigError
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.cli.run_folders import last_checkpoint
from lightning_cgrpo.samplers.environment import EnvironmentSampler


class Report(Callback):
    """Tells the parent how far a run is."""

    def __init__(self, run: Run, messages: Any, every: int = 50) -> None:
        self.run, self.messages, self.every = run, messages, every

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.messages.put((self.run.name, trainer.global_step, None))

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step % self.every == 0:
            self.messages.put((self.run.name, trainer.global_step, None))


class Training(CommandLine):
    """``fit`` and then ``test``, as from the command line, with rollouts of environments in lockstep."""

    def __init__(self, run: Run, logs: str, lockstep: Lockstep, messages: Any) -> None:
        self.run, self.lockstep, self.messages = run, lockstep, messages
        config, flags = read_arguments("fit", run.arguments(logs))
        with contextlib.suppress(ConfigError):  # There is no checkpoint of a new run.
            config["ckpt_path"] = str(last_checkpoint(config))
        prepare("fit", config)
        super().__init__("fit", config, flags)
        self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.append(Report(self.run, self.messages))
        return trainer

    def after_instantiate_classes(self) -> None:
        if isinstance(self.model.sampler, EnvironmentSampler):
            self.model.sampler = LockstepSampler(self.model.sampler.environment, self.lockstep)


def work(runs: Sequence[Run], taken: Any, lanes: int, logs: str, messages: Any) -> None:
    """Train runs, `lanes` at a time, until all are taken.

    Args:
        taken: how many are, a `multiprocessing.Value` that all workers share.
        messages: a queue to the parent, of (run's name, updates done, error or None).
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lockstep = Lockstep(lanes)
    threads = [
        threading.Thread(target=_lane, args=(runs, taken, lockstep, logs, messages), daemon=True) for _ in range(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _lane(runs: Sequence[Run], taken: Any, lockstep: Lockstep, logs: str, messages: Any) -> None:
    with lockstep.thread():
        while True:
            with taken.get_lock():
                number, taken.value = taken.value, taken.value + 1
            if number >= len(runs):
                return
            run, started, worked = runs[number], time.monotonic(), time.thread_time()
            try:
                begin(run, Path(logs))
                Training(run, logs, lockstep, messages)
                finish(run, Path(logs), time.monotonic() - started, time.thread_time() - worked)
                messages.put((run.name, run.updates, None))
            except BaseException:  # Lightning exits rather than raises where it can.
                messages.put((run.name, 0, traceback.format_exc()))
