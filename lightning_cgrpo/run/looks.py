"""Looks at the policies of a lineage: which prompts they showed, and the error that each may spend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from lightning_cgrpo.core.distributed import by_first
from lightning_cgrpo.objective.constraint import BOUNDS
from lightning_cgrpo.objective.look import FIRST
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.run.manifest import Manifest
from lightning_cgrpo.run.register import Entry, Register, digest_of, share_prompts, with_exports

TRAINING = (*BOUNDS, "aim", "role", "cost", "range", "start", "over")
"""Fields of a constraint that change its threshold or its training, and not the counts."""


def error_share(number: int) -> float:
    """The share of the error that look `number` of a lineage may spend; the shares of all looks sum to 1.

    Example:
        >>> [round(error_share(number), 4) for number in (1, 2, 3)]
        [0.8, 0.1, 0.0333]
    """
    return FIRST if number == 1 else (1 - FIRST) / (number * (number - 1))


@dataclass(frozen=True)
class Used:
    """Prompts that a further look at a run's policies must not see.

    Args:
        run: fingerprints ``[M]`` of the prompts that trained or validated, by use, see `Manifest.used_as`.
        looked: identities of the prompts of earlier looks.
        new_until: index after the last new prompt that earlier looks drew from an endless source.
    """

    run: Mapping[str, Tensor] = field(default_factory=dict)
    looked: frozenset[float] = frozenset()
    new_until: int = 0


@dataclass(frozen=True)
class Asked:
    """The question of a look.

    Args:
        prompts: number of prompts; None for as many as there are.
        confidence: over all constraints and all looks at the lineage.
        number: of the look, from 1, among the looks at the lineage.
        used: prompts that the look must not see.
    """

    prompts: int | None
    confidence: float
    number: int
    used: Used

    @property
    def level(self) -> float:
        """The error that this look spends."""
        return (1 - self.confidence) * error_share(self.number)


@dataclass
class Ledger:
    """A lineage's looks in the project's register, and the look that is taken now.

    Args:
        register: of the project.
        place: folder of checkpoints, which stands for a lineage that no manifest tells.
        manifest: of the checkpoint.
        about: what is asked of which policy: ``checkpoint``, ``update``, ``policy``, ``question``.
    """

    register: Register
    place: Path
    manifest: Manifest | None
    about: Mapping[str, Any]
    begun: Entry = field(default_factory=dict)

    def looks(self) -> list[Entry]:
        """All looks at the lineage or at the same policy, oldest first; a look that did not end has no ``decision``."""
        entries = self.register.entries()
        runs = {*self._find_lineage(entries)}
        looks = []
        for look in looks_in(entries):
            if runs & {*look["lineage"]} or self._is_of_this_policy(look):
                looks.append(look)
        return looks

    def _is_of_this_policy(self, look: Entry) -> bool:
        policy = self.about.get("policy")
        return policy is not None and look.get("policy") == policy

    def _find_lineage(self, entries: Iterable[Entry]) -> tuple[str, ...]:
        """The runs that made the policy, also those that exported its starting model."""
        if self.manifest is None or not self.manifest.lineage:
            return (f"in {self.place.resolve()}",)
        return with_exports(entries, self.manifest.lineage, self.manifest.start.get("weights"))

    @contextmanager
    def turn(self) -> Iterator[Asked]:
        """Context in which one command after the other chooses its prompts, and writes them by `begin`. Collective."""
        with ExitStack() as locked:

            def ask() -> Asked:
                locked.enter_context(self.register.locked())
                looks = self.looks()
                question = self.about["question"]
                run_prompts = {} if self.manifest is None else self.manifest.used_as
                used = used_prompts(looks, run_prompts)
                return Asked(question["prompts"], question["confidence"], len(looks) + 1, used)

            yield by_first(ask)

    def begin(self, asked: Asked, shown: Mapping[str, Any]) -> None:
        """Write the look before its prompts are shown; it is spent from now on, however it ends. Collective.

        Args:
            shown: its prompts, see `shown_by`.
        """

        def write() -> Entry:
            return self.register.append(
                {
                    "event": "began",
                    "id": uuid4().hex[:12],
                    "at": datetime.now(UTC).isoformat(timespec="seconds"),
                    **self.about,
                    "manifest": None if self.manifest is None else self.manifest.digest,
                    "lineage": list(self._find_lineage(self.register.entries())),
                    "look": asked.number,
                    "error": asked.level,
                    "shown": shown,
                    "prompts_fingerprint": digest_of(shown),
                }
            )

        self.begun = by_first(write)

    def end(self, certificate: Mapping[str, Any]) -> Entry:
        """Write the certificate of the look; returns the whole look."""
        with self.register.locked():
            company = company_of(self.register.entries(), self.begun)
            ended = {"event": "ended", "id": self.begun["id"], "company": company, **certificate}
            return self.begun | self.register.append(ended)


def looks_in(entries: Iterable[Entry]) -> list[Entry]:
    """The looks of a register, each with its certificate if it ended."""
    entries = [*entries]
    ended = {entry["id"]: entry for entry in entries if entry["event"] == "ended"}
    return [entry | ended.get(entry["id"], {}) for entry in entries if entry["event"] == "began"]


def recorded_look(looks: Sequence[Entry], policy: str, question: Mapping[str, Any]) -> Entry | None:
    """The ended look that asked the same about the same policy, or None.

    Args:
        policy: its identity.
        question: settings of this look by name.
    """
    # Through JSON, as the register has its questions.
    asked = _without_unset(json.loads(json.dumps(question)))
    for look in reversed(looks):
        same_question = _without_unset(look["question"]) == asked
        if same_question and look["policy"] == policy and "decision" in look:
            return look
    return None


def certificates_of(looks: Iterable[Entry], policy: str, objective: Objective) -> list[Entry]:
    """The ended looks at a policy whose constraints count the same as an objective's; thresholds may differ.

    Args:
        policy: its identity.
    """
    counted = {name: _counting_fields(asdict(constraint)) for name, constraint in objective.constraints.items()}
    certificates = []
    for look in looks:
        asked = look["question"]["constraints"]
        same = all(counted.get(name) == _counting_fields(constraint) for name, constraint in asked.items())
        if same and look["policy"] == policy and "decision" in look:
            certificates.append(look)
    return certificates


def _counting_fields(constraint: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of a constraint that decide its counts."""
    return {name: value for name, value in constraint.items() if value is not None and name not in TRAINING}


