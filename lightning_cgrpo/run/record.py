"""RunRecord: a run's settings, end and measurements, as ``summary.json`` holds them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any, Self

from lightning_cgrpo.core.output import SUMMARY_FORMAT
from lightning_cgrpo.objective.bound import Bound, Side
from lightning_cgrpo.objective.look import Chance, Look
from lightning_cgrpo.objective.measured_constraint import MeasuredConstraint

Json = Mapping[str, Any]
"""A part of a file's content."""
Constraints = dict[str, MeasuredConstraint]
NUMBERS = (int, float, NoneType)
KINDS: dict[str, Any] = {
    "name": str,
    "status": str,
    "method": dict,
    "seed": (int, NoneType),
    "updates": int,
    "asked": (int, NoneType),
    "answers": NUMBERS,
    "seconds": NUMBERS,
    "cpu_seconds": NUMBERS,
    "peak_mb": NUMBERS,
    "faults": dict,
}
"""Types of plain values in a file."""
COUNTS = ("updates", "asked", "answers", "seconds", "cpu_seconds", "peak_mb", "faults")
"""Keys at the end of a summary."""


@dataclass(frozen=True)
class Reward:
    """A mean reward, and its standard error."""

    value: float | None = None
    error: float | None = None

    @property
    def text(self) -> str:
        """The mean and its error: ``0.81 ± 0.02``."""
        if self.value is None:
            return "-"
        if not self.error:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} ± {self.error:.2g}"


@dataclass(frozen=True)
class Measurement:
    """The policy after some update.

    Args:
        constraints: with values; those that were never observed are missing.
        prompts, answers: of an evaluation; None for means over updates.
        weights: means of the components' weights over updates.
        targets: of training for a declared look, in the user's orientation; None without a look, as is `chance`.
        chance: that the look certifies the policy.
    """

    update: int
    reward: Reward = Reward()
    constraints: Constraints = field(default_factory=dict)
    prompts: int | None = None
    answers: int | None = None
    weights: dict[str, float] | None = None
    targets: dict[str, float] | None = None
    chance: Chance | None = None

    def value(self, name: str) -> float | None:
        """The rate or mean of a constraint."""
        return self.constraints[name].value if name in self.constraints else None

    def as_json(self) -> dict[str, Any]:
        constraints: dict[str, Any] = {}
        for name, constraint in self.constraints.items():
            constraints[name] = {"value": constraint.value}
            if constraint.interval is not None:
                low, high = constraint.interval
                constraints[name] |= {"low": low, "high": high, "side": constraint.side}

        content: dict[str, Any] = {"update": self.update}
        if self.prompts is not None:
            content["prompts"] = self.prompts
        if self.answers is not None:
            content["answers"] = self.answers
        content["reward"] = {"value": self.reward.value}
        if self.reward.error is not None:
            content["reward"]["error"] = self.reward.error
        content["constraints"] = constraints
        if self.targets is not None:
            content["targets"] = self.targets
        if self.chance is not None:
            more = {str(prompts): chance for prompts, chance in self.chance.more.items()}  # keys of JSON are texts
            content["chance"] = asdict(self.chance) | {"more": more}
        if self.weights is not None:
            content["weights"] = self.weights
        return content

    @classmethod
    def read(cls, content: Json, declared: Constraints) -> Self:
        """A measurement of the declared constraints, from `as_json`."""
        constraints = {}
        for name, values in content["constraints"].items():
            if name not in declared:
                continue  # of an earlier part of the run, with other constraints
            interval: tuple[float, float] | None = None
            side: Side = ""
            if "low" in values:
                interval = values["low"], values["high"]
                side = values["side"] if "side" in values else declared[name].bound.side(*interval)
            constraints[name] = declared[name].at(values["value"], interval, side)
        reward = content.get("reward") or {}
        return cls(
            content.get("update", 0),
            Reward(reward.get("value"), reward.get("error")),
            constraints,
            content.get("prompts"),
            content.get("answers"),
            content.get("weights"),
            content.get("targets"),
            _read_chance(content.get("chance")),
        )


@dataclass(frozen=True)
class Best:
    """The best checkpoint, and the metric that ranks it."""

    checkpoint: str
    monitor: str
    score: float


@dataclass(frozen=True)
class Machine:
    """The machine on which a run ran, and the versions."""

    cpu: str | None = None
    cores: int | None = None
    gpu: str | None = None
    python: str | None = None
    torch: str | None = None
    lightning: str | None = None


@dataclass(frozen=True)
class Inputs:
    """Fingerprints of the user's code by module, of the prompts by split, and of the files in a task's `reads`."""

    code: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """The values of a run that `report` saves beside its record.

    Args:
        final: means over the last part of training, by tag.
        tests: values of the last test, by tag.
        width: of the bins of the series, in updates.
        steps: middles of the bins.
        series: by tag, a value for each of `steps`, or one for all.
    """

    final: dict[str, float]
    tests: dict[str, float]
    width: float
    steps: list[float]
    series: dict[str, list[float | None] | float | None]


