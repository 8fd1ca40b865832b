"""NAVSIM's own data through its devkit: on fakes of its classes here, and on the devkit itself where it is installed.

The drive of fake_devkit.py is written as an OpenScene log and a nuPlan map, from which the source must make its scene.
"""

import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lightning_cgrpo.datamodules import NavsimDataModule
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.scenes.devkit import NavsimDevkit
from lightning_cgrpo.scenes.json_fields import SceneError
from lightning_cgrpo.scenes.scene_file import scene_from_json, scene_to_json
from lightning_cgrpo.tasks.driving.prompts import PromptFormat
from tests.scenes.fake_devkit import (
    LOGS,
    SPLITS,
    FakeMap,
    FakeMetricCacheLoader,
    FakeScenario,
    FakeScene,
    FakeSceneFilter,
    FakeSceneLoader,
    FakeSensorConfig,
    Layer,
    expected,
    frames,
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two training logs, one test log, and the variables that lead to them."""
    for folder in ("maps", "exp/metric_cache"):
        (tmp_path / folder).mkdir(parents=True)
    for log, split in zip(LOGS, ("trainval", "trainval", "test"), strict=True):
        path = tmp_path / "data" / "navsim_logs" / split / f"{log}.pkl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(frames(log)))
    monkeypatch.setenv("OPENSCENE_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("NUPLAN_MAPS_ROOT", str(tmp_path / "maps"))
    monkeypatch.setenv("NAVSIM_EXP_ROOT", str(tmp_path / "exp"))
    monkeypatch.delenv("NUPLAN_MAP_VERSION", raising=False)
    return tmp_path


@pytest.fixture
def fake(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The devkit's modules, and its configuration."""
    config = data / "navsim" / "planning" / "script" / "config" / "common" / "train_test_split"
    (config / "scene_filter").mkdir(parents=True)
    for name, (folder, logs, synthetic) in SPLITS.items():
        pairs = "reactive_all_mapping: [['2021.c-3', '2021.c-2', [['1234567890abcdefg', '1234567890abcdefh']]]]"
        top = f"defaults:\n  - scene_filter: {name}_filter\ndata_split: {folder}\n" + (pairs if synthetic else "")
        (config / f"{name}.yaml").write_text(top)
        (config / "scene_filter" / f"{name}_filter.yaml").write_text(
            "_target_: navsim.common.dataclasses.SceneFilter\nnum_history_frames: 4\n"
            f"log_names: {'null' if logs is None else logs}\ninclude_synthetic_scenes: {str(synthetic).lower()}\n"
        )
    modules: dict[str, dict[str, Any]] = {
        "navsim": {"__path__": [str(data / "navsim")]},
        "navsim.common": {},
        "navsim.common.dataclasses": {
            "Scene": FakeScene,
            "SceneFilter": FakeSceneFilter,
            "SensorConfig": FakeSensorConfig,
        },
        "navsim.common.dataloader": {"SceneLoader": FakeSceneLoader, "MetricCacheLoader": FakeMetricCacheLoader},
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
    return data


def source(**changes: Any) -> NavsimDevkit:
    return NavsimDevkit(**({"train": "trainval", "test": "test", "val_share": 0.0, "allow_pickles": True} | changes))


def assert_same(found: Any, wanted: Any, path: str = "") -> None:
    """But for rounding; the devkit's velocities are float32."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), path
        for key in wanted:
            assert_same(found[key], wanted[key], f"{path}.{key}")
    elif isinstance(wanted, list) and not (wanted and isinstance(wanted[0], int | float)):
        assert len(found) == len(wanted), path
        for i, item in enumerate(wanted):
            assert_same(found[i], item, f"{path}[{i}]")
    elif isinstance(wanted, list | float):
        assert found == pytest.approx(wanted, abs=1e-6), path
    else:
        assert found == wanted, path


def test_a_log_becomes_the_scene_that_it_was_made_of(fake: Path) -> None:
    scenes = source().scenes("train")
    assert len(scenes) == 2
    for scene, log in zip(scenes, LOGS, strict=False):
        assert_same(scene_to_json(scene), scene_to_json(scene_from_json(expected(log), log)))


@pytest.mark.skipif(importlib.util.find_spec("navsim") is None, reason="NAVSIM's devkit isn't installed")
def test_the_real_devkit_reads_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from navsim.common import dataclasses
    from navsim.planning.scenario_builder import navsim_scenario
    from nuplan.common.maps.maps_datatypes import SemanticMapLayer

    for module in (dataclasses, navsim_scenario):
        monkeypatch.setattr(module, "get_maps_api", lambda *_: FakeMap(SemanticMapLayer))
    scenes = source().scenes("train")
    assert len(scenes) == 2
    for scene, log in zip(scenes, LOGS, strict=False):
        assert_same(scene_to_json(scene), scene_to_json(scene_from_json(expected(log), log)))


def test_splits_share_no_log(fake: Path) -> None:
    assert [scene.log for scene in source().scenes("test")] == ["2021.c"]
    split = source(val_share=0.5)
    logs = [scene.log for name in ("train", "val", "test") for scene in split.scenes(name)]
    assert sorted(logs) == list(LOGS)
    with pytest.raises(UserError, match=r"share 2, such as 2021\.a"):
        source(test="trainval").scenes("train")
    alone = source(test=None, val_share=0.0)
    assert len(alone.scenes("train")) == 2
    assert len(alone.scenes("test")) == 0
    parts = [source(train_part=part).scenes("train") for part in ((0.0, 0.5), (0.5, 1.0))]
    assert sorted(scene.log for part in parts for scene in part) == ["2021.a", "2021.b"]


def test_roads_of_the_route_are_in_the_map_however_far(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeScenario, "near", False)
    assert source().scenes("train")[0].map.roadblocks.ids == ("1", "2")
    monkeypatch.setattr(FakeScenario, "get_route_roadblock_ids", lambda _: ["1", "3"])
    with pytest.raises(SceneError, match=r"2021\.a-3: route: Expected a roadblock of the map, but got '3'"):
        source().scenes("train")[0]


def test_metric_caches_hold_the_plan(fake: Path) -> None:
    first, second = source(metric_caches=True).scenes("train")
    assert first.pdm_trajectory is not None
    assert first.centerline is not None
    assert first.pdm_trajectory[:, 0].tolist() == [i / 10 for i in range(41)]
    assert first.centerline.tolist() == [[0, 0], [50, 0]]
    assert second.pdm_trajectory is None


def test_cameras_are_paths_of_images(fake: Path) -> None:
    [scene] = source(cameras=["CAM_F0", "CAM_L0"]).scenes("test")
    folder = fake / "data" / "sensor_blobs" / "test" / "2021.c"
    assert scene.cameras == {
        f"CAM_{name}": [str(folder / name / f"{frame}.jpg") for frame in range(4)] for name in ("F0", "L0")
    }


def test_logs_are_read_once(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a DataModule, which asks for a split before a model is loaded, and again."""
    read = []
    monkeypatch.setattr(pickle, "loads", lambda data, loads=pickle.loads: read.append(loads(data)) or read[-1])
    form = PromptFormat(frames=1, cameras=(), system=False)
    data = NavsimDataModule(1, source(test="test"), form, None, None, None, follow_ups=True)
    data.setup("fit")
    data.setup("test")
    assert len(data.train_dataloader()) == 2
    assert len(data.test_dataloader()) == 1
    assert sorted(log[0]["log_name"] for log in read) == list(LOGS)


def test_two_stages(fake: Path) -> None:
    synthetic, now = source(test="two_stage", cameras=["CAM_F0"]).scenes("test")
    assert now.previous == "2021.c-2"
    assert now.follow_ups == (synthetic.name,)
    assert synthetic.previous == "1234567890abcdefh"
    assert synthetic.synthetic
    assert synthetic.human is None
    assert synthetic.agents.times[-1] == 2.0  # its future ends there
    assert not synthetic.lights.red[5:].any()
    blobs = fake / "data" / "two_stage" / "sensor_blobs"
    assert synthetic.cameras == {"CAM_F0": [str(blobs / "f0.jpg")] * 4}


def test_errors_say_what_to_install_and_to_set(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="pickles, which can run any code"):
        source(allow_pickles=False).scenes("train")
    with pytest.raises(UserError, match="but got 'navtrain'"):
        source(train="navtrain").scenes("train")
    monkeypatch.delenv("NUPLAN_MAPS_ROOT")
    with pytest.raises(UserError, match="NUPLAN_MAPS_ROOT"):
        source().scenes("train")
    monkeypatch.setitem(sys.modules, "nuplan.common.maps.maps_datatypes", None)
    with pytest.raises(UserError, match="pip install --no-deps"):
        source().scenes("train")
