"""The command, from files to files, run inside this process; its numbers against the scorer's and the official ones."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch

from driving_scenes.errors import InputError
from driving_scenes.scene_file import scene_to_json
from navsim_score.__main__ import main as run
from navsim_score.columns import EXTENDED_COMFORT, MULTIPLIERS, WEIGHTS
from navsim_score.command import main
from navsim_score.command.submission import Authors, write_submission
from navsim_score.scorer import Scorer
from navsim_score.traffic.reactive import Reactive
from tests.driving_scenes.scenes import agent, crossing, straight, straight_road

PAGE = (Path(__file__).parents[2] / "navsim_score/README.md").read_text(encoding="utf-8")
PARKED = straight_road([agent("parked", 30.0, -1.75)], human_trajectory=None)
ROAD = scene_to_json(PARKED)
CROSSING = scene_to_json(crossing())
KEYS = {
    *("dialect", "provenance", "scores", "tag", "valid", "error", "epdms", "pdm_score", "multiplicative_metrics_prod"),
    *("comfort", "progress_raw_m", "pdm_progress_raw_m", *MULTIPLIERS, *WEIGHTS, EXTENDED_COMFORT),
}
GOOD = {"tag": "on", "poses": straight().tolist()}
BRAKE = {"tag": "brake", "poses": straight(acceleration=-3.0).tolist()}


def write(name, scene, candidates, /, **fields):
    Path(f"{name}.scene.json").write_text(scene if isinstance(scene, str) else json.dumps(scene | fields))
    if candidates is not None:
        text = candidates if isinstance(candidates, str) else json.dumps({"trajectories": candidates})
        Path(f"{name}.trajs.json").write_text(text)


def score(*arguments, out="scores.json"):
    main(["--scenes", ".", "--trajectories", ".", "--out", out, *arguments])
    return read(out)


def read(out="scores.json"):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(Path(out).read_text(), parse_constant=refuse)


def test_rows_are_the_scorers_in_the_order_of_the_candidates(folder, capsys):
    write("road", ROAD, [GOOD, BRAKE])
    write("crossing", CROSSING, [BRAKE, GOOD, BRAKE])
    found = score()
    assert list(found) == ["crossing", "road"]
    poses = {name: torch.tensor(item["poses"], dtype=torch.float64) for name, item in (("on", GOOD), ("brake", BRAKE))}
    for name, scene in (("crossing", crossing()), ("road", PARKED)):
        rows = found[name]
        plans = torch.stack([poses[row["tag"]] for row in rows])
        scores = Scorer([scene])(plans, torch.zeros(len(rows), dtype=torch.int64))
        assert [set(row) for row in rows] == [KEYS] * len(rows)
        for column in (*MULTIPLIERS, *WEIGHTS):
            assert [row[column] for row in rows] == pytest.approx(scores.columns[column].tolist())
        assert [row["epdms"] for row in rows] == pytest.approx(scores.epdms.tolist())
        assert [row["comfort"] for row in rows] == scores.comfort.tolist()
        assert [row[EXTENDED_COMFORT] for row in rows] == [None] * len(rows)
        assert all(row["valid"] and row["error"] is None for row in rows)
    assert [row["tag"] for row in found["crossing"]] == ["brake", "on", "brake"]
    assert found["road"][0]["no_at_fault_collisions"] == 0.0
    assert found["crossing"][1]["epdms"] > 0  # the human ran the light as well
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("road", "crossing", "EPDMS", "Wrote scores.json."))


def test_options_reach_the_scorer(folder):
    behind = straight_road([agent("ahead", 20.0, -1.75, speed=6.0)])
    write("road", scene_to_json(behind), [GOOD])
    write("crossing", CROSSING, [GOOD])
    filtered = score()
    plain = score("--no-human-filter")
    assert filtered["crossing"][0]["traffic_light_compliance"] == 1.0
    assert plain["crossing"][0]["traffic_light_compliance"] == 0.0
    reactive = score("--traffic", "reactive", "--no-human-filter")
    scorer = Scorer([behind], Reactive(), human_filter=False)
    alone = scorer(torch.tensor([GOOD["poses"]], dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert reactive["road"][0]["epdms"] == pytest.approx(float(alone.epdms))


def test_malformed_trajectories_are_reported_in_their_rows(folder, capsys):
    nan = [[math.nan, 0.0, 0.0], *GOOD["poses"][1:]]
    jump = [*GOOD["poses"][:7], [400.0, 0.0, 0.0]]
    far = [[1e200 * (i + 1), 0.0, 0.0] for i in range(8)]
    short = {"tag": "short", "poses": GOOD["poses"][:5]}
    tagged = [{"tag": "jump", "poses": jump}, {"tag": "far", "poses": far}]
    write("road", ROAD, [short, GOOD, {"poses": nan}, {"poses": "none"}, *tagged, BRAKE])
    rows = score()["road"]
    write("road", ROAD, [GOOD, BRAKE])
    alone = score()["road"]
    assert [row["valid"] for row in rows] == [False, True, False, False, True, False, True]
    assert rows[1] == alone[0] and rows[6] == alone[1]
    for row, error in zip((rows[0], rows[2], rows[3]), ("but got 5", "finite numbers", "a list"), strict=True):
        assert error in row["error"]
    assert "teleports" in rows[4]["error"]
    for row in (rows[0], rows[2], rows[3], rows[5]):
        assert all(row[column] == 0 for column in (*MULTIPLIERS, *WEIGHTS, "epdms", "progress_raw_m"))
        assert row["comfort"] == [False] * 6
    shown = " ".join(capsys.readouterr().out.split())
    assert "road, candidate short: trajectories[0].poses: Expected 8 poses" in shown


def test_malformed_scenes_are_named_and_the_others_written(folder):
    write("a", ROAD, [GOOD])
    write("b", ROAD | {"agents": [{**ROAD["agents"][0], "type": "tank"}]}, [GOOD])
    write("c", "{", [GOOD])
    write("d", ROAD, '{"trajectories": {}}')
    write("e", ROAD | {"route": []}, [GOOD])
    write("f", CROSSING, [GOOD])
    with pytest.raises(InputError, match="4 of 6 scenes could not be scored") as raised:
        score()
    assert list(read()) == ["a", "f"]
    told = str(raised.value)
    assert "b.scene.json: agents[0].type: Expected one of vehicle" in told and "route: Expected" in told
    assert "c.scene.json: Expected JSON" in told and "d.trajs.json: trajectories: Expected a list" in told


def test_scenes_that_name_the_one_before_have_extended_comfort(folder, capsys):
    write("before", ROAD, [BRAKE, GOOD, {"tag": "broken", "poses": []}])
    write("now", ROAD, [GOOD, BRAKE, {"tag": "new", "poses": GOOD["poses"]}, {"tag": "broken"}], previous="before")
    write("other", CROSSING, [GOOD], previous="gone")
    found = score()
    assert [row[EXTENDED_COMFORT] for row in found["before"]] == [None] * 3
    # Going on is the same plan half a second later; braking only now is not.
    assert [row[EXTENDED_COMFORT] for row in found["now"]] == [1.0, 0.0, None, None]
    on, _, new, broken = found["now"]
    terms = sum(weight * on[name] for name, weight in WEIGHTS.items())
    assert on["epdms"] == pytest.approx(on["multiplicative_metrics_prod"] * (terms + 2 * on[EXTENDED_COMFORT]) / 16)
    assert new["epdms"] == pytest.approx(new["multiplicative_metrics_prod"] * terms / 14)
    assert broken["epdms"] == 0
    assert "No extended comfort for 'other'" in capsys.readouterr().out
    # Without tags the number counts.
    write("before", ROAD, [{"poses": GOOD["poses"]}])
    assert [row[EXTENDED_COMFORT] for row in score()["now"]] == [1.0, None, None, None]


def test_pictures(folder):
    write("road", ROAD, [GOOD, {"poses": 3}])
    write("crossing", CROSSING, [{"poses": 3}])
    score("--render", "new/pictures")
    assert sorted(path.name for path in Path("new/pictures").iterdir()) == ["crossing.png", "road.png"]
    assert Path("new/pictures/road.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["--scenes", "nowhere"], "--scenes"), (["--out", "road.scene.json/scores.json"], "can't be written")],
)
def test_wrong_paths_are_one_line(folder, arguments, error):
    write("road", ROAD, [GOOD])
    with pytest.raises(InputError, match=error):
        score(*arguments)


def test_the_package_runs_the_command(folder, capsys):
    write("road", ROAD, [GOOD])
    assert run(["score", "--scenes", ".", "--trajectories", "."]) == 0
    assert Path("scores.json").is_file()
    capsys.readouterr()
    assert run(["score", "--scenes", "nowhere", "--trajectories", "."]) == 2
    error = capsys.readouterr().err
    assert error.startswith("navsim_score: error: ") and "there is no 'nowhere'" in error and error.count("\n") == 1
    assert run(["scoer"]) == 2 and run([]) == 0


@pytest.mark.slow
def test_official_two_stages(shared_data, folder, capsys):
    case = json.loads((shared_data / "driving" / "cases" / "two_stage_g0.json").read_text())
    group = case["group"]
    before = dict([(group["now"], group["prev"]), *group["pairs"]])
    follow_ups = {group["now"]: [now for now, _ in group["pairs"]], group["prev"]: [prev for _, prev in group["pairs"]]}
    for name, scene in case["scenes"].items():
        links = {"previous": before.get(name), "follow_ups": follow_ups.get(name)}
        write(name, scene | {"map": case["map"]} | links, [{"tag": "planner", "poses": case["plans"][name]}])
    found = score()
    for name in before:
        assert found[name][0]["epdms"] == pytest.approx(case["official"][name]["score"], abs=1e-5)
    assert f"{case['group_score']:.3f}" in capsys.readouterr().out
    write(group["pairs"][0][1], ROAD, [GOOD])
    score()
    assert "The two stages of 'g0_now' are left out for planner" in capsys.readouterr().out


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_python_of_the_page_runs(folder, block):
    write("a", ROAD, None)
    write("b", CROSSING, None)
    exec(compile(block, "navsim_score/README.md", "exec"), {})


@pytest.mark.parametrize("line", re.findall(r"^python -m navsim_score (score .*)$", PAGE, re.MULTILINE))
def test_commands_of_the_page_run(folder, line):
    """With the page's folders, a scene of its own, and a submission."""
    for place in ("scenes", "answers", "."):
        Path(place).mkdir(exist_ok=True)
        write(f"{place}/a", ROAD, [GOOD])
    authors = Authors("a", "b", "c", "d", "e")
    write_submission("submission.pkl", authors, {"a": torch.tensor(GOOD["poses"])}, {})
    assert run(shlex.split(line)) == 0
    assert [row["valid"] for row in read()["a"]] == [True]


