"""The command line: LightningCLI, with stacked files, named callbacks and short errors."""

from __future__ import annotations

import re
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_cgrpo.configuration import Config, ConfigError
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
        parser.add_argument("--threads", type=PositiveInt | None, help="PyTorch's CPU threads; null leaves its default.")

    def before_instantiate_classes(self) -> None:
        threads = self._get(self.config, "threads")
        if threads is not None:
            torch.set_num_threads(threads)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            self.config = parser.parse_args(self._arguments)
        except ArgumentError as error:
            raise ConfigError(str(error)) from error

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (UserError, ArgumentError):
            raise
        except (ValueError, TypeError) as error:
            raise ConfigError(str(error)) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        named = self._get(self.config_init, "callbacks") or {}
        extra = [callback for callback in named.values() if callback is not None]
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}
        return self._instantiate_trainer(config, extra)


def main(subcommand: str, config: Config, flags: list[str]) -> None:
    """Run a subcommand."""
    config.setdefault("weights_only", True)
    if torch.get_float32_matmul_precision() == "highest" and torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    CommandLine(subcommand, config, flags)


def _shorten(message: str) -> str:
    """jsonargparse's innermost complaint, on one line."""
    lines = [line.strip(" -") for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"expected|got|not|invalid|missing|required", line, re.IGNORECASE)]
    return " ".join((telling or lines)[:1] + (telling or lines)[-1:]) if len(lines) > 1 else message
