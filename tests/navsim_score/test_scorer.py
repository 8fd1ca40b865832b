"""The scorer on small scenes made by hand."""

from dataclasses import replace

import pytest
import torch

from driving_scenes.errors import InputError
from navsim_score.columns import COLUMNS
from navsim_score.expert.pdm_closed import plan
from navsim_score.scorer import Scorer
from tests.driving_scenes.scenes import SPEED, agent, straight, straight_road

PARKED = agent("parked", 25, -1.75)
STOP = straight(SPEED, -2.5)


def score(scene, *candidates, **options):
    options = {"human_filter": False} | options
    return Scorer([scene], **options)(torch.stack(candidates), torch.zeros(len(candidates), dtype=torch.int64))


def test_a_good_drive_scores_everything():
    found = score(straight_road(), straight(9.0, 0.5))
    assert {name: value.item() for name, value in found.columns.items()} == dict.fromkeys(COLUMNS, 1.0) | {
        "ego_progress": pytest.approx(1, abs=0.05)
    }
    assert found.epdms.item() == found.pdm_score.item() == found.weighted_average.item() > 0.98
    assert found.comfort.all()
    assert found.states.shape == (1, 41, 11)


def test_progress_is_relative_to_the_expert_or_to_oneself():
    found = score(straight_road([PARKED]), STOP, straight())
    progress = found.columns["ego_progress"]
    assert progress[0].item() == pytest.approx(found.progress[0].item() / found.pdm_progress[0].item())
    assert progress[1].item() == 1  # it is faster, although it collides
    slow = score(straight_road([agent("close", 7.5, -1.75)], speed=0.5), straight(0.5))
    assert slow.pdm_progress.item() < 5
    assert slow.columns["ego_progress"].item() == 1


def test_unknown_extended_comfort_violates_nothing():
    found = score(straight_road(), straight(), straight(), straight())
    extended = found.with_extended_comfort(torch.tensor([1.0, 0.0, torch.nan]))
    # What isn't known violates nothing, but what isn't valid violates everything.
    assert extended.violations()["two_frame_extended_comfort"].tolist() == [0, 1, 0]
    broken = score(straight_road(), straight() * torch.nan).with_extended_comfort(torch.tensor([torch.nan]))
    assert broken.violations()["two_frame_extended_comfort"].tolist() == [1]


def test_violations():
    cone = agent("cone", 25, -1.75, kind="traffic_cone", size=(0.5, 0.5))
    found = score(straight_road([cone]), straight(), STOP, straight(left=-4.0), torch.full((8, 3), torch.nan))
    assert set(found.violations()) == set(COLUMNS) - {"ego_progress"}
    assert found.violations()["no_at_fault_collisions"].tolist() == [1, 0, 0, 1]
    assert found.violations()["drivable_area_compliance"].tolist() == [0, 0, 1, 1]
    assert found.rewards()[3] == 0
    assert (found.rewards()[:3] > 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_malformed_candidate_is_invalid_and_disturbs_nobody(bad):
    scene = straight_road([PARKED])
    broken = straight()
    broken[3, 1] = bad
    alone = score(scene, straight(), STOP)
    found = score(scene, straight(), broken, STOP)
    assert found.valid.tolist() == [True, False, True]
    for name in COLUMNS:
        assert found.columns[name][1].isnan()
        assert torch.equal(found.columns[name][[0, 2]], alone.columns[name])
    assert found.epdms[1].isnan()
    assert found.progress[1].isnan()
    assert not found.comfort[1].any()
    assert torch.equal(found.epdms[[0, 2]], alone.epdms)
    lenient = score(scene, broken, human_filter=True)
    assert not lenient.valid.any()
    assert lenient.epdms.isnan().all()


def test_a_map_without_anything_drivable_near():
    far = {"lanes": [], "roadblocks": []}
    scene = straight_road()
    plans = plan([scene])
    empty = straight_road(map=far, route=[])
    nothing = Scorer([empty, scene], plans=[type(plans[0])(plans[0].trajectory, plans[0].centerline, ()), plans[0]])
    found = nothing(torch.stack([straight()] * 2), torch.arange(2))
    assert found.columns["drivable_area_compliance"].tolist()[1] == 1
    assert found.unfiltered["drivable_area_compliance"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("shape", "scene"),
    [
        *((shape, [0, 0]) for shape in ((2, 8), (2, 8, 2), (2, 0, 3))),
        *(((2, 8, 3), scene) for scene in ([0], [0, 1], [-1, 0])),
    ],
)
def test_other_shapes_and_scenes_are_refused(shape, scene):
    with pytest.raises(InputError, match=r"poses|scenes"):
        Scorer([straight_road()])(torch.zeros(shape), torch.tensor(scene))


def test_no_candidates_have_no_scores():
    found = Scorer([straight_road()])(torch.zeros(0, 8, 3), torch.zeros(0, dtype=torch.int64))
    assert found.epdms.shape == (0,) and found.states.shape == (0, 41, 11)


@pytest.mark.parametrize("synthetic", [False, True])
def test_a_synthetic_scene_has_no_human_filter(synthetic):
    """A scene made from another keeps no human whose faults would be lifted."""
    scene = replace(straight_road([PARKED]), synthetic=synthetic)  # the human drives into the parked car
    found = score(scene, straight(), human_filter=True)
    assert found.unfiltered["no_at_fault_collisions"].tolist() == [0]
    assert found.columns["no_at_fault_collisions"].tolist() == [0 if synthetic else 1]
