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
    if isinstance(prompt, str):
        digest.update(_letters(prompt))
    else:
        digest.update(plain_bytes(_readable(prompt)))
    for name in READ:
        value = columns.get(name)
        if value:  # an empty list is no tools
            digest.update(plain_bytes([name, _readable(value)]))
    return _digest_number(digest)


def number_of(value: Any) -> int:
    """A number of `BITS` bits, of a value's whole content; the order of a mapping's keys does not count."""
    digest = EMPTY.copy()
    _add_content(value, digest)
    return _digest_number(digest)


def _digest_number(digest: hashlib.blake2b) -> int:
    """The first `BITS` bits of a digest."""
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
        columns = {"tokens": tokens, "images": [_image_parts(prompt) for prompt in columns["prompt"]]}
    fingerprints = []
    for row in range(len(prompts)):
        fingerprints.append(prompt_fingerprint({name: values[row] for name, values in columns.items()}))
    return torch.tensor(fingerprints, dtype=torch.float64, device="cpu")


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
        return marshal.dumps(_plain_content(value), 2)


def _plain_content(value: Any) -> Any:
    """Plain containers with the content of a value; an image's or a tensor's is an array."""
    if isinstance(value, Mapping):
        return [(str(name), _plain_content(part)) for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain_content(part) for part in value]
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


def _readable(part: Any) -> Any:
    """What a policy reads of a chat, of a message or of a part of its content."""
    # The commonest kinds first, because a start reads a million prompts.
    if isinstance(part, str):
        return _letters(part)
    if part is None or isinstance(part, (int, float)):
        return part
    if isinstance(part, list):
        return [_readable(inner) for inner in part]
    if not isinstance(part, (dict, Mapping)):
        return _plain_content(part)  # an image counts with its shape
    if "role" in part:
        return [_readable(part["role"]), _readable_content(part.get("content")), _readable(part.get("tool_calls"))]
    return [(str(name), _readable(value)) for name, value in sorted(part.items())]


def _readable_content(content: Any) -> Any:
    """A message's content, whose texts in a row are one text, as chat templates write them."""
    if not isinstance(content, list):
        return _readable(content)
    parts: list[Any] = []
    texts: list[str] = []
    # None ends the last texts.
    for part in [*content, None]:
        if _is_text(part):
            texts.append(str(part.get("text") or ""))
            continue
        if texts:
            parts.append(_letters("".join(texts)))
            texts = []
        if part is not None:
            parts.append(_readable(part))
    # A single text is the same as a content that is a text.
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    return parts


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _image_parts(prompt: Any) -> list[Any]:
    """The parts of a chat that are no texts."""
    if isinstance(prompt, str):
        return []
    images: list[Any] = []
    for message in prompt:
        content = message.get("content")
        if isinstance(content, list):
            images += [part for part in content if not _is_text(part)]
    return images


def _add_content(value: Any, digest: hashlib.blake2b) -> None:
    """Add a value's content to a digest; the order of a mapping's keys does not count."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(repr(key).encode("utf-8", "surrogatepass"))
            _add_content(value[key], digest)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for item in value:
            _add_content(item, digest)
    elif isinstance(value, (str, int, float, bool, type(None))):
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
    else:
        # A tensor, or any value of which NumPy makes an array; an array of objects is pickled.
        array = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype.kind == "O":
            digest.update(pickle.dumps(value))
        else:
            digest.update(np.ascontiguousarray(array).data)