def test_page_knows_every_key():
    documented = set(re.findall(r"`(\w+)`", PAGE))
    assert documented >= KEYS


def test_dialects_stand_beside_each_other_under_their_names(folder, capsys):
    write("crossing", CROSSING, [GOOD, BRAKE])
    row = score("--dialect", "epdms_before_fix", "pdms")["crossing"][0]
    names = [f"{name}, one stage, LogReplay" for name in ("EPDMS", "EPDMS before 359c7f7", "PDMS v1.1")]
    assert (row["dialect"], list(row["scores"])) == (names[0], names)
    assert row["scores"][names[0]] == row["epdms"] > 0 == row["scores"][names[1]]  # the human ran the light as well
    assert names[2] in capsys.readouterr().out
    plain = score("--no-human-filter")["crossing"][0]
    assert plain["dialect"] == "EPDMS without human filter, one stage, LogReplay"
    with pytest.raises(InputError, match="--no-human-filter"):
        score("--no-human-filter", "--dialect", "epdms_before_fix")


def test_a_scene_is_explained_beside_its_picture(folder, capsys):
    write("crossing", CROSSING, [GOOD])
    write("road", ROAD, [GOOD, BRAKE])
    score("--explain", "road")
    shown = capsys.readouterr().out
    text = Path("road.txt").read_text()
    assert text in shown and "the vehicle parked (0.0 m/s)" in text and "candidate brake" in text
    assert Path("road.png").stat().st_size > 10_000 and not Path("crossing.png").exists()
    with pytest.raises(InputError, match="--explain"):
        score("--explain", "elsewhere")
