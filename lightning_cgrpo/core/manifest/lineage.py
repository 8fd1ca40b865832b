"""The record that an exported model carries: the runs that made it, and the prompts that trained them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.manifest.manifest import Manifest
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.core.register import DIGEST, Register, digest_of, with_exports

FILE = "lineage.json"


@dataclass(frozen=True)
class Ancestry:
    """What is known of the runs that made a starting model.

    Args:
        lineage: names of the runs, oldest first.
        used: fingerprints ``[M]`` of the prompts that trained or validated in these runs.
        known: whether these are all prompts that trained the model; False for a model from elsewhere.
        fault: words that say why the record isn't believed; empty if it is.
    """

    lineage: tuple[str, ...] = ()
    used: Tensor = torch.zeros(0, dtype=torch.int64)  # noqa: RUF009 (never written)
    known: bool = False
    fault: str = ""


def write_lineage(folder: Path, manifest: Manifest | None, weights: str, policy: str = "") -> None:
    """Write the record of an exported model beside its weights, and the export into the project's register.

    Args:
        manifest: of the model's run; None if its checkpoint has none.
        weights: fingerprint of the model's files.
        policy: identity of the exported policy, under which looks are registered.
    """
    if manifest is None:
        return
    register = Register.of(manifest.project, folder)
    with register.locked():
        lineage = with_exports(register.entries(), manifest.lineage, manifest.start.get("weights"))
        register.append({"event": "export", "weights": weights, "lineage": lineage, "to": str(folder)})
    content: dict[str, Any] = {
        "lineage": list(lineage),
        "prompts known": manifest.start_known,
        "prompts": b64encode(manifest.used.numpy().tobytes()).decode(),
        "manifest": manifest.digest,
        "weights": weights,
        "policy": policy,
    }
    write_whole(folder / FILE, json.dumps(content | {DIGEST: digest_of(content)}, indent=1) + "\n")


def read_lineage(folder: Path, weights: str) -> Ancestry:
    """The record beside a starting model; unknown prompts without one.

    Args:
        weights: fingerprint of the model's files.
    """
    file = folder / FILE
    if not file.is_file():
        return Ancestry()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        written = content.pop(DIGEST)
        lineage = tuple(map(str, content["lineage"]))
        used = torch.from_numpy(np.frombuffer(b64decode(content["prompts"]), dtype=np.int64).copy())
        known = content["prompts known"] is True
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Ancestry(fault=f"{file} is damaged")
    if written != digest_of(content):
        return Ancestry(lineage, used, fault=f"{file} was edited by hand")
    if content["weights"] != weights:
        return Ancestry(lineage, used, fault=f"{file} is of other weights")
    return Ancestry(lineage, used, known)
