"""Logged agents of several scenes at 10 Hz.

See docs/navsim_score.md §11; officially ``metric_cache_processor.py:96-199``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.navsim.geometry.boxes import wrap_angle
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.scenes.scene import MOVING_TYPES, Agents, Scene


@dataclass(frozen=True, eq=False)
class Tracks:
    """The logged agents of S scenes, A per scene, padded with agents that are never present.

    Args:
        poses: ``[S, A, 41, 3]`` x, y, yaw of the boxes' centers; 0 where not present.
        velocities: ``[S, A, 41, 2]`` in the scene's frame; 0 for types that don't move.
        sizes: ``[S, A, 2]`` length, width.
        present: ``[S, A, 41]`` bool.
        types: ``[S, A]`` int64, of `AGENT_TYPES`, -1 where padded.
        first_speed: ``[S, A]`` at the first step where the agent is present.
    """

    poses: Tensor
    velocities: Tensor
    sizes: Tensor
    present: Tensor
    types: Tensor
    first_speed: Tensor

    @classmethod
    def of(cls, scenes: Sequence[Scene], origin: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tracks:
        """Of scenes, with positions relative to ``origin [S, 2]``."""
        poses, velocities, present, first_speed = zip(
            *(interpolated(scene.agents, origin[row]) for row, scene in enumerate(scenes)), strict=True
        )

        def floats(rows: Sequence[Tensor]) -> Tensor:
            return pad_sequence(list(rows), batch_first=True).to(device, dtype)

        return cls(
            floats(poses),
            floats(velocities),
            floats([scene.agents.sizes[:, :2] for scene in scenes]),
            pad_sequence(list(present), batch_first=True).to(device),
            pad_sequence([scene.agents.types for scene in scenes], batch_first=True, padding_value=-1).to(device),
            floats(first_speed),
        )


def interpolated(agents: Agents, origin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logged agents at 10 Hz: linear between a track's first and last sighting from t = 0 on.

    An agent seen only once is there all the time (``metric_cache_processor.py:175``).

    Returns:
        Poses ``[A, 41, 3]``, velocities ``[A, 41, 2]``, present ``[A, 41]``, speed at first appearance ``[A]``.
    """
    steps = torch.arange(STEPS, dtype=torch.float64) * DT
    columns = (agents.times >= 0) & (agents.times <= steps[-1])
    times, seen = agents.times[columns], agents.seen[:, columns]
    states = agents.states[:, columns].clone()
    if not seen.any():
        agents_steps = (len(agents.tokens), STEPS)
        nowhere = states.new_zeros(*agents_steps, 3)
        return nowhere, nowhere[..., 1:], seen.new_zeros(agents_steps), states.new_zeros(agents_steps[0])
    states[..., :2] -= origin
    states[..., 3:] *= (agents.types < MOVING_TYPES)[:, None, None]
    last = len(times) - 1
    order = torch.arange(last + 1)
    # The first column from each on in which the agent is seen, and the last one up to each; wrong past the ends.
    following = torch.where(seen, order, last).flip(1).cummin(1).values.flip(1)
    preceding = torch.where(seen, order, -1).cummax(1).values
    first, final = following[:, 0], preceding[:, -1].clamp(0)
    high = following[:, torch.searchsorted(times, steps).clamp(max=last)]
    low = preceding.gather(1, (high - 1).clamp(0))
    low = torch.where((low < 0) | (high == 0), first[:, None], low)
    present = (steps >= times[first, None]) & (steps <= times[final, None])
    count = seen.sum(1)
    present = torch.where(count[:, None] == 1, True, present & (count[:, None] > 0))
    low, high = (torch.where(count[:, None] == 1, first[:, None], column) for column in (low, high))

    def take(column: Tensor) -> Tensor:
        return states.gather(1, column[..., None].expand(-1, -1, 5))

    start, change = take(low), take(high) - take(low)
    change[..., 2] = wrap_angle(change[..., 2])
    span = torch.where(high > low, times[high] - times[low], 1)  # no change where there is no span
    between = change / span[..., None] * (steps - times[low])[..., None] + start
    between[..., 2] = wrap_angle(between[..., 2])
    between = torch.where(present[..., None], between, 0)
    first_speed = states[torch.arange(len(first)), first, 3:].norm(dim=-1)
    return between[..., :3], between[..., 3:], present, torch.where(count > 0, first_speed, 0)
