"""Scene files: what is written is read again, and whatever else is in a file, the error names the field."""

import copy
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driving_scenes.json_fields import SceneError
from driving_scenes.scene import AGENT_TYPES, Points, Scene
from driving_scenes.scene_file import read_scene, scene_from_json, scene_to_json, write_scene
from tests.driving_scenes.scenes import lane, rectangle, road_map


def content() -> dict[str, Any]:
    """A lane, a connector, a light, two agents; every field of the format is there."""
    square, beyond = rectangle(0.0, -2.0, 50.0, 2.0), rectangle(50.0, -2.0, 60.0, 2.0)
    car = {"token": "car", "type": "vehicle", "length": 4.5, "width": 1.9, "height": 1.6}
    motion = {"velocity": [8.0, 0.0], "acceleration": [0.0, 0.0]}
    cone = {"token": "cone", "type": "traffic_cone", "length": 0.4, "width": 0.4, "height": 0.7}
    scene = {
        "name": "small",
        "scene_type": "original",
        "map": road_map(
            [
                lane("a", "r", square, [[0.0, 0.0], [20.0, 0.0], [50.0, 0.0]], False, 13.9, after=["b"]),
                lane("b", "s", beyond, [[50.0, 0.0], [60.0, 0.0]], True, None, before=["a"]),
            ],
            intersections=[{"id": "i", "polygon": beyond}],
            carparks=[{"id": "c", "polygon": [[0.0, 2.0], [10.0, 2.0], [10.0, 7.0]]}],
            drivable_areas=[{"id": "d", "polygon": square, "holes": [[[5.0, 0.0], [6.0, 0.0], [6.0, 1.0]]]}],
        ),
        "route": ["r", "s"],
        "ego": [{"t": t, "pose": [10 + 8 * t, 0.0, 0.0], **motion} for t in (-1.5, -1.0, -0.5, 0.0)],
        "human_trajectory": [[4.0 * i, 0.0, 0.0] for i in range(1, 9)],
        "agents": [
            car | {"states": [[0.5 * i, 30.0 + i, 0.0, 0.1, 2.0, 0.0] for i in range(-3, 9)]},
            cone | {"states": [[0.0, 25.0, 1.8, 0.0, 0.0, 0.0], [1.5, 25.0, 1.8, 0.0, 0.0, 0.0]]},
        ],
        "traffic_lights": [{"t": 0.5 * i, "red": ["b"] if i < 4 else [], "green": []} for i in range(9)],
        "overrides": {
            "pdm_trajectory": [[10 + 0.8 * i, 0.0, 0.0] for i in range(41)],
            "centerline": [[0.0, 0.0], [60.0, 0.0]],
        },
        "log": "2021",
        "intent": "straight",
        "cameras": {"CAM_F0": ["/images/0.jpg", "/images/1.jpg"]},
        "previous": "before",
        "follow_ups": ["after"],
        "note": "of my own",
    }
    loaded: dict[str, Any] = json.loads(json.dumps(scene))  # no list is in it twice
    return loaded


def read(value: Any) -> Scene:
    return scene_from_json(value, "file")


def test_every_field_round_trips() -> None:
    assert scene_to_json(read(content())) == content()


def test_images_are_looked_for_from_the_folder_of_the_file(folder: Path) -> None:
    """Wherever one is, and also when the scene has been written elsewhere."""
    (folder / "scenes").mkdir()
    cameras = {"CAM_F0": ["images/0.jpg", "../1.jpg"], "CAM_B0": ["/far/2.jpg", "3.jpg"]}
    (folder / "scenes" / "a.scene.json").write_text(json.dumps(content() | {"cameras": cameras}))
    scene = read_scene("scenes/a.scene.json")
    assert scene.cameras == {
        "CAM_F0": [f"{folder}/scenes/images/0.jpg", f"{folder}/scenes/../1.jpg"],
        "CAM_B0": ["/far/2.jpg", f"{folder}/scenes/3.jpg"],
    }
    write_scene(scene, "b.scene.json")
    assert read_scene("b.scene.json").cameras == scene.cameras


def test_optional_fields_may_be_missing() -> None:
    least = content()
    for name in ("overrides", "log", "intent", "cameras", "previous", "follow_ups", "note", "traffic_lights"):
        del least[name]
    del least["map"]["drivable_areas"]
    least["human_trajectory"] = None
    scene = read(least)
    assert scene.human is scene.pdm_trajectory is scene.centerline is scene.log is scene.intent is None
    assert scene.extra == scene.cameras == {}
    assert scene.previous is None and scene.follow_ups == ()
    assert len(scene.lights.times) == 0
    assert scene_to_json(read(scene_to_json(scene))) == scene_to_json(scene)


