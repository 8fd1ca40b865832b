"""The installed devkit and its data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from driving_scenes.cache import files_state, remember, remembered
from driving_scenes.errors import InputError

DATA = "OPENSCENE_DATA_ROOT"
MAPS = "NUPLAN_MAPS_ROOT"
MAP_VERSION = "NUPLAN_MAP_VERSION"
EXPERIMENTS = "NAVSIM_EXP_ROOT"
DEFAULT_MAP_VERSION = "nuplan-maps-v1.0"
INSTALL = (
    "git clone https://github.com/autonomousvision/navsim && "
    "git clone -b nuplan-devkit-v1.2 https://github.com/motional/nuplan-devkit && "
    "pip install --no-deps -e navsim -e nuplan-devkit && "
    "pip install geopandas pyogrio rasterio aioboto3 aiofiles requests retry pyquaternion opencv-python-headless "
    "(not with their own dependencies, which pin Python 3.9 and an old torch)"
)
CLASSES = {
    "navsim.common.dataclasses": ("Scene", "SensorConfig"),
    "navsim.planning.scenario_builder.navsim_scenario": ("NavSimScenario",),
    "nuplan.common.maps.maps_datatypes": ("SemanticMapLayer",),
}


@dataclass(frozen=True)
class Folders:
    """Folders of NAVSIM's data."""

    data: Path  # has navsim_logs, sensor_blobs, and for two stages e.g. navhard_two_stage
    maps: Path  # nuPlan's
    map_version: str
    metric_cache: Path | None  # None if caches aren't read


def load_classes() -> dict[str, Any]:
    """Import the devkit's classes, by name.

    Raises:
        InputError: the devkit isn't installed.
    """
    classes = {}
    try:
        for module, names in CLASSES.items():
            for name in names:
                classes[name] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"Expected NAVSIM's devkit to be installed, but got '{error}', try {INSTALL}.") from None
    return classes


def find_folders(metric_caches: bool) -> Folders:
    """Read the devkit's environment variables.

    Raises:
        InputError: a variable isn't set, or isn't a folder.
    """
    variables = {DATA: "the folder with navsim_logs and sensor_blobs", MAPS: "the folder with nuPlan's maps"}
    if metric_caches:
        variables[EXPERIMENTS] = "the folder with metric_cache"
    values = {name: os.environ.get(name, "") for name in variables}
    wrong = []
    for name, value in values.items():
        if not value or not Path(value).is_dir():
            wrong.append(f"{name} ({variables[name]}) is {value or 'not set'}")
    if wrong:
        raise InputError(
            f"Expected the environment variables {', '.join(variables)} to be folders, but {'; '.join(wrong)}, "
            "try export NAME=FOLDER (navsim/docs/install.md)."
        )
    return Folders(
        data=Path(values[DATA]).absolute(),
        maps=Path(values[MAPS]),
        map_version=os.environ.get(MAP_VERSION, DEFAULT_MAP_VERSION),
        metric_cache=Path(values[EXPERIMENTS]) / "metric_cache" if metric_caches else None,
    )


@dataclass(frozen=True)
class OfficialSplit:
    """A devkit split's configuration (navtrain, navtest, navhard_two_stage, …)."""

    name: str
    data: str  # folder of the logs below navsim_logs
    filter: dict[str, Any]  # arguments of the devkit's SceneFilter
    pairs: list[Any]  # of two stages: [now, previous, [[follow-up of now, follow-up of previous], …]]
    state: str = ""  # of its files


def read_split(name: str) -> OfficialSplit:
    """Read a split's configuration, as JSON from the second time on, because navtrain's YAML takes a second or more.

    Raises:
        InputError: the split is unknown.
    """
    folder = Path(next(iter(import_module("navsim").__path__)))
    folder = folder / "planning" / "script" / "config" / "common" / "train_test_split"
    top = folder / f"{name}.yaml"
    kept = remembered(f"navsim/{name}")
    if kept and kept["state"] == files_state(top, Path(kept["filter_path"])):
        return OfficialSplit(name, kept["data"], kept["filter"], kept["pairs"], kept["state"])
    try:
        split = _read_yaml(top)
        filter_name = next(item["scene_filter"] for item in split["defaults"] if "scene_filter" in item)
        path = folder / "scene_filter" / f"{filter_name}.yaml"
        content = _read_yaml(path)
    except OSError:
        splits = sorted(file.stem for file in folder.glob("*.yaml"))
        raise InputError(f"Expected one of the devkit's splits ({', '.join(splits)}), but got '{name}'.") from None
    arguments = {key: value for key, value in content.items() if not key.startswith("_")}
    pairs = split.get("reactive_all_mapping") or []
    read = OfficialSplit(name, split["data_split"], arguments, pairs, files_state(top, path))
    remember(
        f"navsim/{name}",
        {"state": read.state, "filter_path": str(path), "data": read.data, "filter": arguments, "pairs": pairs},
    )
    return read


def _read_yaml(path: Path) -> Any:
    import yaml

    # Ten times as fast, where PyYAML has it.
    return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
