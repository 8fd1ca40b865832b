"""A made-up drive, as an OpenScene log, a nuPlan map, and the scene that is in them; and the devkit's classes.

Of the classes there is what the source uses.
"""

import json
import lzma
import math
import pickle
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import shapely

LOGS = ("2021.a", "2021.b", "2021.c")
FRAMES, HISTORY = 14, 4
TOWN = "us-nv-las-vegas-strip"


def box(x: float, y: float, length: float, width: float) -> list[list[float]]:
    return [[x, y], [x + length, y], [x + length, y + width], [x, y + width]]


def block(name: str, lane: str, polygon: Any, connector: bool, before: list[str], after: list[str]) -> dict[str, Any]:
    return {
        "id": name,
        "connector": connector,
        "polygon": polygon,
        "lanes": [lane],
        "incoming": before,
        "outgoing": after,
    }


def road(name: str, roadblock: str, x: tuple[float, float], connector: bool, limit: float | None) -> dict[str, Any]:
    return {
        "id": name,
        "connector": connector,
        "roadblock": roadblock,
        "polygon": box(x[0], -2, x[1] - x[0], 4),
        "centerline": [[x[0], 0.0], [(x[0] + x[1]) / 2, 0.1], [x[1], 0.0]],
        "speed_limit": limit,
        "incoming": ["11"] if connector else [],
        "outgoing": [] if connector else ["12"],
    }


MAP = {
    "roadblocks": [
        block("1", "11", box(0, -2, 80, 4), False, [], ["2"]),
        block("2", "12", box(80, -2, 20, 4), True, ["1"], []),
    ],
    "lanes": [road("11", "1", (0, 80), False, 11.0), road("12", "2", (80, 100), True, None)],
    "intersections": [{"id": "5", "polygon": box(80, -2, 20, 4)}],
    "carparks": [{"id": "6", "polygon": box(0, 2, 10, 5)}],
    "drivable_areas": [],
}


def ego(frame: int) -> tuple[np.ndarray, np.ndarray]:
    """Pose, and velocity and acceleration in its frame."""
    return np.array([20 + 3.0 * frame, 0.2 * frame, 0.05 * frame]), np.array([6.0, 0.1, 0.2, -0.1 * frame])


def others(frame: int) -> list[tuple[str, str, list[float], list[float], list[float]]]:
    """Token, type, pose, size and velocity, in the scene's frame; the car is measured longer from t = 0 on."""
    car = ("car", "vehicle", [50 + 2.0 * frame, 1.0, 0.1], [4.0 + (frame >= 3), 1.8, 1.5], [4.0, 0.5])
    walker = ("walker", "pedestrian", [60.0, 5 - 0.5 * frame, -1.5], [0.6, 0.7, 1.8], [0.0, -1.0])
    cone = ("cone", "traffic_cone", [30.0, 2.5, 0.0], [0.4, 0.4, 0.7], [0.0, 0.0])
    return [car, cone] + ([walker] if frame >= 5 else [])


def expected(log: str) -> dict[str, Any]:
    pose = ego(3)[0]
    future = np.array([ego(frame)[0] for frame in range(4, 12)]) - pose
    cos, sin = math.cos(pose[2]), math.sin(pose[2])
    turned = np.column_stack([cos * future[:, 0] + sin * future[:, 1], cos * future[:, 1] - sin * future[:, 0]])
    states: dict[str, Any] = {}
    for frame in range(12):
        for token, kind, place, size, velocity in others(frame):
            agent = states.setdefault(token, {"token": token, "type": kind, "states": []})
            agent["states"].append([(frame - 3) / 2, *place, *velocity])
            if frame <= 3 or "length" not in agent:
                agent |= dict(zip(("length", "width", "height"), size, strict=True))
    return {
        "name": f"{log}-3",
        "scene_type": "original",
        "map": MAP,
        "route": ["1", "2"],
        "ego": [
            {
                "t": (frame - 3) / 2,
                "pose": ego(frame)[0].tolist(),
                "velocity": ego(frame)[1][:2].tolist(),
                "acceleration": ego(frame)[1][2:].tolist(),
            }
            for frame in range(4)
        ],
        "human_trajectory": np.column_stack([turned, future[:, 2]]).tolist(),
        "agents": list(states.values()),
        "traffic_lights": [
            {"t": i / 2, "red": ["12"] if i < 4 else [], "green": [] if i < 4 else ["12"]} for i in range(9)
        ],
        "log": log,
        "intent": "straight",
    }


