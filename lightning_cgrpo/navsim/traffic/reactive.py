"""Traffic whose vehicles react to the ego and to each other; all others replay the log.

See docs/navsim_score.md §10; officially abstract_traffic_agents_policy.py, navsim_IDM_traffic_agents.py,
navsim_idm_agents.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lightning_cgrpo.navsim.batch.scene_batch import SceneBatch
from lightning_cgrpo.navsim.batch.surfaces import EARLY
from lightning_cgrpo.navsim.geometry import rectangles
from lightning_cgrpo.navsim.geometry.boxes import bounds, bounds_touch, expand
from lightning_cgrpo.navsim.traffic.idm.following import Following, Vehicles
from lightning_cgrpo.navsim.traffic.idm.network import Network
from lightning_cgrpo.navsim.traffic.idm.rails import Traveling, find_rails
from lightning_cgrpo.navsim.traffic.traffic import Traffic, TrafficPolicy
from lightning_cgrpo.scenes.scene import AGENT_TYPES, Scene

VEHICLE = AGENT_TYPES.index("vehicle")


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """Of S scenes, A agents each, what doesn't depend on the ego.

    Args:
        network: of vehicles that drive.
        now: ``[S, A]`` bool, seen at t = 0.
        parked_scene: ``[N]`` int64, of parked vehicles, in the order in which they are placed.
        parked: ``[N]`` int64, agent.
    """

    network: Network
    now: Tensor
    parked_scene: Tensor
    parked: Tensor


class Reactive(TrafficPolicy):
    """Vehicles on lanes drive by the Intelligent Driver Model, as in the official reactive traffic.

    Step 0 is the log's. From then on vehicles are on the centerline of the one lane that they started in, at whose end
    they stop; they don't mind lights, pedestrians or cones; parked vehicles stay, other vehicles vanish.

    Args:
        ego_box_at_center: vehicles mind the ego's box where it is. Officially its center is put where the rear axle is,
            1.461 m behind.
        wrapped_headings: of the lanes that it is in, a vehicle takes the one whose direction is nearest. Officially
            -179 and 179 degrees are 358 degrees apart.
        own_speed_limits: on a lane without a limit a vehicle wants to drive 10 m/s. Officially it has the limit of the
            one before it that was put on a lane with a limit.
    """

    def __init__(
        self, *, ego_box_at_center: bool = False, wrapped_headings: bool = False, own_speed_limits: bool = False
    ) -> None:
        self.ego_box_at_center = ego_box_at_center
        self.wrapped_headings = wrapped_headings
        self.own_speed_limits = own_speed_limits
        self._surroundings: WeakKeyDictionary[SceneBatch, _Surroundings] = WeakKeyDictionary()

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> Traffic:
        if batch not in self._surroundings:
            traveling = [
                find_rails(each, wrapped_headings=self.wrapped_headings, own_speed_limits=self.own_speed_limits)
                for each in batch.scenes
            ]
            self._surroundings[batch] = _surroundings(batch, traveling)
        surroundings = self._surroundings[batch]
        tracks = batch.tracks
        following = Following(surroundings.network, states, scene, ego_box_at_center=self.ego_box_at_center)
        vehicles = following.run()
        agent = surroundings.network.agent[vehicles.rail]
        poses, present, speeds = tracks.poses[scene], tracks.present[scene], tracks.velocities.norm(dim=-1)[scene]
        present[..., 0] = surroundings.now[scene]
        present[..., 1:] &= (tracks.types != VEHICLE)[scene][..., None]
        poses[vehicles.row, agent, 1:] = vehicles.poses[:, 1:]
        present[vehicles.row, agent, 1:] = vehicles.present[:, 1:]
        speeds[..., 1:].masked_fill_((tracks.types == VEHICLE)[scene][..., None], 0)
        speeds[vehicles.row, agent, 1:] = vehicles.speeds[:, 1:]
        _park(batch, surroundings, vehicles, scene, poses, present)
        rows = torch.arange(len(scene), device=scene.device)
        return Traffic(
            poses, tracks.sizes[scene], present, tracks.types[scene], tracks.first_speed[scene], rows, speeds
        )


def _surroundings(batch: SceneBatch, traveling: Sequence[Traveling]) -> _Surroundings:
    parked = [torch.tensor(found.parked, dtype=torch.int64) for found in traveling]
    counts = torch.tensor([len(rows) for rows in parked], dtype=torch.int64)
    device = batch.start.device
    return _Surroundings(
        Network.of(batch, [found.rails for found in traveling]),
        pad_sequence([_seen_now(scene) for scene in batch.scenes], batch_first=True).to(device),
        torch.repeat_interleave(counts).to(device),
        torch.cat(parked).to(device),
    )


def _seen_now(scene: Scene) -> Tensor:
    return scene.agents.seen[:, scene.agents.times.abs() < EARLY].any(1)


def _park(
    batch: SceneBatch, surroundings: _Surroundings, vehicles: Vehicles, scene: Tensor, poses: Tensor, present: Tensor
) -> None:
    """Place parked vehicles, at each step where they don't overlap vehicles that drive, or parked ones before them."""
    tracks = batch.tracks
    of_scene, parked = surroundings.parked_scene, surroundings.parked
    if not len(parked):
        return
    box = rectangles.from_boxes(tracks.poses[of_scene, parked, 0], tracks.sizes[of_scene, parked])
    # Parked vehicles of every row.
    counts = torch.bincount(of_scene, minlength=len(batch))
    row, number = expand(counts[scene])
    which = (counts.cumsum(0) - counts)[scene[row]] + number
    blocked = torch.zeros(len(row), present.shape[-1], dtype=torch.bool, device=scene.device)
    # Every pair with a vehicle of the row that comes near it.
    driving = torch.bincount(vehicles.row, minlength=len(scene))
    pair, number = expand(driving[row])
    vehicle = (driving.cumsum(0) - driving)[row[pair]] + number
    size = tracks.sizes[scene[vehicles.row], surroundings.network.agent[vehicles.rail]]
    swept = bounds(vehicles.poses[..., :2]) + size.norm(dim=1, keepdim=True) / 2 * size.new_tensor(
        [-1.0, -1.0, 1.0, 1.0]
    )
    reach = box[:, 4:].norm(dim=1, keepdim=True)
    around = torch.cat([box[:, :2] - reach, box[:, :2] + reach], 1)
    near = bounds_touch(swept[vehicle], around[which[pair]]).nonzero()[:, 0]
    moving = rectangles.from_boxes(vehicles.poses[vehicle[near]], size[vehicle[near], None])
    hit = rectangles.touch(moving, box[which[pair[near]], None]) & vehicles.present[vehicle[near]]
    blocked.index_put_((pair[near],), hit, accumulate=True)
    placed = ~blocked
    first, second = _overlapping(of_scene, box)
    for before, after in zip(first.tolist(), second.tolist(), strict=True):
        rows = (scene == of_scene[after]).nonzero()[:, 0]
        begin = (counts[scene].cumsum(0) - counts[scene])[rows] - (counts.cumsum(0) - counts)[of_scene[after]]
        placed[begin + after] &= ~placed[begin + before]
    agent = parked[which]
    poses[row, agent, 1:] = tracks.poses[scene[row], agent, :1]
    present[row, agent, 1:] = placed[:, 1:]


def _overlapping(scene: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of parked vehicles of a scene that overlap, the second one's position ascending."""
    counts = torch.bincount(scene)
    second, number = expand(counts[scene])
    first = (counts.cumsum(0) - counts)[scene[second]] + number
    overlap = (first < second) & rectangles.touch(box[first], box[second])
    return first[overlap], second[overlap]
