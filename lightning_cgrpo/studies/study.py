"""Study files: a configuration's variants, seeds, and commands after training."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.cli.configuration import Config, find, get, read, short_class
from lightning_cgrpo.errors import UserError, did_you_mean

KEYS = ("base", "variants", "overrides", "seeds", "after", "at_once")
AFTER = ("validate", "test", "predict", "export")
"""Commands that can follow training."""
SHELL = "!"
"""Marks a shell line in `after`."""
LOGGERS = ("TensorBoardLogger", "CSVLogger")


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
        return Path("runs") / self.name

    @property
    def runs(self) -> list[Run]:
        """All runs, the first seed's first, so a partial study has fewer seeds."""
        return [Run(name, seed, given, str(self.logs)) for seed in self.seeds for name, given in self.variants.items()]


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
    base = _texts(content, "base", path)
    if not base:
        raise UserError(f"Expected base in {path} to name a configuration, but got none, try base: configs/my.yaml.")
    files = [word for name in base for word in ("-c", name)]
    shared = _words(_texts(content, "overrides", path), path)
    given = content.get("variants") or {Path(base[0]).stem: ""}
    if not isinstance(given, dict):
        raise UserError(f"Expected variants in {path} to be arguments by name, but got {given!r}.")
    for name in given:
        if not re.fullmatch(r"\w[\w.+-]{,79}", str(name)):
            raise UserError(
                f"Expected a variant's name of at most 80 letters, digits, and _ . + -, but got '{name}' in {path}."
            )
    variants = {str(name): (*files, *shared, *_words(_texts(given, name, path), path)) for name in given}
    after = tuple(_command(line, path) for line in _texts(content, "after", path))
    at_once = content.get("at_once")
    if at_once is not None and not _is_count(at_once):
        raise UserError(f"Expected at_once in {path} to be a positive number, but got '{at_once}'.")
    seeds = content.get("seeds", 1)
    if _is_count(seeds):
        return Study(path.stem, variants, tuple(range(seeds)), after, at_once)
    listed = isinstance(seeds, list) and all(seed == 0 or _is_count(seed) for seed in seeds)
    if not listed or not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"Expected seeds in {path} to be a count or a list of different numbers, but got '{seeds}'.")
    return Study(path.stem, variants, tuple(seeds), after, at_once)


@cache
def configuration(run: Run) -> Config:
    """A run's resolved configuration.

    Raises:
        UserError: if an argument is wrong, sets the model's seed, or names a logger whose logs `report` can't read.
    """
    try:
        config, _ = read_arguments("fit", run.arguments)
    except UserError as error:
        raise UserError(f"Variant '{run.variant}': {error}") from error
    if (seed := get(config, "model.init_args.seed")) not in (None, run.seed):
        raise UserError(
            f"Variant '{run.variant}': Expected no model.seed, but got {seed}, try removing it: a study sets seeds."
        )
    logger = short_class(get(config, "trainer.logger"))
    if logger not in LOGGERS:
        raise UserError(
            f"Variant '{run.variant}': Expected trainer.logger to be a {' or a '.join(LOGGERS)}, whose logs `report` "
            f"reads, but got {logger or 'none'}."
        )
    return config


def _texts(content: dict[str, Any], key: str, path: Path) -> list[str]:
    value = content.get(key)
    texts = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"Expected {key} in {path} to be a text or a list of texts, but got {value!r}.")
    return texts


def _words(texts: list[str], path: Path) -> list[str]:
    try:
        return shlex.split(" ".join(texts))
    except ValueError as error:
        raise UserError(f"Expected arguments in {path}, but got {' '.join(texts)!r} ({error}).") from None


def _command(line: str, path: Path) -> tuple[str, ...]:
    if line.startswith(SHELL):
        return SHELL, line.removeprefix(SHELL).strip()
    words = _words([line], path)
    if not words or words[0] not in AFTER:
        name = words[0] if words else ""
        hint = did_you_mean(name, AFTER) or f" A line for the shell begins with {SHELL}."
        raise UserError(
            f"Expected a line of after in {path} to begin with one of {', '.join(AFTER)}, but got '{name}'.{hint}"
        )
    return tuple(words)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
