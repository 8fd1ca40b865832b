"""What was found, in a file that a later run goes on with."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Kept:
    """Facts by name, each with the digest of the contents that it was found for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with path.open() as lines:
            self.facts: dict[str, dict[str, Any]] = {fact["name"]: fact for fact in map(json.loads, lines)}

    def find(self, name: str, digest: str) -> dict[str, Any] | None:
        fact = self.facts.get(name)
        return fact if fact is not None and fact["digest"] == digest else None

    def add(self, name: str, digest: str, **found: Any) -> dict[str, Any]:
        fact = {"name": name, "digest": digest, **found}
        self.facts[name] = fact
        with self.path.open("a") as lines:
            lines.write(json.dumps(fact) + "\n")
        return fact


def digest_of(files: Iterable[Path]) -> str:
    """Of the contents; of none of a file that is gone, so that what it decided is decided again."""
    contents = [hashlib.sha256(file.read_bytes() if file.exists() else b"gone").digest() for file in files]
    return hashlib.sha256(b"".join(contents)).hexdigest()
