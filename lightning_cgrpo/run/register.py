"""The register of looks: one append-only file of a project, written before prompts are shown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from lightning_cgrpo.core.errors import UserError, first_line

FILE = "looks.jsonl"
DIGEST = "digest"
EDITED = "edited"
DAMAGE = (ValueError, TypeError, KeyError)
"""Exceptions that reading a line raises if it is no entry."""

Entry = dict[str, Any]


def project_of(place: Path) -> Path:
    """The folder whose register lists the looks at runs of a place.

    That is the nearest folder with a register, the place itself or above; else the working directory, if the place lies
    in it; else the place.
    """
    place = place.resolve()
    for folder in (place, *place.parents):
        if _has_register(folder):
            return folder
    here = Path.cwd()
    return here if place.is_relative_to(here) else place


def _has_register(folder: Path) -> bool:
    try:
        return (folder / FILE).is_file()
    except OSError:  # another user's folder
        return False


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
        near = project_of(place)
        if project == "" or not Path(project).is_dir():
            return cls(near)
        # The named project may have lost its register: an emptied folder, or one that another program made since.
        if _has_register(near) and not _has_register(Path(project)):
            return cls(near)
        return cls(Path(project))

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
        except (OSError, NotImplementedError) as error:  # a folder without locks, too
            raise self._write_error(error) from error
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
        entries: list[Entry] = []
        before = ""  # the digest of the entry before
        try:
            lines, tail = _split_lines(self.file.read_bytes())
            for line in lines:
                entry = _read_entry(line)
                if not _is_intact(entry, before):
                    entry[EDITED] = True
                entries.append(entry)
                before = entry[DIGEST]
        except (OSError, *DAMAGE) as error:
            raise self._damage_error() from error
        last = _read_tail(tail, before)
        if last is not None:
            entries.append(last)
        return entries

    def append(self, entry: Mapping[str, Any]) -> Entry:
        """Write an entry onto the disk; the caller holds the lock.

        Raises:
            UserError: the file can't be written, or is damaged.
        """
        # The entry as it will be read: names of JSON are texts, and a path is its text.
        plain: Entry = json.loads(_to_json(entry))
        try:
            with self.file.open("ab+") as file:
                # The digest of the entry before.
                file.seek(0)
                content = file.read()
                lines, tail = _split_lines(content)
                before = _read_entry(lines[-1])[DIGEST] if lines else ""

                # A killed process may have left a part of a line: remove it. An editor may have left a whole line
                # without its end: end it.
                last = _read_tail(tail, before)
                if last is None:
                    file.truncate(len(content) - len(tail))
                else:
                    before = last[DIGEST]
                    file.write(b"\n")

                # The new line.
                written = {**plain, DIGEST: digest_of(plain, before)}
                file.write(_to_json(written).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._write_error(error) from error
        except DAMAGE as error:
            raise self._damage_error() from error
        # The file may be new, so write its folder onto the disk, too.
        with suppress(OSError):  # a file system that writes no folders through
            folder = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return written

    def take(self, entries: Iterable[Entry]) -> None:
        """Append the entries of another project's register that are missing here.

        Raises:
            UserError: see `append` and `locked`.
        """
        with self.locked():
            present = {(entry["event"], entry.get("id")) for entry in self.entries()}
            for entry in entries:
                if (entry["event"], entry["id"]) not in present:
                    self.append(entry)

    def _damage_error(self) -> UserError:
        return UserError(
            f"Expected '{self.file}' to be the looks of a project, but it is damaged, try to restore the file; "
            "without it, a policy may be looked at twice."
        )

    def _write_error(self, error: Exception) -> UserError:
        return UserError(
            f"Expected to record the look in '{self.file}', but got: {first_line(error)}, try a folder that this user "
            "may write to, and a disk with space."
        )


def _split_lines(content: bytes) -> tuple[list[bytes], bytes]:
    """Lines of a register, without empty lines, and the bytes after the last end of a line."""
    *lines, tail = content.split(b"\n")
    return [line for line in lines if line.strip()], tail


def _read_entry(line: bytes) -> Entry:
    """The entry of a line.

    Raises:
        ValueError, TypeError, KeyError: the line is no entry.
    """
    entry: Entry = json.loads(line)
    if not isinstance(entry["event"], str) or not isinstance(entry[DIGEST], str):
        raise TypeError(line)
    return entry


def _is_intact(entry: Entry, before: str) -> bool:
    """True if an entry has the digest of its content and of the digest before."""
    return bool(entry[DIGEST] == digest_of(_without_digest(entry), before))


def _without_digest(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name not in (DIGEST, EDITED)}


def _read_tail(tail: bytes, before: str) -> Entry | None:
    """The entry of a last line without its end; None if it was never written whole, so that its look never began."""
    try:
        entry = _read_entry(tail)
    except DAMAGE:
        return None
    return entry if _is_intact(entry, before) else None


def with_exports(entries: Iterable[Entry], lineage: Iterable[str], start: str | None) -> tuple[str, ...]:
    """A lineage with the runs that exported its starting model, whose own record may be lost.

    Args:
        start: fingerprint of the starting model's weights; None without.
    """
    exported: list[str] = []
    for entry in entries:
        if entry["event"] == "export" and entry["weights"] == start:
            exported += entry["lineage"]
    return tuple(dict.fromkeys([*exported, *lineage]))


def looks_along(entries: Iterable[Entry], lineage: Iterable[str]) -> list[Entry]:
    """The looks at a lineage, begun and ended, without digests, which belong to the register."""
    runs = {*lineage}
    looks: list[Entry] = []
    ids: set[str] = set()
    for entry in entries:
        if entry["event"] == "began" and runs & {*entry["lineage"]}:
            ids.add(entry["id"])
        if entry.get("id") in ids:
            looks.append(_without_digest(entry))
    return looks


def shown_by(identities: Iterable[float] = (), stream: str = "", first: int = 0, until: int = 0) -> dict[str, Any]:
    """Prompts of a look or a test, as the register has them.

    Args:
        identities: identity of each prompt, for a source that ends.
        stream: fingerprint of an endless source, whose prompts follow from the index, from `first` to `until`.
    """
    if stream:
        return {"stream": stream, "first": first, "until": until}
    return {"prompts": [f"{int(number):014x}" for number in identities]}


def share_prompts(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if two looks, by `shown_by`, show a prompt in common."""
    if "stream" in one or "stream" in other:
        # Two ranges of the same stream share a prompt if they overlap.
        same_stream = one.get("stream") == other.get("stream")
        return same_stream and max(one["first"], other["first"]) < min(one["until"], other["until"])
    return not {*one["prompts"]}.isdisjoint(other["prompts"])


def digest_of(content: Mapping[str, Any], before: str = "") -> str:
    """16 hexadecimal digits of plain values, and of the digest of the entry before."""
    text = before + json.dumps(json.loads(_to_json(content)), sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _to_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, default=str)
