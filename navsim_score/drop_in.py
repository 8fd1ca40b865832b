"""The devkit's `pdm_score` on its own objects, and a `Scorer` over its metric caches.

Caches are pickles, which can run any code when they are read. Nothing here reads a file: pass caches that you trust and
have loaded with the devkit's `MetricCacheLoader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from driving_scenes.devkit.convert import (
    agents_content,
    ego_content,
    lane_content,
    plan_content,
    polygon_content,
)
from driving_scenes.devkit.installation import INSTALL, MAPS
from driving_scenes.errors import InputError
from driving_scenes.scene import Scene
from driving_scenes.scene_file import scene_from_json
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.columns import COLUMNS, EXTENDED_COMFORT_WEIGHT, WEIGHTS
from navsim_score.scorer import Scorer
from navsim_score.simulation.timing import DT, STEPS
from navsim_score.traffic.reactive import Reactive

RED = "red_light_"
"""Start of the tokens of red connectors in a cache."""
REPLAY = "LogReplayTrafficAgents"
REACTIVE = "NavsimIDMTrafficAgents"
"""The devkit's policies of traffic."""
LANES = {"LANE": False, "LANE_CONNECTOR": True}
AREAS = {"INTERSECTION": "intersections", "CARPARK_AREA": "carparks", "DRIVABLE_AREA": "drivable_areas"}


class CachedScene(NamedTuple):
    """A metric cache's scene, without centerlines of lanes, and its expert's plan."""

    scene: Scene
    plan: ExpertPlan


def pdm_score(
    metric_cache: Any,
    model_trajectory: Any,
    future_sampling: Any,
    simulator: Any,
    scorer: Any,
    traffic_agents_policy: Any,
) -> tuple[Any, NDArray[np.float64]]:
    """Score one trajectory as ``navsim.evaluate.pdm_score.pdm_score`` of the devkit at 359c7f7 does.

    The last cache's conversion is kept, and so is that cache: pass a copy of a cache that changes. Candidates are
    faster together: see `scorer_of`.

    Args:
        metric_cache: navsim's `MetricCache`.
        model_trajectory: navsim's `Trajectory`.
        future_sampling: nuPlan's `TrajectorySampling`; only 40 poses of 0.1 s.
        simulator: not used; drives are simulated here.
        scorer: navsim's `PDMScorer`, of which only ``human_penalty_filter`` is used.
        traffic_agents_policy: navsim's `LogReplayTrafficAgents`, or `NavsimIDMTrafficAgents`, which reads nuPlan's map.

    Returns:
        A pandas frame of one row with the devkit's columns, and states ``[41, 11]``.

    Raises:
        InputError: another sampling or traffic, or a trajectory that is not finite.
    """
    import pandas

    if future_sampling.num_poses != STEPS - 1 or abs(future_sampling.interval_length - DT) > 1e-9:
        raise InputError(f"Expected a sampling of {STEPS - 1} poses of {DT} s, but got {future_sampling}.")
    name = type(traffic_agents_policy).__name__
    if name not in (REPLAY, REACTIVE):
        raise InputError(f"Expected {REPLAY} or {REACTIVE}, but got {name}, try one of these.")
    kept_scorer = _kept_scorer(_Same(metric_cache), bool(scorer._config.human_penalty_filter), name == REACTIVE)
    poses = torch.as_tensor(np.asarray(model_trajectory.poses, dtype=np.float64))[None]
    interval = model_trajectory.trajectory_sampling.interval_length
    scores = kept_scorer(poses, torch.zeros(1, dtype=torch.int64), interval)
    if not bool(scores.valid):
        raise InputError("Expected a trajectory of finite poses that can be driven.")
    row: dict[str, Any] = {name: float(scores.columns[name]) for name in COLUMNS}
    row["multiplicative_metrics_prod"] = float(scores.multiplicative_metrics_prod)
    # The last place is extended comfort's, which the devkit fills in later.
    weighted = [row[name] for name in WEIGHTS]
    row["weighted_metrics"] = np.array([*weighted, 0.0])
    row["weighted_metrics_array"] = np.array([*WEIGHTS.values(), EXTENDED_COMFORT_WEIGHT])
    row["pdm_score"] = float(scores.pdm_score)
    return pandas.DataFrame([row]), scores.states[0].numpy()


@dataclass(frozen=True, eq=False)
class _Same:
    """Equal to another if both hold the same object; a `MetricCache` itself can't be hashed."""

    held: Any

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held


@lru_cache(maxsize=1)
def _kept_scorer(cache: _Same, human_filter: bool, reactive: bool) -> Scorer:
    return scorer_of([cache.held], human_filter=human_filter, reactive=reactive)


def scorer_of(metric_caches: Sequence[Any], *, human_filter: bool = True, reactive: bool = False) -> Scorer:
    """A `Scorer` over navsim's metric caches; row i of its scenes is cache i.

    Args:
        metric_caches: navsim's `MetricCache` objects, of the devkit 2.
        human_filter: see `Scorer`.
        reactive: vehicles react, on the lanes of nuPlan's map; by default the log is replayed.
    """
    scenes = []
    plans = []
    for cache in metric_caches:
        lanes_of = map_lanes(cache) if reactive else None
        scene, plan = cached_scene(cache, lanes_of)
        scenes.append(scene)
        plans.append(plan)
    traffic = Reactive() if reactive else None
    return Scorer(scenes, traffic, plans=plans, human_filter=human_filter)


