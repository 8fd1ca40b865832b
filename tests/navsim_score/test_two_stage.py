"""Two stages by hand, and the official group."""

import json
import math

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from driving_scenes.json_fields import Field
from driving_scenes.scene_file import map_from_json, scene_from_json, write_scene
from navsim_score.columns import COLUMNS, SHORT
from navsim_score.command.pairs import Pair
from navsim_score.command.score_files import score_files
from navsim_score.command.trajectory_file import Candidate
from navsim_score.dialects import DIALECTS, EPDMS
from navsim_score.evaluation import drives
from navsim_score.simulation.simulate import simulate
from navsim_score.tables import show_stages
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.two_stage import Drive, endpoints, follow_up_weights, summaries, summary

AS = (EPDMS, LogReplay())


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("distance", "uniform"), [(1.8, False), (1.93, True), (1e3, True), (math.nan, True)])
def test_without_a_near_follow_up_all_count_the_same(distance, uniform):
    starts = tensor([[0.0, distance], [0.0, 2 * distance]])
    found = follow_up_weights(torch.zeros(2, dtype=torch.float64), starts)
    assert found.sum() == 1 and (found.tolist() == [0.5, 0.5]) == uniform
    batch = follow_up_weights(torch.zeros(4, 2, dtype=torch.float64), starts.expand(4, 2, 2))
    assert torch.equal(batch, found.expand(4, 2))


def drive(number, values, follows=None, start=(0.0, 0.0), ends=None, valid=None, ade=math.nan):
    """One whose sub-scores are all the same: its EPDMS is the fifth power."""
    count = len(values)
    columns = dict.fromkeys(COLUMNS, tensor(values)) | {"ade": torch.full((count,), ade, dtype=torch.float64)}
    ends, valid = tensor(ends or [(0.0, 0.0)] * count), torch.tensor(valid or [True] * count)
    name = f"scene {number} after {follows}"
    return Drive(number, follows, name, None, (), tensor(start), ends, valid, columns, None)


def test_one_stage_by_hand():
    nan = math.nan
    result = summary([drive(0, [1.0, 0.5], ade=2.0), drive(1, [nan, 1.0], valid=[False, True], ade=4.0)], *AS)
    assert (result.second, result.epdms, result.scenes) == (None, None, 0)
    first = result.first
    assert (first.scenes, first.answers, first.malformed) == (2, 4, 0.25)
    assert first.columns["NC"] == (1 + 0.5 + 0 + 1) / 4
    assert first.columns["EPDMS"] == (1 + 0.5**5 + 0 + 1) / 4
    assert first.columns["ADE@4s"] == pytest.approx((2 + 2 + 4) / 3)  # not of the malformed one
    assert first.columns["EC"] is None
    assert list(first.columns) == list(SHORT)


def test_two_stages_by_hand():
    """Answers that end at one follow-up's start have its score; all count alike for a malformed one, and far away."""
    near, far = (10.0, 0.0), (20.0, 0.0)
    first = drive(4, [1.0, 1.0, 0.5, math.nan], ends=[near, far, (90.0, 0.0), (math.nan,) * 2],
                  valid=[True, True, True, False])  # fmt: skip
    after = [drive(0, [1.0, 0.5], 4, near), drive(1, [0.5], 4, far)]
    alone = drive(7, [1.0])
    result = summary([after[1], alone, after[0], first], *AS)
    one, two = (1 + 0.5**5) / 2, 0.5**5
    second = [one, two, (one + two) / 2, (one + two) / 2]
    assert (result.first.scenes, result.scenes, result.second.scenes) == (2, 1, 2)
    assert result.second.answers == 3
    assert result.second.columns["EPDMS"] == pytest.approx(sum(second) / 4)
    assert result.second.columns["DAC"] == pytest.approx((0.75 + 0.5 + 0.625 * 2) / 4)
    assert result.epdms == pytest.approx((second[0] + second[1] + 0.5**5 * second[2] + 0) / 4)
    assert result.first.columns["EPDMS"] == pytest.approx((1 + 1 + 0.5**5 + 0 + 1) / 5)
    written = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert written["both"] == {"scenes": 1, "EPDMS": result.epdms}
    assert written["stage_two"]["ADE@4s"] is None


def test_the_order_does_not_matter():
    found = [drive(n, [0.1 * n + 0.3, 0.9]) for n in range(4)]
    found += [drive(n, [0.2 * n + 0.1], n, (float(n), 0.0)) for n in range(4)]
    assert summary(found, *AS) == summary(found[::-1], *AS)


