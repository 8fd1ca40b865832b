"""Logged agents at 10 Hz. docs/navsim_score_scenes.md §11; officially ``metric_cache_processor.py:96-199``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from driving_scenes.scene import MOVING_TYPES, Agents, Scene
from navsim_score.geometry.boxes import wrap_angle
from navsim_score.simulation.timing import DT, EARLY, STEPS


@dataclass(frozen=True, eq=False)
class AgentTracks:
    """K tracks of A agents over T steps of 0.1 s, padded with absent agents."""

    poses: Tensor  # [K, A, T, 3] x, y, yaw of the boxes' centers; 0 where absent
    speeds: Tensor  # [K, A, T] m/s; 0 where absent and for types that don't move
    sizes: Tensor  # [K, A, 2] length, width
    present: Tensor  # [K, A, T] bool
    types: Tensor  # [K, A] int64 index into `AGENT_TYPES`, -1 for padding
    first_speed: Tensor  # [K, A] m/s when first seen; officially decides whether an agent counts as stopped

    @classmethod
    def logged(cls, scenes: Sequence[Scene], device: torch.device | str, steps: int = STEPS) -> AgentTracks:
        """Interpolate the agents of S scenes over ``steps``."""
        interpolated = [interpolate_agents(scene.agents, steps) for scene in scenes]
        poses, velocities, present, first_speed = zip(*interpolated, strict=True)

        def padded(rows: Sequence[Tensor], filler: int = 0) -> Tensor:
            return pad_sequence(list(rows), batch_first=True, padding_value=filler).to(device)

        return cls(
            padded(poses),
            padded(velocities).norm(dim=-1),
            padded([scene.agents.sizes[:, :2] for scene in scenes]),
            padded(present),
            padded([scene.agents.types for scene in scenes], -1),
            padded(first_speed),
        )


def interpolate_agents(agents: Agents, length: int = STEPS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Interpolate agents linearly at 10 Hz, between their first and last sighting within ``length`` steps from t = 0.

    An agent seen only once is always present (``metric_cache_processor.py:175``).

    Returns:
        Poses ``[A, 41, 3]``, velocities ``[A, 41, 2]``, present ``[A, 41]``, speed when first seen ``[A]``; zeros where
        absent.
    """
    steps = torch.arange(length, dtype=torch.float64) * DT
    columns = (agents.times >= 0) & (agents.times <= steps[-1])
    times = agents.times[columns]
    seen = agents.seen[:, columns]
    states = agents.states[:, columns].clone()
    if not seen.any():
        absent = states.new_zeros(len(agents.tokens), length, 5)
        return absent[..., :3], absent[..., 3:], absent[..., 0] > 0, absent[:, 0, 0]
    states[..., 3:] *= (agents.types < MOVING_TYPES)[:, None, None]
    last = len(times) - 1
    order = torch.arange(last + 1)
    # The next and the previous column of each column in which the agent is seen; wrong past the ends.
    following = torch.where(seen, order, last).flip(1).cummin(1).values.flip(1)
    preceding = torch.where(seen, order, -1).cummax(1).values
    first = following[:, 0]
    final = preceding[:, -1].clamp(0)
    # The columns between which each step is interpolated.
    high = following[:, torch.searchsorted(times, steps).clamp(max=last)]
    low = preceding.gather(1, (high - 1).clamp(0))
    low = torch.where((low < 0) | (high == 0), first[:, None], low)
    count = seen.sum(1)[:, None]
    low = torch.where(count == 1, first[:, None], low)
    high = torch.where(count == 1, first[:, None], high)
    # Agents are present from their first to their last sighting.
    arrived = steps > times[first, None] - EARLY
    not_left = steps < times[final, None] + EARLY
    present = (count == 1) | (count > 0) & arrived & not_left
    # Linear interpolation; headings turn by the shorter way.
    start = states.gather(1, low[..., None].expand(-1, -1, 5))
    end = states.gather(1, high[..., None].expand(-1, -1, 5))
    change = end - start
    change[..., 2] = wrap_angle(change[..., 2])
    span = torch.where(high > low, times[high] - times[low], 1)
    between = change / span[..., None] * (steps - times[low])[..., None] + start
    between[..., 2] = wrap_angle(between[..., 2])
    between = torch.where(present[..., None], between, 0)
    first_speed = states[torch.arange(len(first)), first, 3:].norm(dim=-1)
    return between[..., :3], between[..., 3:], present, torch.where(count[:, 0] > 0, first_speed, 0)
