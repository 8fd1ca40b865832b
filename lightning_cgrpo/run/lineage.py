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

from lightning_cgrpo.core.distributed import rank_zero_warn
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import write_whole
from lightning_cgrpo.run.fingerprints import LINEAGE
from lightning_cgrpo.run.manifest import Manifest
from lightning_cgrpo.run.register import DIGEST, Entry, Register, digest_of, looks_along, with_exports

FILE = LINEAGE


@dataclass(frozen=True)
class Ancestry:
    """Knowledge about the runs that made a starting model.

    Args:
        lineage: names of the runs, oldest first.
        used: fingerprints ``[M]`` of the prompts that trained or validated in these runs.
        known: whether these are all prompts that trained the model; False for a model from elsewhere.
        fault: words that say why the record isn't believed; empty if it is.
        looks: entries of the register of the export's project: looks at these runs.
    """

    lineage: tuple[str, ...] = ()
    used: Tensor = torch.zeros(0, dtype=torch.int64)  # noqa: RUF009 (never written)
    known: bool = False
    fault: str = ""
    looks: tuple[Entry, ...] = ()


def write_lineage(
    folder: Path, manifest: Manifest | None, weights: str, policy: str = "", place: Path | None = None
) -> None:
    """Write the record of an exported model beside its weights, and the export into the project's register.

    Args:
        manifest: manifest of the model's run; None if its checkpoint has none.
        weights: fingerprint of the model's files.
        policy: identity of the exported policy, under which looks are registered.
        place: folder of the checkpoint, whose project may have moved; by default `folder`.
    """
    if manifest is None:
        return
    if place is None:
        place = folder
    register = Register.of(manifest.project, place)
    entries = register.entries()
    lineage = with_exports(entries, manifest.lineage, manifest.start.get("weights"))
    content: dict[str, Any] = {
        "lineage": list(lineage),
        "prompts known": manifest.start_known,
        "prompts": b64encode(manifest.used.numpy().tobytes()).decode(),
        "manifest": manifest.digest,
        "weights": weights,
        "policy": policy,
        "looks": looks_along(entries, lineage),
    }
    write_whole(folder / FILE, json.dumps(content | {DIGEST: digest_of(content)}, indent=1) + "\n")
    # The export is registered after its record, because the record alone counts if the project can't be written.
    try:
        with register.locked():
            register.append({"event": "export", "weights": weights, "lineage": lineage, "to": str(folder)})
    except UserError as error:
        rank_zero_warn(f"Looks at this export's runs count only with its {FILE}. {error}")


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
        lineage = tuple(str(run) for run in content["lineage"])
        used = torch.from_numpy(np.frombuffer(b64decode(content["prompts"]), dtype=np.int64).copy())
        known = content["prompts known"] is True
        looks = tuple(dict(entry) for entry in content.get("looks", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Ancestry(fault=f"{file} is damaged")
    # A record that was edited, or that belongs to other weights, is not believed to be complete.
    if written != digest_of(content):
        return Ancestry(lineage, used, fault=f"{file} was edited by hand", looks=looks)
    if content["weights"] != weights:
        return Ancestry(lineage, used, fault=f"{file} is of other weights")
    return Ancestry(lineage, used, known, looks=looks)
