"""The task: an answer scores as its trajectory does, and what is malformed violates everything."""

from dataclasses import replace

import pytest
import torch

from driving_scenes.generator import GeneratedScenes
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.tasks.driving.answers import AnswerFormat
from lightning_cgrpo.tasks.driving.task import DrivingTask
from navsim_score.columns import MULTIPLIERS, WEIGHTS
from navsim_score.expert.pdm_closed import plan
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from tests.answered import answered
from tests.driving_scenes.scenes import agent, crossing, straight, straight_road

MALFORMED = "I would rather walk."


def given(scenes):
    return PromptGroups(torch.arange(len(scenes)), {"prompt": ["?"] * len(scenes), "scene": list(scenes)})


def signals(scenes, texts, **options):
    found = DrivingTask(**options).score(given(scenes), answered(texts))
    assert found.keys() == DrivingTask.signals.keys()
    for name, signal in found.items():
        assert signal.value.shape == (len(texts), len(texts[0]))
        assert bool(signal.value.isfinite().all())
        if DrivingTask.signals[name] == "indicator":
            assert set(signal.counts()[0].flatten().tolist()) <= {0.0, 1.0}
    return found


def written(scene, **options):
    """A constant speed, as an answer."""
    return AnswerFormat(**options).write(straight(float(scene.ego.velocities[-1, 0])), 0.5)


@pytest.mark.slow
def test_answers_score_as_their_trajectories():
    """Against the scorer, answer by answer and scene by scene; malformed ones in between change nothing."""
    source = GeneratedScenes(0).scenes("train")
    scenes = [source[index] for index in range(4)]
    answer = AnswerFormat()
    drives = [[answer.write(factor * scene.human, 0.5) for factor in (1, 1.4)] for scene in scenes]
    texts = [[human, MALFORMED, faster, written(scene)] for scene, (human, faster) in zip(scenes, drives, strict=True)]
    found = signals(scenes, texts)
    for b, scene in enumerate(scenes):
        for g in (0, 2, 3):
            poses = answer.poses(answer.read(texts[b][g])[None])
            scores = Scorer([scene], human_filter=False)(poses, torch.zeros(1, dtype=torch.int64), 0.25)
            assert float(found["wat"].value[b, g]) == pytest.approx(float(scores.weighted_average), abs=1e-6)
            assert float(found["epdms"].value[b, g]) == pytest.approx(float(scores.epdms), abs=1e-6)
            for name in MULTIPLIERS:
                assert float(found[name].value[b, g]) == float(scores.columns[name] == 1)
            for name in WEIGHTS:
                assert float(found[name].value[b, g]) == pytest.approx(float(scores.columns[name]), abs=1e-6)
    assert 0 < float(found["wat"].value[:, 0].mean()) <= 1


def test_malformed_answers_violate_everything():
    scenes = [crossing(), straight_road()]
    for texts in ([[MALFORMED] * 2] * 2, [[MALFORMED, written(scenes[0])]] * 2):
        found = signals(scenes, texts)
        assert found["malformed"].value[:, 0].tolist() == [1, 1]
        assert not bool(found["ade"].applicable[:, 0].any())
        for name in ("wat", "epdms", *MULTIPLIERS, *WEIGHTS):
            assert found[name].value[:, 0].tolist() == [0, 0]
        for name in MULTIPLIERS[:3]:
            assert [part[:, 0].tolist() for part in found[name].counts()] == [[0, 0], [1, 1]]
    assert found["malformed"].value[:, 1].tolist() == [0, 0]
    assert float(found["wat"].value[:, 1].min()) > 0.5


def test_lights_count_where_there_are_some():
    """Driving on at the red light violates it; where there is no light there is no opportunity."""
    red, without = crossing(red=True), straight_road()
    found = signals([red, without], [[written(red), MALFORMED]] * 2)["traffic_light_compliance"]
    assert [part.tolist() for part in found.counts()] == [[[0, 0], [0, 0]], [[1, 1], [0, 0]]]
    assert found.applicable.tolist() == [[True, True], [False, False]]


