"""The environments of conversations: made by a factory, and used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.samplers.conversation.tools import Tool, methods


class Environments:
    """Environments for the conversations of a rollout; none without a factory.

    Attributes:
        has_user: they reply to turns without calls.
        reward: name of their own reward, None without.
    """

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._made: list[Any] = [] if factory is None else [self._new()]
        self.has_user = any(hasattr(first, "user_message") for first in self._made)
        self.reward = next((type(first).__name__ for first in self._made if hasattr(first, "get_reward")), None)

    @property
    def example(self) -> list[Any]:
        """An environment that shows the tools; none without a factory."""
        return self._made[:1]

    def take(self, count: int) -> list[Any]:
        """`count` environments, made where there are too few; none without a factory."""
        if self._factory is None:
            return []
        self._made += [self._new() for _ in range(count - len(self._made))]
        return self._made[:count]

    def drop(self, hung: Sequence[bool]) -> None:
        """Forget the first environments that are hung, because a call in a thread may still change them."""
        later = self._made[len(hung) :]
        self._made = [env for env, still in zip(self._made, hung, strict=False) if not still] + later

    def _new(self) -> Any:
        assert self._factory is not None
        with UserCode("environment_factory"):
            return self._factory()


def tools_by_name(functions: Sequence[Tool], environments: Sequence[Any]) -> dict[str, Tool]:
    """Functions, and methods of an environment."""
    every = [*functions, *(tool for one in environments for tool in methods(one))]
    return {tool.__name__: tool for tool in every}
