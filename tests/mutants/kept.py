"""What was found, in a file that a later run goes on with."""

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Kept:
    """Facts by name, each with the digest of what it was found for. Several processes may add."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(exist_ok=True)
        path.touch()
        self.read()

    def read(self) -> None:
        with self.path.open() as lines:
            self.facts: dict[str, dict[str, Any]] = {fact["name"]: fact for fact in map(json.loads, lines)}

    def find(self, name: str, digest: str) -> dict[str, Any] | None:
        fact = self.facts.get(name)
        return fact if fact is not None and fact["digest"] == digest else None

    def add(self, name: str, digest: str, **found: Any) -> None:
        fact = {"name": name, "digest": digest, **found}
        self.facts[name] = fact
        with self.path.open("a") as lines:
            lines.write(json.dumps(fact) + "\n")


def digest_of(files: Iterable[Path | str], *texts: str) -> str:
    """Of the contents of files, whose paths may be relative to the repository, and of texts."""
    parts = [_content(ROOT / file) for file in sorted({str(file) for file in files})]
    parts += [hashlib.sha256(text.encode()).digest() for text in texts]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@functools.cache
def _content(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").digest()
