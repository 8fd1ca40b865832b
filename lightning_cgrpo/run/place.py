"""A run's folder: its checkpoint, and where evaluations log. Imports no torch, so errors come quickly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lightning_cgrpo.run.checkpoints.files import CHECKPOINTS, LAST, best_of, is_remote, newest, put_back
from lightning_cgrpo.run.name import VERSIONED, configured_loggers
from lightning_cgrpo.settings.configuration import (
    CONFIGURATION,
    Config,
    ConfigError,
    Resolved,
    get,
    read_file,
    short_class,
)

START = "start"
"""The version under which the evaluation of starting weights logs."""
NEAREST = 2
"""Checkpoints of other runs that an error names."""
AUTO = "auto"
EVALUATIONS = {"validate": "Validating", "test": "Testing", "predict": "Predicting with"}
NEEDING = ("certify", "export")
"""Commands about a run's policy, which the starting weights are not."""
MAKES_A_CHECKPOINT = "`fit` with --trainer.max_steps=1 --model.optimizer.lr=0, which writes a checkpoint of it"
BEGINNINGS = {"fit": "Resuming from", "certify": "Certifying", "export": "Exporting", **EVALUATIONS}


@dataclass(frozen=True)
class Place:
    """The folder in which the versions of a run lie.

    Args:
        folder: ``SAVE_DIR/NAME``, or a W&B project's folder, which runs of other names share.
        name: of the run.
        fixed: the one folder of checkpoints, of a run without versions; else None.
        version: the folder of the version that is meant, with all versions that continue it; None for all versions.
    """

    folder: Path
    name: Any
    fixed: Path | None
    version: Path | None = None

    @classmethod
    def of(cls, config: Config) -> Self:
        """The place of a configuration's run, by its first logger and its callback of checkpoints."""
        # The folder of the first logger: SAVE_DIR/NAME, or SAVE_DIR/PROJECT for W&B.
        first = configured_loggers(config)[0]
        arguments: dict[str, Any] = first.get("init_args") or {}
        default = get(config, "trainer.default_root_dir") or "."
        key = "project" if short_class(first) == "WandbLogger" else "name"
        folder = Path(arguments.get("save_dir") or default) / str(arguments.get(key) or "lightning_logs")

        # The folder of checkpoints that the callback names, or that a run without a logger has.
        chosen = get(config, "callbacks.checkpoints.init_args.dirpath")
        version = getattr(config, "run", None)
        if chosen is None and get(config, "trainer.logger") is False:
            chosen = (version or Path(default)) / CHECKPOINTS
        fixed = None if chosen is None else Path(chosen)

        # The run whose own config.yaml was read, if the configuration did not change its name.
        name = arguments.get("name")
        if version is not None and _name_in(version) == name:
            # The file is found from any folder, and `save_dir` is relative to the folder in which the run began.
            return cls(version.parent, name, fixed, version)
        return cls(folder, name, fixed)

    def checkpoints(self) -> Iterator[Path]:
        """Folders of checkpoints of the run's versions: of all, or of `version` and the versions that continue it."""
        if self.fixed is not None:
            yield self.fixed
            return
        versions = [checkpoints.parent for checkpoints in self.folder.glob(f"*/{CHECKPOINTS}")]
        if self.version is not None:
            versions = _with_continuations(self.version, versions)
        for version in versions:
            if _name_in(version) in (None, self.name):
                yield version / CHECKPOINTS


def run_of(file: Path) -> Path | None:
    """The folder of the run that wrote this ``config.yaml``; None for other files."""
    return file.parent if file.name == CONFIGURATION and (file.parent / CHECKPOINTS).is_dir() else None


def _name_in(version: Path) -> Any:
    """The name of the run in the folder; None without a readable configuration."""
    config = configuration_beside(version / CHECKPOINTS / LAST)
    return None if config is None else Place.of(config).name


def _with_continuations(first: Path, versions: Sequence[Path]) -> list[Path]:
    """The version `first`, the versions that resumed from it, the versions that resumed from these, and so on."""
    # The version from which each version resumed. Versions lie side by side, so names suffice, wherever the command
    # that resumed ran. A checkpoint in the folder of another run does not count.
    resumed_from = {}
    for version in versions:
        config = configuration_beside(version / CHECKPOINTS / LAST) or {}
        earlier = Path(str(config.get("ckpt_path"))).parent.parent
        if earlier.parent.name == version.parent.name:
            resumed_from[version.name] = earlier.name

    # Add continuations until none is left.
    names: set[str] = set()
    added = {first.name}
    while added:
        names |= added
        added = {name for name, earlier in resumed_from.items() if earlier in names} - names
    return [version for version in versions if version.name in names]


