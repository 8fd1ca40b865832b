"""The command line: LightningCLI, with stacked files, named callbacks and short errors."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import lightning_cgrpo
from lightning_cgrpo.callbacks import EvaluationTable
from lightning_cgrpo.configuration import Config, ConfigError, did_you_mean
from lightning_cgrpo.errors import UserError


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

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ArgumentError, ValueError, TypeError) as error:
            raise ConfigError(explain(error)) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        named = self._get(self.config_init, "callbacks") or {}
        extra = [callback for callback in named.values() if callback is not None]
        if (
            any(isinstance(callback, EvaluationTable) for callback in extra)
            and "verbose" in self.config[self.subcommand]
        ):
            # The table says the same in the user's terms.
            self.config[self.subcommand]["verbose"] = False
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        return self._instantiate_trainer(config, extra)


def main(subcommand: str, config: Config, flags: list[str]) -> None:
    """Run a subcommand."""
    config.setdefault("weights_only", True)
    if torch.get_float32_matmul_precision() == "highest" and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    if config.get("ckpt_path") == "last":
        config["ckpt_path"] = str(last_checkpoint(config))
    quiet()
    CommandLine(subcommand, config, flags)


def last_checkpoint(config: Config) -> Path:
    """The newest `last.ckpt` of all versions of this run (the same logger folder and name).

    Raises:
        ConfigError: if there is none.
    """
    logger = (config.get("trainer", {}).get("logger") or {}) if isinstance(config.get("trainer"), dict) else {}
    arguments = logger.get("init_args", {}) if isinstance(logger, dict) else {}
    run = Path(arguments.get("save_dir", "lightning_logs")) / str(arguments.get("name", ""))
    found = sorted(run.glob("version_*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ConfigError(f"Expected a checkpoint {run}/version_*/checkpoints/last.ckpt to go on from, but found none.")
    return found[-1]


def quiet() -> None:
    """Silences what Lightning says of things that are meant to be as they are here."""
    for message in (
        "Using ModelCheckpoint with manual optimization",  # Saving after the update is what resuming needs.
        "`isinstance\\(treespec, LeafSpec\\)` is deprecated",
        "The dirpath has changed from",
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
        elif line and not re.match(r"Problem with given class_path|Does not validate|Subtypes:|Errors:", line):
            complaint = line.replace("Expected a dot import path string:", "There is no class")
            hint = did_you_mean(complaint.rpartition(" ")[2], _class_names()) if complaint != line else ""
            return ".".join(keys) + ": " * bool(keys) + complaint + hint
    return str(error)


def _class_names() -> list[str]:
    from lightning_cgrpo import callbacks, datamodules, multipliers

    return [*lightning_cgrpo.__all__, *callbacks.__all__, *datamodules.__all__, *multipliers.__all__]
