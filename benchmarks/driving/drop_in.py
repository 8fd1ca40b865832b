"""The drop-in beside the official devkit's own `pdm_score`: the same metric caches, 1,000 candidates, scores and times.

    python -m benchmarks.driving.drop_in --devkit NAVSIM --nuplan NUPLAN --out benchmarks/results/drop_in.json

NAVSIM and NUPLAN are checkouts of autonomousvision/navsim (0a380a9 or another from 359c7f7 on) and of
motional/nuplan-devkit (e924167), whose requirements are installed. The caches hold the devkit's own classes. Their
scenes are generated and, if present, of the shared Argoverse 2 logs (`LIGHTNING_CGRPO_SHARED`, by default ../shared);
the expert plans are this package's. Traffic is log replay, with the human filter.

Times are CPU seconds of one thread: the devkit's function; ours one by one, 16 candidates of a cache after each other,
so that the cache is converted once; and `scorer_of` on all candidates at once, also with the caches' conversion.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import shapely
import torch

from benchmarks.driving.speed import CANDIDATES, SHARED, candidates
from examples.scene_sources.argoverse2 import Argoverse2
from lightning_cgrpo.navsim import drop_in
from lightning_cgrpo.navsim.batch.agent_tracks import interpolate_agents
from lightning_cgrpo.navsim.batch.scene_batch import ExpertPlan
from lightning_cgrpo.navsim.columns import COLUMNS
from lightning_cgrpo.navsim.scorer import Scorer
from lightning_cgrpo.navsim.simulation.timing import DT, STEPS
from lightning_cgrpo.output import write_whole
from lightning_cgrpo.scenes.generator import GeneratedScenes
from lightning_cgrpo.scenes.scene import AGENT_TYPES, MOVING_TYPES, Areas, Scene

SCENES = 64
"""With 16 candidates each: 1,024."""
TOLERANCE = 1e-6
"""The devkit rounds times to whole microseconds, so equal scores differ in the ninth digit."""
TOTALS = ("multiplicative_metrics_prod", "pdm_score")


class Devkit:
    """The devkit's own classes: its `pdm_score` and metric caches of scenes."""

    def __init__(self, navsim: Path, nuplan: Path) -> None:
        sys.path[:0] = [str(navsim), str(nuplan)]
        from navsim.common.dataclasses import Trajectory
        from navsim.evaluate.pdm_score import pdm_score
        from navsim.planning.simulation.planner.pdm_planner.scoring.pdm_scorer import PDMScorer, PDMScorerConfig
        from navsim.planning.simulation.planner.pdm_planner.simulation.pdm_simulator import PDMSimulator
        from navsim.traffic_agents_policies.log_replay_traffic_agents import LogReplayTrafficAgents
        from nuplan.planning.simulation.trajectory.trajectory_sampling import TrajectorySampling

        sampling = TrajectorySampling(num_poses=STEPS - 1, interval_length=DT)
        self.trajectory, self.pdm_score, self.sampling = Trajectory, pdm_score, sampling
        scorer = PDMScorer(sampling, PDMScorerConfig(human_penalty_filter=True))
        self.arguments = (sampling, PDMSimulator(sampling), scorer, LogReplayTrafficAgents(sampling))

    def cache(self, scene: Scene, plan: ExpertPlan) -> Any:
        from navsim.common.enums import SceneFrameType
        from navsim.planning.metric_caching.metric_cache import MapParameters, MetricCache
        from navsim.planning.simulation.planner.pdm_planner.utils.pdm_path import PDMPath
        from nuplan.common.actor_state.state_representation import StateSE2
        from nuplan.planning.simulation.trajectory.interpolated_trajectory import InterpolatedTrajectory

        assert scene.human is not None  # so says `candidates`
        ego = scene.ego
        past = [_ego(*rows) for rows in zip(ego.poses, ego.velocities, ego.accelerations, ego.times, strict=True)]
        rest = torch.zeros(2)
        planned = [_ego(pose, rest, rest, step * DT) for step, pose in enumerate(plan.trajectory)]
        ahead = torch.diff(plan.centerline, dim=0)
        headings = torch.atan2(ahead[:, 1], ahead[:, 0])
        tracks = _tracks(scene)
        return MetricCache(
            file_path=Path("log/unknown") / scene.name / "metric_cache.pkl",
            log_name="log",
            timepoint=past[-1].time_point,
            scene_type=SceneFrameType.ORIGINAL,
            trajectory=InterpolatedTrajectory([past[-1], *planned[1:]]),
            human_trajectory=self.trajectory(scene.human.numpy()),
            past_human_trajectory=InterpolatedTrajectory(past),
            ego_state=past[-1],
            observation=self._observation(scene, tracks),
            centerline=PDMPath(
                [
                    StateSE2(*map(float, (*xy, h)))
                    for xy, h in zip(plan.centerline, [*headings, headings[-1]], strict=True)
                ]
            ),
            route_lane_ids=[scene.map.lanes.ids[row] for row in plan.route_lanes],
            drivable_area_map=_drivable(scene),
            past_detections_tracks=[],
            current_tracked_objects=[tracks[0]],
            future_tracked_objects=tracks[1:],
            map_parameters=MapParameters("", "", ""),
        )

    def _observation(self, scene: Scene, tracks: list[Any]) -> Any:
        from navsim.planning.simulation.planner.pdm_planner.observation.pdm_observation import PDMObservation
        from nuplan.common.maps.maps_datatypes import TrafficLightStatusData, TrafficLightStatusType

        lanes, blocks = scene.map.lanes, scene.map.roadblocks
        shapes = _polygons(lanes)
        route = {
            lanes.ids[row]: SimpleNamespace(polygon=shapes[row]) for block in scene.route for row in blocks.lanes[block]
        }
        # A status stands until the next time, as the devkit repeats the frames of 2 Hz.
        held = [int((scene.lights.times <= step * DT + 1e-6).sum()) - 1 for step in range(STEPS)]
        lights = [
            [
                TrafficLightStatusData(TrafficLightStatusType.RED, lanes.ids[row], 0)
                for row in (scene.lights.red[at].nonzero()[:, 0].tolist() if at >= 0 else [])
            ]
            for at in held
        ]
        found = PDMObservation(self.sampling, self.sampling, 100, 1, extend_observation_for_ttc=False)
        found.update_detections_tracks(tracks, lights, route, compute_traffic_light_data=True)
        return found


