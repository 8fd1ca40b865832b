"""Prompts and demonstrations as a policy reads them, and checks of their rendered text before training.

- `with_images`, `template_variables`: a data set's columns become parts of a prompt.
- `complete_message`: messages get one form.
- `check_rendered`, `end_of_turn`: find parts that a chat template drops, and the end of a turn.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_cgrpo.core.errors import UserError

Messages = list[dict[str, Any]]
Tools = Sequence[dict[str, Any]]
Variables = Mapping[str, Any]
"""Variables of a chat template for one prompt, among them the schemas of its tools."""

IMAGES = ("image", "images")
"""Columns of a prompt's image or images, as in TRL."""
VARIABLES = ("tools", "chat_template_kwargs")
"""Columns with variables of the chat template, as in TRL."""
COMPLETION = "completion"
WRITTEN = ("system", "developer", "user")
"""Roles whose texts a template has to write; of other turns some templates leave out the reasoning."""
QUESTION = {"role": "user", "content": "dummy_question"}
ANSWER = {"role": "assistant", "content": "dummy_answer"}
A_CHAT = [{"role": "system", "content": "dummy_system"}, QUESTION]
"""Rendered for the manifest, because a template's text may depend on the day."""


# --- messages and columns in one form


def without_nulls(value: Any) -> Any:
    """The value without the None that Arrow fills in for the fields which one object has and another lacks."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def complete_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message without None, with which Parquet fills absent fields, and with the arguments of calls as objects.

    Calls of tools may lack a content.

    Raises:
        UserError: the arguments of a call are no JSON object.
    """
    completed = _without_none(message)
    content = completed.get("content")
    if isinstance(content, list):
        completed["content"] = [_without_none(part) for part in content]
    if "tool_calls" not in completed:
        return completed
    calls = completed["tool_calls"]
    if isinstance(calls, list):
        completed["tool_calls"] = [_complete_call(call) for call in calls]
    return {"content": "", **completed}


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that aren't None; unlike `without_nulls`, parts and arguments of calls stay as they are."""
    return {key: value for key, value in fields.items() if value is not None}


def _complete_call(call: Any) -> Any:
    """A call whose arguments are an object; OpenAI's form has them as JSON text."""
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    if isinstance(function, dict):
        return {**call, "function": _complete_call(function)}
    text = call.get("arguments")
    if not isinstance(text, str):
        return call
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise UserError(f"Expected the arguments of a call to be an object, or one as JSON text, but got {text!r:.80}.")
    return {**call, "arguments": arguments}


def with_images(messages: Messages, images: Sequence[Any]) -> Messages:
    """The messages with the images in their empty parts ``{"type": "image"}``, else before the first user's text.

    Raises:
        ValueError: there is no user's message, or another number of empty parts than of images.
    """
    messages = [dict(message) for message in messages]
    image_parts = [part for part in _content_parts(messages) if part["type"] == "image"]
    if not image_parts:
        _put_before_user_text(messages, images)
        return messages
    empty = sum(part.get("image") is None for part in image_parts)
    if empty != len(images):
        raise ValueError(
            f"as many empty parts of type 'image' in the messages as images, {len(images)}, but got {empty}"
        )
    remaining = iter(images)
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = [_filled_part(part, remaining) for part in message["content"]]
    return messages


def _content_parts(messages: Messages) -> list[dict[str, Any]]:
    """The parts of all messages whose content is a list."""
    parts = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts += content
    return parts


def _put_before_user_text(messages: Messages, images: Sequence[Any]) -> None:
    """Put images before the text of the first message of a user, in place; raises as `with_images`."""
    user = next((message for message in messages if message["role"] == "user"), None)
    if user is None:
        raise ValueError("a user's message, to show the images in, but there is none")
    texts = user["content"]
    if not isinstance(texts, list):
        texts = [{"type": "text", "text": texts}]
    shown = [{"type": "image", "image": image} for image in images]
    user["content"] = [*shown, *texts]


