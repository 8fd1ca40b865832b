"""The devkit's submissions: read without running anything, written for its own code."""

import csv
import importlib.util
import io
import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from driving_scenes.errors import InputError
from navsim_score.command.submission import Authors, read_submission, write_submission
from tests.driving_scenes.fake_devkit import install_modules
from tests.driving_scenes.scenes import straight
from tests.navsim_score.test_command import ROAD, score, write

AUTHORS = Authors("a", "b, c", "d@e.f", "g", "h")
KEYS = ("team_name", "authors", "email", "institution", "country / region")
SLOW, FAST = straight(), straight(acceleration=1.0)
TEN_HERTZ = torch.stack([torch.linspace(0.5, 20, 40), torch.zeros(40), torch.zeros(40)], 1).double()


@dataclass
class TrajectorySampling:
    """nuPlan's, whose attributes are these."""

    num_poses: int = 8
    time_horizon: float = 4.0
    interval_length: float = 0.5


@dataclass
class Trajectory:
    """navsim's, with its checks."""

    poses: np.ndarray
    trajectory_sampling: TrajectorySampling = field(default_factory=TrajectorySampling)

    def __post_init__(self):
        assert self.poses.ndim == 2
        assert self.poses.shape == (self.trajectory_sampling.num_poses, 3)


@pytest.fixture
def devkit(monkeypatch):
    """The modules that the devkit's pickles name."""
    kinds = {
        "navsim.common.dataclasses": Trajectory,
        "nuplan.planning.simulation.trajectory.trajectory_sampling": TrajectorySampling,
    }
    install_modules(monkeypatch, {path: {kind.__name__: kind} for path, kind in kinds.items()})
    for path, kind in kinds.items():
        monkeypatch.setattr(kind, "__module__", path)


def official(first, second):
    """What `run_create_submission_pickle.py` dumps."""
    about = dict(zip(KEYS, "abcde", strict=True))
    return about | {"first_stage_predictions": [first], "second_stage_predictions": [second]}


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_the_devkits_pickles_are_read(devkit, tmp_path, protocol):
    ten = TrajectorySampling(40, 4.0, 0.1)
    content = official(
        {"one": Trajectory(SLOW.numpy().astype(np.float32)), "two": Trajectory(TEN_HERTZ.numpy(), ten)},
        {"x" * 17: Trajectory(np.full((8, 3), np.nan))},
    )
    path = tmp_path / "submission.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    candidates = read_submission(path)
    [one], [two], [bad] = candidates.values()
    assert torch.equal(one.poses, SLOW.float().double())
    assert (one.interval, two.interval) == (0.5, 0.1)
    assert torch.equal(two.poses, TEN_HERTZ)
    assert bad.poses is None
    assert "finite" in bad.error
    path.write_bytes(pickle.dumps({"team_name": "a", "predictions": content["first_stage_predictions"]}, protocol))
    assert read_submission(path).keys() == {"one", "two"}, "the files of NAVSIM v1"


class Command:
    def __reduce__(self):
        return os.mkdir, ("harm",)


class Pointer:
    """An array of objects at addresses that the file chooses."""

    def __reduce__(self):
        return np.ndarray, ((1,), np.dtype(object), bytes(8))


class Forged:
    """The same, by the flags of a type."""

    def __reduce__(self):
        kind = np.dtype([("a", object)])
        return kind.__reduce__()[0], ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype(object), 0)}, 8, 1, 0)


