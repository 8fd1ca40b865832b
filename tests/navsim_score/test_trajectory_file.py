"""Files of trajectories, good and bad, and which scene they belong to."""

import json

import pytest
import torch

from driving_scenes.json_fields import SceneError
from navsim_score.command.pairs import match_files
from navsim_score.command.trajectory_file import read_candidates

GOOD = [[2.0 * (i + 1), 0.1 * i, 0.0] for i in range(8)]


def with_pose(index, pose):
    return [*GOOD[:index], pose, *GOOD[index + 1 :]]


def read(tmp_path, trajectories):
    file = tmp_path / "a.trajs.json"
    file.write_text(trajectories if isinstance(trajectories, str) else json.dumps({"trajectories": trajectories}))
    return read_candidates(file)


def test_good_ones_are_read(tmp_path):
    first, second = read(tmp_path, [{"tag": "straight", "poses": GOOD}, {"poses": GOOD}])
    assert (first.tag, first.error, second.tag, second.error) == ("straight", None, None, None)
    assert torch.equal(first.poses, torch.tensor(GOOD, dtype=torch.float64))


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ({"poses": GOOD[:7]}, "trajectories[0].poses: Expected 8 poses every 0.5 s or 40 poses every 0.1 s, but got 7"),
        ({"poses": with_pose(2, [1.0, float("nan"), 0.0])}, "trajectories[0].poses[2]: Expected finite numbers"),
        ({"poses": with_pose(1, [1.0, 0.0])}, "Expected numbers of the shape [3], but got the shape [2]"),
        ({"pose": GOOD}, "Expected a field 'poses', but got none. Did you mean 'pose'?"),
        (GOOD, "Expected an object"),
    ],
)
def test_malformed_ones_say_why_and_dont_stop_the_others(tmp_path, item, error):
    bad, good = read(tmp_path, [item, {"tag": "good", "poses": GOOD}])
    assert bad.poses is None
    assert error in bad.error
    assert good.error is None


def test_teleporting_is_an_error_that_can_be_scored(tmp_path):
    jump = with_pose(4, [500.0, 0.0, 0.0])
    start = [[30.0 + x, y, yaw] for x, y, yaw in GOOD]
    fast = [[24.9 * (i + 1), 0.0, 0.0] for i in range(8)]
    jumping, starting, driving = read(tmp_path, [{"poses": p} for p in (jump, start, fast)])
    assert "trajectories" not in jumping.error
    assert "poses[4]: Expected at most 50 m/s from the pose before, but got 984 m/s: it teleports" in jumping.error
    assert "poses[0]" in starting.error
    assert jumping.poses.shape == (8, 3)
    assert driving.error is None


@pytest.mark.parametrize(
    ("content", "error"), [("{", "Expected JSON"), ('{"trajectory": []}', "Did you mean 'trajectory'?")]
)
def test_a_file_that_is_none_names_itself(tmp_path, content, error):
    with pytest.raises(SceneError, match=r"a\.trajs\.json: ") as raised:
        read(tmp_path, content)
    assert error in str(raised.value)


def touch(folder, *files):
    folder.mkdir(exist_ok=True)
    for file in files:
        (folder / file).write_text("{}")
    return folder


def test_folders_match_by_stem_and_name_who_is_alone(tmp_path):
    both = touch(tmp_path / "both", "b.scene.json", "a.scene.json", "c.scene.json", "a.trajs.json", "b.trajs.json")
    touch(both, "d.trajs.json", "a.official.json", "notes.json")
    pairs, notes = match_files(both, both)
    assert [(pair.stem, pair.scene.name, pair.trajectories.name) for pair in pairs] == [
        ("a", "a.scene.json", "a.trajs.json"),
        ("b", "b.scene.json", "b.trajs.json"),
    ]
    assert notes == ["No trajectories for the scenes 'c'.", "No scene for the trajectories of 'd'."]


def test_files_match_whatever_their_names_are(tmp_path):
    folder = touch(tmp_path / "any", "a.scene.json", "other.json", "b.scene.json", "a.trajs.json")
    [pair], notes = match_files(folder / "a.scene.json", folder / "other.json")
    assert (pair.stem, pair.trajectories.name, notes) == ("a", "other.json", [])
    [pair], notes = match_files(folder / "other.json", folder / "a.trajs.json")
    assert pair.stem == "other"
    # With a folder, a file's stem counts, and the folder's others aren't meant.
    assert match_files(folder, folder / "a.trajs.json") == match_files(folder / "a.scene.json", folder)
    assert match_files(folder, folder / "a.trajs.json")[1] == []
