"""A made-up drive: the frames of its OpenScene log, its nuPlan map, and the scene that is in them."""

import math
from typing import Any

import numpy as np

from tests.driving_scenes.scenes import lane, rectangle, road_map

LOGS = ("2021.a", "2021.b", "2021.c")
FRAMES, HISTORY = 14, 4
TOWN = "us-nv-las-vegas-strip"
CAMERAS = ("F0", "L0", "L1", "L2", "R0", "R1", "R2", "B0")


MAP = road_map(
    [
        lane("11", "1", rectangle(0, -2, 80, 2), [[0.0, 0.0], [40.0, 0.1], [80.0, 0.0]], False, 11.0, after=["12"]),
        lane("12", "2", rectangle(80, -2, 100, 2), [[80.0, 0.0], [90.0, 0.1], [100.0, 0.0]], True, None, ["11"]),
    ],
    intersections=[{"id": "5", "polygon": rectangle(80, -2, 100, 2)}],
    carparks=[{"id": "6", "polygon": rectangle(0, 2, 10, 7)}],
    drivable_areas=[],
)


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
    past = []
    for frame in range(4):
        at, motion = ego(frame)
        velocity, acceleration = motion.reshape(2, 2).tolist()
        past.append({"t": (frame - 3) / 2, "pose": at.tolist(), "velocity": velocity, "acceleration": acceleration})
    lights = [{"t": i / 2, "red": ["12"] if i < 4 else [], "green": [] if i < 4 else ["12"]} for i in range(9)]
    return {
        "name": f"{log}-3",
        "scene_type": "original",
        "map": MAP,
        "route": ["1", "2"],
        "ego": past,
        "human_trajectory": np.column_stack([turned, future[:, 2]]).tolist(),
        "agents": list(states.values()),
        "traffic_lights": lights,
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
                "cams": {f"CAM_{name}": {"data_path": f"{log}/{name}/{frame}.jpg"} for name in CAMERAS},
                "lidar_path": "none.pcd",
            }
        )
    return found


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
