"""Argoverse 2 logs, cut into scenes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from driving_scenes.logs import ALL, LogSource, Part
from driving_scenes.scene import RoadMap, Scene
from driving_scenes.scene_file import agent_to_json, ego_to_json, scene_from_json
from examples.scene_sources.argoverse2.log import BOXES, POSES, Array, Log, last_sweep, read_log, relative, wrapped
from examples.scene_sources.argoverse2.road_map import read_map
from examples.scene_sources.argoverse2.router import Router
from lightning_cgrpo.core.errors import UserError

HISTORY, FUTURE, INTERVAL = 1.5, 4.0, 0.5
AGENT_RADIUS = 100.0
"""Meters around the ego at t = 0; agents outside are left out."""
LOGS_KEPT = 16


class Moment(NamedTuple):
    """The t = 0 of a scene."""

    log: Path
    time: float  # seconds since the log's first sweep


class Argoverse2(LogSource[Moment]):
    """Scenes of 4 s, with 1.5 s of history, from Argoverse 2 sensor logs. Requires pyarrow (extra `data`).

    Args:
        path: a log, or a folder with logs at depth one or two. Logs without boxes, as in Argoverse's test split, are
            skipped.
        stride: seconds between scenes.

    Raises:
        UserError: pyarrow is missing, there is no log, or there are too few logs to split.
        SceneError: (from `scenes` or indexing) a log's file is missing or unreadable.
    """

    def __init__(
        self,
        path: str | Path,
        stride: float = 1.0,
        val_share: float = 0.1,
        test_share: float = 0.1,
        train_part: Part = ALL,
    ) -> None:
        super().__init__(val_share, test_share, train_part)
        if not stride > 0:
            raise UserError(f"Expected argument `stride` to be greater than 0, but got {stride}.")
        self.path, self.stride = Path(path), stride

    def logs(self) -> Collection[str]:
        return self._folders

    def keys(self, log: str) -> Sequence[Moment]:
        folder = self._folders[log]
        spare = last_sweep(folder) - HISTORY - FUTURE
        return [Moment(folder, HISTORY + i * self.stride) for i in range(int(spare // self.stride) + 1)]

    def scene(self, key: Moment) -> Scene:
        log, road_map, router = _recording(key.log)
        history = np.arange(-HISTORY, INTERVAL, INTERVAL)
        future = np.arange(INTERVAL, FUTURE + INTERVAL, INTERVAL)
        times = key.time + history
        poses = log.ego.at(times)
        content = {
            "name": f"av2_{key.log.name[:8]}_{key.time:05.1f}",
            "scene_type": "original",
            "route": [road_map.roadblocks.ids[row] for row in router.route(log.ego, key.time, log.end)],
            "ego": ego_to_json(history, poses, *log.ego.dynamics(times)),
            "human_trajectory": relative(log.ego.at(key.time + future), poses[-1]).tolist(),
            "agents": _agents(log, key.time, np.concatenate([history, future]), poses[-1, :2]),
            "log": key.log.name,
        }
        return scene_from_json(content, str(key.log), road_map)

    @cached_property
    def _folders(self) -> dict[str, Path]:
        folders = {
            file.parent.name: file.parent
            for pattern in (POSES, f"*/{POSES}", f"*/*/{POSES}")
            for file in self.path.resolve().glob(pattern)
            if any((file.parent / name).is_file() for name in BOXES)
        }
        if not folders:
            raise UserError(
                f"Expected an Argoverse 2 log, or a folder of logs, with {POSES} and {BOXES[0]}, "
                f"but got {self.path}, which has none."
            )
        return folders


@lru_cache(LOGS_KEPT)
def _recording(folder: Path) -> tuple[Log, RoadMap, Router]:
    road_map = read_map(folder)
    return read_log(folder), road_map, Router(road_map)


def _agents(log: Log, start: float, grid: Array, place: Array) -> list[dict[str, Any]]:
    agents = []
    for track in log.tracks:
        seen = track.motion.covers(start + grid)
        if not seen[grid >= 0].any():
            continue
        poses = track.motion.at(start + grid[seen])
        if np.hypot(*(poses[:, :2] - place).T).min() >= AGENT_RADIUS:
            continue
        poses[:, 2] = wrapped(poses[:, 2])
        states = np.column_stack([grid[seen], poses, track.motion.velocities(start + grid[seen])])
        agents.append(agent_to_json(track.token, track.type, track.size, states))
    return agents
