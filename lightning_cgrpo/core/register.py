"""The register of looks: one append-only file of a project, written before prompts are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from lightning_cgrpo.core.errors import UserError, first_line

FILE = "looks.jsonl"
DIGEST = "digest"
EDITED = "edited"

Entry = dict[str, Any]


def project_of(place: Path) -> Path:
    """The folder whose register lists the looks at runs of a place.

    That is the nearest folder with a register, the place itself or above; else the working directory, if the place lies
    in it; else the place.
    """
    place, here = place.resolve(), Path.cwd()
    kept = next((folder for folder in (place, *place.parents) if (folder / FILE).is_file()), None)
    if kept is not None:
        return kept
    return here if place.is_relative_to(here) else place


class Register:
    """Entries of a project, one a line: looks that began and ended, tests, exports.

    Each line has a digest of itself and of the digest before, so a line that was edited or removed is told. The digest
    is no signature.

    Args:
        folder: the project's.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE

    @classmethod
    def of(cls, project: str, place: Path) -> Self:
        """The register of a run's project.

        Args:
            project: the folder that the run's manifest names, in which a copy of the run is registered, too.
            place: of the run, for a project that is not on this machine.
        """
        return cls(Path(project) if project and Path(project).is_dir() else project_of(place))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; prompts are chosen and written under the same lock.

        Raises:
            UserError: the folder can't be written.
        """
        from filelock import FileLock

        lock = FileLock(self.file.with_name(f".{FILE}.lock"))
        try:
            lock.acquire()
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def entries(self) -> list[Entry]:
        """All entries, oldest first; `EDITED` is true in a line that was edited, or that follows a removed line.

        Raises:
            UserError: a line is no entry.
        """
        if not self.file.exists():
            return []
        try:
            lines = self.file.read_text(encoding="utf-8").split("\n")
            # What follows the last end of a line was never written whole, so its look never began.
            entries: list[Entry] = [json.loads(line) for line in lines[:-1]]
            before = ""
            for entry in entries:
                assert isinstance(entry["event"], str)
                content = {name: value for name, value in entry.items() if name not in (DIGEST, EDITED)}
                if entry[DIGEST] != digest_of(content, before):
                    entry[EDITED] = True
                before = entry[DIGEST]
        except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
            raise UserError(
                f"Expected '{self.file}' to be the looks of a project, but it is damaged, try to restore the file; "
                "without it, a policy may be looked at twice."
            ) from error
        return entries

    def append(self, entry: Mapping[str, Any]) -> Entry:
        """Write an entry onto the disk; the caller holds the lock.

        Raises:
            UserError: the file can't be written, or is damaged.
        """
        entries = self.entries()
        before = entries[-1][DIGEST] if entries else ""
        written = {**entry, DIGEST: digest_of(entry, before)}
        try:
            with self.file.open("ab+") as file:
                # A killed process may have left a part of a line.
                file.seek(0)
                whole = file.read().rfind(b"\n") + 1
                file.truncate(whole)
                file.write(json.dumps(written).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            folder = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unwritable(error) from error
        return written

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"Expected to record the look in '{self.file}', but got: {first_line(error)}, try a folder that this user "
            "may write to, and a disk with space."
        )


def with_exports(entries: Iterable[Entry], lineage: Iterable[str], start: str | None) -> tuple[str, ...]:
    """A lineage with the runs that exported its starting model, whose own record may be lost.

    Args:
        start: fingerprint of the starting model's weights; None without.
    """
    exported = [
        name
        for entry in entries
        if entry["event"] == "export" and entry["weights"] == start
        for name in entry["lineage"]
    ]
    return tuple(dict.fromkeys([*exported, *lineage]))


def shown_by(identities: Iterable[float] = (), stream: str = "", first: int = 0, until: int = 0) -> dict[str, Any]:
    """Prompts of a look or a test, as the register has them.

    Args:
        identities: of each prompt, for a source that ends.
        stream: fingerprint of an endless source, whose prompts follow from the index, from `first` to `until`.
    """
    if stream:
        return {"stream": stream, "first": first, "until": until}
    return {"prompts": [f"{int(number):014x}" for number in identities]}


def share_prompts(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two looks, by `shown_by`, show a prompt in common."""
    if "stream" in one or "stream" in other:
        same = one.get("stream") == other.get("stream")
        return same and max(one["first"], other["first"]) < min(one["until"], other["until"])
    return not {*one["prompts"]}.isdisjoint(other["prompts"])


def digest_of(content: Mapping[str, Any], before: str = "") -> str:
    """16 hexadecimal digits of plain values, and of the digest of the entry before."""
    text = before + json.dumps(content, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()
