"""Prompts of any data set, texts or chats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.prompts.records import Record
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.rendering import (
    COMPLETION,
    IMAGES,
    VARIABLES,
    check_variables,
    complete_message,
    with_images,
    without_nulls,
)

Chat = list[dict[str, Any]]


@dataclass(eq=False)
class Prompts(PromptSource):
    """Prompts in memory; columns are lists, None where a row lacks the column.

    Args:
        cluster: column whose equal values mark prompts of one sample; a row without a value is a sample of its own.
    """

    rows: Sequence[Mapping[str, Any]]
    cluster: str | None = None

    def __post_init__(self) -> None:
        self.columns = list(dict.fromkeys(chain.from_iterable(self.rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def groups(self, index: Tensor) -> PromptGroups:
        rows = [self.rows[prompt] for prompt in index.tolist()]
        columns = {name: [row.get(name) for row in rows] for name in self.columns}
        if self.cluster is None:
            return PromptGroups(index, columns)
        clusters = []
        for number, value in zip(index.tolist(), columns[self.cluster], strict=True):
            clusters.append(f"row {number}" if _is_missing(value) else repr(value))
        return PromptGroups(index, columns, clusters=clusters)


def _is_missing(value: Any) -> bool:
    """True for None, and for what an empty cell of a table is read as: an empty text, or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def columns(record: Record, prompt_column: str = "prompt", system_prompt: str | None = None) -> dict[str, Any]:
    """Columns of a record: ``prompt``, a text or a chat, and its other fields.

    As in TRL, the fields ``image`` and ``images`` are parts of the prompt, and ``tools`` and ``chat_template_kwargs``
    are variables of its chat template. Calls in messages have one form, see `complete_message`.

    Args:
        prompt_column: field with the prompt.
        system_prompt: first message of chats without a system message; turns texts into chats.

    Raises:
        RecordError: the prompt is neither text nor chat, another field is called ``prompt``, or images or variables of
            the template can't be read.
    """
    if record.filled:
        names = [name for name in (prompt_column, COMPLETION, *VARIABLES) if name in record.values]
        chats = {name: record.values[name] for name in names}
        record = replace(record, values=record.values | without_nulls(chats))
    others = {name: value for name, value in record.values.items() if name != prompt_column}
    if "prompt" in others:
        raise record.error(f"Expected no field 'prompt' beside '{prompt_column}', but got one: rename it.")
    # 1. The prompt: a text, or a chat with the system prompt.
    prompt = record.field(prompt_column)
    if not isinstance(prompt, list):
        prompt = record.check_text(prompt, f"field '{prompt_column}'")
        if system_prompt is not None:
            prompt = _user_chat(prompt)
    if isinstance(prompt, list):
        prompt = _check_chat(record, prompt, prompt_column)
        if system_prompt is not None and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": system_prompt}, *prompt]
    # 2. Its images, and the variables of its template.
    try:
        images = _listed_images(others)
        if images:
            chat = _user_chat(prompt) if isinstance(prompt, str) else prompt
            prompt = with_images(chat, images)
        others |= check_variables(others)
    except ValueError as error:
        raise record.error(f"Expected {error}.") from None
    # 3. A completion that is a chat.
    if _is_chat(others.get(COMPLETION)):
        others[COMPLETION] = _complete_messages(record, others[COMPLETION])
    return {"prompt": prompt, **others}


def _user_chat(text: str) -> Chat:
    return [{"role": "user", "content": text}]


def _listed_images(columns: Mapping[str, Any]) -> list[Any]:
    """The images of the columns ``image`` or ``images``.

    Raises:
        ValueError: both are given, or ``images`` is no list.
    """
    present = {name: columns[name] for name in IMAGES if columns.get(name) is not None}
    if len(present) > 1:
        raise ValueError("field 'image' or field 'images', but got both")
    if "image" in present:
        return [present["image"]]
    images = present.get("images", [])
    if not isinstance(images, (list, tuple)):
        raise ValueError(f"field 'images' to be a list of images, but got {type(images).__name__}")
    return list(images)


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, dict) and "role" in part for part in value)


def _complete_messages(record: Record, messages: Chat) -> Chat:
    try:
        return [complete_message(message) for message in messages]
    except UserError as error:
        raise record.error(str(error)) from None


def _check_chat(record: Record, messages: list[Any], column: str) -> Chat:
    if not messages:
        raise record.error(f"Expected field '{column}' to be a text or messages, but got an empty list.")
    for number, message in enumerate(messages, 1):
        what = f"message {number} of field '{column}'"
        if not isinstance(message, dict) or not ({"role", "content"} <= message.keys() or message.get("tool_calls")):
            raise record.error(f"Expected {what} to be an object with 'role' and 'content', but got {message!r:.80}.")
        record.check_text(message.get("role"), f"'role' in {what}")
        content = message.get("content")
        if isinstance(content, list):  # of a message with images
            if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
                raise record.error(f"Expected every part of 'content' in {what} to be an object with a 'type'.")
        elif content or not message.get("tool_calls"):  # calls of tools may stand alone
            record.check_text(content, f"'content' in {what}")
    return _complete_messages(record, messages)
