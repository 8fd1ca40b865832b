"""Argoverse 2's report: differences paired by scene, with all logs and without each."""

from dataclasses import replace

import pytest
import torch

from benchmarks.navsim.real import report, table
from navsim_score.evaluation import BASELINES, planned_drives
from navsim_score.scorer import Scorer
from tests.driving_scenes.scenes import straight_road


def test_differences_are_paired_by_scene_and_leave_out_each_log():
    names = ["av2_a_1", "av2_a_2", "av2_b_1"]
    scenes = [replace(straight_road(), name=name) for name in names]
    found = planned_drives(Scorer(scenes, human_filter=False), {"first": BASELINES["constant velocity"]}, range(3))
    first = found["first"]
    stopped = [0.25, 0.5, 1.0]  # by how much the second driver's total falls, as a factor
    second = [
        replace(drive, counted={name: torch.full_like(value, factor) for name, value in drive.columns.items()})
        for drive, factor in zip(first, stopped, strict=True)
    ]
    result = report({"first": first, "second": second}, "first")
    apart = [result["second"]["by_scene"][name] - result["first"]["by_scene"][name] for name in names]
    assert len(set(apart)) == 3
    assert result["second"]["difference"]["mean"] == pytest.approx(sum(apart) / 3)
    assert result["second"]["difference_without_log"] == pytest.approx({"a": apart[2], "b": (apart[0] + apart[1]) / 2})
    assert len(table(result, "first").splitlines()) == 4
