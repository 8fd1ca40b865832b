"""Vehicles react to the ego and each other; other agents replay the log.

docs/navsim_score_scenes.md §10; officially abstract_traffic_agents_policy.py, navsim_IDM_traffic_agents.py,
navsim_idm_agents.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from navsim_score.batch.agent_tracks import AgentTracks
from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.geometry import rectangles
from navsim_score.geometry.boxes import bounds, bounds_touch, grown
from navsim_score.geometry.ranges import expand, starts
from navsim_score.simulation.timing import EARLY
from navsim_score.traffic.idm.following import Following, Vehicles
from navsim_score.traffic.idm.rail_network import RailNetwork
from navsim_score.traffic.idm.rails import VEHICLE, Traveling, find_rails
from navsim_score.traffic.idm.schedule import Schedule
from navsim_score.traffic.traffic import TrafficPolicy, TrafficRollouts


class _Surroundings(NamedTuple):
    """Traffic of S scenes, as far as independent of the ego."""

    network: RailNetwork  # vehicles on rails
    now: Tensor  # [S, A] bool, seen at t = 0
    parked_scene: Tensor  # [N] int64 scenes of parked vehicles, in the order of their placement
    parked: Tensor  # [N] int64 agents


class Reactive(TrafficPolicy):
    """Vehicles on lanes drive by the Intelligent Driver Model (IDM), as officially.

    Step 0 is the log's. Then vehicles follow their first lane's centerline and stop at its end. They ignore lights,
    pedestrians and cones. Parked vehicles stay; other vehicles off lanes vanish.
    """

    def __init__(self) -> None:
        self._surroundings: WeakKeyDictionary[SceneBatch, _Surroundings] = WeakKeyDictionary()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reactive)

    def __hash__(self) -> int:
        return hash(Reactive)

    def __call__(self, batch: SceneBatch, states: Tensor, scene: Tensor) -> TrafficRollouts:
        if batch not in self._surroundings:
            self._surroundings[batch] = _find_surroundings(batch, [find_rails(scene) for scene in batch.scenes])
        surroundings = self._surroundings[batch]
        agents = batch.agents
        vehicles = Following(Schedule(surroundings.network, states, scene)).run()
        agent = surroundings.network.agent[vehicles.rail]
        # The log of each row; from step 1 on, vehicles are those on rails, and those that are parked.
        poses = agents.poses[scene]
        present = agents.present[scene]
        speeds = agents.speeds[scene]
        is_vehicle = (agents.types == VEHICLE)[scene][..., None]
        present[..., 0] = surroundings.now[scene]
        present[..., 1:] &= ~is_vehicle
        poses[vehicles.row, agent, 1:] = vehicles.poses[:, 1:]
        present[vehicles.row, agent, 1:] = vehicles.present[:, 1:]
        speeds[..., 1:].masked_fill_(is_vehicle, 0)
        speeds[vehicles.row, agent, 1:] = vehicles.speeds[:, 1:]
        _place_parked(batch, surroundings, vehicles, scene, poses, present)
        tracks = AgentTracks(
            poses, speeds, agents.sizes[scene], present, agents.types[scene], agents.first_speed[scene]
        )
        return TrafficRollouts.of(tracks, torch.arange(len(scene), device=scene.device))


def _find_surroundings(batch: SceneBatch, traveling: Sequence[Traveling]) -> _Surroundings:
    device = batch.start.device
    now = [scene.agents.seen[:, scene.agents.times.abs() < EARLY].any(1) for scene in batch.scenes]
    counts = torch.tensor([len(vehicles.parked) for vehicles in traveling])
    parked: list[int] = []
    for vehicles in traveling:
        parked += vehicles.parked
    return _Surroundings(
        RailNetwork.of(batch, [vehicles.rails for vehicles in traveling]),
        pad_sequence(now, batch_first=True).to(device),
        torch.repeat_interleave(counts).to(device),
        torch.tensor(parked, dtype=torch.int64, device=device),
    )


def _place_parked(
    batch: SceneBatch, surroundings: _Surroundings, vehicles: Vehicles, scene: Tensor, poses: Tensor, present: Tensor
) -> None:
    """Place parked vehicles from step 1 on, except on driving or earlier parked vehicles."""
    agents = batch.agents
    of_scene = surroundings.parked_scene
    parked = surroundings.parked
    if not len(parked):
        return
    box = rectangles.from_boxes(agents.poses[of_scene, parked, 0], agents.sizes[of_scene, parked])
    counts = torch.bincount(of_scene, minlength=len(batch))
    first = starts(counts)
    row, which = expand(counts[scene], first[scene])  # parked vehicles of every row
    # Pairs of a parked and a driving vehicle that come near each other.
    driving = torch.bincount(vehicles.row, minlength=len(scene))
    pair, vehicle = expand(driving[row], starts(driving)[row])
    size = agents.sizes[scene[vehicles.row], surroundings.network.agent[vehicles.rail]]
    swept = grown(bounds(vehicles.poses[..., :2]), size.norm(dim=1, keepdim=True) / 2)
    reach = box[:, 4:].norm(dim=1, keepdim=True)
    around = torch.cat([box[:, :2] - reach, box[:, :2] + reach], 1)
    near = bounds_touch(swept[vehicle], around[which[pair]]).nonzero()[:, 0]
    pair = pair[near]
    vehicle = vehicle[near]
    # Steps at which a driving vehicle is in the parked vehicle's place.
    moving = rectangles.from_boxes(vehicles.poses[vehicle], size[vehicle, None])
    hit = rectangles.touch(moving, box[which[pair], None]) & vehicles.present[vehicle]
    blocked = torch.zeros(len(row), present.shape[-1], dtype=torch.bool, device=scene.device)
    blocked.index_put_((pair,), hit, accumulate=True)
    placed = ~blocked
    # Overlapping parked vehicles: the later one is placed only where the earlier one is not.
    first_of_row = starts(counts[scene])
    for before, after in _overlapping_pairs(of_scene, box):
        begin = first_of_row[:-1][scene == of_scene[after]] - first[of_scene[after]]
        placed[begin + after] &= ~placed[begin + before]
    agent = parked[which]
    poses[row, agent, 1:] = agents.poses[scene[row], agent, :1]
    present[row, agent, 1:] = placed[:, 1:]


def _overlapping_pairs(scene: Tensor, box: Tensor) -> list[list[int]]:
    """Pairs of overlapping parked vehicles of one scene, as indices ``[N]``, ordered by the second."""
    counts = torch.bincount(scene)
    second, first = expand(counts[scene], starts(counts)[scene])
    overlap = (first < second) & rectangles.touch(box[first], box[second])
    pairs: list[list[int]] = torch.stack([first[overlap], second[overlap]], 1).tolist()
    return pairs
