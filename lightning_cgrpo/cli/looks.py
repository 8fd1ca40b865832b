"""Looks at the policies of a run: certificates beside the checkpoints, and the error that each look may spend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_cgrpo.checkpoints.files import CHECKPOINTS
from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.datamodules.base import Used
from lightning_cgrpo.objective.constraint import BOUNDS
from lightning_cgrpo.objective.look import FIRST
from lightning_cgrpo.objective.objective import Objective

FILE = "certificates.json"

TRAINING = (*BOUNDS, "aim", "role", "cost", "range", "start", "over")
"""Fields of a constraint that change its threshold or its training, and not what is counted."""

Certificate = dict[str, Any]


def error_share(number: int) -> float:
    """The share of the error that look `number` of a run may spend; the shares of all looks sum to 1.

    Example:
        >>> [round(error_share(number), 4) for number in (1, 2, 3)]
        [0.8, 0.1, 0.0333]
    """
    return FIRST if number == 1 else (1 - FIRST) / (number * (number - 1))


def looks_at(folders: Iterable[Path], lineage: Iterable[str]) -> list[Certificate]:
    """All looks at a run's policies, and at those of the runs that it continues or that continue it, oldest first.

    Args:
        folders: of the run's checkpoints, and of copies.
        lineage: of the run's manifest.
    """
    found: dict[tuple[str, ...], Certificate] = {}
    names = set(lineage)
    own = {folder.resolve() for folder in folders}
    for folder in sorted(own):
        # Versions and names of a run lie beside each other: SAVE_DIR/NAME/VERSION/checkpoints.
        files = folder.parent.parent.parent.glob(f"*/*/{CHECKPOINTS}/{FILE}")
        others = {file.parent.resolve() for file in files}
        for place in sorted({folder, *others}):
            for look in certificates(place).values():
                if place in own or names & {*look.get("lineage", ())}:
                    found[look["policy"], str(look["look"]), str(look["at"])] = look
    return sorted(found.values(), key=lambda look: str(look["at"]))


def recorded(looks: Sequence[Certificate], policy: str, question: Mapping[str, Any]) -> Certificate | None:
    """The certificate of an earlier look that asked the same about the same policy, or None.

    Args:
        policy: its identity.
        question: settings of this look by name; None stands for any.
    """
    for look in reversed(looks):
        before = look["question"]
        same = all(value is None or _given(value) == _given(before[name]) for name, value in question.items())
        if same and look["policy"] == policy:
            return look
    return None


def certificates_of(folder: Path, policy: str, objective: Objective) -> list[Certificate]:
    """The looks at a policy whose constraints mean what they mean in an objective; thresholds may differ.

    Args:
        policy: its identity.
    """
    here = {name: _meaning(asdict(constraint)) for name, constraint in objective.constraints.items()}
    found = []
    for look in certificates(folder).values():
        asked = look["question"]["constraints"]
        same = all(here.get(name) == _meaning(constraint) for name, constraint in asked.items())
        if same and look["policy"] == policy:
            found.append(look)
    return found


def _meaning(constraint: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of a constraint that decide what is counted."""
    return {name: value for name, value in constraint.items() if value is not None and name not in TRAINING}


def _given(settings: Any) -> Any:
    """Settings without those left out, because later versions know more settings."""
    if isinstance(settings, Mapping):
        return {name: _given(value) for name, value in settings.items() if value is not None}
    return settings


def used_prompts(looks: Iterable[Certificate], run: Mapping[str, Tensor]) -> Used:
    """The prompts that a further look must not see.

    Args:
        run: fingerprints of the prompts that trained or validated, by use.
    """
    looked: set[float] = set()
    new_until = 0
    for look in looks:
        looked |= {*look.get("identities", ())}
        new_until = max(new_until, look.get("new_until", 0))
    return Used(run, frozenset(looked), new_until)


def check_writable(folder: Path) -> None:
    """Refuse a folder in which a look can't be recorded, before anything is sampled."""
    try:
        if (folder / FILE).is_dir():
            raise IsADirectoryError("a folder of this name")
        write_whole(folder / f"{FILE}.try", "")
        (folder / f"{FILE}.try").unlink()
    except OSError as error:
        raise UserError(
            f"Expected to record the look in '{folder / FILE}', but got: {first_line(error)}, try a folder that "
            "this user may write to, and a disk with space."
        ) from error


def record(folder: Path, certificate: Certificate) -> None:
    """Write a certificate beside the others of a folder; the caller holds the folder's lock."""
    key = f"{certificate['policy']}, look {certificate['look']}"
    write_whole(folder / FILE, json.dumps(certificates(folder) | {key: certificate}, indent=1) + "\n")


def certificates(folder: Path) -> dict[str, Certificate]:
    """The certificates of a folder."""
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        looks: dict[str, Certificate] = json.loads(file.read_text(encoding="utf-8"))
        assert all({"question", "decision", "constraints"} <= look.keys() for look in looks.values())
    except (ValueError, AttributeError, AssertionError) as error:
        raise UserError(
            f"Expected '{file}' to be the certificates of a folder, but it is damaged, try to restore the file; "
            "without it, a policy may be looked at twice."
        ) from error
    # Certificates of earlier versions, a look for each policy, are called by the policy.
    return {key: {"policy": key, "look": 1, **look} for key, look in looks.items()}
