"""A model's chat template: tokens of replies, and calls in the policy's turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.errors import UserError, first_line, valid_text
from lightning_cgrpo.policies.rendering import complete_message, lost_text
from lightning_cgrpo.samplers.conversation.tools import InvalidCallError

if TYPE_CHECKING:
    from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
    from lightning_cgrpo.policies.rendering import Messages

USER = {"role": "user", "content": "dummy"}
ANSWER = {"role": "assistant", "content": "dummy"}
TAG = re.compile(r"\w[^\w\s]|[^\w\s]\w")  # as in <tool_call>; numbers and spaces are text
HALF_PAIR = re.compile("[\ud800-\udfff]")
FIRST_MARK = 0xF0000
"""A character for private use; marks take the places of control tokens in texts of the world."""
NAME, KEY, VALUE, CONTENT, RESULT = "dummy_name", "dummy_key", "dummy_value", "dummy_content", "dummy_result"


class ChatTemplate:
    """Reads and writes the parts of a conversation, without encoding the policy's tokens again.

    The tokens of a reply are the difference between two renderings of a dummy conversation, as in TRL. Calls are
    parsed by the tokenizer's ``response_template`` if it has one, and otherwise by the form in which the template
    writes a call, if this is a JSON object.

    Args:
        schemas: of the tools; without any, turns have no calls.
        user: whether a user replies to turns without calls.
        options: variables of the template besides the policy's.
        calls: whether written turns have calls of tools, although no schema is given.

    Raises:
        UserError: there is no template, or it drops calls or results, writes earlier turns differently when a turn
            follows, or has an unknown form of calls.
    """

    def __init__(
        self,
        policy: CausalLMPolicy,
        schemas: Sequence[dict[str, Any]],
        user: bool = False,
        options: Mapping[str, Any] | None = None,
        calls: bool = False,
    ) -> None:
        self.tokenizer = policy.tokenizer
        self.stops = policy.stop_tokens
        self.schemas = list(schemas)
        self.model = policy.name
        self.options = {**policy.chat_template_kwargs, **(options or {})}
        if self.tokenizer.chat_template is None:
            raise self._error("to have a chat template, but it has none")
        self._extra: dict[str, str] = {}
        self._format: _JSONFormat | None = None
        self._longest_token = max(map(len, self.tokenizer.get_vocab()))
        # Each control token has a mark. The longest tokens come first, so that none is read as a part of another.
        controls = sorted(self._control_tokens(), key=len, reverse=True)
        self._marks = {chr(FIRST_MARK + number): control for number, control in enumerate(controls)}
        self._mark_of = {control: mark for mark, control in self._marks.items()}
        self._control = re.compile("|".join(map(re.escape, controls)) or "(?!)")
        self._marked = re.compile(f"([{chr(FIRST_MARK)}-{chr(FIRST_MARK + len(controls))}])")
        self._start: list[int] = self._token_ids(self._render([USER], True))
        if user and not self._preserves_prefixes([USER, ANSWER, USER, ANSWER, USER]):
            raise self._error("to preserve prefixes, but it writes earlier turns differently once the user replies")
        if self.schemas or calls:
            self._check_calls()
        if self.schemas and getattr(self.tokenizer, "response_template", None) is None:
            self._format = self._find_json_format()
            if self._format is None:
                raise self._error(
                    "to write calls as JSON objects, or its tokenizer to have a response_template, but got neither, "
                    "try trl.chat_template_utils.add_response_schema"
                )

    def _check_calls(self) -> None:
        text = self._render([USER, _turn_with_call(NAME, {KEY: VALUE}), _tool_result(NAME, RESULT)])
        dropped = [part for part in (NAME, KEY, VALUE, RESULT) if part not in text]
        if dropped:
            raise self._error(f"to write calls and results of tools, but it drops {', '.join(dropped)}")
        # Some templates write an empty reasoning part into the last turn alone.
        fitting = []
        reasoning: tuple[dict[str, str], ...] = ({}, {"reasoning_content": "dummy"})
        for extra in reasoning:
            turns = [_turn_with_call(NAME, {}, extra), _tool_result(NAME, RESULT)]
            if self._preserves_prefixes([USER, *turns, *turns]):
                fitting.append(extra)
        if not fitting:
            raise self._error("to preserve prefixes, but it writes earlier turns differently once a turn follows")
        self._extra = fitting[0]

    def reply(self, messages: Messages, room: int | None = None, ended: bool = True) -> list[int] | None:
        """Tokens from the end of a turn to the start of the next turn, given the messages of tools or of the user.

        A turn without a stop token, which is not `ended`, gets the template's.

        Control tokens in the messages become plain text: a tool's text must not end its own turn.

        Returns:
            None for more tokens than `room`.
        """
        # 1. A reply that cannot fit is not encoded, because it may have any length.
        if room is not None:
            characters = sum(len(message["content"]) for message in messages)
            if characters > room * self._longest_token:
                return None
        # 2. Write a dummy conversation up to the end of a turn, and again with the reply after the turn.
        marked = [self._mark_message(message) for message in messages]
        turn: dict[str, Any] = ANSWER
        if marked[0]["role"] == "tool":
            turn = _turn_with_call(marked[0].get("name", NAME), {}, self._extra)
        before = self._until_stop([USER, turn])
        whole = self._token_ids(self._render([USER, turn, *marked], True))
        if whole[: len(before)] != before:
            raise self._error("to preserve prefixes, but it writes earlier turns differently before this reply")
        # 3. The reply is the difference, with the template's stop token for a turn without a stop token.
        start = len(before) if ended else len(before) - 1
        tokens = whole[start:]
        if room is not None and len(tokens) > room:
            return None
        return tokens

    def harmless(self, text: str) -> str:
        """A text for a prompt, with a space in each control token."""
        return self._control.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", text)

    def _control_tokens(self) -> list[str]:
        """Texts of the tokens that structure conversations: special ones, stop tokens, and tags in the template."""
        template = str(self.tokenizer.chat_template)
        controls = []
        for number, token in self.tokenizer.added_tokens_decoder.items():
            is_tag = TAG.search(token.content) is not None and token.content in template
            if token.special or int(number) in self.stops or is_tag:
                controls.append(token.content)
        return controls

    def _mark_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with `_mark_controls` for its texts."""
        marked = dict(message)
        for key in ("name", "content"):
            if key in message:
                marked[key] = self._mark_controls(message[key])
        return marked

    def _mark_controls(self, text: str) -> str:
        """The text with a mark in the place of each control token, for `_token_ids`."""
        text = self._marked.sub("\ufffd", text)
        return self._control.sub(lambda match: self._mark_of[match[0]], text)

    def answer(self, messages: Messages) -> tuple[list[int], list[bool]]:
        """Tokens of a written answer as sampling gives them, and whether each token is the policy's own.

        Raises:
            UserError: the messages are not single turns of the assistant with replies between, or the template begins
                a written turn differently from a sampled turn.
        """
        messages = [complete_message(message) for message in messages]
        parts = [list(part) for _, part in groupby(messages, lambda message: message["role"] == "assistant")]
        roles = [message["role"] for message in messages]
        if len(parts) % 2 == 0 or roles[0] != "assistant" or any(len(part) > 1 for part in parts[::2]):
            raise UserError(
                f"Expected a completion to be turns of the assistant with replies between them, but got roles {roles}."
            )
        tokens: list[int] = []
        sampled: list[bool] = []
        for number, part in enumerate(parts):
            is_turn = number % 2 == 0
            written = self._written_turn(part[0]) if is_turn else self.reply(part) or []
            tokens += written
            sampled += [is_turn] * len(written)
        return tokens, sampled

    def parse(self, tokens: list[int]) -> dict[str, Any]:
        """The message of a turn, with ``tool_calls`` if there are any.

        Raises:
            InvalidCallError: the text of a call cannot be read.
        """
        if not self.schemas:
            return {"role": "assistant", "content": self.text(tokens)}
        if self._format is None:
            message, calls = self._parse_by_tokenizer(tokens)
        else:
            content, calls = self._format.parse(self.text(tokens, special=True))
            # Calls may be marked by special tokens, which the message's text leaves out.
            message = {"role": "assistant", "content": content if calls else self.text(tokens)}
        if calls:
            try:
                written = json.dumps(calls, ensure_ascii=False, default=repr)
            except RecursionError:
                raise InvalidCallError("Expected a call of few levels, but got a deeper one.") from None
            if HALF_PAIR.search(written):
                raise InvalidCallError("Expected valid Unicode in a call, but got half of a surrogate pair.")
            message["tool_calls"] = [_tool_call(name, arguments) for name, arguments in calls]
        return message

    def _parse_by_tokenizer(self, tokens: list[int]) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
        """The message of a turn, and names and arguments of its calls, by the tokenizer's ``response_template``."""
        try:
            parsed = self.tokenizer.parse_response(tokens, prefix=self._start, tools=self.schemas) or {}
            functions = [call.get("function", call) for call in parsed.get("tool_calls") or []]
            calls = [(function["name"], function.get("arguments")) for function in functions]
        except Exception as error:  # of any kind, by the tokenizer's own rules
            raise InvalidCallError(f"The call cannot be read: {first_line(error)}.") from None
        return {"role": "assistant", **parsed, "content": valid_text(parsed.get("content") or "")}, calls

    def text(self, tokens: list[int], special: bool = False) -> str:
        """The text of a turn without its stop token."""
        if tokens and tokens[-1] in self.stops:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)

    def _written_turn(self, message: dict[str, Any]) -> list[int]:
        """Tokens of a written turn with its stop token."""
        tokens = self._until_stop([USER, message])
        start = len(self._start)
        if tokens[:start] != self._start:
            raise self._error("to begin written turns as it begins sampled turns, but it does not")
        turn = tokens[start:]
        if not turn or turn[-1] not in self.stops:
            ends = ", ".join(map(str, self.tokenizer.convert_ids_to_tokens(list(self.stops))))
            raise self._error(f"to end written turns with a stop token ({ends}), but it does not")
        # The template must write all of the message.
        text = self.tokenizer.decode(turn)
        lost = lost_text(message, text)
        if lost is not None:
            raise self._error(f"to write the turns of completions, but it drops {lost!r:.60}")
        for call in message.get("tool_calls") or []:
            name = call.get("function", call)["name"]
            if name not in text:
                raise self._error(f"to write the calls of completions, but it drops {name}")
        return turn

    def _preserves_prefixes(self, turns: Messages) -> bool:
        """Check that each part of a conversation of five messages begins with the parts before."""
        parts = []
        for count in range(1, 6):
            if count % 2 == 0:  # the last message is the assistant's
                parts.append(self._until_stop(turns[:count]))
            else:
                parts.append(self._token_ids(self._render(turns[:count], True)))
        return all(part == after[: len(part)] for part, after in pairwise(parts))

    def _until_stop(self, messages: Messages) -> list[int]:
        """Tokens up to the last turn's end: the first of its stop tokens that is a control token, as in sampling."""
        ids = self._token_ids(self._render(messages))
        before = self._token_ids(self._render(messages[:-1], True))
        if ids[: len(before)] == before:
            controls = {*self.stops} & self.tokenizer.added_tokens_decoder.keys()
            for place in range(len(before), len(ids)):
                if ids[place] in controls:
                    return ids[: place + 1]
        # The last one, because a template may begin written turns otherwise than sampled ones.
        ends = [place for place, token in enumerate(ids) if token in self.stops]
        return ids[: ends[-1] + 1] if ends else ids

    def _render(self, messages: Messages, goes_on: bool = False) -> str:
        options = {**self.options, "tokenize": False, "add_generation_prompt": goes_on}
        try:
            return self.tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # of a template's own code
            roles = ", ".join(message["role"] for message in messages)
            has_calls = any(message.get("tool_calls") for message in messages)
            what = "calls and results of tools" if has_calls else f"a chat of {roles}"
            raise self._error(f"to write {what}, but it raises: {first_line(error)}") from error

    def _token_ids(self, text: str) -> list[int]:
        if self._marked.search(text):
            ids = []
            for piece in self._marked.split(text):
                ids += self._spelled_ids(piece)
            return ids
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _spelled_ids(self, piece: str) -> list[int]:
        """Tokens of a text, or of a mark's control token in two parts, which the tokenizer reads as plain text."""
        control = self._marks.get(piece)
        if control is None:
            return self._token_ids(piece)
        return self._token_ids(control[:1]) + self._token_ids(control[1:])

    def _find_json_format(self) -> _JSONFormat | None:
        """The form of calls, read from a written call; None if the call is no JSON object."""
        text = self._render([USER, _turn_with_call(NAME, {KEY: VALUE}, self._extra) | {"content": CONTENT}])
        for start, letter in enumerate(text):
            if letter != "{":
                continue
            # 1. An object with the dummy name and arguments is the call.
            try:
                call, end = json.JSONDecoder().raw_decode(text, start)
            except ValueError:
                continue
            key_of = {json.dumps(value): key for key, value in call.items()}
            name = key_of.get(json.dumps(NAME))
            arguments = key_of.get(json.dumps({KEY: VALUE}))
            if not name or not arguments:
                continue
            # 2. The marks around it: after the turn's text, and before the turn's stop token.
            stops = filter(None, self.tokenizer.convert_ids_to_tokens(list(self.stops)))
            places = [text.find(stop, end) for stop in stops]
            first_stop = min([place for place in places if place >= 0], default=len(text))
            after = text[end:first_stop]
            _, content, before = text[:start].rpartition(CONTENT)
            return _JSONFormat(before.strip() if content else "", after.strip(), name, arguments)
        return None

    def _error(self, expected: str) -> UserError:
        return UserError(
            f"Expected the chat template of '{self.model}' {expected}; conversations need such a template."
        )