@pytest.mark.parametrize(
    "content",
    [
        {"first_stage_predictions": [{"a": Command()}]},
        {"a": io.BytesIO(b"")},
        {"a": Pointer()},
        {"a": Forged()},
        {"a": np.array([None])},
        [1],
        "text",
    ],
)
def test_nothing_else_is_read_or_run(folder, content):
    Path("submission.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match="to be a submission of the devkit"):
        read_submission("submission.pkl")
    assert not Path("harm").exists()
    Path("submission.pkl").write_bytes(b"\x80\x04no")
    with pytest.raises(InputError, match="submission of the devkit"):
        read_submission("submission.pkl")


def test_the_devkit_reads_what_is_written(tmp_path, request):
    """As its `run_pdm_score_from_submission.py` does, without a name that numpy 1 lacks."""
    path = tmp_path / "submission.pkl"
    modules = set(sys.modules)
    write_submission(path, AUTHORS, {"one": SLOW}, {"x" * 17: TEN_HERTZ}, ["one", "x" * 17])
    assert set(sys.modules) <= modules, "no stub stays"
    assert b"_core" not in path.read_bytes()
    if importlib.util.find_spec("navsim") is None:
        request.getfixturevalue("devkit")
    content = pickle.loads(path.read_bytes())
    assert tuple(content[key] for key in KEYS) == ("a", "b, c", "d@e.f", "g", "h")
    [first], [second] = content["first_stage_predictions"], content["second_stage_predictions"]
    for plans, poses, interval in ((first, SLOW, 0.5), (second, TEN_HERTZ, 0.1)):
        [trajectory] = plans.values()
        assert type(trajectory).__module__ == "navsim.common.dataclasses"
        assert trajectory.poses.dtype == np.float32
        assert np.array_equal(trajectory.poses, poses.float().numpy())
        type(trajectory)(trajectory.poses, trajectory.trajectory_sampling)  # the class's own checks
        assert trajectory.trajectory_sampling.interval_length == interval
        assert trajectory.trajectory_sampling.time_horizon == 4.0
    [[again], [later]] = read_submission(path).values()
    assert torch.equal(again.poses, SLOW.float().double())
    assert later.interval == 0.1


def test_a_submission_is_whole_and_in_the_egos_frame(tmp_path):
    def write(plan, expected=None):
        write_submission(tmp_path / "submission.pkl", AUTHORS, {"one": plan}, {}, expected)

    with pytest.raises(InputError, match=r"split's 2 tokens, but got none for 1, as \['two'\], and 0 others"):
        write(SLOW, ["one", "two"])
    for plan, wrong in (
        (SLOW + torch.tensor([664_430.0, 0, 0]), "it teleports"),
        (SLOW + torch.tensor([0, 0, 90.0]), "headings are in radians"),
        (SLOW[:7], r"but got \[7, 3\]"),
        (SLOW * torch.nan, "Expected finite poses"),
    ):
        with pytest.raises(InputError, match=wrong):
            write(plan)
    assert not list(tmp_path.iterdir())


def test_a_drive_that_teleports_is_submitted_among_others(tmp_path):
    """It is scored as it is; only poses in another frame teleport everywhere."""
    jumping = SLOW.clone()
    jumping[4, 0] += 300
    path = tmp_path / "submission.pkl"
    assert write_submission(path, AUTHORS, {"one": SLOW}, {}) == {}
    assert "it teleports" in write_submission(path, AUTHORS, {"one": SLOW, "two": jumping}, {})["two"]
    [found] = read_submission(path)["two"]
    assert "it teleports" in found.error and torch.equal(found.poses, jumping.float().double())
    with pytest.raises(InputError, match=r"frame for token two: poses\[4\].*it teleports"):
        write_submission(path, AUTHORS, {"one": SLOW, "two": jumping, "three": jumping}, {})


def test_the_command_scores_submissions_and_tables(folder):
    """As it scores the same plans in its own files, at 2 and at 10 Hz; failed plans count as 0, or are dropped."""
    plans = {"a": SLOW, "b": FAST, "c": TEN_HERTZ}
    for name, plan in plans.items():
        write(name, ROAD, [{"poses": plan.float().double().tolist()}], name=name)
    write_submission("submission.pkl", AUTHORS, plans, {})
    with open("plans.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["token", "x", "y", "heading"])
        rows.writerows([name, *pose] for name, plan in plans.items() for pose in plan.float().double().tolist())
    scores = []
    for trajectories in (".", "submission.pkl", "plans.csv"):
        scores.append(score("--trajectories", trajectories, "--dialect", "epdms_valid"))
    assert list(scores[0]) == list(plans)
    assert scores[0] == scores[1] == scores[2]
    assert all(row["valid"] for rows in scores[0].values() for row in rows)

    write("b", ROAD, [{"poses": [[0, 0, 0]]}], name="b")
    [row] = score("--dialect", "epdms_valid")["b"]
    assert row["scores"] == {"EPDMS, one stage, LogReplay": 0.0, "EPDMS of valid rows, one stage, LogReplay": None}


def test_means_of_valid_rows(folder, capsys):
    """The devkit's mean of one stage, a pandas mean that skips failed rows."""
    write("a", ROAD, [{"poses": SLOW.tolist()}, {"poses": []}, {"poses": FAST.tolist()}])
    totals = [row["epdms"] for row in score("--dialect", "epdms_valid")["a"]]
    printed = " ".join(capsys.readouterr().out.split())
    assert f"EPDMS, one stage, LogReplay: mean {sum(totals) / 3:.4f} of 3 rows" in printed
    assert f"EPDMS of valid rows, one stage, LogReplay: mean {sum(totals) / 2:.4f} of 2 rows" in printed