def _ego(pose: Any, velocity: Any, acceleration: Any, seconds: Any) -> Any:
    from nuplan.common.actor_state.ego_state import EgoState
    from nuplan.common.actor_state.state_representation import StateSE2, StateVector2D, TimePoint
    from nuplan.common.actor_state.vehicle_parameters import get_pacifica_parameters

    return EgoState.build_from_rear_axle(
        StateSE2(*map(float, pose)),
        StateVector2D(*map(float, velocity)),
        StateVector2D(*map(float, acceleration)),
        tire_steering_angle=0.0,
        time_point=TimePoint(round(float(seconds) * 1e6) + 7_000_000),
        vehicle_parameters=get_pacifica_parameters(),
    )


def _tracks(scene: Scene) -> list[Any]:
    """Agents every 0.1 s, as the devkit interpolates them for its caches."""
    from nuplan.common.actor_state.agent import Agent
    from nuplan.common.actor_state.oriented_box import OrientedBox
    from nuplan.common.actor_state.scene_object import SceneObjectMetadata
    from nuplan.common.actor_state.state_representation import StateSE2, StateVector2D
    from nuplan.common.actor_state.static_object import StaticObject
    from nuplan.common.actor_state.tracked_objects import TrackedObjects
    from nuplan.common.actor_state.tracked_objects_types import TrackedObjectType
    from nuplan.planning.simulation.observation.observation_type import DetectionsTracks

    poses, velocities, present, _ = interpolate_agents(scene.agents, torch.zeros(2, dtype=torch.float64))
    agents, frames = scene.agents, []
    for step in range(STEPS):
        found = []
        for row, token in enumerate(agents.tokens):
            if not bool(present[row, step]):
                continue
            kind = int(agents.types[row])
            box = OrientedBox(StateSE2(*poses[row, step].tolist()), *agents.sizes[row].tolist())
            metadata = SceneObjectMetadata(0, token, row, token)
            known = TrackedObjectType[AGENT_TYPES[kind].upper()]
            if kind < MOVING_TYPES:
                found.append(Agent(known, box, StateVector2D(*velocities[row, step].tolist()), metadata))
            else:
                found.append(StaticObject(known, box, metadata))
        frames.append(DetectionsTracks(TrackedObjects(found)))
    return frames


def _polygons(areas: Any) -> list[Any]:
    return [shapely.Polygon(areas.polygons[row].numpy()) for row in range(len(areas.ids))]


