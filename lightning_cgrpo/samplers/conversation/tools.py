"""Tools and environments in the form of TRL 1.16: functions with type hints and docstrings, and classes of methods."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from lightning_cgrpo.core.errors import UserError, first_line
from lightning_cgrpo.core.user_code import UserCode, called, describe_error

Tool = Callable[..., Any]
NO_TOOLS = ("reset", "get_reward", "user_message")


class InvalidCallError(ValueError):
    """A call that names no tool, or whose text or arguments cannot be read; the message is for the policy."""


def environment_tools(environment: Any) -> list[Tool]:
    """An environment's tools: its public methods except `NO_TOOLS`.

    Raises:
        UserError: there is no method ``reset``.
    """
    kind = type(environment)
    if not callable(getattr(kind, "reset", None)):
        raise UserError(f"Expected {kind.__name__} of environment_factory to have a method reset, but it has none.")
    # Of the class, because members of the instance would evaluate its properties.
    functions = inspect.getmembers(kind, inspect.isfunction)
    names = [name for name, _ in functions if not name.startswith("_") and name not in NO_TOOLS]
    return [getattr(environment, name) for name in names]


def tool_schema(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool, from its type hints and docstring, for the chat template.

    Raises:
        UserError: a type hint or the description of the tool or an argument is missing.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        described_tool: dict[str, Any] = get_json_schema(tool)
    except Exception as error:  # transformers' own kinds of errors
        raise UserError(
            f"Expected tool '{tool.__name__}' to have type hints and a docstring with a section `Args:` that describes "
            f"each argument, but got: {first_line(error)}."
        ) from error
    return described_tool


def call_tool(tools: Mapping[str, Tool], call: Mapping[str, Any], time_limit: float | None) -> str:
    """The text of the result of the tool that the policy asked for.

    Args:
        call: ``{"name": …, "arguments": {…}}``.
        time_limit: seconds; None calls in this thread, without a limit.

    Raises:
        InvalidCallError: there is no such tool, or its arguments don't fit.
        TimeLimitError: the tool is still running; Python cannot end its thread.
        Exception: raised by the tool.
    """
    name = call.get("name")
    arguments = call.get("arguments")
    if not isinstance(name, str) or name not in tools:
        raise InvalidCallError(f"Tool {name} not found.")
    if not isinstance(arguments, dict):
        raise InvalidCallError(f"Arguments of {name} are not an object.")
    try:
        inspect.signature(tools[name]).bind(**arguments)
    except TypeError as error:
        raise InvalidCallError(f"{name}: {error}") from None
    result = called(tools[name], arguments, f"tool {name}", time_limit)
    with UserCode(f"the text of a result of tool {name}"):
        return str(result)


def user_message(user: Callable[[str], Any], turn: str, time_limit: float | None) -> str | None:
    """The next message of an environment's user, or None at the end of the conversation.

    Raises:
        TimeLimitError: the user has not answered in time.
        Exception: raised by the user.
    """
    message = called(user, {"turn": turn}, "user_message", time_limit)
    with UserCode("the text of a user_message"):
        return None if message is None else str(message)


def own_reward(environment: Any) -> float | None:
    """Reward of a finished environment by its method ``get_reward``; None where none applies, NaN for a fault."""
    name = f"{type(environment).__name__}.get_reward"
    try:
        reward = called(environment.get_reward, {}, name, None)
        with UserCode(name):
            return None if reward is None else float(reward)
    except Exception as error:
        warnings.warn(f"{name} raised {describe_error(error)}; the answer has no such reward.", stacklevel=2)
        return math.nan