def map_lanes(cache: Any) -> Callable[[str, bool], Any]:
    """Lanes (False) and lane connectors (True) by id, of nuPlan's map of a cache's town.

    Raises:
        InputError: nuPlan's devkit isn't installed.
    """
    about = cache.map_parameters
    try:
        layers = import_module("nuplan.common.maps.maps_datatypes").SemanticMapLayer
        town = import_module("nuplan.common.maps.nuplan_map.map_factory").get_maps_api
    except ImportError as error:
        raise InputError(f"Expected nuPlan's devkit to be installed, but got '{error}', try {INSTALL}.") from None
    api = town(os.environ.get(MAPS) or about.map_root, about.map_version, about.map_name)

    def find_lane(name: str, connector: bool) -> Any:
        layer = layers.LANE_CONNECTOR if connector else layers.LANE
        return api.get_map_object(name, layer)

    return find_lane


def cached_scene(cache: Any, lanes_of: Callable[[str, bool], Any] | None = None) -> CachedScene:
    """Convert a `MetricCache`.

    Every lane stands in a roadblock of its own, because a cache does not tell them.

    Args:
        lanes_of: the map's lanes by id (see `map_lanes`), whose centerlines and speed limits a cache lacks.

    Raises:
        InputError: the cache has no plan of the expert, or is of NAVSIM 1.
    """
    if not hasattr(cache, "trajectory"):
        raise InputError(
            "Expected metric caches with `trajectory`, the expert's plan, but got one without, as caches for training "
            "are that only hold pdm_progress, try caches of the devkit's run_metric_caching.sh."
        )
    plan = plan_content(cache)
    areas = cache.drivable_area_map
    observation = cache.observation
    now = cache.ego_state
    lights = observation._occupancy_maps_tl or []
    red = []  # ids of red connectors at each step
    for tokens, _ in lights:
        red.append([token.removeprefix(RED) for token in tokens])
    ever_red = sorted(set().union(*red))
    road_map: dict[str, list[dict[str, Any]]] = {"roadblocks": [], "lanes": []}
    for name in AREAS.values():
        road_map[name] = []

    def add_lane(name: str, polygon: Any, connector: bool) -> None:
        shape = polygon_content(polygon)
        block = f"block of {name}"
        links: dict[str, list[str]] = {"incoming": [], "outgoing": []}
        road_map["roadblocks"].append({"id": block, "connector": True, **shape, "lanes": [name], **links})
        lane = {"id": name, "connector": connector, "roadblock": block, **shape, **links}
        if lanes_of is None:
            lane |= {"centerline": shape["polygon"][:2], "speed_limit": None}
        else:
            lane |= lane_content(lanes_of(name, connector))
        road_map["lanes"].append(lane)

    for token, kind, polygon in zip(areas.tokens, areas.map_types, areas._geometries, strict=True):
        if polygon.is_empty:
            continue  # nothing is inside
        if kind.name in LANES:
            add_lane(str(token), polygon, LANES[kind.name])
        elif kind.name == "ROADBLOCK":
            block = {"id": str(token), "connector": False, **polygon_content(polygon), "lanes": []}
            road_map["roadblocks"].append({**block, "incoming": [], "outgoing": []})
        elif kind.name in AREAS:
            road_map[AREAS[kind.name]].append({"id": str(token), **polygon_content(polygon)})
    lanes = {lane["id"] for lane in road_map["lanes"]}
    # Red connectors of the route may be further away than the cache's map.
    for names, (_, polygons) in zip(red, lights, strict=True):
        for name, polygon in zip(names, polygons, strict=True):
            if name not in lanes:
                lanes.add(name)
                add_lane(name, polygon, True)
    past = cache.past_human_trajectory.get_sampled_trajectory()
    ego = [ego_content(state, (state.time_us - now.time_us) / 1e6) for state in past[:-1]]
    ego.append(ego_content(now, 0))
    frames = []
    for step, frame in enumerate(observation.detections_tracks[:STEPS]):
        frames.append((step * DT, frame.tracked_objects))
    scene_name = "metric cache"
    if getattr(cache, "file_path", None):
        scene_name = str(cache.file_path.parent.name)
    scene_type = "synthetic"
    human = None
    if cache.human_trajectory is not None:
        scene_type = "original"
        human = np.asarray(cache.human_trajectory.poses).tolist()
    content = {
        "name": scene_name,
        "scene_type": scene_type,
        "map": road_map,
        "route": [f"block of {name}" for name in ever_red],
        "ego": ego,
        "human_trajectory": human,
        "agents": agents_content(frames),
        "traffic_lights": [{"t": step * DT, "red": names, "green": []} for step, names in enumerate(red)],
    }
    scene = scene_from_json(content, "metric cache")
    rows = {name: row for row, name in enumerate(scene.map.lanes.ids)}
    route_lanes = tuple(rows[str(name)] for name in cache.route_lane_ids if str(name) in rows)
    trajectory = torch.tensor(plan["pdm_trajectory"], dtype=torch.float64)
    centerline = torch.tensor(plan["centerline"], dtype=torch.float64)
    return CachedScene(scene, ExpertPlan(trajectory, centerline, route_lanes))
