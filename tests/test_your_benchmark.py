"""The code of docs/your_benchmark.md: the rater score on cases worked out by hand, and answers along a lane."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.tasks.driving.task import DrivingTask
from tests.answered import answered
from tests.policies.tiny_vision import make_tiny_vision_model
from tests.quiet import SILENT

PAGE = Path(__file__).parents[1] / "docs" / "your_benchmark.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)


@pytest.fixture
def page(folder, monkeypatch):
    """The page's files in a folder of their own."""
    monkeypatch.syspath_prepend(str(folder))
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        Path(name).write_text(text, encoding="utf-8")
    yield folder
    for name in ("rater_score", "along_the_lane"):
        sys.modules.pop(name, None)


def straight(speed):
    """A path at constant speed, 5 s at 4 Hz."""
    return [[speed * (step + 1) / 4, 0.0] for step in range(20)]


@pytest.mark.parametrize(
    ("points", "speed", "expected"),
    [
        ([[30, 0], [50, 0]], 12, (8.0, 1.0)),  # on the first path
        ([[33.9, 0.9], [43, -1.7]], 12, (8.0, 1.0)),  # within 4 m and 1 m, then 7.2 m and 1.8 m
        ([[30, 2], [50, 1.8]], 12, ((8 * 0.1 + 8) / 2, 0.0)),  # a limit too far to the left after 3 s
        ([[15, 0], [25, 0]], 12, (6.0, 1.0)),  # on the slower path
        ([[30, 0], [25, 0]], 12, (7.0, 0.0)),  # near the first path, then near the second: trusted on neither
        ([[90, 50], [90, 50]], 12, (4.0, 0.0)),  # never below 4
        ([[32.1, 0], [50, 0]], 1, (8 * (0.1 ** (2.1 / 2 - 1) + 1) / 2, 0.0)),  # half of the limits for slow drives
    ],
)
def test_scores_worked_out_by_hand(page, points, speed, expected):
    from rater_score import rater_score

    paths, grades = torch.tensor([straight(10.0), straight(5.0)]), torch.tensor([8.0, 6.0])
    assert rater_score(torch.tensor(points).float(), paths, grades, speed) == pytest.approx(expected)


@pytest.mark.parametrize(("still", "sideways"), [(20, (0, 1)), (4, (1, 0))])
def test_a_standing_path_faces_where_it_moved_last(page, still, sideways):
    """2 m to its side are off the limits, 2 m ahead are not."""
    from rater_score import rater_score

    step = torch.arange(20.0).clamp(max=19 - still) + 1 if still < 20 else torch.zeros(20)
    path, grades = torch.stack([0 * step, step], 1)[None], torch.tensor([8.0])  # moves to the left, then stands
    side = path[0, [11, 19]] + 2 * torch.tensor(sideways)
    ahead = path[0, [11, 19]] + 2 * torch.tensor(sideways[::-1])
    assert rater_score(ahead, path, grades, 12.0) == (8.0, 1.0)
    assert rater_score(side, path, grades, 12.0)[1] == 0.0


def test_answers_of_a_group(page):
    from rater_score import RaterTask

    record = {"speed": [12.0], "paths": [[straight(10.0)]], "grades": [[8.0]]}
    good = "[10.0,0.0], [20.0,0.0], [30.0,0.0], [40.0,0.0], [50.0,0.0]"
    found = RaterTask().score(PromptGroups(torch.tensor([0]), record), answered([[good, "straight on"]]))
    assert {name: signal.value.tolist() for name, signal in found.items()} == {
        "rater_score": [[8.0, 0.0]],
        "trusted": [[1.0, 0.0]],
        "malformed": [[0.0, 1.0]],
    }


@pytest.mark.slow
def test_the_benchmark_trains(page, capsys):
    texts = ["[10.0,0.0], [20.0,0.0]", "Drive on."]
    make_tiny_vision_model("tiny", texts, hidden_size=32, layers=1, vision_layers=1)
    Path("waymo").mkdir()
    chat = [{"role": "user", "content": [{"type": "text", "text": "Drive on."}]}]
    record = {"prompt": chat, "speed": 12.0, "paths": [straight(10.0)] * 3, "grades": [8.0, 6.0, 4.0]}
    for split in ("train", "val", "test"):
        Path("waymo", f"{split}.jsonl").write_text("\n".join([json.dumps(record)] * 4))
    small = ["--model.policy.model=tiny", "--model.sampler.max_new_tokens=8", "--model.group_size=2"]
    main(["fit", "-c", "rater_score.yaml", *small, "--data.prompts_per_update=2", "--trainer.max_steps=2", *SILENT])
    assert "malformed" in capsys.readouterr().out


def test_answers_along_the_lane(page):
    """The lane's points of `Observations` lie on the drive."""
    from along_the_lane import AlongTheLane

    from lightning_cgrpo import Observations

    text, found = "[7.5,0.0], [15.0,0.0], [22.5,0.0], [30.0,0.0]", 0
    for scene in GeneratedScenes(5).scenes("train")[:8]:
        [drives] = DrivingTask(AlongTheLane()).scored([scene], [[text, "none"]])
        drive, malformed = drives.poses
        assert malformed.isnan().all()
        x, y = re.findall(r"[-\d.]+", Observations()(scene))[4:6]  # after 30 m
        assert (drive[-1, :2] - torch.tensor([float(x), float(y.rstrip("."))])).norm() < 0.1
        found += abs(float(drive[-1, 1])) > 1
    assert found, "a lane that bends"
