"""Episodes of Gymnasium worlds, recorded step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from lightning_cgrpo.tasks.gymnasium.actions import Actions
from lightning_cgrpo.tasks.gymnasium.worlds import Moments, Worlds


@dataclass(frozen=True)
class Recording:
    """The recorded parts of episodes.

    Args:
        space: of observations.
        infos: entries of ``info``, 0 where a step reports none.
        max_steps: of the longest episode (T).
    """

    space: Box
    actions: Actions
    infos: Sequence[str]
    max_steps: int


class GymnasiumEpisodes:
    """M episodes as records of T + 1 moments; the state of episode m at moment t is m * (T + 1) + t.

    Args:
        worlds: reset from `seeds` and `options`, one for each episode.
        finished: called when all episodes have ended.
    """

    def __init__(
        self,
        worlds: Worlds,
        seeds: Sequence[int],
        options: Sequence[dict[str, Any] | None],
        recording: Recording,
        device: torch.device,
        finished: Callable[[GymnasiumEpisodes], None] | None = None,
    ) -> None:
        self.worlds = worlds
        self.seeds = seeds
        self.options = options
        self.unseen = set(recording.infos)  # entries that no step has had so far
        self._recording = recording
        self._device = device
        self._finished = finished
        self._moments = recording.max_steps + 1
        self._running = len(seeds)
        # 1. A row for each moment of each episode.
        size = len(seeds) * self._moments
        dtype = torch.get_default_dtype()
        space = recording.space
        is_image = space.dtype == np.uint8 and len(space.shape) > 1
        kind = torch.uint8 if is_image else dtype
        self._observations = torch.zeros(size, *space.shape, dtype=kind, device="cpu")
        facts = ("reward", *(f"info.{name}" for name in recording.infos))
        self._facts = {name: torch.zeros(size, dtype=dtype, device="cpu") for name in facts}
        flags = ("terminated", "truncated")
        self._flags = {name: torch.zeros(size, dtype=torch.bool, device="cpu") for name in flags}
        # Views of the tensors, whose single numbers NumPy writes faster.
        named = {"observation": self._observations, **self._facts, **self._flags}
        self._written = {name: values.numpy() for name, values in named.items()}
        self._columns = [(name, f"info.{name}") for name in recording.infos]
        if recording.actions.size is None:
            self._actions = torch.zeros(size, dtype=torch.int64, device="cpu")
        else:
            self._actions = torch.zeros(size, recording.actions.size, dtype=dtype, device="cpu")
        self._over = np.zeros(size, dtype=bool)
        # 2. The first moment of each episode.
        start = torch.arange(len(seeds), device="cpu") * self._moments
        if len(seeds):
            self._write_observations(range(len(seeds)), start.numpy(), worlds.reset(seeds, options).observations)
        self.start = start.to(device)

    def observe(self, states: Tensor) -> Tensor:
        return self._observations.index_select(0, states.cpu()).to(self._device)

    def ended(self, states: Tensor) -> Tensor:
        return torch.from_numpy(self._over[states.cpu().numpy()]).to(self._device)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        current = states.cpu().numpy()  # [M]
        chosen = actions.cpu()
        reached = states + 1
        # 1. Ended episodes keep their states.
        over = self._over[current]
        if over.all():
            return states
        if over.any():
            running = torch.from_numpy(~over)
            current = current[~over]
            chosen = chosen[running]
            reached = states + running.to(states.device)
        # 2. Step the worlds of the others.
        if self._finished is not None:
            self._actions[torch.from_numpy(current + 1)] = chosen.to(self._actions.dtype)
        rows = (current // self._moments).tolist()
        moments = self.worlds.step(rows, self._recording.actions.of_world(chosen.numpy()).copy())
        self._write_moments(rows, current + 1, moments)
        if not self._running and self._finished is not None:
            self._finished(self)
        return reached

    def _write_moments(self, rows: Sequence[int], states: np.ndarray, moments: Moments) -> None:
        """Write moments together, because NumPy takes as long for a number as for a hundred."""
        written = self._written
        self._write_observations(rows, states, moments.observations)
        written["reward"][states] = self._check_numbers(rows, "reward", moments.rewards)
        for name, column in self._columns:
            values = [info.get(name, 0.0) for info in moments.infos]
            if name in self.unseen and any(name in info for info in moments.infos):
                self.unseen.remove(name)
            written[column][states] = self._check_numbers(rows, column, values)
        written["terminated"][states] = moments.terminated
        written["truncated"][states] = moments.truncated
        over = written["terminated"][states] | written["truncated"][states]
        self._over[states] = over
        self._running -= int(over.sum())

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        """Facts about steps, with the world's own actions; the observation reached is a fact if it is a vector."""
        after = reached.cpu()
        recorded = self._facts | self._flags
        facts = {name: values[after].to(self._device) for name, values in recorded.items()}
        if self._observations.dim() == 2:
            facts["observation"] = self.observe(reached)
        chosen = torch.from_numpy(self._recording.actions.of_world(actions.cpu().numpy()))
        facts["action"] = chosen.to(self._device)
        return facts

    def recorded(self, row: int) -> dict[str, Tensor]:
        """All that was recorded of an episode that has ended, by name: ``[L + 1, ...]``, the reset's moment first.

        ``action`` holds the action that led to a moment, if `finished` was given.
        """
        moments = slice(row * self._moments, (row + 1) * self._moments)
        ended = self._flags["terminated"][moments] | self._flags["truncated"][moments]
        length = int(ended.int().argmax()) + 1
        named = {"observation": self._observations, **self._facts, **self._flags, "action": self._actions}
        return {name: values[moments][:length] for name, values in named.items()}

    def _write_observations(
        self, rows: Sequence[int], states: np.ndarray, observations: Sequence[np.ndarray] | np.ndarray
    ) -> None:
        """Write the observations that `rows` have at `states`, after a check of their shapes and numbers."""
        written = self._written["observation"]
        shape = self._recording.space.shape
        if not isinstance(observations, np.ndarray) or observations.shape != (len(rows), *shape):
            for row, observation in zip(rows, observations, strict=True):
                if observation.shape != shape:
                    raise self.worlds.fault(f"return observations of shape {shape}, but got {observation.shape}", row)
        written[states] = observations
        finite = np.isfinite(written[states])
        if not finite.all():
            is_finite = finite.reshape(len(rows), -1).all(1)  # [rows]
            row = rows[int(is_finite.argmin())]
            raise self.worlds.fault("return finite observations, but got NaN or infinity", row)

    def _check_numbers(
        self, rows: Sequence[int], name: str, values: Sequence[Any] | np.ndarray
    ) -> Sequence[float] | np.ndarray:
        """The values as numbers; an error names the first world that gave no finite number."""
        if isinstance(values, np.ndarray) and values.dtype.kind == "f" and np.isfinite(values).all():
            return values
        try:
            numbers = list(map(float, values))
        except (TypeError, ValueError, OverflowError):  # an integer beyond all floats
            numbers = [math.nan]
        if all(map(math.isfinite, numbers)):
            return numbers
        # Find the world whose value is no finite number.
        for row, value in zip(rows, values, strict=True):
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise self.worlds.fault(f"return a number as {name}, but got {value!r:.80}", row) from None
            if not math.isfinite(number):
                break
        raise self.worlds.fault(f"return a finite {name}, but got {number}", row)
