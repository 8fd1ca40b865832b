"""The devkit's classes, as far as the source uses them, around the made-up drive."""

import math
import pickle
import sys
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import shapely

from tests.driving_scenes.devkit_files import set_variables
from tests.driving_scenes.made_up_drive import HISTORY, MAP, TOWN, ego, expected, frames, others


class Layer(IntEnum):
    """nuPlan's SemanticMapLayer, the layers that are used."""

    INTERSECTION = 1
    CARPARK_AREA = 15
    ROADBLOCK = 17
    ROADBLOCK_CONNECTOR = 18


def tracked(token: str, kind: str, place: Any, size: Any, velocity: Any = None) -> Any:
    """A tracked object; what does not move has no velocity."""
    x, y, yaw = map(float, place)
    item = SimpleNamespace(
        track_token=token,
        tracked_object_type=SimpleNamespace(name=kind.upper()),
        center=SimpleNamespace(x=x, y=y, heading=yaw),
        box=SimpleNamespace(**dict(zip(("length", "width", "height"), map(float, size), strict=True))),
    )
    if velocity is not None:
        item.velocity = SimpleNamespace(x=float(velocity[0]), y=float(velocity[1]))
    return item


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
        commands = (SimpleNamespace(driving_command=frame["driving_command"]) for frame in log)
        self.frames = [SimpleNamespace(ego_status=status) for status in commands]

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
        for token, kind, place, size, velocity in others(3 + iteration):
            found.append(tracked(token, kind, place, size, velocity if kind in ("vehicle", "pedestrian") else None))
        return SimpleNamespace(tracked_objects=found)

    def get_traffic_light_status_at_iteration(self, iteration: int) -> Any:
        if 3 + iteration < len(self.scene.log):
            for lane, red in self.scene.log[3 + iteration]["traffic_lights"]:
                status = SimpleNamespace(name="RED" if red else "GREEN")
                yield SimpleNamespace(status=status, lane_connector_id=lane)


def install_modules(monkeypatch: Any, contents: dict[str, dict[str, Any]], **paths: list[str]) -> None:
    """Install modules with these contents, and the packages that they lie in, as on these paths."""
    for path, content in contents.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            module = ModuleType(name)
            vars(module).update({"__path__": paths.get(name, [])} | (content if name == path else {}))
            monkeypatch.setitem(sys.modules, name, module)


def install(monkeypatch: Any, folder: Path) -> Path:
    """Install the fake devkit, whose data are below the folder; returns the folder of its splits."""
    modules: dict[str, dict[str, Any]] = {
        "navsim.common.dataclasses": {"Scene": FakeScene, "SensorConfig": FakeSensorConfig},
        "navsim.planning.scenario_builder.navsim_scenario": {"NavSimScenario": FakeScenario},
        "nuplan.common.maps.maps_datatypes": {"SemanticMapLayer": Layer},
    }
    install_modules(monkeypatch, modules, navsim=[str(folder / "navsim")])
    set_variables(monkeypatch, folder)
    return folder / "navsim" / "planning" / "script" / "config" / "common" / "train_test_split"