def _without_unset(settings: Any) -> Any:
    """Settings without those that are None, because later versions know more settings."""
    if isinstance(settings, Mapping):
        return {name: _without_unset(value) for name, value in settings.items() if value is not None}
    return settings


def used_prompts(looks: Iterable[Entry], run: Mapping[str, Tensor]) -> Used:
    """The prompts that a further look must not see.

    Args:
        run: fingerprints of the prompts that trained or validated, by use.
    """
    looked: set[float] = set()
    new_until = 0
    for look in looks:
        looked.update(float(int(number, 16)) for number in look["shown"].get("prompts", ()))
        new_until = max(new_until, look["shown"].get("until", 0))
    return Used(run, frozenset(looked), new_until)


def company_of(entries: Sequence[Entry], look: Entry) -> dict[str, int]:
    """Numbers of policies: measured in the project, measured at a look's prompts, and measured there by a test."""
    policies: set[tuple[str, int]] = set()  # a policy is a run and an update
    looked: set[tuple[str, int]] = set()
    tested: set[tuple[str, int]] = set()
    for entry in entries:
        if "shown" not in entry:
            continue
        run = entry["lineage"][-1] if entry["lineage"] else ""
        policy = run, entry["update"]
        policies.add(policy)
        if share_prompts(entry["shown"], look["shown"]):
            if entry["event"] == "test":
                tested.add(policy)
            else:
                looked.add(policy)
    return {"policies": len(policies), "here": len(looked | tested), "tested": len(tested)}
