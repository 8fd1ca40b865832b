"""Worlds that a vector environment steps by a single call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.user_code import UserCode, describe_error
from lightning_cgrpo.tasks.gymnasium.worlds import Moments, Worlds

Vector: TypeAlias = VectorEnv[Any, Any, Any]


@dataclass(eq=False)
class WorldsTogether(Worlds):
    """M worlds of a vector environment, which resets them from a list of M seeds.

    A single call steps all of them, also worlds that have ended, of which nothing is recorded.

    Args:
        make: makes a vector environment of a number of worlds.
    """

    make: Callable[[int], Vector]
    _vectors: dict[int, Vector] = field(default_factory=dict, init=False)  # by their number of worlds
    _actions: np.ndarray | None = field(default=None, init=False)  # the last of each world, [M, ...]

    def reset(self, seeds: Sequence[int], options: Sequence[dict[str, Any] | None]) -> Moments:
        if any(chosen != options[0] for chosen in options):
            raise UserError(
                f"Expected the same options for all worlds '{self.name}' that step together, but got "
                f"{options[0]} and others, try environment.vector=null."
            )
        self.seeds = seeds
        self._actions = None
        worlds: Any = self._vector  # whose resets take more than the one seed of `VectorEnv`
        count = len(seeds)
        reset = partial(worlds.reset, seed=list(seeds), options=copied(options[0]))
        observations, infos = self._call_vector(reset, ", try a class whose reset takes a list of seeds")
        return Moments(
            # A copy, because the vector environment may write the next observations into the same array.
            observations=np.array(observations),
            rewards=np.zeros(count),
            terminated=np.zeros(count, dtype=bool),
            truncated=np.zeros(count, dtype=bool),
            infos=self._recorded_infos(infos, range(count)),
        )

    def step(self, rows: Sequence[int], actions: np.ndarray) -> Moments:
        if self._actions is None:
            self._actions = np.repeat(actions[:1], len(self.seeds), axis=0)
        # Ended worlds, which rest or begin again, get an action that they have taken before.
        self._actions[rows] = actions
        worlds = self._vector
        chosen = self._actions.copy()
        observations, rewards, terminated, truncated, infos = self._call_vector(lambda: worlds.step(chosen))
        return Moments(
            np.asarray(observations)[rows],
            np.asarray(rewards)[rows],
            np.asarray(terminated)[rows],
            np.asarray(truncated)[rows],
            self._recorded_infos(infos, rows),
        )

    @property
    def _vector(self) -> Vector:
        count = len(self.seeds)
        if count not in self._vectors:
            worlds: Vector = self._call_vector(lambda: self.make(count))
            if worlds.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
                raise UserError(
                    f"Expected the vector environment of '{self.name}' to return the last observation of an episode, "
                    "but got autoreset_mode SAME_STEP, try NEXT_STEP."
                )
            self._vectors[count] = worlds
        return self._vectors[count]

    def _call_vector(self, function: Callable[[], Any], remedy: str = "") -> Any:
        try:
            with UserCode(f"the vector environment of '{self.name}'"):
                return function()
        except Exception as error:
            raise UserError(
                f"Expected the vector environment of '{self.name}' to run, but it raised "
                f"{describe_error(error)}{remedy}."
            ) from error

    def _recorded_infos(self, infos: dict[str, Any], rows: Sequence[int]) -> Sequence[dict[str, Any]]:
        """The recorded entries of each world: ``info[name] [M]``, in worlds for which ``info[_name] [M]`` is true."""
        entries: list[dict[str, Any]] = [{} for _ in rows]
        for name in self.infos:
            if name not in infos:
                continue
            is_present = infos.get(f"_{name}", np.ones(len(self.seeds), dtype=bool))
            for entry, row in zip(entries, rows, strict=True):
                if is_present[row]:
                    entry[name] = infos[name][row]
        return entries

    def close(self) -> None:
        while self._vectors:
            self._vectors.popitem()[1].close()