def test_extended_comfort_of_pairs_of_frames():
    """Going on agrees with going on, braking does not; a malformed answer disagrees, a lone scene does not count."""
    first = straight_road()
    later = replace(straight_road(name="next"), previous=first.name)
    later = replace(later, ego=replace(later.ego, poses=later.ego.poses + torch.tensor([4.0, 0.0, 0.0])))
    on, braking = AnswerFormat().write(straight(8.0), 0.5), AnswerFormat().write(straight(8.0, -3.0), 0.5)
    texts = [[on, on, on], [on, braking, MALFORMED], [on] * 3]
    ec = signals([first, later, straight_road(name="alone")], texts)["two_frame_extended_comfort"]
    assert ec.value.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert ec.applicable.all(1).tolist() == [True, True, False]


def test_half_of_a_violation_counts_as_one():
    """Hitting a cone: NC is 0.5."""
    scene = straight_road([agent("cone", 20.0, -1.75, kind="traffic_cone", size=(0.4, 0.4))])
    texts = [[written(scene), MALFORMED]]
    both = (signals([scene], texts, fractional=fractional) for fractional in (False, True))
    whole, half = (found["no_at_fault_collisions"] for found in both)
    assert whole.value.tolist() == [[0, 0]]
    assert half.value.tolist() == [[0.5, 0]]
    for found in (whole, half):
        assert [part.tolist() for part in found.counts()] == [[[0, 0]], [[1, 1]]]


def test_displacement_from_the_human():
    scene = straight_road()
    aside = straight(8.0)
    aside[:, 1] += 3.0
    texts = [[AnswerFormat(8, 0.5).write(straight(8.0), 0.5), AnswerFormat(8, 0.5).write(aside, 0.5)]]
    found = signals([scene], texts, answer=AnswerFormat(8, 0.5))["ade"]
    assert found.value[0].tolist() == pytest.approx([0.0, 3.0], abs=1e-5)
    nobody = signals([replace(scene, human=None)], [[written(scene)]])["ade"]
    assert not bool(nobody.applicable.any())


def test_the_given_plan_is_the_expert_s():
    """Progress is relative to the plan's, which is only made without a given plan."""
    scenes = [straight_road(), crossing()]
    prompts, rollouts = given(scenes), answered([[written(scenes[0])]] * 2)
    made = DrivingTask().score(prompts, rollouts)["ego_progress"].value
    plans = plan(scenes)
    prompts.columns["plan"] = plans
    assert torch.equal(DrivingTask().score(prompts, rollouts)["ego_progress"].value, made)
    # An expert that stands still makes any progress complete.
    prompts.columns["plan"] = [replace(each, trajectory=each.trajectory[:1].expand(41, 3)) for each in plans]
    stood = DrivingTask().score(prompts, rollouts)["ego_progress"].value
    assert bool((made < 1).any()) and stood.tolist() == [[1.0], [1.0]]


def test_traffic_and_human_filter_are_chosen():
    """A vehicle that stops in the log, but would drive on; and a parked one that the human hits too."""
    stopping = agent("stopping", 20.0, -1.75, speed=8.0)
    stopping["states"] = [[t, 20.0, -1.75, 0.0, 8.0, 0.0] for t, *_ in stopping["states"]]
    parked = agent("parked", 20.0, -1.75)
    scenes = [replace(straight_road([stopping]), human=None), straight_road([parked])]
    texts = [[written(scene)] for scene in scenes]
    for options, complied in (
        ({}, [0, 0]),
        ({"traffic": LogReplay()}, [0, 0]),
        ({"traffic": Reactive()}, [1, 0]),
        ({"human_filter": True}, [0, 1]),
        ({"traffic": Reactive(), "human_filter": True}, [1, 1]),
    ):
        found = signals(scenes, texts, **options)["no_at_fault_collisions"]
        assert found.value[:, 0].tolist() == complied, options
