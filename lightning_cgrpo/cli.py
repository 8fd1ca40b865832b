"""The command line: LightningCLI, with stacked files, named callbacks and short errors."""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from lightning_cgrpo.callbacks import EvaluationTable
from lightning_cgrpo.checkpoint_files import check_checkpoint, is_remote, last_of, put_back
from lightning_cgrpo.configuration import Config, ConfigError
from lightning_cgrpo.errors import UserError, did_you_mean
from lightning_cgrpo.memory import reuse_blocks
from lightning_cgrpo.signatures import NAMESPACES

SWITCHES = {"enable_progress_bar": ProgressBar, "enable_checkpointing": ModelCheckpoint}
"""Of the trainer, and the callbacks that they switch off."""
GRACE = 10.0
"""Seconds for other processes to say what is wrong with them, once one has failed."""


class CommandLine(LightningCLI):
    """Runs a subcommand with a configuration that is already merged and resolved.

    Callbacks are a mapping from names to callbacks (or null), under ``callbacks``.

    Args:
        subcommand: fit, validate, test or predict.
        config: merged files and overrides.
        flags: what jsonargparse answers itself, such as ``--help`` or ``--print_config``.
    """

    def __init__(self, subcommand: str, config: Config, flags: list[str]) -> None:
        self._arguments = [subcommand, f"--config={yaml.safe_dump(config, sort_keys=False)}", *flags]
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_kwargs={"overwrite": True},
            # Prompts are dealt to processes by the DataModules, a group never being split.
            trainer_defaults={"use_distributed_sampler": False},
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        return super().init_parser(**kwargs, exit_on_error=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--callbacks", type=dict[str, Callback | None], default={}, help="Callbacks by name.")
        parser.add_argument(
            "--threads", type=PositiveInt | None, help="PyTorch's CPU threads; null leaves its default."
        )

    def before_instantiate_classes(self) -> None:
        threads = self._get(self.config, "threads")
        if threads is not None:
            torch.set_num_threads(threads)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            self.config = parser.parse_args(self._arguments)
        except ArgumentError as error:
            raise ConfigError(explain(error)) from error

    def _parse_ckpt_path(self) -> None:
        """Nothing: Lightning's reads all of the checkpoint, for hyperparameters that ours don't hold."""

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ArgumentError, ValueError, TypeError, MisconfigurationException) as error:
            raise ConfigError(explain(error)) from error

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except BaseException:
            launcher = self.trainer.strategy.launcher
            if isinstance(launcher, _SubprocessScriptLauncher):  # others end theirs
                end(launcher.procs)
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        named = self._get(self.config_init, "callbacks") or {}
        extra = [callback for callback in named.values() if callback is not None]
        if (
            any(isinstance(callback, EvaluationTable) for callback in extra)
            and "verbose" in self.config_init[self.subcommand]
        ):
            # The table says the same in the user's terms.
            self.config_init[self.subcommand]["verbose"] = False
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        # Lightning refuses those that it is told to leave out.
        off = tuple(kind for flag, kind in SWITCHES.items() if config.get(flag) is False)
        return self._instantiate_trainer(config, [callback for callback in extra if not isinstance(callback, off)])


def main(subcommand: str, config: Config, flags: list[str]) -> None:
    """Run a subcommand."""
    prepare(config)
    CommandLine(subcommand, config, flags)


def prepare(config: Config) -> None:
    """What comes before a run: its checkpoint is found, and the process set up.

    Raises:
        ConfigError: if the checkpoint doesn't exist.
        UserError: if it is damaged.
    """
    config.setdefault("weights_only", True)
    if torch.get_float32_matmul_precision() == "highest" and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    checkpoint = config.get("ckpt_path")
    if checkpoint == "last":
        config["ckpt_path"] = str(last_checkpoint(config))
    elif isinstance(checkpoint, str) and checkpoint.endswith(".ckpt") and not _found(checkpoint):
        raise ConfigError(f"There is no checkpoint '{checkpoint}', try --ckpt_path=last.")
    if checkpoint not in (None, "best", "hpc", "registry"):
        # Before a model is loaded for it.
        check_checkpoint(str(config["ckpt_path"]))
    quiet()
    reuse_blocks()
    # A class that is given by its name alone is found only if it has been imported.
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            getattr(module, name)


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End those that this one started, after it has failed: they may wait for it, or work, for long.

    Lightning does so for an interrupt from the keyboard alone.
    """
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_checkpoint(config: Config) -> Path:
    """The newest `last.ckpt` of all versions of this run (the same logger folder and name).

    Raises:
        ConfigError: if there is none.
    """
    trainer = config.get("trainer") or {}
    logger = trainer.get("logger")
    # Where there are several loggers, checkpoints are with the first.
    logger = logger[0] if isinstance(logger, list) and logger else logger
    arguments = logger.get("init_args", {}) if isinstance(logger, dict) else {}
    folder = arguments.get("save_dir") or trainer.get("default_root_dir") or "."
    # Lightning's name of a run that has none.
    run = Path(folder) / str(arguments.get("name", "lightning_logs"))
    if (found := last_of(run)) is None:
        raise ConfigError(f"Expected a checkpoint {run}/*/checkpoints/last.ckpt to go on from, but found none.")
    return found


def _found(checkpoint: str) -> bool:
    """Whether there is such a checkpoint; assumed of a remote one."""
    if is_remote(checkpoint):
        return True
    put_back(Path(checkpoint).parent)
    return Path(checkpoint).exists()


def quiet() -> None:
    """Silences what Lightning says of things that are meant to be as they are here."""
    for message in (
        "Using ModelCheckpoint with manual optimization",  # Saving after the update is what resuming needs.
        "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
        "The dirpath has changed from",
        "Found \\d+ module\\(s\\) in eval mode",  # The reference, and language models; see CausalLMPolicy.
        "You're resuming from a checkpoint that ended before the epoch ended",  # Prompts follow from the update.
        "The '.*_dataloader' does not have many workers",
    ):
        warnings.filterwarnings("ignore", message=message)
    # Advertisements.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
        lambda record: "Tip:" not in record.getMessage()
    )


def explain(error: BaseException) -> str:
    """One line of what jsonargparse wraps in many: the innermost error, or its key and first real complaint."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for link in chain:
        if isinstance(link, UserError):
            return str(link)
    keys: list[str] = []
    for line in (line.strip(" -") for line in str(error).splitlines()):
        if key := re.match(r'Parser key "(.*)":', line):
            keys.append(key[1])
        elif line and not re.match(
            r"Problem with given class_path|Does not validate|Expected a path but|Subtypes:|Errors:", line
        ):
            name = line.partition("Expected a dot import path string: ")[2]
            complaint = f"There is no class '{name}'.{did_you_mean(name, _class_names())}" if name else line
            return ".".join(keys) + ": " * bool(keys) + complaint
    return str(error)


def _class_names() -> list[str]:
    modules = map(importlib.import_module, NAMESPACES)
    return [name for module in modules for name in module.__all__]