def _drivable(scene: Scene) -> Any:
    """Polygons in the order of `PDMDrivableMap.from_simulation`, of the whole map."""
    from navsim.planning.simulation.planner.pdm_planner.observation.pdm_occupancy_map import PDMDrivableMap
    from nuplan.common.maps.maps_datatypes import SemanticMapLayer as Layer

    lanes, blocks = scene.map.lanes, scene.map.roadblocks
    found = [
        (name, Layer.ROADBLOCK, shape)
        for name, shape, connector in zip(blocks.ids, _polygons(blocks), blocks.connector, strict=True)
        if not connector
    ]
    for name, shape, connector in zip(lanes.ids, _polygons(lanes), lanes.connector, strict=True):
        found.append((name, Layer.LANE_CONNECTOR if connector else Layer.LANE, shape))
    areas: tuple[tuple[Any, Areas], ...] = (
        (Layer.INTERSECTION, scene.map.intersections),
        (Layer.CARPARK_AREA, scene.map.carparks),
        (Layer.DRIVABLE_AREA, scene.map.drivable_areas),
    )
    for layer, among in areas:
        found.extend((name, layer, shape) for name, shape in zip(among.ids, _polygons(among), strict=True))
    names, layers, shapes = zip(*found, strict=True)
    return PDMDrivableMap(list(names), list(layers), list(shapes))


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    found = run()
    return found, time.process_time() - begun


def compare(devkit: Devkit, scenes: Sequence[Scene]) -> dict[str, Any]:
    """Largest differences by column, and milliseconds per candidate."""
    poses, row = candidates(scenes), torch.arange(len(scenes)).repeat_interleave(CANDIDATES)
    scorer = Scorer(scenes)
    caches = [devkit.cache(scene, plan) for scene, plan in zip(scenes, scorer.plans, strict=True)]
    plans = [devkit.trajectory(each.numpy()) for each in poses]

    def each(score: Callable[..., Any]) -> list[Any]:
        return [score(caches[at], plan, *devkit.arguments) for at, plan in zip(row.tolist(), plans, strict=True)]

    theirs, official = timed(lambda: each(devkit.pdm_score))
    ours, single = timed(lambda: each(drop_in.pdm_score))
    once, converting = timed(lambda: drop_in.scorer_of(caches))
    scores, batched = timed(lambda: once(poses, row))
    differences, apart = {}, np.zeros(len(plans), bool)
    for name in (*COLUMNS, *TOTALS):
        rows = np.array([[float(frame[name].iloc[0]) for frame, _ in found] for found in (theirs, ours)])
        off = np.abs(rows[0] - rows[1])
        differences[name] = float(off.max())
        apart |= off > TOLERANCE
        if name in COLUMNS:  # the batch equals the single calls
            differences[f"{name}, batched"] = float(np.abs(rows[0] - scores.columns[name].numpy()).max())
    states = np.abs(np.stack([s for _, s in theirs])[..., :2] - np.stack([s for _, s in ours])[..., :2])
    count = len(plans)
    return {
        "scenes": len(scenes),
        "candidates": count,
        "candidates with another score": int(apart.sum()),
        "largest difference": differences,
        "largest difference of positions in m": float(states.max()),
        "distinct totals": len({round(float(s), 6) for s in scores.epdms}),
        "milliseconds per candidate": {
            "devkit": official / count * 1e3,
            "pdm_score": single / count * 1e3,
            "scorer_of, with the conversion": (converting + batched) / count * 1e3,
            "scorer_of": batched / count * 1e3,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devkit", type=Path, required=True, help="checkout of autonomousvision/navsim")
    parser.add_argument("--nuplan", type=Path, required=True, help="checkout of motional/nuplan-devkit")
    parser.add_argument("--scenes", type=int, default=SCENES, help="of which half are of Argoverse 2, if present")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    devkit, logs = Devkit(options.devkit, options.nuplan), SHARED / "driving/argoverse2"
    real = Argoverse2(logs, val_share=0, test_share=0).scenes("train") if logs.is_dir() else []
    sets = {"Argoverse 2": list(real)[: options.scenes // 2]}
    sets["generated"] = list(GeneratedScenes().scenes("train")[: options.scenes - len(sets["Argoverse 2"])])
    found = {name: compare(devkit, scenes) for name, scenes in sets.items() if scenes}
    print(json.dumps(found, indent=1))
    if options.out:
        write_whole(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
