"""The environments of conversations: made by a factory, and used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.samplers.conversation.tools import Tool, environment_tools


class Environments:
    """Environments for the conversations of a rollout; none without a factory.

    Attributes:
        has_user: they reply to turns without calls.
        reward: name of their own reward, None without.
    """

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._instances: list[Any] = []
        self.has_user = False
        self.reward: str | None = None
        if factory is not None:
            first = self._make_environment()
            self._instances.append(first)
            self.has_user = hasattr(first, "user_message")
            if hasattr(first, "get_reward"):
                self.reward = type(first).__name__

    @property
    def example(self) -> list[Any]:
        """An environment that shows the tools; none without a factory."""
        return self._instances[:1]

    def take(self, count: int) -> list[Any]:
        """`count` environments, made where there are too few; none without a factory."""
        if self._factory is None:
            return []
        while len(self._instances) < count:
            self._instances.append(self._make_environment())
        return self._instances[:count]

    def drop(self, hung: Sequence[bool]) -> None:
        """Forget the first environments that are hung, because a call in a thread may still change them."""
        used = self._instances[: len(hung)]
        unused = self._instances[len(hung) :]
        kept = [environment for environment, is_hung in zip(used, hung, strict=False) if not is_hung]
        self._instances = kept + unused

    def _make_environment(self) -> Any:
        assert self._factory is not None
        with UserCode("environment_factory"):
            return self._factory()


def tools_by_name(functions: Sequence[Tool], environments: Sequence[Any]) -> dict[str, Tool]:
    """Functions, and methods of an environment."""
    tools = list(functions)
    for environment in environments:
        tools += environment_tools(environment)
    return {tool.__name__: tool for tool in tools}
