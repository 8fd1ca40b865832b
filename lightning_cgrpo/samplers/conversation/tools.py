"""Tools and environments in the form of TRL 1.16: functions with type hints and docstrings, and classes of methods."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from lightning_cgrpo.errors import UserError, first_line
from lightning_cgrpo.threads import started, submitted

Tool = Callable[..., Any]
NO_TOOLS = ("reset", "get_reward", "user_message")


class InvalidCallError(ValueError):
    """A call that names no tool, or whose text or arguments cannot be read; the message is for the policy."""


def imported(item: str | Callable[..., Any], argument: str) -> Callable[..., Any]:
    """A callable, or the callable at the import path ``module.name``.

    Raises:
        UserError: the path cannot be imported; the message names the argument.
    """
    if not isinstance(item, str):
        return item
    module, _, name = item.rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"Expected {argument} to be given by import paths like my_module.my_function, but got '{item}', which "
            f"can't be imported ({first_line(error)})."
        ) from error
    return found


def methods(environment: Any) -> list[Tool]:
    """An environment's tools: its public methods except `NO_TOOLS`.

    Raises:
        UserError: there is no method ``reset``.
    """
    kind = type(environment)
    if not callable(getattr(kind, "reset", None)):
        raise UserError(f"Expected {kind.__name__} of environment_factory to have a method reset, but it has none.")
    # Of the class, because members of the instance would evaluate its properties.
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
    return [getattr(environment, name) for name in names if not name.startswith("_") and name not in NO_TOOLS]


def schema(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool, from its type hints and docstring, for the chat template.

    Raises:
        UserError: a type hint or the description of the tool or an argument is missing.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        found: dict[str, Any] = get_json_schema(tool)
    except Exception as error:  # transformers' own kinds of errors
        raise UserError(
            f"Expected tool '{tool.__name__}' to have type hints and a docstring with a section `Args:` that describes "
            f"each argument, but got: {first_line(error)}."
        ) from error
    return found


def called(tools: Mapping[str, Tool], call: Mapping[str, Any], time_limit: float | None) -> tuple[str, Any]:
    """Call the tool that the policy asked for; returns its name and result.

    Args:
        call: ``{"name": …, "arguments": {…}}``.
        time_limit: seconds; None calls in this thread, without a limit.

    Raises:
        InvalidCallError: there is no such tool, or its arguments don't fit.
        TimeoutError: the tool is still running; Python cannot end its thread.
        Exception: raised by the tool.
    """
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or name not in tools:
        raise InvalidCallError(f"Tool {name} not found.")
    if not isinstance(arguments, dict):
        raise InvalidCallError(f"Arguments of {name} are not an object.")
    try:
        inspect.signature(tools[name]).bind(**arguments)
    except TypeError as error:
        raise InvalidCallError(f"{name}: {error}") from None
    if time_limit is None:
        result = tools[name](**arguments)
    else:
        result = _within(time_limit, started(tools[name], arguments, f"tool {name}"))
    if inspect.isawaitable(result):
        coroutine = submitted(result)
        try:
            result = _within(time_limit, coroutine)
        finally:
            coroutine.cancel()
    return name, result


def _within(time_limit: float | None, future: Future[Any]) -> Any:
    if not wait([future], time_limit).done:
        raise TimeoutError(f"No result within {time_limit:g} s.")
    return future.result()


def asked(user: Callable[[str], Any], turn: str, time_limit: float | None) -> str | None:
    """The next message of an environment's user, or None at the end of the conversation.

    Raises:
        TimeoutError: the user has not answered in time.
        Exception: raised by the user.
    """
    reply = user(turn) if time_limit is None else _within(time_limit, started(user, {"turn": turn}, "user_message"))
    return None if reply is None else str(reply)


def own_reward(environments: Sequence[Any]) -> list[float | None]:
    """Rewards of finished environments by their method ``get_reward``; None where a reward does not apply."""
    rewards = [environment.get_reward() for environment in environments]
    return [submitted(reward).result() if inspect.isawaitable(reward) else reward for reward in rewards]
