"""Where a policy's starting weights come from, with a fingerprint of their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Origin:
    """Starting weights.

    Args:
        name: as the user gives it: a directory, a name on the hub, or ``packaged:NAME``.
        path: of the directory on this machine.
        fingerprint: 12 hexadecimal digits, the same for the same weights wherever they lie.
    """

    name: str
    path: str
    fingerprint: str

    def __str__(self) -> str:
        where = "" if str(Path(self.name).expanduser().resolve()) == self.path else f" at {self.path}"
        return f"{self.name}{where}, fingerprint {self.fingerprint}"


def fingerprint(folder: Path) -> str:
    """A fingerprint of all .safetensors files in a directory, by their names and content."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]
