"""Fingerprints of prompts and of files: equal for equal content."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

EMPTY = blake2b(digest_size=8)
SPACES = b" \t\n\r\f\v"
SMALL = (".json", ".jinja", ".model", ".txt", ".py")
"""Suffixes of the small files of a model's directory."""


def source_fingerprints(source: Any) -> Tensor | None:
    """`prompt_fingerprints` of a source's prompts; None if nothing is known of the prompts without making them.

    Args:
        source: a `PromptSource`, or a user's own class with prompts.
    """
    rows = getattr(source, "rows", None)
    if rows is None:
        names = getattr(source, "names", None)
        rows = None if names is None else [{"prompt": name} for name in names]
    return None if rows is None else prompt_fingerprints(rows)


def prompt_fingerprints(rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """Two fingerprints of each row of columns, ``[N, 2]`` int64: of all columns, and of the prompt alone.

    Forms of a letter, spaces, and fields of messages that chat templates skip do not count in a prompt, because a
    policy may read two prompts as one that differ in nothing else.
    """
    digests = bytearray()
    for row in rows:
        digests += _digest(_bytes(row))
        digests += _digest(_prompt_bytes(row.get("prompt", row)))
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").reshape(-1, 2))


def _digest(content: bytes) -> bytes:
    digest = EMPTY.copy()  # faster than a new one
    digest.update(content)
    return digest.digest()


def _bytes(value: Any) -> bytes:
    try:
        return marshal.dumps(value, 2)  # several times faster than JSON; version 2 depends on the content alone
    except ValueError:  # a value of a library, such as an image or a date
        return marshal.dumps(_plain(value), 2)


def _plain(value: Any) -> Any:
    """Plain containers with the content of a value; an image's or a tensor's is an array."""
    if isinstance(value, Mapping):
        return [(str(name), _plain(part)) for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    array = np.asarray(value)
    if array.dtype.hasobject:
        return repr(value)
    return str(array.dtype), array.shape, array.tobytes()


def _prompt_bytes(prompt: Any) -> bytes:
    return _letters(prompt) if isinstance(prompt, str) else _bytes(_read(prompt))


def _letters(text: str) -> bytes:
    if not text.isascii():
        text = normalize("NFKC", text)
    return text.encode("utf-8", "surrogatepass").translate(None, SPACES)


def _read(part: Any) -> Any:
    """What a policy reads of a chat, of a message or of a part of its content."""
    # The commonest kinds first, because a start reads a million prompts.
    if isinstance(part, str):
        return _letters(part)
    if part is None or isinstance(part, (int, float)):
        return part
    if isinstance(part, list):
        return [_read(inner) for inner in part]
    if not isinstance(part, (dict, Mapping)):
        return part
    if "role" in part:
        return [_read(part["role"]), _read(part.get("content")), _read(part.get("tool_calls"))]  # what templates write
    return [(str(name), _read(value)) for name, value in sorted(part.items())]


def file_fingerprints(folder: Path) -> dict[str, str]:
    """Fingerprints of the small files of a model's directory: configuration, tokenizer, chat template, code."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in SMALL]
    return {file.name: file_fingerprint(file) for file in files if file.is_file()}


def file_fingerprint(file: Path) -> str:
    """The fingerprint of a file's content."""
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=8)).hexdigest()
