"""Looks at checkpoints: certificates beside the checkpoints, one for each policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from lightning_cgrpo.cli.configuration import ConfigError
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import write_whole

FILE = "certificates.json"

Certificate = dict[str, Any]


def identity(weights: Mapping[str, Tensor], decoding: Any) -> str:
    """Equal text for equal policies: weights and everything that turns weights into measured answers."""
    digest = hashlib.sha256(json.dumps(decoding, sort_keys=True, default=str).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def recorded(folder: Path, policy: str, question: Mapping[str, Any]) -> Certificate | None:
    """The certificate of an earlier look at a policy, or None.

    Args:
        policy: its `identity`.
        question: settings of this look by name; None stands for any.

    Raises:
        ConfigError: the earlier look asked another question, because a second look would have a chance of its own.
    """
    earlier = certificates(folder).get(policy)
    if earlier is None:
        return None
    for name, asked in question.items():
        before = earlier["question"][name]
        if asked is not None and _given(asked) != _given(before):
            raise ConfigError(
                f"Expected one look at a checkpoint, but got a second with other {name}, after the verdict "
                f"'{earlier['decision']}' in '{folder / FILE}', try the same {name}"
                f"{f', {before},' if isinstance(before, (int, float)) else ''} or another checkpoint."
            )
    return earlier


def _given(settings: Any) -> Any:
    """Settings without those left out, because later versions know more settings."""
    if isinstance(settings, Mapping):
        return {name: _given(value) for name, value in settings.items() if value is not None}
    return settings


def record(folder: Path, policy: str, question: Mapping[str, Any], certificate: Certificate) -> Certificate:
    """Write a certificate beside the others of a folder, unless another command has looked meanwhile.

    Returns:
        The certificate of the first look.
    """
    # Two commands may certify two policies of a folder at a time.
    with FileLock(folder / f".{FILE}.lock"):
        if (first := recorded(folder, policy, question)) is not None:
            return first
        write_whole(folder / FILE, json.dumps(certificates(folder) | {policy: certificate}, indent=2) + "\n")
    return certificate


def certificates(folder: Path) -> dict[str, Certificate]:
    """The certificates of a folder by `identity`."""
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
    return looks