@dataclass
class RunRecord:
    """A run.

    Args:
        status: running, finished, interrupted or failed.
        error: that ended the run.
        method: the settings that change learning, see `identity_of`.
        weights: fingerprint of the starting weights.
        resumed: the folder from which the run resumed, relative to its own.
        constraints: as declared.
        look: as declared; None without one.
        measured: by ``before``, ``end`` (means over the last updates), ``last`` (validation) and ``best``.
        validations: all of them.
        held: rates at which stalled constraints are held, by name; None without a dual.
        updates, asked: made, and to make; None if only time or a callback ends the run.
        answers: sampled, in all parts of the run, as are `seconds`, `cpu_seconds` and `peak_mb`.
        faults: counts by kind.
    """

    name: str = ""
    status: str = "running"
    error: str | None = None
    method: dict[str, object] = field(default_factory=dict)
    length: dict[str, float] = field(default_factory=dict)
    seed: int | None = None
    weights: str | None = None
    inputs: Inputs = field(default_factory=Inputs)
    resumed: str | None = None
    constraints: Constraints = field(default_factory=dict)
    look: Look | None = None
    machine: Machine = field(default_factory=Machine)
    measured: dict[str, Measurement] = field(default_factory=dict)
    best: Best | None = None
    validations: list[Measurement] = field(default_factory=list)
    held: dict[str, float] | None = None
    updates: int = 0
    asked: int | None = None
    answers: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_mb: float | None = None
    faults: dict[str, int] = field(default_factory=dict)
    saved: Saved | None = None

    def as_json(self) -> dict[str, Any]:
        """The content of ``summary.json``: without `saved`, which `report` writes in lines of its own."""
        # The keys have the order in which a reader looks for them.
        content: dict[str, Any] = {"format": SUMMARY_FORMAT}
        for key in ("status", "error", "name", "method", "length", "seed", "weights"):
            content[key] = getattr(self, key)
        content["inputs"] = _fields_of(self.inputs)
        if not self.inputs.files:  # a task seldom lists files, and older runs had none
            del content["inputs"]["files"]
        content["resumed"] = self.resumed
        content["constraints"] = {name: _declaration_of(constraint) for name, constraint in self.constraints.items()}
        if self.look is not None:
            content["look"] = _fields_of(self.look)
        content["machine"] = _fields_of(self.machine)
        content["measured"] = {key: measurement.as_json() for key, measurement in self.measured.items()}
        content["best"] = None if self.best is None else _fields_of(self.best)
        if self.validations:
            content["validations"] = [measurement.as_json() for measurement in self.validations]
        content["held"] = self.held
        for key in COUNTS:
            content[key] = getattr(self, key)
        return content

    @classmethod
    def read(cls, content: Json) -> Self:
        """The record in the content of a summary or of a saved run; a key that an older run lacks has its default.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: the content is damaged.
        """
        for key, kind in KINDS.items():
            if key in content and not isinstance(content[key], kind):
                raise ValueError(f"its {key} is {str(content[key])[:40]!r}")
        declarations = content.get("constraints", {})
        declared = {name: _read_constraint(name, declaration) for name, declaration in declarations.items()}
        measured = content.get("measured") or {}
        validations = content.get("validations") or []
        best = content.get("best")
        inputs = content.get("inputs") or {}
        machine = content.get("machine") or {}
        plain = ("name", "status", "error", "method", "length", "seed", "weights", "resumed", "held")
        record = cls(
            **{key: content[key] for key in (*plain, *COUNTS) if key in content},
            constraints=declared,
            look=Look.declared(content.get("look")),
            measured={key: Measurement.read(measurement, declared) for key, measurement in measured.items()},
            validations=[Measurement.read(measurement, declared) for measurement in validations],
            inputs=Inputs(inputs.get("code", {}), inputs.get("prompts", {}), inputs.get("files", {})),
            machine=Machine(**{key: machine.get(key) for key in _field_names(Machine)}),
        )
        if best is not None:
            record.best = Best(best["checkpoint"], best["monitor"], best["score"])
        if "series" in content:
            record.saved = Saved(**{key: content[key] for key in _field_names(Saved)})
        return record


def _read_chance(content: Json | None) -> Chance | None:
    if content is None:
        return None
    more = {int(prompts): chance for prompts, chance in content["more"].items()}
    return Chance(content["whole"], content["each"], more)


def _declaration_of(constraint: MeasuredConstraint) -> dict[str, Any]:
    bound = constraint.bound
    declaration: dict[str, Any] = {
        "kind": bound.kind,
        "direction": bound.direction,
        "threshold": bound.threshold,
        "role": constraint.role,
    }
    if constraint.given is not None:
        declaration["given"] = constraint.given
    return declaration


def _read_constraint(name: str, declaration: Json) -> MeasuredConstraint:
    bound = Bound(declaration["kind"], declaration["direction"], declaration["threshold"])
    return MeasuredConstraint(name, bound, given=declaration.get("given"), role=declaration["role"])


def _field_names(kind: type) -> list[str]:
    return [part.name for part in fields(kind)]


def _fields_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _field_names(type(value))}