def frames(log: str) -> list[dict[str, Any]]:
    """As in OpenScene's pickles: boxes and velocities are in the ego's frame."""
    found = []
    for frame in range(FRAMES):
        pose, motion = ego(frame)
        cos, sin = math.cos(pose[2]), math.sin(pose[2])
        boxes, velocities = [], []
        for _, _, (x, y, yaw), size, (vx, vy) in others(frame):
            dx, dy = x - pose[0], y - pose[1]
            boxes.append([cos * dx + sin * dy, cos * dy - sin * dx, 0.0, *size, yaw - pose[2]])
            velocities.append([cos * vx + sin * vy, cos * vy - sin * vx, 0.0])
        found.append(
            {
                "token": f"{log}-{frame}",
                "timestamp": frame * 500_000,
                "log_name": log,
                "scene_token": f"scene-{log}",
                "map_location": TOWN,
                "roadblock_ids": ["1", "2", "1"],
                "traffic_lights": [("12", frame < 7), ("999", True)],  # the second is far away
                "ego2global_translation": [pose[0], pose[1], 0.0],
                "ego2global_rotation": [math.cos(pose[2] / 2), 0, 0, math.sin(pose[2] / 2)],
                "ego_dynamic_state": motion.tolist(),
                "driving_command": np.array([0, 1, 0, 0]),
                "anns": {
                    "gt_boxes": np.array(boxes),
                    "gt_names": [other[1] for other in others(frame)],
                    "gt_velocity_3d": np.array(velocities),
                    "instance_tokens": [f"{other[0]}-{frame}" for other in others(frame)],
                    "track_tokens": [other[0] for other in others(frame)],
                },
                "cams": {
                    f"CAM_{name}": {"data_path": f"{log}/{name}/{frame}.jpg"}
                    for name in ("F0", "L0", "L1", "L2", "R0", "R1", "R2", "B0")
                },
                "lidar_path": "none.pcd",
            }
        )
    return found


class Layer(IntEnum):
    """nuPlan's SemanticMapLayer, the layers that are used."""

    INTERSECTION = 1
    CARPARK_AREA = 15
    ROADBLOCK = 17
    ROADBLOCK_CONNECTOR = 18


class FakeMap:
    """nuPlan's AbstractMap of `MAP`."""

    map_name = TOWN

    def __init__(self, layers: Any, near: bool = True) -> None:
        self.near = near  # whether blocks are found by their place, and not by the route alone
        items = {**{lane["id"]: lane for lane in MAP["lanes"]}, **{row["id"]: row for row in MAP["roadblocks"]}}
        made = {
            name: SimpleNamespace(
                id=name,
                polygon=shapely.Polygon(item["polygon"]),
                speed_limit_mps=item.get("speed_limit"),
                baseline_path=SimpleNamespace(
                    discrete_path=[SimpleNamespace(x=x, y=y, heading=0.0) for x, y in item.get("centerline", [])]
                ),
            )
            for name, item in items.items()
        }
        far = SimpleNamespace(id="77")
        for name, item in items.items():
            made[name].incoming_edges = [made[other] for other in item["incoming"]]
            made[name].outgoing_edges = [*(made[other] for other in item["outgoing"]), far]
            made[name].interior_edges = [made[lane] for lane in item.get("lanes", [])]
        self.layers = {
            layers.ROADBLOCK: [made[row["id"]] for row in MAP["roadblocks"] if not row["connector"]],
            layers.ROADBLOCK_CONNECTOR: [made[row["id"]] for row in MAP["roadblocks"] if row["connector"]],
            layers.INTERSECTION: self._areas("intersections"),
            layers.CARPARK_AREA: self._areas("carparks"),
        }

    def get_proximal_map_objects(self, point: Any, radius: float, layers: list[Any]) -> dict[Any, list[Any]]:
        assert radius == 100
        center = ego(3)[0] + 1.461 * np.array([math.cos(0.15), math.sin(0.15), 0])
        assert np.allclose([point.x, point.y], center[:2], atol=1e-3)
        blocks = (layers[0], layers[1])
        return {layer: [] if layer in blocks and not self.near else self.layers[layer] for layer in layers}

    def get_map_object(self, name: str, layer: Any) -> Any:
        return next((item for item in self.layers[layer] if item.id == name), None)

    def _areas(self, kind: str) -> list[Any]:
        return [SimpleNamespace(id=row["id"], polygon=shapely.Polygon(row["polygon"])) for row in MAP[kind]]


