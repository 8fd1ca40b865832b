"""Study files: a configuration's variants, seeds, and commands after training."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lightning_cgrpo.cli.arguments import read_arguments
from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.run.name import VERSIONED
from lightning_cgrpo.settings.configuration import Config, find, get, read, short_class

KEYS = ("base", "variants", "overrides", "seeds", "after", "at_once")
AFTER = ("validate", "test", "predict", "export")
"""Commands that can follow training."""


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
        after: commands split into words.
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
    if "model" in content or "trainer" in content:
        raise UserError(
            f"Expected {path} to be a study (keys {', '.join(KEYS)}), but got a run's configuration, try "
            f"`fit -c {file}`, or a study file with `base: {file}`."
        )
    for key in content:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f" Keys are {', '.join(KEYS)}."
            raise UserError(f"Unknown key '{key}' in {path}.{hint}")
    base, given, seeds, at_once = (content.get(key) for key in ("base", "variants", "seeds", "at_once"))
    _expect(base, f"base in {path} to name a configuration", base)
    files = [word for name in _texts(base, "base", path) for word in ("-c", name)]
    given = given or {Path(files[1]).stem: ""}
    _expect(isinstance(given, dict), f"variants in {path} to be arguments by name", given)
    shared = _words(content.get("overrides"), "overrides", path)
    variants = {}
    for name, text in given.items():
        named = re.fullmatch(r"\w[\w.+-]{,79}", str(name))
        _expect(named, f"a variant's name in {path} to have at most 80 letters, digits, and _ . + -", name)
        variants[str(name)] = (*files, *shared, *_words(text, name, path))
    after = tuple(_command(line, path) for line in _texts(content.get("after"), "after", path))
    _expect(at_once is None or _is_count(at_once), f"at_once in {path} to be a positive number", at_once)
    seeds = 1 if seeds is None else seeds
    listed = list(range(seeds)) if _is_count(seeds) else seeds if isinstance(seeds, list) else []
    whole = all(seed == 0 or _is_count(seed) for seed in listed) and len(set(listed)) == len(listed) > 0
    _expect(whole, f"seeds in {path} to be a count or a list of different numbers", seeds)
    return Study(path.stem, variants, tuple(listed), after, at_once)


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
    seed, logger = get(config, "model.init_args.seed"), short_class(get(config, "trainer.logger"))
    variant = f"Variant '{run.variant}': Expected"
    if seed not in (None, run.seed):
        raise UserError(f"{variant} no model.seed, but got {seed}, try removing it: a study sets seeds.")
    if logger not in VERSIONED:
        raise UserError(f"{variant} trainer.logger to be a {' or a '.join(VERSIONED)}, but got {logger or 'none'}.")
    return config


def _expect(holds: object, what: str, value: object) -> None:
    if not holds:
        raise UserError(f"Expected {what}, but got {value!r}.")


def _texts(value: Any, key: str, path: Path) -> list[str]:
    texts = [] if value is None else value if isinstance(value, list) else [value]
    _expect(all(isinstance(text, str) for text in texts), f"{key} in {path} to be a text or a list of texts", value)
    return texts


def _words(value: Any, key: str, path: Path) -> list[str]:
    text = " ".join(_texts(value, key, path))
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"Expected arguments in {path}, but got {text!r} ({error}).") from None


def _command(line: str, path: Path) -> tuple[str, ...]:
    name, *rest = _words(line, "after", path) or [""]
    if name not in AFTER:
        hint = did_you_mean(name, AFTER)
        raise UserError(f"Expected {' or '.join(AFTER)} in after of {path}, but got '{name}'.{hint}")
    return name, *rest


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
