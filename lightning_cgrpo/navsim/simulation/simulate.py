"""How the ego vehicle drives when it follows a trajectory: a tracker steers a kinematic bicycle at 10 Hz.

docs/navsim_score.md §2 and §3; officially pdm_score.py and pdm_planner/simulation/. Everything is batched over leading
dimensions and follows the inputs' device and dtype. In float32, positions should be near the origin: of 300 km, as
in a city's coordinates, float32 holds 3 cm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.navsim.simulation.bicycle import Motion, advance
from lightning_cgrpo.navsim.simulation.interpolation import in_scene, resample
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.navsim.simulation.tracker import Tracker
from lightning_cgrpo.scenes.vehicle import START

__all__ = ["DT", "STEPS", "in_scene", "resample", "simulate", "track"]


def simulate(start: Tensor, poses: Tensor, interval: float = 0.5) -> Tensor:
    """Drive along candidates.

    Args:
        start: ``[..., 7]`` x, y, yaw, vx, vy, ax, ay at t = 0, in the scene's frame.
        poses: ``[..., P, 3]`` x, y, yaw in the ego's frame at t = 0, at ``interval``, 2 ``interval``, …
        interval: seconds between poses. A trajectory that ends before 4 s is held at its last pose.

    Returns:
        ``[..., 41, 11]`` states (`vehicle.State`) from 0 to 4 s, in the scene's frame. A candidate that isn't finite
        has states that aren't, and leaves the others alone.

    Raises:
        ValueError: shapes or the interval can't be.
    """
    return track(start, resample(start, poses, interval))


def track(start: Tensor, reference: Tensor) -> Tensor:
    """Drive along references.

    Args:
        start: ``[..., 7]`` x, y, yaw, vx, vy, ax, ay at t = 0.
        reference: ``[..., T, 3]`` x, y, yaw every 0.1 s from t = 0 on, in the frame of ``start``; T is 41 for a
            candidate.

    Returns:
        ``[..., T, 11]`` states (`vehicle.State`); the first one is the start, with 0 for steering and yaw rates.

    Raises:
        ValueError: shapes can't be.
    """
    if start.shape[-1:] != (START,) or reference.shape[-1:] != (3,) or reference.dim() < 2 or reference.shape[-2] < 4:
        raise ValueError(
            f"Expected start [..., {START}] and reference [..., T, 3] with T at least 4, "
            f"but got {list(start.shape)} and {list(reference.shape)}."
        )
    shape = torch.broadcast_shapes(start.shape[:-1], reference.shape[:-2])
    steps = reference.shape[-2]
    first = start.expand(*shape, START).reshape(-1, START).T
    tracker = Tracker(reference.expand(*shape, steps, 3).reshape(-1, steps, 3))
    x, y, yaw, vx, vy, ax, ay = first.unbind()
    none = torch.zeros_like(x)
    motions = [Motion(x, y, yaw, vx, ax, steer=none, steer_rate=none, yaw_rate=none)]
    for step in range(steps - 1):
        motions.append(advance(motions[-1], *tracker.command(step, motions[-1])))
    moved = {name: torch.stack([getattr(motion, name) for motion in motions], -1) for name in Motion._fields}
    sideways = first.new_zeros(2, len(x), steps)  # a bicycle doesn't slip: what the start says is gone after a step
    sideways[:, :, 0] = torch.stack([vy, ay])
    rates = moved["yaw_rate"]
    states = torch.stack(
        [
            moved["x"],
            moved["y"],
            moved["yaw"],
            moved["speed"],
            sideways[0],
            moved["acceleration"],
            sideways[1],
            moved["steer"],
            moved["steer_rate"],
            rates,
            torch.cat([none[:, None], rates.diff(dim=-1) / DT], -1),
        ],
        -1,
    )
    return states.reshape(*shape, steps, states.shape[-1])
