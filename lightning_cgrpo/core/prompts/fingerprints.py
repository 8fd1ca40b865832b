"""The fingerprint of a prompt: equal for prompts that a policy can't tell apart.

- Prompts: `prompt_fingerprint`, of what a policy reads of one; `identities` of a batch.
- Rows of a data set: `record_fingerprints`, of all columns of each row, beside that of its prompt.
- Any other value, such as the name of a cluster: `number_of`, of its whole content.
"""

from __future__ import annotations

import hashlib
import marshal
import pickle
from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, prompt_tokens

EMPTY = hashlib.blake2b(digest_size=8)
READ = ("tools", "chat_template_kwargs")
"""Columns that a chat template reads beside ``prompt``."""
BITS = 53
"""Size of a fingerprint, which is exact in float64, because collectives sum it."""


def prompt_fingerprint(columns: Mapping[str, Any]) -> int:
    """A number of `BITS` bits, of what a policy reads.

    Of a text or chat these are roles, texts, images and calls; forms of a letter, runs of spaces, parts of one text and
    fields that chat templates skip do not count, because a policy may read two prompts as one that differ in nothing
    else. Without a column ``prompt``, as for worlds, the prompt is all columns: a seed and its options.

    Example:
        >>> parts = [{"role": "user", "content": [{"type": "text", "text": " Add 1 23"}], "weight": 1}]
        >>> chats = [parts, [{"role": "user", "content": "Add  1 23"}], [{"role": "user", "content": "Add 12 3"}]]
        >>> first, second, third = (prompt_fingerprint({"prompt": chat}) for chat in chats)
        >>> first == second, second == third
        (True, False)
    """
    if "prompt" not in columns:
        return number_of(columns)
    prompt = columns["prompt"]
    digest = EMPTY.copy()  # faster than a new one
    digest.update(_letters(prompt) if isinstance(prompt, str) else plain_bytes(_read(prompt)))
    for name in READ:
        if value := columns.get(name):  # an empty list is no tools
            digest.update(plain_bytes([name, _read(value)]))
    return _number(digest)


def number_of(value: Any) -> int:
    """A number of `BITS` bits, of a value's whole content; the order of a mapping's keys does not count."""
    digest = EMPTY.copy()
    _add(value, digest)
    return _number(digest)


def _number(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest()) >> (64 - BITS)


def identities(prompts: PromptGroups, rollouts: Rollouts | None = None) -> Tensor:
    """The fingerprints of prompts, ``[B]`` float64 on the CPU; those of prompts without columns are their index.

    Args:
        rollouts: answers to the prompts, whose tokens and images then decide, as within one look.
    """
    if not prompts.columns:
        return prompts.index.double().cpu()
    columns: Mapping[str, Any] = prompts.columns
    if rollouts is not None and "prompt" in columns and "prompt_ids" in rollouts.inputs:
        tokens = prompt_tokens(rollouts.inputs)
        columns = {"tokens": tokens, "images": [_images(prompt) for prompt in columns["prompt"]]}
    rows = ({name: values[row] for name, values in columns.items()} for row in range(len(prompts)))
    return torch.tensor([prompt_fingerprint(row) for row in rows], dtype=torch.float64, device="cpu")


def cluster_numbers(prompts: PromptGroups, samples: Tensor) -> Tensor:
    """Equal numbers ``[B]`` for prompts of one cluster, float64 on the CPU; `samples` where clusters are not known."""
    if prompts.clusters is None:
        return samples
    return torch.tensor([number_of(cluster) for cluster in prompts.clusters], dtype=torch.float64, device="cpu")


def record_fingerprints(rows: Iterable[Mapping[str, Any]]) -> Tensor:
    """Fingerprints of rows of columns ``[N, 2]`` int64: that of the whole row, and that of its prompt."""
    numbers = []
    for row in rows:
        digest = EMPTY.copy()
        digest.update(plain_bytes(row))
        whole = int.from_bytes(digest.digest(), "little", signed=True)
        numbers.append((whole, prompt_fingerprint(row)))
    return torch.tensor(numbers, dtype=torch.int64, device="cpu").reshape(-1, 2)


def plain_bytes(value: Any) -> bytes:
    """Bytes of a value's content."""
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


def _letters(text: str) -> bytes:
    """A text with one space for each run of spaces, and none at its ends."""
    if not text.isascii():
        text = normalize("NFKC", text)
    return b" ".join(text.encode("utf-8", "surrogatepass").split())


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
        return _plain(part)  # an image counts with its shape
    if "role" in part:
        return [_read(part["role"]), _read_content(part.get("content")), _read(part.get("tool_calls"))]
    return [(str(name), _read(value)) for name, value in sorted(part.items())]


def _read_content(content: Any) -> Any:
    """A message's content, whose texts in a row are one text, as chat templates write them."""
    if not isinstance(content, list):
        return _read(content)
    read: list[Any] = []
    texts: list[str] = []
    for part in [*content, None]:
        if isinstance(part, Mapping) and part.get("type") == "text":
            texts.append(str(part.get("text") or ""))
            continue
        if texts:
            read.append(_letters("".join(texts)))
            texts = []
        if part is not None:
            read.append(_read(part))
    return read[0] if len(read) == 1 and isinstance(read[0], bytes) else read


def _images(prompt: Any) -> list[Any]:
    """The parts of a chat that are no texts."""
    contents = [] if isinstance(prompt, str) else [message.get("content") for message in prompt]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]


def _add(value: Any, digest: hashlib.blake2b) -> None:
    """Add a value's content to a digest; the order of a mapping's keys does not count."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(repr(key).encode("utf-8", "surrogatepass"))
            _add(value[key], digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for item in value:
            _add(item, digest)
    elif isinstance(value, (str, int, float, bool, type(None))):
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
    else:
        array = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.asarray(value)
        known = array.dtype.kind != "O"
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data if known else pickle.dumps(value))