def test_the_official_two_stage_group(shared_data):
    """Its sub-scores and plans give its endpoints, weights, extended comfort and score."""
    case = json.loads((shared_data / "driving/cases/two_stage_g0.json").read_text())
    road_map = map_from_json(Field(case["map"], "two_stage_g0.json", "map"))
    group, rows = case["group"], case["rows"]
    now, previous = group["now"], group["prev"]
    before = dict([(now, previous), *group["pairs"]])
    after = {frame: tuple(pair[side] for pair in group["pairs"]) for side, frame in enumerate((now, previous))}
    starts, drives = {}, {}
    for number, (name, content) in enumerate(case["scenes"].items()):
        ego = scene_from_json(content, name, road_map).ego
        starts[name] = torch.cat([ego.poses[-1], ego.velocities[-1], ego.accelerations[-1]])
        plan = tensor(case["plans"][name])
        ends = endpoints(starts[name], plan)
        assert torch.allclose(ends, tensor(rows[name]["endpoint"]), rtol=0, atol=1e-9)
        columns = {column: tensor([rows[name][column]]) for column in COLUMNS} | {"ade": tensor([math.nan])}
        drives[name] = Drive(
            number, None, name, before.get(name), after.get(name, ()), starts[name][:2], ends[None],
            torch.tensor([True]), columns, simulate(starts[name], plan)[None],
        )  # fmt: skip
    apart = [rows[name]["start_time"] - rows[other]["start_time"] for name, other in before.items()]
    assert apart == pytest.approx([0.5] * len(before))
    for frame, follow_ups in after.items():
        found = follow_up_weights(drives[frame].ends[0], torch.stack([drives[name].start for name in follow_ups]))
        expected = tensor([case["official"][name]["weight"] for name in follow_ups])
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    result = summary(list(drives.values()), *AS)
    first = [case["official"][name] for name in (now, previous)]
    assert result.first.columns["EPDMS"] == pytest.approx(sum(row["score"] for row in first) / 2, abs=1e-9)
    assert result.first.columns["EC"] == sum(row["two_frame_extended_comfort"] for row in first) / 2
    assert result.epdms == pytest.approx(case["group_score"], abs=1e-9)
    for name, other in before.items():
        pair = summary([drives[name], drives[other]], *AS).first.columns
        official = [case["official"][frame] for frame in (name, other)]
        assert pair["EC"] == sum(row["two_frame_extended_comfort"] for row in official) / 2
        # In one stage, the later frame alone has extended comfort.
        alone = float(EPDMS.total(drives[other].columns))
        assert pair["EPDMS"] == pytest.approx((official[0]["score"] + alone) / 2, abs=1e-9)
    for one in case["weight_cases"]:
        found = follow_up_weights(tensor(one["endpoint"]), tensor(one["starts"]))
        assert torch.allclose(found, tensor(one["weights"]), rtol=0, atol=1e-12)


def test_a_driver_without_follow_ups_shares_the_table_of_two_stages(capsys):
    """The human drives no follow-ups; its first stage stands beside the others'."""
    found = summaries({"policy": [drive(0, [1.0]), drive(0, [0.5], 0)], "human": [drive(0, [1.0])]}, *AS)
    assert {one.dialect for one in found.values()} == {"EPDMS, two stages, LogReplay"}
    assert found["human"].second is None
    show_stages(found)
    starts = [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:-2]]
    assert starts == ["policy:", "S1", "S2", "both", "human:", "S1"]


def test_score_and_summary_aggregate_alike_after_malformed_answers(tmp_path):
    """The files of `score` and the summary of `test` agree on EC and totals, whichever answers are malformed."""
    made = GeneratedScenes(seed=3)
    before, after = made.scenes("test")[0], made.next_frames("test")[0]
    poses = torch.stack([before.human, after.human])[:, None].repeat(1, 4, 1, 1)
    poses[0, 1] *= 0.3  # another drive, so that extended comfort is 0
    poses[0, 2] = poses[1, 3] = torch.nan
    pairs = []
    for scene, plans in zip((before, after), poses, strict=True):
        write_scene(scene, tmp_path / f"{scene.name}.scene.json")
        tried = [Candidate(str(row), None if plan.isnan().any() else plan) for row, plan in enumerate(plans)]
        pairs.append(Pair(scene.name, tmp_path / f"{scene.name}.scene.json", tried))
    for key in ("epdms", "epdms_valid"):
        dialect = DIALECTS[key]
        results, _ = score_files(pairs, LogReplay(), [dialect], False, lambda count: None)
        rows = [row for result in results for row in result.rows()]
        assert [row["two_frame_extended_comfort"] for row in rows] == [None] * 4 + [1.0, 0.0, None, None]
        scorer = dialect.scorer([before, after], LogReplay(), None)
        scores = scorer(poses.flatten(0, 1), torch.arange(2).repeat_interleave(4))
        found = summary(drives([before, after], scores, poses, 0.5, [0, 1], None, dialect), dialect, LogReplay()).first
        totals = [row["scores"][found_name] for row in rows for found_name in row["scores"]]
        known = [total for total in totals if total is not None]
        assert found.columns["EPDMS"] == pytest.approx(sum(known) / len(known), abs=1e-12), key
        assert found.columns["EC"] == 0.5, key