def test_tensors_of_a_scene() -> None:
    scene = read(content())
    assert scene.map.lanes.roadblock.tolist() == [0, 1]
    assert scene.map.lanes.outgoing == ((1,), ())
    assert scene.map.roadblocks.incoming == ((), (0,))
    assert scene.map.lanes.speed_limit[0] == 13.9
    assert scene.map.lanes.speed_limit[1].isnan()
    assert scene.route == (0, 1)
    assert [AGENT_TYPES[i] for i in scene.agents.types.tolist()] == ["vehicle", "traffic_cone"]
    assert scene.agents.times.tolist() == [0.5 * i for i in range(-3, 9)]
    assert scene.agents.seen.sum(1).tolist() == [12, 2]
    assert scene.agents.states[1, 3].tolist() == [25, 1.8, 0, 0, 0]
    assert scene.lights.red[:, 1].tolist() == [True] * 4 + [False] * 5
    assert not scene.lights.red[:, 0].any()
    # Polygons are closed by their first point, lines end at their last.
    assert scene.map.lanes.polygons.xy[0, -1].tolist() == [0, -2]
    assert scene.map.lanes.centerlines.xy[1].tolist() == [[50, 0], [60, 0], [60, 0]]
    assert len(scene.map.carparks.polygons[0]) == 3


def change(at: Any, path: tuple[Any, ...], value: Any) -> None:
    """Replace what is at a place, or delete it."""
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = copy.deepcopy(value)


WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("scene_type",), "real", r"scene_type: Expected one of original, synthetic"),
    (("map", "lanes", 1, "id"), "a", r"map\.lanes\[1\]\.id: Expected every id once"),
    (("map", "lanes", 0, "centerline", 1), [0, 0, 0], r"map\.lanes\[0\]\.centerline: Expected numbers of the shape"),
    (("map", "lanes", 0, "outgoing", 0), "q", r"map\.lanes\[0\]\.outgoing\[0\]: Expected an id"),
    (("map", "intersections", 0, "polygon", 0, 0), math.nan, r"intersections\[0\]\.polygon: Expected finite"),
    (("ego", 1, "t"), -1.5, r"ego: Expected ascending"),
    (("human_trajectory", 7), ..., r"human_trajectory: Expected numbers of the shape \[8, 3\]"),
    (("agents", 0, "states", 1, 0), -1.5, r"agents\[0\]\.states: Expected states at ascending times"),
    (("cameras", "CAM_F0", 1), 3, r"cameras\.CAM_F0\[1\]: Expected a text, but got 3"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[".".join(map(str, case[0])) for case in WRONG])
def test_errors_name_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    top = content()
    change(top, path, value)
    with pytest.raises(SceneError, match=f"file: .*{message}"):
        read(top)


def test_histories_of_ten_seconds_are_the_longest() -> None:
    def history(earliest: float) -> dict[str, Any]:
        return content() | {"ego": [content()["ego"][-1] | {"t": t} for t in (earliest, 0.0)]}

    assert read(history(-10.0)).ego.times.tolist() == [-10.0, 0.0]
    with pytest.raises(SceneError, match="times from -10 on"):
        read(history(-10.1))


def test_files_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(SceneError, match="No such file"):
        read_scene(tmp_path / "none.scene.json")
    for content in (b'{"name": ', b"\xff\xfe\x00", b"[" * 100_000):
        (tmp_path / "a.scene.json").write_bytes(content)
        with pytest.raises(SceneError, match="Expected JSON"):
            read_scene(tmp_path / "a.scene.json")
    with pytest.raises(SceneError):
        read_scene(tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


PLACES = [path for path in places(content()) if path]
NUMBERS = st.integers() | st.floats() | st.integers(10**300, 10**400)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.sampled_from(["a", "b", "r", "s", "car", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON | st.just(...)), min_size=1, max_size=3))
def test_whatever_is_changed_makes_a_scene_or_a_scene_error(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    top = content()
    for path, value in changes:
        with suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
            change(top, path, value)
    try:
        scene = read(top)
    except SceneError as error:
        assert str(error).startswith("file: ")
        return
    assert torch.isfinite(scene.ego.poses).all()
    written = scene_to_json(scene)
    assert scene_to_json(read(json.loads(json.dumps(written)))) == written


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_any_json_makes_a_scene_error(value: Any) -> None:
    with pytest.raises(SceneError):
        read(value)


@pytest.mark.parametrize("forward", [True, False])
def test_a_drawn_hole_turns_against_its_polygon(forward: bool) -> None:
    """Seams have no area, so the signed area of the single ring is the polygon's without its hole."""
    square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    hole = np.array([0.1, 0.2]) + square / 2
    drawn = Points.polygons([square], [[hole if forward else hole[::-1].copy()]]).drawn()[0].numpy()
    x, y = drawn.T
    assert float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2 == pytest.approx(1 - 0.25)
    assert {*map(tuple, drawn.tolist())} == {*map(tuple, np.concatenate([square, hole]).tolist())}
