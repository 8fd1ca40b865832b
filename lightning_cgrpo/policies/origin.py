"""Source and fingerprint of a policy's starting weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Origin:
    """Source of starting weights."""

    name: str  # given by the user: a directory, a name on the hub, or packaged:NAME
    path: str  # of the directory on this machine
    fingerprint: str  # 12 hexadecimal digits, determined by the weights alone

    def __str__(self) -> str:
        told = self.name.startswith("packaged:") or str(Path(self.name).expanduser().resolve()) == self.path
        where = "" if told else f" at {self.path}"
        return f"{self.name}{where}, fingerprint {self.fingerprint}"


def fingerprint(folder: Path) -> str:
    """12 hexadecimal digits from names and content of a directory's .safetensors files, or of one file."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]:
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:12]
