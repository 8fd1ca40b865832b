"""Copies of a Gymnasium environment, each with a seed."""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from lightning_cgrpo.errors import UserError, first_line

World: TypeAlias = gymnasium.Env[Any, Any]
Result = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, termination, truncation and info of a step."""


class Worlds(ABC):
    """M copies of an environment; every reset replays them from seeds."""

    def __init__(self, make: Callable[[], World], name: str) -> None:
        self.make, self.name = make, name
        self.seeds: Sequence[int] = ()

    @abstractmethod
    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Sequence[Any]:
        """Start a world for each of M seeds, and return the observations."""

    @abstractmethod
    def step(self, rows: Sequence[int], actions: np.ndarray) -> Sequence[Result]:
        """Step the worlds `rows`, which have not ended, by actions ``[len(rows), ...]``."""

    def fault(self, what: str, row: int | None = None) -> UserError:
        seeds = f"seed {self.seeds[row]}" if row is not None else f"a seed of {list(self.seeds[:8])}"
        return UserError(f"Expected the world '{self.name}', reset with {seeds}, to {what}.")


class WorldsHere(Worlds):
    """Worlds in this process, stepped in turn."""

    def __init__(self, make: Callable[[], World], name: str) -> None:
        super().__init__(make, name)
        self._worlds: list[World] = []

    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Sequence[Any]:
        self.seeds = seeds
        while len(self._worlds) < len(seeds):
            self._worlds.append(self.make())
        return [
            self._called(row, self._worlds[row].reset, seed=seed, options=chosen)[0]
            for row, (seed, chosen) in enumerate(zip(seeds, options, strict=True))
        ]

    def step(self, rows: Sequence[int], actions: np.ndarray) -> Sequence[Result]:
        return [self._called(row, self._worlds[row].step, action) for row, action in zip(rows, actions, strict=True)]

    def _called(self, row: int, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            raise self.fault(f"run, but it raised {type(error).__name__}: {first_line(error)}", row) from error


class WorldsApart(Worlds):
    """A process for every world, by Gymnasium's `AsyncVectorEnv`.

    Args:
        time_limit: seconds for a step or reset of all worlds; None for no limit.
    """

    def __init__(self, make: Callable[[], World], name: str, time_limit: float | None) -> None:
        super().__init__(make, name)
        self.time_limit = time_limit
        self._vector: AsyncVectorEnv | None = None

    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Sequence[Any]:
        if any(chosen != options[0] for chosen in options):
            raise UserError(
                "Expected equal options of all prompts with processes, but got others, try processes: false."
            )
        self.seeds = seeds
        if not seeds:
            return []
        if self._vector is None or self._vector.num_envs != len(seeds):
            self._closed()
            # Ended worlds are reset by themselves at their next step, whose result is dropped.
            self._vector = AsyncVectorEnv([self.make] * len(seeds), autoreset_mode=AutoresetMode.NEXT_STEP)
            self._actions = np.stack([self._vector.single_action_space.sample()] * len(seeds))
        self._vector.reset_async(seed=list(seeds), options=options[0])
        observations, _ = self._waited(self._vector.reset_wait)
        return list(observations)

    def step(self, rows: Sequence[int], actions: np.ndarray) -> Sequence[Result]:
        if not rows:
            return []
        assert self._vector is not None, "reset comes first"
        self._actions[list(rows)] = actions
        self._vector.step_async(self._actions)
        observations, rewards, terminated, truncated, infos = self._waited(self._vector.step_wait)
        told = {name: values for name, values in infos.items() if not name.startswith("_")}
        return [
            (
                observations[row],
                rewards[row],
                terminated[row],
                truncated[row],
                {name: values[row] for name, values in told.items() if infos[f"_{name}"][row]},
            )
            for row in rows
        ]

    def _waited(self, wait: Callable[..., Any]) -> Any:
        try:
            return wait(timeout=self.time_limit)
        except multiprocessing.TimeoutError:
            self._closed()
            raise self.fault(f"answer within {self.time_limit:g} seconds, but it did not") from None
        except Exception as error:
            self._closed()
            raise self.fault(f"run, but it raised {type(error).__name__}: {first_line(error)}") from error

    def _closed(self) -> None:
        if self._vector is not None:
            self._vector.close(terminate=True)
            self._vector = None
