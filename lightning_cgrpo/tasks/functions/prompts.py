"""Prompts of any data set, texts or chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.prompts.records import Record
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.text_policy import complete

Chat = list[dict[str, Any]]


class Prompts(PromptSource):
    """Prompts in memory; columns are lists, None where a row lacks the column."""

    rows: Sequence[Mapping[str, Any]]

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = rows
        self.columns = list(dict.fromkeys(name for row in rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def groups(self, index: Tensor) -> PromptGroups:
        rows = [self.rows[prompt] for prompt in index.tolist()]
        return PromptGroups(index, {name: [row.get(name) for row in rows] for name in self.columns})


def columns(record: Record, prompt_column: str = "prompt", system_prompt: str | None = None) -> dict[str, Any]:
    """Columns of a record: ``prompt``, a text or a chat, and its other fields.

    Args:
        prompt_column: field with the prompt.
        system_prompt: first message of chats without a system message; turns texts into chats.

    Raises:
        RecordError: the prompt is neither text nor chat, or another field is called ``prompt``.
    """
    others = {name: value for name, value in record.values.items() if name != prompt_column}
    if "prompt" in others:
        raise record.error(f"Expected no field 'prompt' beside '{prompt_column}', but got one: rename it.")
    prompt = record.field(prompt_column)
    if not isinstance(prompt, list):
        text = record.check_text(prompt, f"field '{prompt_column}'")
        prompt = text if system_prompt is None else [{"role": "user", "content": text}]
    if isinstance(prompt, list):
        prompt = _check_chat(record, prompt, prompt_column)
        if system_prompt is not None and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": system_prompt}, *prompt]
    return {"prompt": prompt, **others}


def _check_chat(record: Record, messages: list[Any], column: str) -> Chat:
    if not messages:
        raise record.error(f"Expected field '{column}' to be a text or messages, but got an empty list.")
    for number, message in enumerate(messages, 1):
        what = f"message {number} of field '{column}'"
        if not isinstance(message, dict) or not ({"role", "content"} <= message.keys() or message.get("tool_calls")):
            raise record.error(f"Expected {what} to be an object with 'role' and 'content', but got {message!r:.80}.")
        record.check_text(message.get("role"), f"'role' in {what}")
        # A list is the content of a message with images. Calls of tools stand beside a content, or alone.
        if not isinstance(content := message.get("content"), list):
            if content or not message.get("tool_calls"):
                record.check_text(content, f"'content' in {what}")
        elif not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise record.error(f"Expected every part of 'content' in {what} to be an object with a 'type'.")
    return [complete(message) for message in messages]