@dataclass(frozen=True)
class _JSONFormat:
    """Calls as JSON objects between two marks; without a first mark, a call is a whole turn."""

    before: str
    after: str
    name: str
    arguments: str

    def parse(self, text: str) -> tuple[str, list[tuple[Any, Any]]]:
        """The text before the calls, and names and arguments of the calls."""
        if self.before:
            content, *pieces = text.split(self.before)
            return content.strip(), [self._parse_call(piece) for piece in pieces]
        if text.lstrip().startswith("{"):
            return "", [self._parse_call(text)]
        return text.strip(), []

    def _parse_call(self, piece: str) -> tuple[Any, Any]:
        if self.after:
            piece, after, rest = piece.partition(self.after)
            if not after or rest.strip():
                raise InvalidCallError(f"Expected a call to end with {self.after}.")
        try:
            call = json.loads(piece)
            arguments = call[self.arguments]
            name = call[self.name]
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            return name, arguments
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidCallError(f"Expected a JSON object with {self.name} and {self.arguments}: {error}.") from None


def _turn_with_call(name: str, arguments: dict[str, str], extra: dict[str, str] | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [_tool_call(name, arguments)], **(extra or {})}


def _tool_call(name: Any, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _tool_result(name: str, content: str) -> dict[str, str]:
    return {"role": "tool", "name": name, "content": content}
