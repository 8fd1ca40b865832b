"""Where scores come from."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

DIGITS = 12
"""Hexadecimal digits of a digest; two of a million stores share theirs with a chance of 0.2 %."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Provenance:
    """The scenes and programs behind scores: equal provenances give equal scores of equal trajectories."""

    source: str  # kind and place of the scenes
    devkit: str | None  # commit or version of the devkit that wrote the source; None for other sources
    scorer: str  # version of the package that scores, and the digest of its code
    digest: str  # of the prepared scenes, their names and pairs
    prepared_by: str | None = None  # the scorer that prepared the scenes; None if it is the one that scores

    def __str__(self) -> str:
        by = "" if self.devkit is None else f" of the devkit {self.devkit}"
        prepared = "" if self.prepared_by is None else f", prepared by {self.prepared_by}"
        return f"{self.source}{by}, digest {self.digest}{prepared}, {self.scorer}"


def digest(*contents: bytes) -> str:
    """The first `DIGITS` of a SHA-256."""
    total = hashlib.sha256()
    for content in contents:
        total.update(content)
    return total.hexdigest()[:DIGITS]


@lru_cache(maxsize=1)
def scorer_version() -> str:
    """Version of this package, and a digest of its Python files, because a clone between two versions scores too."""
    folder = Path(__file__).parent
    contents = []
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder).as_posix()
        contents.append(name.encode() + file.read_bytes())
    code = digest(*contents)
    try:
        number = version("lightning_cgrpo")
    except PackageNotFoundError:  # on the path, not installed
        number = UNKNOWN
    return f"navsim_score {number}, code {code}"


def devkit_version() -> str:
    """Commit of the installed devkit's clone, else its version, else `UNKNOWN`."""
    spec = find_spec("navsim")
    if spec is None or not spec.submodule_search_locations:
        return UNKNOWN
    folder = next(iter(spec.submodule_search_locations))
    try:
        described = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:  # without git
        described = None
    if described is not None and described.returncode == 0:
        return described.stdout.strip()
    try:
        return version("navsim")
    except PackageNotFoundError:
        return UNKNOWN
