"""Agreement with the official scores of every case in the shared data."""

import pytest
import torch

from navsim_score.batch.scene_batch import ExpertPlan
from navsim_score.columns import COLUMNS
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive

POLICIES = {"non_reactive": LogReplay(), "reactive": Reactive()}


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


def assert_all_official(cases, name, tolerance, plans_of):
    """Of the cases that have official scores by this policy, scored together."""
    some = [case for case in cases.values() if case.official["official"].get(name)]
    scene = torch.repeat_interleave(torch.tensor([len(case.poses) for case in some]))
    scorer = Scorer([case.scene for case in some], POLICIES[name], plans=plans_of(some))
    found = scorer(torch.cat([case.poses for case in some]), scene)
    for i, case in enumerate(some):
        assert_official(found, int((scene < i).sum()), case.official["official"][name], tolerance)


@pytest.mark.parametrize("name", POLICIES)
def test_scores_are_the_official_ones_given_the_official_plan(official_cases, name):
    assert_all_official(official_cases, name, 1e-6, lambda some: [reference_plan(c.scene, c.official) for c in some])


@pytest.mark.parametrize("name", POLICIES)
def test_scores_are_the_official_ones_with_the_own_planner(official_cases, name):
    assert_all_official(official_cases, name, 1e-5, lambda some: None)
