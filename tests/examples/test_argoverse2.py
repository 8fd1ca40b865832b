"""Argoverse 2 logs: one made here, whose scenes are known, and the real ones against the scenes that others made."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather

from examples.scene_sources.argoverse2 import Argoverse2
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.scenes.json_fields import SceneError
from lightning_cgrpo.scenes.scene import AGENT_TYPES, Scene
from lightning_cgrpo.scenes.scene_file import read_scene, scene_to_json

YAW = 0.3
"""Of the road. The ego speeds up from 5 m/s with 1 m/s² along it."""
START = 315_966_000_000_000_000


def along(time: float) -> float:
    return 20 + 5 * time + time**2 / 2


def lane(name: int, x: tuple[float, float], left: float, **fields: Any) -> dict[str, Any]:
    """Lane of 3.5 m, in the frame of the road, in the direction of `x`."""

    def boundary(y: float) -> list[dict[str, float]]:
        ends = [(x[0], y), ((x[0] + x[1]) / 2, y), (x[1], y)]
        return [
            {"x": a * math.cos(YAW) - b * math.sin(YAW), "y": a * math.sin(YAW) + b * math.cos(YAW), "z": 1.0}
            for a, b in ends
        ]

    right = left - 3.5 if x[1] > x[0] else left + 3.5
    return {
        "id": name,
        "is_intersection": False,
        "lane_type": "VEHICLE",
        "left_lane_boundary": boundary(left),
        "right_lane_boundary": boundary(right),
        "successors": [],
        "predecessors": [],
        "left_neighbor_id": None,
        "right_neighbor_id": None,
        **fields,
    }


def area(lanes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": 7, "area_boundary": lanes[0]["left_lane_boundary"] + lanes[0]["right_lane_boundary"][::-1]}


def write_log(folder: Path, boxes_name: str = "annotations.feather", **changes: Any) -> Path:
    """A drive of 7 s along a road of two lanes, one of which goes on over a junction; one lane comes the other way."""
    lanes = [
        lane(1, (0, 60), 1.75, successors=[4], left_neighbor_id=3, right_neighbor_id=2),
        lane(2, (0, 60), -1.75, left_neighbor_id=1, right_neighbor_id=9),
        lane(3, (60, 0), 1.75, left_neighbor_id=1),
        lane(4, (60, 80), 1.75, is_intersection=True, successors=[5, 99]),
        lane(5, (80, 200), 1.75),
        lane(9, (0, 60), -5.25, lane_type="BIKE", left_neighbor_id=2),
    ]
    (folder / "map").mkdir(parents=True)
    content = {"lane_segments": {str(x["id"]): x for x in lanes}, "drivable_areas": {"7": area(lanes)}}
    (folder / "map" / "log_map_archive_x.json").write_text(json.dumps(content))
    poses = np.arange(-20, 731) / 100
    half = [math.cos(YAW / 2), 0.0, 0.0, math.sin(YAW / 2)]
    ego = {"timestamp_ns": [START + round(t * 1e9) for t in poses]}
    ego |= {name: [value] * len(poses) for name, value in zip(("qw", "qx", "qy", "qz"), half, strict=True)}
    ego |= {"tx_m": [along(t) * math.cos(YAW) for t in poses], "ty_m": [along(t) * math.sin(YAW) for t in poses]}
    ego["tz_m"] = [1.0] * len(poses)
    feather.write_feather(pa.table(ego), str(folder / "city_SE3_egovehicle.feather"))
    rows = []
    for sweep in range(71):
        t = sweep / 10
        # (token, category, place along the road minus the ego's, to the left, and when it is seen)
        seen = [
            ("a", "REGULAR_VEHICLE", 60 + 3 * t, 0.0, True),  # drives at 3 m/s
            ("b", "MOTORCYCLE", 40 + 0.1 * t, 3.0, t >= 3.0),  # so slow that it stands
            ("c", "PEDESTRIAN", 30.0, 5.0, t <= 1.25),  # gone before the first scene
            ("d", "BUS", 200.0, 0.0, True),  # far away
            ("e", "BOLLARD", 30.0, -2.0, t <= 1.5),
            ("ego", "EGO_VEHICLE", along(t), 0.0, True),
        ]
        rows += [
            {"timestamp_ns": START + sweep * 100_000_000, "track_uuid": token, "category": category}
            | {"length_m": 4.0, "width_m": 2.0, "height_m": 1.5, "qw": 1.0, "qx": 0.0, "qy": 0.0, "qz": 0.0}
            | {"tx_m": x - along(t), "ty_m": y, "tz_m": 0.0}
            for token, category, x, y, here in seen
            if here
        ]
    boxes = {name: [row[name] for row in rows] for name in rows[0]} | changes
    feather.write_feather(pa.table(boxes), str(folder / boxes_name))
    return folder


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Argoverse2(write_log(tmp_path / "drive"), val_share=0, test_share=0).scenes("train")[1]


def test_ego(scene: Scene) -> None:
    assert scene.name == "av2_drive_002.5"
    assert scene.log == "drive"
    times = [1.0, 1.5, 2.0, 2.5]
    torch.testing.assert_close(scene.ego.times, torch.tensor([-1.5, -1, -0.5, 0]).double())
    torch.testing.assert_close(scene.ego.poses[:, 0], torch.tensor([along(t) * math.cos(YAW) for t in times]).double())
    torch.testing.assert_close(scene.ego.poses[:, 2], torch.full((4,), YAW).double())
    torch.testing.assert_close(scene.ego.velocities, torch.tensor([[5 + t, 0] for t in times]).double())
    torch.testing.assert_close(scene.ego.accelerations, torch.tensor([[1.0, 0]] * 4).double(), atol=1e-6, rtol=0)
    future = torch.tensor([[along(2.5 + i / 2) - along(2.5), 0, 0] for i in range(1, 9)]).double()
    torch.testing.assert_close(scene.human, future)


def test_ego_where_the_log_begins_moves_as_the_nearest_parabola(tmp_path: Path) -> None:
    first = Argoverse2(write_log(tmp_path / "drive"), val_share=0, test_share=0).scenes("train")[0]
    torch.testing.assert_close(first.ego.velocities[0], torch.tensor([5.0, 0]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(first.ego.accelerations[0], torch.tensor([1.0, 0]).double(), atol=1e-6, rtol=0)


def test_agents(scene: Scene) -> None:
    agents = scene.agents
    assert agents.tokens == ("a", "b")
    assert [AGENT_TYPES[i] for i in agents.types.tolist()] == ["vehicle", "bicycle"]
    assert agents.sizes.tolist() == [[4, 2, 1.5]] * 2
    assert agents.seen[0].all()
    assert agents.times[agents.seen[1]].tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]
    now = agents.times.tolist().index(0)
    expected = [(60 + 3 * 2.5) * math.cos(YAW), (60 + 3 * 2.5) * math.sin(YAW), YAW]
    expected += [3 * math.cos(YAW), 3 * math.sin(YAW)]
    torch.testing.assert_close(agents.states[0, now], torch.tensor(expected).double())
    assert (agents.states[1, :, 3:] == 0).all()


def test_last_sight_of_a_track_is_in_the_scene_that_begins_then(tmp_path: Path) -> None:
    first = Argoverse2(write_log(tmp_path / "drive"), val_share=0, test_share=0).scenes("train")[0]
    assert first.agents.tokens == ("a", "b", "e")


def test_map_and_route(scene: Scene) -> None:
    lanes, blocks = scene.map.lanes, scene.map.roadblocks
    assert lanes.ids == ("1", "2", "3", "4", "5")  # no bike lane
    assert lanes.connector.tolist() == [False, False, False, True, False]
    assert [blocks.lanes[i] for i in range(4)] == [(0, 1), (2,), (3,), (4,)]  # the one that comes is by itself
    assert lanes.outgoing == ((3,), (), (), (4,), ())
    assert lanes.incoming == ((), (), (), (0,), (3,))
    assert blocks.outgoing == ((2,), (), (3,), ())
    assert scene.route == (0, 2, 3)  # behind the log's end, it goes on
    assert lanes.speed_limit.isnan().all()
    middle = torch.tensor([[math.cos(YAW), math.sin(YAW)]]).double() * torch.linspace(0, 60, 60).double()[:, None]
    torch.testing.assert_close(lanes.centerlines[0], middle)
    assert len(scene.map.intersections.ids) == len(scene.map.carparks.ids) == 1
    assert len(scene.map.drivable_areas.ids) == 0


def test_scenes_overlap_by_the_stride_and_are_the_same_from_any_layout(tmp_path: Path) -> None:
    one = Argoverse2(write_log(tmp_path / "drive"), stride=0.5, val_share=0, test_share=0).scenes("train")
    assert [scene.name[-5:] for scene in one] == ["001.5", "002.0", "002.5", "003.0"]
    write_log(tmp_path / "other" / "train" / "drive", "annotations_with_ego.feather")
    nested = Argoverse2(tmp_path / "other", val_share=0, test_share=0).scenes("train")
    assert scene_to_json(nested[1]) == scene_to_json(one[2])
    assert len(one[1:]) == 3
    again = pickle.loads(pickle.dumps(Argoverse2(tmp_path / "drive", val_share=0, test_share=0)))
    assert scene_to_json(again.scenes("train")[1]) == scene_to_json(one[2])


def test_errors_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="has none"):
        Argoverse2(tmp_path).scenes("train")
    log = write_log(tmp_path / "one" / "drive")
    boxes = len(feather.read_table(log / "annotations.feather"))
    strange = write_log(tmp_path / "two", category=["SPACESHIP"] * boxes)
    with pytest.raises(SceneError, match="SPACESHIP"):
        Argoverse2(strange, val_share=0, test_share=0).scenes("train")[0]


@pytest.fixture(scope="module")
def real(shared_data: Path) -> dict[str, Scene]:
    scenes = Argoverse2(shared_data / "driving" / "argoverse2", val_share=0, test_share=0).scenes("train")
    assert len(scenes) == 41
    return {scene.name: scene for scene in scenes}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["av2_3b3570b4_010.5", "av2_3bffdcff_007.5", "av2_7fab2350_009.5", "av2_adcf7d18_003.5"]
)
def test_real_scenes_are_those_that_the_official_scores_were_made_of(
    name: str, real: dict[str, Scene], shared_data: Path
) -> None:
    """But for rounding: the files have micrometers to half a millimeter, tokens of 16 letters, other ids of blocks."""
    mine, other = real[name], read_scene(shared_data / "driving" / "cases" / f"{name}.scene.json")
    assert mine.route == other.route
    for part in ("times", "poses", "velocities", "accelerations"):
        torch.testing.assert_close(getattr(mine.ego, part), getattr(other.ego, part), atol=1e-5, rtol=0)
    torch.testing.assert_close(mine.human, other.human, atol=1e-5, rtol=0)
    assert tuple(token[:16] for token in mine.agents.tokens) == other.agents.tokens
    for part in ("types", "sizes", "times", "seen"):
        assert torch.equal(getattr(mine.agents, part), getattr(other.agents, part))
    torch.testing.assert_close(mine.agents.states, other.agents.states, atol=1e-4, rtol=0)
    assert mine.map.lanes.ids == other.map.lanes.ids
    for lanes in ("incoming", "outgoing"):
        assert getattr(mine.map.lanes, lanes) == getattr(other.map.lanes, lanes)
        assert getattr(mine.map.roadblocks, lanes) == getattr(other.map.roadblocks, lanes)
    assert torch.equal(mine.map.lanes.roadblock, other.map.lanes.roadblock)
    assert torch.equal(mine.map.lanes.connector, other.map.lanes.connector)
    assert mine.map.roadblocks.lanes == other.map.roadblocks.lanes
    assert torch.equal(mine.map.roadblocks.connector, other.map.roadblocks.connector)
    torch.testing.assert_close(mine.map.lanes.centerlines.xy, other.map.lanes.centerlines.xy, atol=1e-3, rtol=0)
    for shapes in ("lanes", "roadblocks", "intersections"):
        ours, theirs = getattr(mine.map, shapes).polygons, getattr(other.map, shapes).polygons
        torch.testing.assert_close(ours.xy, theirs.xy, atol=1e-3, rtol=0)
    for row in range(len(other.map.carparks.ids)):  # three of the files' are turned around
        ours, theirs = mine.map.carparks.polygons[row].tolist(), other.map.carparks.polygons[row].tolist()
        assert theirs in (ours, ours[:1] + ours[:0:-1])


@pytest.mark.slow
def test_means_of_the_real_scenes_are_the_official_ones(real: dict[str, Scene]) -> None:
    from lightning_cgrpo.navsim.evaluation import constant_velocity
    from lightning_cgrpo.navsim.expert.pdm_closed import plan
    from lightning_cgrpo.navsim.scorer import Scorer

    scenes = list(real.values())
    plans = plan(scenes)
    scorer = Scorer(scenes, plans=plans, human_filter=False)
    driven = torch.stack([found.trajectory for found in plans])[:, 1:]
    origin = torch.stack([scene.ego.poses[-1] for scene in scenes])[:, None]
    moved = driven - origin
    turn = torch.stack([origin[..., 2].cos(), -origin[..., 2].sin(), origin[..., 2].sin(), origin[..., 2].cos()], -1)
    moved[..., :2] = (moved[..., None, :2] @ turn.unflatten(-1, (2, 2))).squeeze(-2)
    human = torch.stack([scene.human for scene in scenes if scene.human is not None])
    rows = torch.arange(len(scenes))
    for poses, interval, official in (
        (human, 0.5, 0.836),
        (moved, 0.1, 0.930),
        (constant_velocity(scenes)[1], 0.5, 0.729),
    ):
        scores = scorer(poses, rows, interval)
        assert scores.valid.all()
        assert float(scores.epdms.mean()) == pytest.approx(official, abs=6e-4)
