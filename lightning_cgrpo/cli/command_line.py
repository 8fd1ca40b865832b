"""LightningCLI with stacked files, named callbacks and short errors."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.data import AttributeDict
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from lightning_cgrpo.callbacks.run_files import RunFiles
from lightning_cgrpo.callbacks.run_manifest import RunManifest, rank_zero_print
from lightning_cgrpo.callbacks.run_summary import RunSummary, ended_early, updates_asked
from lightning_cgrpo.callbacks.tested_prompts import TestedPrompts
from lightning_cgrpo.cli.messages import explain
from lightning_cgrpo.cli.preparation import prepare
from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.policies.precision import automatic_precision
from lightning_cgrpo.run.identity import identity_of
from lightning_cgrpo.settings.configuration import ConfigError, Resolved, get
from lightning_cgrpo.settings.settings import Settings, settings_of

SWITCHES = {"enable_progress_bar": ProgressBar, "enable_checkpointing": ModelCheckpoint}
BATCH_OPTIONS = ("val_check_interval", "limit_train_batches", "limit_val_batches", "limit_test_batches")
GRACE = 10.0
"""Seconds in which other processes can report errors after a failure."""


class CommandLine(LightningCLI):
    """Runs a subcommand (fit, validate, test or predict) with a merged and resolved configuration.

    ``callbacks`` maps names to callbacks or null.
    """

    registers = True
    """Whether a test is registered, so that a later certificate on its prompts mentions the test."""

    def __init__(self, subcommand: str, config: Resolved, flags: list[str]) -> None:
        self._chosen = subcommand
        self._given_config = config
        self._flags = flags
        self._environment = config.environment
        self._identity = identity_of(config)  # before parsing changes the configuration
        if get(config, "trainer.precision") == "auto":
            config["trainer"]["precision"] = None  # Lightning's own unset value, which its parser takes
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=RunFiles,
            save_config_kwargs={"environment": self._environment},
            # DataModules deal prompts to processes themselves and keep groups together.
            trainer_defaults={"use_distributed_sampler": False},
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # Only the chosen subcommand's parser, because each takes about 0.1 s to build and to search for every key.
        return {self._chosen: LightningCLI.subcommands()[self._chosen]}

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        return super().init_parser(prog="python -m lightning_cgrpo", **kwargs, exit_on_error=False)

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
            if self._flags:
                config_option = f"--config={yaml.safe_dump(dict(self._given_config), sort_keys=False)}"
                with self._hide_environment():
                    self.config = parser.parse_args([self._chosen, config_option, *self._flags])
            else:  # faster than from text
                with UserCode("the modules that the configuration names"):
                    self.config = parser.parse_object({"subcommand": self._chosen, self._chosen: self._given_config})
        except ArgumentError as error:
            raise ConfigError(explain(error)) from error

    @contextmanager
    def _hide_environment(self) -> Iterator[None]:
        """In the output of ``--print_config``, write interpolations in place of values of the environment."""
        captured = io.StringIO()
        prints_config = any(flag.startswith("--print_config") for flag in self._flags)
        try:
            with redirect_stdout(captured):
                yield
        finally:
            text = captured.getvalue()
            if prints_config:
                print(self._environment.hidden_yaml(text), end="")
            else:
                print(text, end="")
            if prints_config and not text and isinstance(sys.exception(), SystemExit):
                raise ConfigError("Expected a configuration to print, but code of a class that it names ended Python.")

    def _parse_ckpt_path(self) -> None:
        """Skip Lightning's search for hyperparameters: our checkpoints hold none."""

    def instantiate_classes(self) -> None:
        try:
            with UserCode("the classes that the configuration names"):
                super().instantiate_classes()
        except (ArgumentError, ValueError, TypeError, MisconfigurationException) as error:
            raise ConfigError(explain(error)) from error
        # Loggers write the hyperparameters that a user's own class keeps: write interpolations for secret values.
        for key, part in (("model", self.model), ("data", self.datamodule)):
            if part is not None and part.hparams:
                hyperparameters = self._environment.hidden(dict(part.hparams_initial), f"{key}.init_args")
                part._hparams_initial = AttributeDict(hyperparameters)

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            with UserCode(f"code that `{subcommand}` calls"):  # such as callbacks
                self._run_lightning(subcommand)
            if subcommand == "fit" and ended_early(self.trainer):
                raise UserError(
                    f"Expected {updates_asked(self.trainer):,} updates, but training ended after "
                    f"{self.trainer.global_step:,}, because code raised StopIteration, which ends Lightning's "
                    "loop, try trainer.should_stop."
                )
        except BaseException:
            launcher = self.trainer.strategy.launcher
            if isinstance(launcher, _SubprocessScriptLauncher):  # Other launchers end their processes.
                end_processes(launcher.procs)
            raise

    def _all_settings(self) -> Settings:
        """Every setting with its default; values of environment variables stay interpolations, with a short hash."""
        filled = self.config[self._chosen].as_dict()
        return settings_of(self._environment.fingerprinted(filled))

    def _run_lightning(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except SystemExit as ending:
            # Lightning ends with status 1 after Ctrl-C.
            if isinstance(ending.__context__, KeyboardInterrupt):
                raise ending.__context__ from None
            raise
        except (MisconfigurationException, ValueError) as error:
            # Lightning's own refusals, of options that do not fit the number of batches.
            names_batch_option = any(f"`{name}`" in str(error) for name in BATCH_OPTIONS)
            if names_batch_option and not isinstance(error, UserError):
                raise ConfigError(" ".join(str(error).split())) from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        named = self._get(self.config_init, "callbacks") or {}
        config = {**self._get(self.config_init, "trainer", default={}), **kwargs}

        # Lightning refuses callbacks that a switch of the trainer turns off.
        switched_off = tuple(kind for flag, kind in SWITCHES.items() if config.get(flag) is False)
        callbacks: list[Callback] = []
        for callback in named.values():
            if callback is not None and not isinstance(callback, switched_off):
                callbacks.append(callback)

        # Callbacks that every run has.
        callbacks.append(RunManifest(self._all_settings()))
        if self._chosen == "fit":
            callbacks.append(RunSummary(self._identity))
        if self._chosen == "test" and self.registers:
            callbacks.append(TestedPrompts())

        self._set_precision(config)
        try:
            return self._instantiate_trainer(config, callbacks)
        except MisconfigurationException as error:
            options = []
            for key in ("accelerator", "devices", "strategy", "precision"):
                if config.get(key) not in (None, "auto"):
                    options.append(f"trainer.{key}={config[key]}")
            raise ConfigError(f"The trainer can't be made with {', '.join(options)}: {first_line(error)}.") from error

    def _set_precision(self, config: dict[str, Any]) -> None:
        """Choose the precision of a run that names none, neither as an option nor as a plugin."""
        plugins = config.get("plugins") or []
        if not isinstance(plugins, list):
            plugins = [plugins]
        if config.get("precision") is not None or any(isinstance(plugin, Precision) for plugin in plugins):
            return
        config["precision"] = automatic_precision(getattr(self.model, "policy", None), config.get("accelerator"))
        if config["precision"] != "32-true":
            rank_zero_print(
                f"Precision: {config['precision']}, because a language model computes on a GPU "
                "(--trainer.precision=32-true for float32)."
            )


def main(subcommand: str, config: Resolved, flags: list[str], beginning: str | None) -> None:
    """Prepare the process, and run a subcommand."""
    prepare(subcommand, config, beginning)
    CommandLine(subcommand, config, flags)


def end_processes(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End the processes that a failed process launched, after `GRACE` seconds; Lightning does so only after Ctrl-C."""
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
