"""Episodes of Gymnasium worlds, recorded step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from lightning_cgrpo.tasks.gymnasium.worlds import Worlds


class GymnasiumEpisodes:
    """M episodes as records of T + 1 moments; the state of episode m at moment t is m * (T + 1) + t.

    Args:
        worlds: freshly reset.
        observations: of the resets.
        space: of observations.
        first_action: number of the first discrete action.
        infos: entries of ``info`` to record, 0 where a step reports none.
    """

    def __init__(
        self,
        worlds: Worlds,
        observations: Sequence[Any],
        space: Box,
        first_action: int,
        infos: Sequence[str],
        max_steps: int,
        device: torch.device,
    ) -> None:
        self._worlds, self._space, self._first = worlds, space, first_action
        self._device, self._moments = device, max_steps + 1
        size = len(observations) * self._moments
        dtype = torch.get_default_dtype()
        self._observations = torch.zeros(size, *space.shape, dtype=dtype, device="cpu")
        facts = ("reward", *(f"info.{name}" for name in infos))
        self._facts = {name: torch.zeros(size, dtype=dtype, device="cpu") for name in facts}
        flags = ("terminated", "truncated")
        self._flags = {name: torch.zeros(size, dtype=torch.bool, device="cpu") for name in flags}
        self._infos = infos
        start = torch.arange(len(observations), device="cpu") * self._moments
        for row, observation in enumerate(observations):
            self._observations[row * self._moments] = self._checked(row, observation)
        self.start = start.to(device)

    def observe(self, states: Tensor) -> Tensor:
        return self._observations[states.cpu()].to(self._device)

    def ended(self, states: Tensor) -> Tensor:
        here = states.cpu()
        return (self._flags["terminated"][here] | self._flags["truncated"][here]).to(self._device)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        running = ~self.ended(states)
        here = states[running].cpu()
        rows = (here // self._moments).tolist()
        chosen = actions[running].cpu().numpy()
        results = self._worlds.step(rows, chosen if chosen.ndim > 1 else chosen + self._first)
        for row, state, result in zip(rows, (here + 1).tolist(), results, strict=True):
            observation, reward, terminated, truncated, info = result
            self._observations[state] = self._checked(row, observation)
            self._facts["reward"][state] = self._number(row, "reward", reward)
            for name in self._infos:
                self._facts[f"info.{name}"][state] = self._number(row, f"info['{name}']", info.get(name, 0.0))
            self._flags["terminated"][state], self._flags["truncated"][state] = bool(terminated), bool(truncated)
        return states + running

    def report(self, states: Tensor, actions: Tensor, reached: Tensor) -> dict[str, Tensor]:
        """Facts about steps; the observation reached is a fact if it is a vector."""
        here = reached.cpu()
        facts = {name: values[here].to(self._device) for name, values in (self._facts | self._flags).items()}
        if self._observations.dim() == 2:
            facts["observation"] = self.observe(reached)
        return facts | {"action": actions}

    def _checked(self, row: int, observation: Any) -> Tensor:
        array = np.asarray(observation)
        if array.shape != self._space.shape:
            raise self._worlds.fault(f"return observations of shape {self._space.shape}, but got {array.shape}", row)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._worlds.fault("return finite observations, but got NaN or infinity", row)
        return torch.from_numpy(array)

    def _number(self, row: int, name: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self._worlds.fault(f"return a number as {name}, but got {value!r:.80}", row) from None
        if not np.isfinite(number):
            raise self._worlds.fault(f"return a finite {name}, but got {number}", row)
        return number
