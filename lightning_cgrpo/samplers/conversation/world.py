"""The side of tools and users in a batch of conversations, and the events that happen in them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import valid_text
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.core.user_code import TimeLimitError, UserCodeError, describe_error
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from lightning_cgrpo.samplers.conversation.tools import InvalidCallError, Tool, call_tool, user_message


@dataclass(frozen=True)
class Turn:
    """Events of a turn of the policy."""

    end: int  # the answer's tokens up to the end of the turn
    called: tuple[str, ...] = ()  # tools that were called, also with an error
    invalid: int = 0  # calls of no tool, or with unreadable text or arguments
    failed: int = 0  # calls whose tool raised, or took too long


@dataclass
class Conversation:
    """An answer of several turns."""

    tools: Mapping[str, Tool]
    user: Callable[[str], Any] | None = None  # replies to a turn without calls
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    length: int = 0  # tokens so far, with the tools' results
    cut: bool = False  # no room for another turn, or the user failed to reply
    hung: bool = False  # a tool or the user may still be running


@dataclass
class Conversations:
    """Replies to the policy's turns with the results of the tools that they call, or as the user; see `Replies`.

    Args:
        conversations: in the order of the answers.
        max_turns: most turns of the policy; calls in the last turn are not made, and no user replies to it.
        time_limit: seconds for a call.
        stop_tokens: a turn that ends otherwise, with a stop string, gets the template's end of a turn.
    """

    template: ChatTemplate
    conversations: list[Conversation]
    max_turns: int | None
    time_limit: float | None
    stop_tokens: Sequence[int]

    def __call__(self, row: int, turn: list[int], room: int) -> list[int]:
        talk = self.conversations[row]
        talk.length += len(turn)
        last = self.max_turns is not None and len(talk.turns) + 1 >= self.max_turns
        results: list[dict[str, Any]] = []
        events: Counter[str] = Counter()
        used: list[str] = []
        # 1. Read the turn.
        try:
            message = self.template.parse(turn)
        except InvalidCallError as error:
            message = {"role": "assistant", "content": self.template.text(turn, special=True)}
            events["invalid"] += 1
            results.append(_tool_message("unknown", {"error": valid_text(error)}))
        # 2. Make its calls.
        for call in message.get("tool_calls") or []:
            function = call["function"]
            name = function.get("name")
            if last:
                talk.cut = True
                continue
            try:
                result = call_tool(talk.tools, function, self.time_limit)
                used.append(name)
            except InvalidCallError as error:
                events["invalid"] += 1
                result = str({"error": valid_text(error)})
            except Exception as error:  # of the tool, for the policy to read
                events["failed"] += 1
                used.append(name)
                talk.hung = talk.hung or isinstance(error, TimeLimitError)
                result = str({"error": _short_error(error)})
            results.append(_tool_message(name, result))
        talk.messages.append(message)
        talk.turns.append(Turn(talk.length, tuple(used), events["invalid"], events["failed"]))
        # 3. The user replies to a turn without calls.
        if not results and talk.user is not None and not last:
            results = self._user_message(talk, message["content"])
        # 4. Encode the reply, if the policy can continue after it.
        if not results:
            return []
        reply = None
        if not last:
            reply = self._encode_reply(results, room, turn[-1] in self.stop_tokens)
        if reply is None:
            talk.cut = True
            return []
        talk.messages += results
        talk.length += len(reply)
        return reply

    def _encode_reply(self, messages: list[dict[str, Any]], room: int, ended: bool) -> list[int] | None:
        """Tokens of a reply; None for more than `room` tokens, or if the chat template raises on the reply."""
        try:
            return self.template.reply(messages, room, ended)
        except Exception as error:  # of the template's own code
            warnings.warn(
                f"The chat template raised {describe_error(error)}; the conversation ends and counts as truncated.",
                stacklevel=2,
            )
            return None

    def _user_message(self, talk: Conversation, turn: str) -> list[dict[str, Any]]:
        """The user's reply to a turn without calls; without one, or if the user fails, the conversation ends."""
        assert talk.user is not None
        try:
            reply = user_message(talk.user, turn, self.time_limit)
        except Exception as error:  # of the user's own code
            talk.cut = True
            talk.hung = talk.hung or isinstance(error, TimeLimitError)
            warnings.warn(
                f"user_message raised {describe_error(error)}; the conversation ends and counts as truncated.",
                stacklevel=2,
            )
            return []
        return [] if reply is None else [{"role": "user", "content": valid_text(reply)}]

    def cut_off(self, row: int, tokens: list[int]) -> None:
        """Record an answer's last turn, which the limit of tokens ended, from all tokens of the answer."""
        talk = self.conversations[row]
        talk.messages.append({"role": "assistant", "content": self.template.text(tokens[talk.length :])})
        talk.length = len(tokens)
        talk.turns.append(Turn(talk.length))
        talk.cut = True


def _tool_message(name: Any, result: Any) -> dict[str, Any]:
    return {"role": "tool", "name": valid_text(name), "content": valid_text(result)}


def _short_error(error: Exception) -> str:
    """A tool's error for the policy: its message, or its class's name without a message.

    Of what is no `Exception`, such as SystemExit, the name says enough.
    """
    short = type(error.__cause__).__name__ if isinstance(error, UserCodeError) else valid_text(error)
    return short or type(error).__name__


def event_kinds(tools: Sequence[str]) -> dict[str, SignalKind]:
    """Names and kinds of the events' signals, see `event_signals`."""
    kinds: dict[str, SignalKind] = {"turns": "number", "calls": "number", "invalid_call": "any", "failed_call": "any"}
    return kinds | {f"called_{tool}": "indicator" for tool in tools}


def event_signals(turns: Sequence[Sequence[Sequence[Turn]]], tools: Sequence[str], mask: Tensor) -> dict[str, Signal]:
    """Signals of events.

    - ``turns``, ``calls``: numbers ``[B, G]``.
    - ``called_TOOL``: 1 for answers that called the tool, ``[B, G]``.
    - ``invalid_call``, ``failed_call``: at the last token of each turn, of all calls, ``[B, G, T]``.

    Args:
        turns: B lists of G lists.
        mask: ``[B, G, T]``, the policy's own tokens.
    """
    answers = list(chain.from_iterable(turns))
    # Events at the last token of each turn, [3, B G, T].
    steps = torch.zeros(3, len(answers), mask.shape[-1], device="cpu")
    for row, answer in enumerate(answers):
        for turn in answer:
            calls_made = turn.invalid + len(turn.called)
            events = [turn.invalid, turn.failed, calls_made]
            steps[:, row, turn.end - 1] = torch.tensor(events, dtype=steps.dtype, device="cpu")
    invalid, failed, calls = steps.to(mask.device).view(3, *mask.shape)

    def of_answers(values: list[int]) -> Signal:
        return Signal(torch.tensor(values, dtype=torch.float32, device=mask.device).view(mask.shape[:2]))

    signals = {
        "turns": of_answers([len(answer) for answer in answers]),
        "calls": Signal(calls.sum(-1)),
        "invalid_call": Signal(invalid, invalid, calls),
        "failed_call": Signal(failed, failed, calls),
    }
    for tool in tools:
        signals[f"called_{tool}"] = of_answers([_called_tool(answer, tool) for answer in answers])
    return signals


def _called_tool(answer: Sequence[Turn], tool: str) -> bool:
    return any(tool in turn.called for turn in answer)
