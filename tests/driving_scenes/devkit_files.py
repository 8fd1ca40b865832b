"""Files of NAVSIM's data and splits, in the devkit's layout, of the made-up drive."""

import json
import lzma
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.driving_scenes.made_up_drive import HISTORY, TOWN, frames


class CachedPlan:
    """Of navsim's MetricCache, what the source uses; it is its own trajectory and centerline."""

    discrete_path = tuple(SimpleNamespace(x=x, y=0.0, heading=0.0) for x in (0.0, 50.0))

    @property
    def trajectory(self) -> "CachedPlan":
        return self

    centerline = past_human_trajectory = trajectory

    def get_sampled_trajectory(self) -> list[Any]:
        return [SimpleNamespace(rear_axle=SimpleNamespace(x=i / 10, y=0.0, heading=0.0)) for i in range(51)]


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


def set_variables(monkeypatch: Any, folder: Path) -> None:
    for name, below in {"OPENSCENE_DATA_ROOT": "data", "NUPLAN_MAPS_ROOT": "maps", "NAVSIM_EXP_ROOT": "exp"}.items():
        monkeypatch.setenv(name, str(folder / below))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("NUPLAN_MAP_VERSION", raising=False)