class FakeScene:
    """navsim.common.dataclasses.Scene."""

    def __init__(self, log: list[dict[str, Any]]) -> None:
        self.log = log
        self.scene_metadata = SimpleNamespace(num_history_frames=HISTORY, log_name=log[0]["log_name"])
        self.frames = [
            SimpleNamespace(ego_status=SimpleNamespace(driving_command=frame["driving_command"])) for frame in log
        ]

    def get_future_trajectory(self, num_trajectory_frames: int) -> Any:
        assert num_trajectory_frames == 8
        return SimpleNamespace(poses=np.array(expected(self.log[0]["log_name"])["human_trajectory"]))

    @classmethod
    def from_scene_dict_list(
        cls, frames: list[dict[str, Any]], images: Path, history: int, future: int, sensors: Any
    ) -> "FakeScene":
        assert history == HISTORY
        assert len(frames) == history + future
        return cls(frames)

    @classmethod
    def load_from_disk(cls, file_path: Path, sensor_blobs_path: Path, sensor_config: Any) -> "FakeScene":
        return cls(frames(pickle.loads(file_path.read_bytes())["scene_metadata"]["log_name"])[:8])


class FakeSensorConfig(SimpleNamespace):
    """navsim.common.dataclasses.SensorConfig."""

    @classmethod
    def build_no_sensors(cls) -> "FakeSensorConfig":
        return cls()


class CachedPlan:
    """Of navsim's MetricCache, what the source uses; it is its own trajectory and centerline."""

    discrete_path = tuple(SimpleNamespace(x=x, y=0.0, heading=0.0) for x in (0.0, 50.0))

    @property
    def trajectory(self) -> "CachedPlan":
        return self

    centerline = trajectory

    def get_sampled_trajectory(self) -> list[Any]:
        return [SimpleNamespace(rear_axle=SimpleNamespace(x=i / 10, y=0.0, heading=0.0)) for i in range(51)]


class FakeScenario:
    """navsim.planning.scenario_builder.navsim_scenario.NavSimScenario."""

    near = True

    def __init__(self, scene: FakeScene, map_root: str, map_version: str) -> None:
        assert Path(map_root).name == "maps"
        assert map_version == "nuplan-maps-v1.0"
        self.scene, self.map_api = scene, FakeMap(Layer, self.near)

    @property
    def initial_ego_state(self) -> Any:
        return self.get_ego_state_at_iteration(0)

    def get_route_roadblock_ids(self) -> list[str]:
        return self.scene.log[3]["roadblock_ids"]

    def get_ego_state_at_iteration(self, iteration: int) -> Any:
        pose, (vx, vy, ax, ay) = ego(3 + iteration)
        x, y = pose[:2] + 1.461 * np.array([math.cos(pose[2]), math.sin(pose[2])])
        return SimpleNamespace(
            rear_axle=SimpleNamespace(x=pose[0], y=pose[1], heading=pose[2]),
            center=SimpleNamespace(point=SimpleNamespace(x=x, y=y)),
            dynamic_car_state=SimpleNamespace(
                rear_axle_velocity_2d=SimpleNamespace(x=vx, y=vy), rear_axle_acceleration_2d=SimpleNamespace(x=ax, y=ay)
            ),
        )

    def get_tracked_objects_at_iteration(self, iteration: int) -> Any:
        if 3 + iteration >= len(self.scene.log):
            raise AssertionError(f"Iteration is out of scenario: {iteration}!")
        found = []
        for token, kind, (x, y, yaw), (length, width, height), (vx, vy) in others(3 + iteration):
            item = SimpleNamespace(
                track_token=token,
                tracked_object_type=SimpleNamespace(name=kind.upper()),
                center=SimpleNamespace(x=x, y=y, heading=yaw),
                box=SimpleNamespace(length=length, width=width, height=height),
            )
            if kind in ("vehicle", "pedestrian"):
                item.velocity = SimpleNamespace(x=vx, y=vy)
            found.append(item)
        return SimpleNamespace(tracked_objects=found)

    def get_traffic_light_status_at_iteration(self, iteration: int) -> Any:
        if 3 + iteration < len(self.scene.log):
            for lane, red in self.scene.log[3 + iteration]["traffic_lights"]:
                status = SimpleNamespace(name="RED" if red else "GREEN")
                yield SimpleNamespace(status=status, lane_connector_id=lane)


