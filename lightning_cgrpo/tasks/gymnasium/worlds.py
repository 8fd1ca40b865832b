"""Copies of a Gymnasium environment, each with a seed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np

from lightning_cgrpo.core.child_process import ChildProcess
from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.user_code import UserCode, describe_error

World: TypeAlias = gymnasium.Env[Any, Any]


Moment: TypeAlias = tuple[np.ndarray, Any, bool, bool, dict[str, Any]]
"""A step's results in one world; a plain tuple, because making it is a tenth of the time of a small world's step."""


class Moments(NamedTuple):
    """Observations, rewards and facts of M worlds after a step, or after a reset with rewards of 0.

    Args:
        infos: the entries that are recorded, as the worlds give them.
    """

    observations: Sequence[np.ndarray] | np.ndarray
    rewards: Sequence[Any] | np.ndarray
    terminated: Sequence[bool] | np.ndarray
    truncated: Sequence[bool] | np.ndarray
    infos: Sequence[dict[str, Any]]


@dataclass(eq=False)
class Worlds(ABC):
    """M copies of an environment; every reset replays them from seeds.

    Args:
        make: makes a copy.
        name: for errors.
        infos: entries of ``info`` to keep.
    """

    make: Callable[..., Any]
    name: str
    infos: Sequence[str] = ()
    seeds: Sequence[int] = field(default=(), init=False)

    @abstractmethod
    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Moments:
        """Start a world for each of M seeds, at least one."""

    @abstractmethod
    def step(self, rows: Sequence[int], actions: np.ndarray) -> Moments:
        """Step the worlds `rows`, at least one and none ended, by actions ``[len(rows), ...]``."""

    @abstractmethod
    def close(self) -> None:
        """Close all worlds."""

    def fault(self, what: str, row: int) -> UserError:
        return UserError(f"Expected the world '{self.name}', reset with seed {self.seeds[row]}, to {what}.")


class WorldsOneByOne(Worlds):
    """Worlds that are called each by itself."""

    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Moments:
        self.seeds = seeds
        starts = [(seed, copied(chosen)) for seed, chosen in zip(seeds, options, strict=True)]
        return _by_column(self._call_all(range(len(seeds)), reset_world, starts))

    def step(self, rows: Sequence[int], actions: np.ndarray) -> Moments:
        return _by_column(self._call_all(rows, step_world, [(action,) for action in actions]))

    @abstractmethod
    def _call_all(self, rows: Sequence[int], function: Callable[..., Moment], arguments: Sequence[Any]) -> list[Moment]:
        """Call a function of a world and arguments for each of the `rows`; world m exists from its first call."""

    def raised_error(self, error: str, row: int) -> UserError:
        return self.fault(f"run, but it raised {error}", row)


def _by_column(moments: Sequence[Moment]) -> Moments:
    return Moments(*zip(*moments, strict=True))


def reset_world(world: World, infos: Sequence[str], seed: int, options: dict[str, Any] | None) -> Moment:
    """The first moment, with a copy of the observation, because worlds may share the array that they write into."""
    observation, info = world.reset(seed=seed, options=options)
    return np.array(observation), 0.0, False, False, _chosen_infos(info, infos)


def step_world(world: World, infos: Sequence[str], action: Any) -> Moment:
    """The moment after an action, with a copy of the observation as in `reset_world`."""
    observation, reward, terminated, truncated, info = world.step(action)
    return np.array(observation), reward, bool(terminated), bool(truncated), _chosen_infos(info, infos)


def _chosen_infos(info: dict[str, Any], infos: Sequence[str]) -> dict[str, Any]:
    if not infos:
        return {}
    return {name: info[name] for name in infos if name in info}


@dataclass(eq=False)
class WorldsHere(WorldsOneByOne):
    """Worlds in this process, called in turn."""

    _worlds: list[World] = field(default_factory=list, init=False)

    def _call_all(self, rows: Sequence[int], function: Callable[..., Moment], arguments: Sequence[Any]) -> list[Moment]:
        while len(self._worlds) <= max(rows, default=-1):
            self._worlds.append(self.make())
        moments: list[Moment] = []
        try:
            with UserCode(f"the world '{self.name}'"):
                for row, values in zip(rows, arguments, strict=True):
                    moments.append(function(self._worlds[row], self.infos, *values))
        except Exception as error:
            raise self.raised_error(describe_error(error), rows[len(moments)]) from error
        return moments

    def close(self) -> None:
        while self._worlds:
            self._worlds.pop().close()


@dataclass(eq=False)
class WorldsApart(WorldsOneByOne):
    """A forked process for every world, because worlds of many packages can't be pickled. Values pass unchanged.

    Args:
        time_limit: seconds for a step or reset of all worlds; None for no limit.
    """

    time_limit: float | None = None
    _processes: list[ChildProcess] = field(default_factory=list, init=False)

    def _call_all(self, rows: Sequence[int], function: Callable[..., Moment], arguments: Sequence[Any]) -> list[Moment]:
        while len(self._processes) <= max(rows, default=-1):
            self._processes.append(ChildProcess("world", _serve_world, self.make, self.infos))
        deadline = None
        if self.time_limit is not None:
            deadline = time.monotonic() + self.time_limit
        # All worlds get their calls before the first answers, so that they run at once.
        try:
            for row, values in zip(rows, arguments, strict=True):
                self._processes[row].pipe.send((function, values))
            return [self._receive_moment(row, deadline) for row in rows]
        except BaseException:  # moments that nobody read would be taken for those of the next step
            self.close()
            raise

    def _receive_moment(self, row: int, deadline: float | None) -> Moment:
        process = self._processes[row]
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not process.pipe.poll(seconds):
            raise self.fault(f"answer within {self.time_limit:g} seconds, but it did not", row)
        try:
            answer = process.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self.fault(f"run, but its process ended with status {process.status()}", row) from error
        if isinstance(answer, str):
            raise self.raised_error(answer, row)
        return answer

    def close(self) -> None:
        for process in self._processes:
            process.end()
        self._processes = []


def _serve_world(pipe: Connection, make: Callable[[], World], infos: Sequence[str]) -> None:
    world: World | None = None
    while True:
        function, values = pipe.recv()
        try:
            if world is None:
                world = make()
            pipe.send(function(world, infos, *values))
        except BaseException as error:
            pipe.send(describe_error(error))
