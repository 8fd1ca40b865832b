"""Study files: a configuration's variants, seeds, and commands after training."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import Config, find, get, read
from lightning_cgrpo.errors import UserError, did_you_mean

KEYS = ("base", "variants", "overrides", "seeds", "after", "at_once")
AFTER = ("validate", "test", "predict", "export")
"""Commands that can follow training."""
SHELL = "!"
"""Marks a shell line in `after`."""
FOLDER = "$RUN_FOLDER"
"""Stands for the run's folder in `after`."""
LOGS = Path("runs")


@dataclass(frozen=True)
class Run:
    """A study's training run.

    Args:
        given: files and overrides, as on the command line.
        logs: folder of the study's runs.
    """

    variant: str
    seed: int
    given: tuple[str, ...]
    logs: str

    @property
    def name(self) -> str:
        return f"{self.variant},seed={self.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.logs) / self.name

    @property
    def arguments(self) -> list[str]:
        """Arguments of ``fit``, and of every command after training."""
        return [
            *self.given,
            f"--seed_everything={self.seed}",
            f"--trainer.logger.save_dir={self.logs}",
            f"--trainer.logger.name={self.name}",
            "--trainer.enable_progress_bar=false",
            "--trainer.enable_model_summary=false",
        ]


@dataclass(frozen=True)
class Study:
    """Variants, seeds and following commands.

    Args:
        name: file name without suffix; also names the runs' folder.
        variants: all arguments by variant name, including base and common overrides.
        after: commands split into words; a shell line is ``("!", line)``.
        at_once: parallel runs; None: one per core.
    """

    name: str
    variants: dict[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    after: tuple[tuple[str, ...], ...] = ()
    at_once: int | None = None

    @property
    def logs(self) -> Path:
        return LOGS / self.name

    @property
    def runs(self) -> list[Run]:
        """All runs, the first seed's first, so a partial study has fewer seeds."""
        return [
            Run(variant, seed, given, str(self.logs)) for seed in self.seeds for variant, given in self.variants.items()
        ]


def read_study(file: str) -> Study:
    """Read a study file.

    Raises:
        UserError: if a key or value is wrong.
    """
    path = find(file)
    content = read(path)
    for key in content:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f" Keys are {', '.join(KEYS)}."
            raise UserError(f"Unknown key '{key}' in {path}.{hint}")
    base = _texts(content.get("base"), "base", path)
    if not base:
        raise UserError(f"Expected base in {path} to name a configuration, but got none, try base: configs/my.yaml.")
    shared = _words(content.get("overrides"), "overrides", path)
    files = [word for name in base for word in ("-c", name)]
    given = content.get("variants") or {Path(base[0]).stem: ""}
    if not isinstance(given, dict):
        raise UserError(f"Expected variants in {path} to be arguments by name, but got {_kind(given)}.")
    variants = {}
    for name, text in given.items():
        if not re.fullmatch(r"\w[\w.+-]{,79}", str(name)):
            raise UserError(
                f"Expected a variant's name of at most 80 letters, digits, and _ . + -, but got '{name}' in {path}."
            )
        variants[str(name)] = (*files, *shared, *_words(text, f"variant '{name}'", path))
    after = tuple(_command(line, path) for line in _texts(content.get("after"), "after", path))
    at_once = content.get("at_once")
    if at_once is not None and not _is_count(at_once):
        raise UserError(f"Expected at_once in {path} to be a positive number, but got '{at_once}'.")
    return Study(path.stem, variants, _seeds(content.get("seeds", 1), path), after, at_once)


@cache
def configuration(run: Run) -> Config:
    """A run's resolved configuration.

    Raises:
        UserError: if an argument is wrong, sets the model's seed, or names a logger whose logs `report` can't read.
    """
    try:
        config, flags = read_arguments("fit", run.arguments)
    except UserError as error:
        raise UserError(f"Variant '{run.variant}': {error}") from error
    if flags:
        raise UserError(f"Variant '{run.variant}': Expected files and overrides, but got {flags[0]}.")
    if get(config, "model.init_args.seed") not in (None, run.seed):
        raise UserError(
            f"Variant '{run.variant}': Expected no model.seed, because a study sets seeds, but got "
            f"{get(config, 'model.init_args.seed')}, try removing it."
        )
    logger = get(config, "trainer.logger")
    kind = logger.get("class_path") if isinstance(logger, dict) else logger
    if not str(kind).endswith(("TensorBoardLogger", "CSVLogger")):
        raise UserError(
            f"Variant '{run.variant}': Expected trainer.logger to be a TensorBoardLogger or a CSVLogger, because "
            f"`report` reads their logs, but got {kind}."
        )
    return config


def updates(run: Run) -> int | None:
    """Updates requested; None if epochs decide."""
    steps = get(configuration(run), "trainer.max_steps")
    return steps if isinstance(steps, int) and steps > 0 else None


def _texts(value: Any, key: str, path: Path) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise UserError(f"Expected {key} in {path} to be a text or a list of texts, but got {_kind(value)}.")
    return value


def _words(value: Any, key: str, path: Path) -> list[str]:
    text = " ".join(_texts(value, key, path))
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"The {key} in {path} can't be read: {error}, in {text!r}.") from None


def _command(line: str, path: Path) -> tuple[str, ...]:
    if line.startswith(SHELL):
        return SHELL, line.removeprefix(SHELL).strip()
    words = _words(line, "after", path)
    if not words or words[0] not in AFTER:
        name = words[0] if words else ""
        hint = did_you_mean(name, AFTER) or f" A line for the shell begins with {SHELL}."
        raise UserError(f"Expected a line of after in {path} to begin with {_or(AFTER)}, but got '{name}'.{hint}")
    return tuple(words)


def _seeds(value: Any, path: Path) -> tuple[int, ...]:
    if _is_count(value):
        return tuple(range(value))
    if not isinstance(value, list) or not value or not all(_is_seed(seed) for seed in value):
        raise UserError(f"Expected seeds in {path} to be a count or a list of numbers, but got '{value}'.")
    if len(set(value)) < len(value):
        raise UserError(f"Expected different seeds in {path}, but got {value}.")
    return tuple(value)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: Any) -> bool:
    return _is_seed(value) and value > 0


def _kind(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else f"'{value}'"


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"