def synthetic(log: str, token: str, after: str) -> dict[str, Any]:
    """As the devkit pickles a synthetic scene: cameras are in lower case."""
    images = [
        {f"cam_{name}": {"data_path": f"{token}/cam_{name}/{step}.jpg"} for name in ("f0", "l0", "r0")}
        for step in range(HISTORY)
    ]
    return {
        "scene_metadata": {
            "log_name": log,
            "map_name": TOWN,
            "initial_token": token,
            "corresponding_original_scene": after,
        },
        "frames": [{"camera_dict": cameras} for cameras in images],
    }


def write_split(
    config: Path, name: str, data: str, logs: list[str] | None, pairs: list[Any] | None = None, **filters: Any
) -> None:
    """Write a split's configuration, as the devkit's."""
    (config / "scene_filter").mkdir(parents=True, exist_ok=True)
    top = {"defaults": [{"scene_filter": f"{name}_filter"}], "data_split": data, "reactive_all_mapping": pairs}
    (config / f"{name}.yaml").write_text(json.dumps(top))
    content = {"_target_": "navsim.common.dataclasses.SceneFilter", "num_history_frames": HISTORY, "log_names": logs}
    (config / "scene_filter" / f"{name}_filter.yaml").write_text(json.dumps(content | filters))


def write_log(folder: Path, split: str, log: str, cameras: tuple[str, ...] = (), town: str = TOWN) -> None:
    """Write a log, and the images of its cameras."""
    path = folder / "data" / "navsim_logs" / split / f"{log}.pkl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps([frame | {"map_location": town} for frame in frames(log)]))
    for frame in frames(log) if cameras else ():
        for name in cameras:
            write_image(folder / "data" / "sensor_blobs" / split / frame["cams"][name]["data_path"])


def write_image(path: Path) -> None:
    """Write the beginning and the end of a JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\xff\xd8picture\xff\xd9")


def write_maps(folder: Path, *towns: str) -> None:
    (folder / "maps").mkdir(parents=True, exist_ok=True)
    (folder / "maps" / "nuplan-maps-v1.0.json").write_text("{}")
    for town in towns:
        (folder / "maps" / town / "9.17").mkdir(parents=True)
        (folder / "maps" / town / "9.17" / "map.gpkg").write_bytes(b"SQLite format 3\0")


def write_caches(folder: Path, tokens: list[str]) -> dict[str, Path]:
    """Write metric caches, and the devkit's list of them."""
    cache = folder / "exp" / "metric_cache"
    paths = {token: cache / "log" / "unknown" / token / "metric_cache.pkl" for token in tokens}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(lzma.compress(pickle.dumps(CachedPlan())))
    (cache / "metadata").mkdir(parents=True, exist_ok=True)
    (cache / "metadata" / "0.csv").write_text("\n".join(["file_name", *map(str, paths.values())]))
    return paths


def install(monkeypatch: Any, folder: Path) -> Path:
    """Install the fake devkit, whose data are below the folder; returns the folder of its splits."""
    modules: dict[str, dict[str, Any]] = {
        "navsim": {"__path__": [str(folder / "navsim")]},
        "navsim.common": {},
        "navsim.common.dataclasses": {"Scene": FakeScene, "SensorConfig": FakeSensorConfig},
        "navsim.planning": {},
        "navsim.planning.scenario_builder": {},
        "navsim.planning.scenario_builder.navsim_scenario": {"NavSimScenario": FakeScenario},
        "nuplan": {},
        "nuplan.common": {},
        "nuplan.common.maps": {},
        "nuplan.common.maps.maps_datatypes": {"SemanticMapLayer": Layer},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update({"__path__": []} | content)
        monkeypatch.setitem(sys.modules, name, module)
    set_variables(monkeypatch, folder)
    return folder / "navsim" / "planning" / "script" / "config" / "common" / "train_test_split"


def set_variables(monkeypatch: Any, folder: Path) -> None:
    for name, below in {"OPENSCENE_DATA_ROOT": "data", "NUPLAN_MAPS_ROOT": "maps", "NAVSIM_EXP_ROOT": "exp"}.items():
        monkeypatch.setenv(name, str(folder / below))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("NUPLAN_MAP_VERSION", raising=False)
