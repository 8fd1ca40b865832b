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
from lightning_cgrpo.settings.configuration import Config, find_file, get, read_file, short_class

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
        runs = []
        for seed in self.seeds:
            for name, arguments in self.variants.items():
                runs.append(Run(name, seed, arguments, str(self.logs)))
        return runs


def read_study(file: str) -> Study:
    """Read a study file.

    Raises:
        UserError: if a key or value is wrong.
    """
    path = find_file(file)
    content = read_file(path)

    # The keys.
    if "model" in content or "trainer" in content:
        raise UserError(
            f"Expected {path} to be a study (keys {', '.join(KEYS)}), but got a run's configuration, try "
            f"`fit -c {file}`, or a study file with `base: {file}`."
        )
    for key in content:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f" Keys are {', '.join(KEYS)}."
            raise UserError(f"Unknown key '{key}' in {path}.{hint}")

    # The values.
    base = content.get("base")
    _expect(base, f"base in {path} to name a configuration", base)
    bases = _read_texts(base, "base", path)
    variants = _read_variants(content, bases, path)
    after = tuple(_read_command(line, path) for line in _read_texts(content.get("after"), "after", path))
    at_once = content.get("at_once")
    _expect(at_once is None or _is_count(at_once), f"at_once in {path} to be a positive number", at_once)
    return Study(path.stem, variants, _read_seeds(content, path), after, at_once)


def _read_variants(content: Config, bases: list[str], path: Path) -> dict[str, tuple[str, ...]]:
    """All arguments of each variant: the base files, the common overrides, and its own."""
    files = []
    for base in bases:
        files += ["-c", base]
    texts = content.get("variants") or {Path(bases[0]).stem: ""}  # a study without variants has the base alone
    _expect(isinstance(texts, dict), f"variants in {path} to be arguments by name", texts)
    overrides = _split_words(content.get("overrides"), "overrides", path)
    variants = {}
    for name, text in texts.items():
        well_named = re.fullmatch(r"\w[\w.+-]{,79}", str(name))
        _expect(well_named, f"a variant's name in {path} to have at most 80 letters, digits, and _ . + -", name)
        variants[str(name)] = (*files, *overrides, *_split_words(text, name, path))
    return variants


def _read_seeds(content: Config, path: Path) -> tuple[int, ...]:
    """The seeds of a list, or the first seeds from 0 of a count."""
    value = content.get("seeds")
    if value is None:
        return (0,)
    seeds: list[Any] = []
    if _is_count(value):
        seeds = list(range(value))
    elif isinstance(value, list):
        seeds = value
    whole = all(seed == 0 or _is_count(seed) for seed in seeds)
    are_valid = whole and len(set(seeds)) == len(seeds) > 0
    _expect(are_valid, f"seeds in {path} to be a count or a list of different numbers", value)
    return tuple(seeds)


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
    seed = get(config, "model.init_args.seed")
    logger = short_class(get(config, "trainer.logger"))
    expected = f"Variant '{run.variant}': Expected"
    if seed not in (None, run.seed):
        raise UserError(f"{expected} no model.seed, but got {seed}, try removing it: a study sets seeds.")
    if logger not in VERSIONED:
        raise UserError(f"{expected} trainer.logger to be a {' or a '.join(VERSIONED)}, but got {logger or 'none'}.")
    return config


def _expect(holds: object, expectation: str, value: object) -> None:
    if not holds:
        raise UserError(f"Expected {expectation}, but got {value!r}.")


def _read_texts(value: Any, key: str, path: Path) -> list[str]:
    """A text, a list of texts or nothing, as a list."""
    if value is None:
        return []
    texts = value if isinstance(value, list) else [value]
    _expect(all(isinstance(text, str) for text in texts), f"{key} in {path} to be a text or a list of texts", value)
    return texts


def _split_words(value: Any, key: str, path: Path) -> list[str]:
    """Arguments in a text or a list of texts, split as in a shell."""
    text = " ".join(_read_texts(value, key, path))
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"Expected arguments in {path}, but got {text!r} ({error}).") from None


def _read_command(line: str, path: Path) -> tuple[str, ...]:
    """The words of a command after training."""
    name, *rest = _split_words(line, "after", path) or [""]
    if name not in AFTER:
        hint = did_you_mean(name, AFTER)
        raise UserError(f"Expected {' or '.join(AFTER)} in after of {path}, but got '{name}'.{hint}")
    return name, *rest


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