def _filled_part(part: dict[str, Any], images: Iterator[Any]) -> dict[str, Any]:
    """The part, with the next of the images if it is an empty part of type 'image'."""
    if part["type"] == "image" and part.get("image") is None:
        return {**part, "image": next(images)}
    return part


def check_variables(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns `VARIABLES` of a row, tools from JSON text as objects.

    Raises:
        ValueError: a column holds something else.
    """
    checked: dict[str, Any] = {}
    if columns.get("tools") is not None:
        tools = _parsed_json(columns["tools"])
        are_schemas = isinstance(tools, list) and all(isinstance(tool, dict) and _tool_name(tool) for tool in tools)
        if not are_schemas:
            raise ValueError(
                f"field 'tools' to be a list of JSON schemas of functions, but got {columns['tools']!r:.80}"
            )
        checked["tools"] = tools
    if columns.get("chat_template_kwargs") is not None:
        options = _parsed_json(columns["chat_template_kwargs"])
        if not isinstance(options, dict):
            got = f"{columns['chat_template_kwargs']!r:.80}"
            raise ValueError(f"field 'chat_template_kwargs' to be an object, but got {got}")
        checked["chat_template_kwargs"] = options
    return checked


def _parsed_json(value: Any) -> Any:
    """The value, read if it is a JSON text; None for another text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def template_variables(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The variables of the chat template for one row of columns."""
    of_row = {name: columns[name][row] for name in VARIABLES if name in columns}
    try:
        checked = check_variables(of_row)
    except ValueError as error:  # of a data source of one's own
        raise UserError(f"Expected {error}.") from None
    variables = dict(checked.get("chat_template_kwargs", {}))
    if checked.get("tools"):
        variables["tools"] = checked["tools"]
    return variables


def variables_of(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """`template_variables` of each of `count` rows.

    Raises:
        UserError: a source of one's own has a column of images that its prompts do not show.
    """
    for name in IMAGES:
        for prompt, images in zip(columns["prompt"], columns.get(name, ()), strict=False):
            has_images = images is not None
            if isinstance(images, (list, tuple)):
                has_images = len(images) > 0
            if has_images and not _shows_image(prompt):
                raise UserError(
                    f"Expected prompts that show their images, but got a column '{name}' beside a prompt of text "
                    "alone, because a data source of one's own gives finished prompts, try PromptDataModule, or parts "
                    "{'type': 'image', 'image': …} in the prompt's messages."
                )
    return [template_variables(columns, row) for row in range(count)]


def _shows_image(prompt: str | Messages) -> bool:
    if isinstance(prompt, str):
        return False
    parts = _content_parts(prompt)
    return any(part.get("type") == "image" and part.get("image") is not None for part in parts)


# --- checks of the rendered text


def check_rendered(tokenizer: Any, model: str, messages: Messages, text: str, variables: Variables) -> None:
    """Look for the parts of a prompt in its rendered text; warn if the template writes today's date.

    Args:
        variables: of the template, tools included.

    Raises:
        UserError: the template drops a message of the system or the user, or a tool, or knows no such variable.
    """
    for message in messages:
        role = message["role"]
        lost = lost_text(message, text) if role in WRITTEN else None
        if lost is not None:
            setting = " (data.system_prompt, or of the data)" if role == "system" else ""
            raise UserError(
                f"Expected the chat template of '{model}' to write the message of the {role}{setting}, but "
                f"it drops {lost!r:.60}, try a part of the user's message instead, or another template."
            )
    for tool in variables.get("tools") or ():
        name = _tool_name(tool)
        if name is not None and name not in text:
            raise UserError(
                f"Expected the chat template of '{model}' to write the tools, but it drops '{name}', try a model whose "
                "template presents tools."
            )
    unknown = _unknown_variables(tokenizer, variables)
    if unknown:
        raise UserError(
            f"Expected variables of the chat template of '{model}' in chat_template_kwargs, but it knows no "
            f"'{unknown[0]}', try without."
        )
    if writes_date(tokenizer, messages, text, variables):
        rank_zero_warn(
            f"The chat template of '{model}' writes today's date into prompts, so a resume on another day reads other "
            "prompts. Try chat_template_kwargs that fix it, such as date_string, or a template without."
        )


def lost_text(message: Mapping[str, Any], text: str) -> str | None:
    """A text of the message that is not in the rendered text, spaces aside; None if all are."""
    content = message.get("content") or ""
    parts = [content]
    if not isinstance(content, str):
        parts = [part.get("text") or "" for part in content]
    rendered = _without_spaces(text)
    for part in parts:
        if _without_spaces(part) not in rendered:
            return part
    return None


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _unknown_variables(tokenizer: Any, variables: Variables) -> list[str]:
    """Variables that the template never names."""
    known = inspect.signature(tokenizer.apply_chat_template).parameters
    template = str(tokenizer.chat_template)
    return [name for name in variables if name not in known and name not in template]


def writes_date(tokenizer: Any, messages: Messages, text: str, variables: Variables) -> bool:
    """True if the prompt reads otherwise where the clock, a function of templates, says something else."""
    if "strftime_now" not in str(tokenizer.chat_template):
        return False
    options = {"add_generation_prompt": True, **variables, "tokenize": False}
    try:
        another = tokenizer.apply_chat_template(messages, **options, strftime_now=lambda form: "another day")
    except Exception:  # of a template that computes with the date
        return True
    return bool(another != text)


def end_of_turn(tokenizer: Any, options: Variables, stops: Sequence[int]) -> int | None:
    """The control token with which the chat template ends a turn of the policy; None if it writes none.

    Of several after an answer the first of the known `stops` is the end, else the last. What is written only if no
    user replies counts only if nothing else is.
    """
    if tokenizer.chat_template is None:
        return None
    # Templates take the content of a message as a text, or as a list of parts.
    as_texts = [QUESTION, ANSWER]
    as_parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in as_texts]
    for messages in (as_texts, as_parts):
        after = _after_answer(tokenizer, options, messages)
        if after is None:
            continue
        # Text that is written whether or not the user replies comes first.
        replied = _after_answer(tokenizer, options, [*messages, messages[0]])
        always = after if replied is None else _common_start(after, replied)
        ends = _control_tokens(tokenizer, always) or _control_tokens(tokenizer, after)
        for token in ends:
            if token in stops:
                return token
        return ends[-1] if ends else None
    return None


def _common_start(first: str, second: str) -> str:
    length = 0
    for letter, other_letter in zip(first, second, strict=False):
        if letter != other_letter:
            break
        length += 1
    return first[:length]


def _after_answer(tokenizer: Any, options: Variables, messages: Messages) -> str | None:
    """The rendered text after `ANSWER`; None if the template doesn't write it."""
    try:
        text = tokenizer.apply_chat_template(messages, **{**options, "tokenize": False})
    except Exception:  # of the template's own code; reading a prompt tells
        return None
    _, answer, after = text.rpartition(ANSWER["content"])
    return after if answer else None


def _control_tokens(tokenizer: Any, text: str) -> list[int]:
    """The control tokens in a text."""
    controls = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [token for token in tokenizer(text, add_special_tokens=False).input_ids if token in controls]


def chat_fingerprint(tokenizer: Any, options: Variables) -> str | None:
    """16 hexadecimal digits of a rendered chat; None if the template writes none."""
    for messages in (A_CHAT, A_CHAT[1:]):
        try:
            text = tokenizer.apply_chat_template(
                messages, **{"add_generation_prompt": True, **options, "tokenize": False}
            )
        except Exception:  # of the template's own code, or of a tokenizer without one
            continue
        return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
    return None