def find_checkpoint(command: str, config: Config) -> str | None:
    """Replace ``last``, ``best`` and ``auto`` in ``ckpt_path`` by a path or None; return a line that names the choice.

    ``auto`` is the newest checkpoint for ``fit``, or a new run. For other commands, ``auto`` is the best checkpoint if
    validation ranked any, else the newest; without a run, evaluations take the starting weights.

    Raises:
        UserError: no such checkpoint, or several that could be meant.
    """
    asked = config.get("ckpt_path")
    if asked is None and command in NEEDING:
        raise ConfigError(
            f"Expected a checkpoint for {command}, but got --ckpt_path=null. To {command} a model that no run here "
            f"trained, try {MAKES_A_CHECKPOINT}."
        )
    if asked not in ("last", "best", AUTO):
        if asked not in (None, "hpc", "registry"):
            _check_exists(str(asked))
        return _beginning_line(command, config, asked, "")

    # Training and evaluations can begin without a checkpoint.
    optional = asked == AUTO and command in ("fit", *EVALUATIONS)
    place = Place.of(config)
    last = newest(place.checkpoints()) if optional else _last_checkpoint(place)
    # Training resumes from its end, other commands take the best policy.
    wants_best = asked == "best" or (asked == AUTO and command != "fit")
    best = best_of(last) if wants_best and last is not None else None

    chosen = last
    reason = ""
    if best is not None:
        chosen, metric = best
        reason = f", the best by {metric}"
    elif asked == "best":
        raise ConfigError(
            f"Expected a run that monitors a metric for --ckpt_path=best, but '{last}' ranks no checkpoints, try "
            "--ckpt_path=last, or a run with validation and --callbacks.checkpoints.monitor=val/merit, mode=max."
        )
    elif asked == AUTO and last is not None:
        reason = ", the newest"
        if command != "fit":
            reason += ", because no validation ranked the policies"
    config["ckpt_path"] = None if chosen is None else str(chosen)
    return _beginning_line(command, config, asked, reason)


def _check_exists(checkpoint: str) -> None:
    """Refuse a missing checkpoint, a model's directory, and a folder of runs."""
    if is_remote(checkpoint):
        return
    path = Path(checkpoint)
    put_back(path.parent)
    if not path.exists():
        raise ConfigError(f"There is no checkpoint '{checkpoint}', try --ckpt_path=last.")
    if any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise ConfigError(
            f"Expected a run's checkpoint, but '{checkpoint}' is a model's directory, try "
            f"--model.policy.model={checkpoint} with --ckpt_path=null; for certify, then {MAKES_A_CHECKPOINT}."
        )
    if path.is_dir() and path.suffix != ".ckpt":
        # The folder may be of checkpoints, of a run, or of runs.
        folders: set[Path] = set()
        for level in ("", "*/", f"{CHECKPOINTS}/", f"*/{CHECKPOINTS}/"):
            folders.update(file.parent for file in path.glob(f"{level}{LAST}"))
        inside = newest(folders)
        if inside is not None:
            raise ConfigError(
                f"Expected a checkpoint, but '{checkpoint}' is a folder of runs, try --ckpt_path={inside}."
            )


def _last_checkpoint(place: Place) -> Path:
    """The newest checkpoint of the run.

    Raises:
        ConfigError: no checkpoint.
    """
    last = newest(place.checkpoints())
    if last is not None:
        return last
    others = _similar_checkpoints(place.folder)
    hint = "; `fit` without --ckpt_path starts a run"
    if others:
        hint = f", try --ckpt_path={' or '.join(str(other) for other in others)}"
    raise ConfigError(f"Expected a checkpoint {place.folder}/*/{CHECKPOINTS}/{LAST}, but found none{hint}.")


def _similar_checkpoints(folder: Path) -> list[Path]:
    """The last checkpoints of the runs with the most similar names: a name lists files and overrides."""
    wanted = set(folder.name.split(","))

    def difference(run: Path) -> tuple[int, str]:
        return len(wanted ^ set(run.name.split(","))), run.name

    runs = {file.parents[2] for file in folder.parent.glob(f"*/*/{CHECKPOINTS}/{LAST}")}
    checkpoints = []
    for run in sorted(runs, key=difference)[:NEAREST]:
        files = run.glob(f"*/{CHECKPOINTS}/{LAST}")
        # The longer path is newer: version_10 is newer than version_9.
        checkpoints.append(max(files, key=lambda file: (len(str(file)), file)))
    return checkpoints


def configuration_beside(checkpoint: str | Path) -> Config | None:
    """The configuration of a checkpoint's run; None if missing or unreadable."""
    path = Path(checkpoint).parent.parent / CONFIGURATION
    if is_remote(checkpoint) or not path.is_file():
        return None
    try:
        return Resolved(read_file(path))
    except ConfigError:
        return None


def _beginning_line(command: str, config: Config, asked: Any, reason: str) -> str | None:
    """A line that names the weights from which a command begins; None where no line is printed."""
    checkpoint = config.get("ckpt_path")
    if checkpoint is not None:
        if command not in BEGINNINGS:
            return None
        anew = " (--ckpt_path=null starts anew)" if command == "fit" else ""
        return f"{BEGINNINGS[command]} {checkpoint}{reason}{anew}."
    if command not in EVALUATIONS:
        return "No checkpoint of this run yet: a new run starts." if asked == AUTO else None
    policy = "model.init_args.policy.init_args"
    weights = get(config, f"{policy}.model") or get(config, f"{policy}.weights") or "drawn from the seed"
    other = "no run of this configuration has a checkpoint" if asked == AUTO else "--ckpt_path=last takes the run's"
    return f"{EVALUATIONS[command]} the starting weights ({weights}); {other}."


def log_beside(config: Config, command: str) -> None:
    """Make an evaluation log into its checkpoint's run instead of a new version.

    Evaluations of starting weights log into the version ``start``.
    """
    checkpoint = config.get("ckpt_path")
    run: Path | None = None
    if checkpoint and Path(checkpoint).parent.name == CHECKPOINTS:
        run = Path(checkpoint).parent.parent
    for logger in configured_loggers(config):
        if short_class(logger) not in VERSIONED:
            continue
        arguments = logger.setdefault("init_args", {})
        if arguments.get("version") is not None:
            continue
        if run is not None:
            arguments |= {"save_dir": str(run.parent.parent), "name": run.parent.name, "version": run.name}
        else:
            arguments["version"] = START if checkpoint is None else Path(checkpoint).stem
        if short_class(logger) == "CSVLogger":
            # A CSVLogger removes the metrics that it finds in its folder.
            arguments["version"] += f"/{command}"
