"""Argoverse 2's logs: their scenes are those that others made of them, and have the official scores."""

import pickle
from itertools import product
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather

from driving_scenes.json_fields import SceneError
from driving_scenes.scene import Scene
from driving_scenes.scene_file import read_scene, scene_to_json
from examples.scene_sources.argoverse2 import Argoverse2
from examples.scene_sources.argoverse2.log import TimedPoses
from lightning_cgrpo.core.errors import UserError


@pytest.fixture(scope="module")
def real(shared_data: Path) -> dict[str, Scene]:
    scenes = Argoverse2(shared_data / "driving" / "argoverse2", val_share=0, test_share=0).scenes("train")
    assert len(scenes) == 41
    return {scene.name: scene for scene in scenes}


@pytest.fixture
def copied(shared_data: Path, tmp_path: Path) -> Path:
    """A log at depth two, whose boxes are in the file of the other name."""
    [log] = (shared_data / "driving" / "argoverse2").glob("3b3570b4*")
    copy = tmp_path / "train" / log.name
    copy.mkdir(parents=True)
    for file in log.iterdir():
        (copy / file.name.replace("_with_ego", "")).symlink_to(file)
    return copy


def test_scenes_overlap_by_the_stride_and_are_the_same_from_any_layout(
    real: dict[str, Scene], copied: Path, tmp_path: Path
) -> None:
    halves = Argoverse2(copied, stride=0.5, val_share=0, test_share=0).scenes("train")
    assert [scene.name[-5:] for scene in halves[:4]] == ["001.5", "002.0", "002.5", "003.0"]
    again = pickle.loads(pickle.dumps(Argoverse2(tmp_path, val_share=0, test_share=0))).scenes("train")
    for scene in (halves[2], again[1]):
        assert scene_to_json(scene) == scene_to_json(real["av2_3b3570b4_002.5"])


def test_where_a_log_begins_the_ego_moves_as_the_nearest_parabola() -> None:
    times = np.arange(-20, 100) / 100
    motion = TimedPoses(times, np.column_stack([5 * times + times**2 / 2, 0 * times, 0 * times]))
    velocity, acceleration = motion.dynamics(times[:1])
    np.testing.assert_allclose([velocity[0], acceleration[0]], [[4.8, 0], [1, 0]], atol=1e-6)
    assert motion.covers(times[[0, -1]]).all()


def test_errors_say_what_is_wrong(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has none"):
        Argoverse2(copied / "map").scenes("train")
    boxes = feather.read_table(copied / "annotations.feather")
    (copied / "annotations.feather").unlink()
    spaceships = pa.array(["SPACESHIP"] * len(boxes))
    strange = boxes.set_column(boxes.schema.get_field_index("category"), "category", spaceships)
    feather.write_feather(strange, str(copied / "annotations.feather"))
    with pytest.raises(SceneError, match="SPACESHIP"):
        Argoverse2(tmp_path, val_share=0, test_share=0).scenes("train")[0]


@pytest.mark.parametrize(
    "name", ["av2_3b3570b4_010.5", "av2_3bffdcff_007.5", "av2_7fab2350_009.5", "av2_adcf7d18_003.5"]
)
def test_real_scenes_are_those_that_the_official_scores_were_made_of(
    name: str, real: dict[str, Scene], shared_data: Path
) -> None:
    """But for rounding: the files have micrometers to half a millimeter, tokens of 16 letters, other ids of blocks."""
    mine, other = real[name], read_scene(shared_data / "driving" / "cases" / f"{name}.scene.json")

    def close(*places: str, atol: float) -> None:
        for place in places:
            ours, theirs = (attrgetter(place)(scene) for scene in (mine, other))
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=0, msg=place)

    assert tuple(token[:16] for token in mine.agents.tokens) == other.agents.tokens
    for place in ("route", "map.lanes.ids", "map.roadblocks.lanes"):
        assert attrgetter(place)(mine) == attrgetter(place)(other), place
    for part, way in product(("lanes", "roadblocks"), ("incoming", "outgoing")):
        assert getattr(getattr(mine.map, part), way) == getattr(getattr(other.map, part), way)
    close(*(f"ego.{part}" for part in ("times", "poses", "velocities", "accelerations")), "human", atol=1e-5)
    close(*(f"agents.{part}" for part in ("types", "sizes", "times", "seen")), atol=0)
    close("map.lanes.roadblock", "map.lanes.connector", "map.roadblocks.connector", atol=0)
    close("agents.states", atol=1e-4)
    close("map.lanes.centerlines.xy", atol=1e-3)
    close(*(f"map.{shapes}.polygons.xy" for shapes in ("lanes", "roadblocks", "intersections")), atol=3e-3)
    for row in range(len(other.map.carparks.ids)):  # three of the files' are turned around
        ours, theirs = mine.map.carparks.polygons[row].tolist(), other.map.carparks.polygons[row].tolist()
        assert theirs in (ours, ours[:1] + ours[:0:-1])


@pytest.mark.slow
def test_means_of_the_real_scenes_are_the_official_ones(real: dict[str, Scene]) -> None:
    from navsim_score.evaluation import constant_velocity
    from navsim_score.expert.pdm_closed import plan
    from navsim_score.scorer import Scorer
    from navsim_score.simulation.interpolation import in_ego

    scenes = list(real.values())
    plans = plan(scenes)
    scorer = Scorer(scenes, plans=plans, human_filter=False)
    planned = [in_ego(scene.ego.poses[-1], found.trajectory[1:]) for scene, found in zip(scenes, plans, strict=True)]
    human = torch.stack([scene.human for scene in scenes if scene.human is not None])
    rows = torch.arange(len(scenes))
    for poses, interval, official in (
        (human, 0.5, 0.836),
        (torch.stack(planned), 0.1, 0.930),
        (constant_velocity(scenes)[1], 0.5, 0.729),
    ):
        scores = scorer(poses, rows, interval)
        assert scores.valid.all()
        assert float(scores.epdms.mean()) == pytest.approx(official, abs=6e-4)
