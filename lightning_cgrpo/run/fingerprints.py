"""Fingerprints of prompts and of files: equal for equal content."""

from __future__ import annotations

from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.prompts.fingerprints import record_fingerprints

LINEAGE = "lineage.json"
"""The record that an exported model carries."""
SMALL = (".json", ".jinja", ".model", ".txt", ".py")
"""Suffixes of the small files of a model's directory."""


def source_fingerprints(source: Any) -> Tensor | None:
    """`record_fingerprints` of a source's prompts; None if nothing is known of the prompts without making them.

    Args:
        source: a `PromptSource`, or a user's own class with prompts.
    """
    rows = getattr(source, "rows", None)
    if rows is not None:
        return record_fingerprints(rows)
    names = getattr(source, "names", None)
    if names is not None:
        return record_fingerprints([{"prompt": name} for name in names])
    return None


def file_fingerprints(folder: Path) -> dict[str, str]:
    """Fingerprints of the small files of a model's directory: configuration, tokenizer, chat template, code.

    The record of an export is none of them, because it changes no answer.
    """
    files = [file for file in sorted(folder.iterdir()) if file.suffix in SMALL and file.name != LINEAGE]
    return {file.name: file_fingerprint(file) for file in files if file.is_file()}


def file_fingerprint(file: Path) -> str:
    """The fingerprint of a file's content."""
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=8)).hexdigest()
