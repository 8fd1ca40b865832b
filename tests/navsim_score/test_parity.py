"""Agreement with the official scores of every case in the shared data."""

import json
from pathlib import Path

import pytest
import torch

from driving_scenes.scene_file import read_scene
from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.columns import COLUMNS
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive

POLICIES = {"non_reactive": LogReplay(), "reactive": Reactive()}


@pytest.fixture(scope="module")
def cases(shared_data):
    """Scenes, official results and candidates of every case."""
    files = sorted((shared_data / "driving/cases").glob("*.official.json"))
    assert files
    found = []
    for file in files:
        official = json.loads(file.read_text())
        scene = read_scene(Path(str(file).replace(".official.", ".scene.")))
        poses = torch.tensor([each["poses"] for each in official["trajectories"]], dtype=torch.float64)
        found.append((scene, official, poses))
    return found


def reference_plan(scene, official):
    reference, lanes = official["reference"], {name: row for row, name in enumerate(scene.map.lanes.ids)}
    return ExpertPlan(
        torch.tensor(reference["pdm_trajectory"], dtype=torch.float64),
        torch.tensor(reference["centerline"], dtype=torch.float64)[:, :2],
        tuple(lanes[name] for name in reference["route_lane_ids"]),
    )


def assert_official(found, first, rows, tolerance):
    """Scores from row `first` on are those of official rows."""
    assert rows
    for i, row in enumerate(rows, first):
        for name in COLUMNS:
            near = tolerance if name == "ego_progress" else 0
            assert found.columns[name][i].item() == pytest.approx(row[name], abs=near, rel=0), (i, name)
        assert found.multiplicative_metrics_prod[i].item() == row["multiplicative_metrics_prod"]
        assert found.comfort[i].tolist() == row["comfort"]
        assert found.progress[i].item() == pytest.approx(row["progress_raw_m"], abs=1e-6)
        assert found.epdms[i].item() == pytest.approx(row["epdms_wo_ec"], abs=tolerance)
        assert found.pdm_score[i].item() == pytest.approx(row["pdm_score"], abs=tolerance)
        for comfort in (0, 1):
            extended = found.with_extended_comfort(torch.full_like(found.progress, comfort)).epdms[i].item()
            assert extended == pytest.approx(row[f"epdms_ec{comfort}"], abs=tolerance)


def all_rows(cases, name, scorer):
    """Scores of the cases that have official ones by this policy, and which case starts at which row."""
    some = [case for case in cases if case[1]["official"].get(name)]
    scene = torch.repeat_interleave(torch.tensor([len(poses) for _, _, poses in some]))
    found = scorer(some)(torch.cat([poses for _, _, poses in some]), scene)
    firsts = [int((scene < i).sum()) for i in range(len(some))]
    return found, [(first, official, poses) for first, (_, official, poses) in zip(firsts, some, strict=True)]


@pytest.mark.parametrize("name", POLICIES)
def test_scores_are_the_official_ones_given_the_official_plan(cases, name):
    def scorer(some):
        scenes, plans = [case[0] for case in some], [reference_plan(scene, official) for scene, official, _ in some]
        return Scorer(scenes, POLICIES[name], plans=plans)

    found, parts = all_rows(cases, name, scorer)
    for first, official, _ in parts:
        assert_official(found, first, official["official"][name], 1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_scores_are_the_official_ones_with_the_own_planner(cases, name):
    found, parts = all_rows(cases, name, lambda some: Scorer([case[0] for case in some], POLICIES[name]))
    for first, official, _ in parts:
        assert_official(found, first, official["official"][name], 1e-5)
