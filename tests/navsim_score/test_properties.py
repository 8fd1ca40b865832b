"""What scores must not depend on."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from driving_scenes.generator.rigid_motion import moved
from navsim_score.scorer import Scorer
from navsim_score.traffic.log_replay import LogReplay
from navsim_score.traffic.reactive import Reactive
from tests.driving_scenes.scenes import agent, crossing, straight, straight_road

OTHERS = [
    agent("parked", 24, -1.9),
    agent("slow", 14, 1.6, speed=4.0),
    agent("oncoming", 60, 5.2, math.pi, speed=7.0),
    agent("walker", 30, -8, 1.5, speed=1.3, kind="pedestrian", size=(0.6, 0.6)),
    agent("cone", 18, 3.1, kind="traffic_cone", size=(0.4, 0.4)),
    agent("late", 40, -1.8, times=[1.0, 1.5, 2.0]),
    agent("behind", -14, -1.7, speed=9.0),
]
CANDIDATES = torch.stack([straight(speed, left=left) for speed in (0.0, 4.0, 8.0, 13.0) for left in (-2.6, 0.1, 3.3)])
TRAFFICS = [LogReplay(), Reactive()]


def scenes():
    return [straight_road(OTHERS), crossing(OTHERS, speed=6.0), straight_road([], speed=3.0)]


def score(some, traffic, candidates=CANDIDATES):
    scene = torch.arange(len(some)).repeat_interleave(len(candidates))
    return Scorer(some, traffic)(candidates.repeat(len(some), 1, 1), scene)


@cache
def replayed():
    return score(scenes(), LogReplay())


def assert_same(found, expected, tolerance=0.0):
    for name, column in expected.columns.items():
        if name == "ego_progress" and tolerance:
            assert torch.allclose(found.columns[name], column, atol=tolerance, rtol=0)
        else:
            assert torch.equal(found.columns[name], column), name
    assert torch.allclose(found.epdms, expected.epdms, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("traffic", TRAFFICS)
@pytest.mark.parametrize("motion", [(0.6, (0.0, 0.0)), (-2.5, (2000.0, -700.0)), (1.5, (333557.0, 4697225.0))])
def test_where_the_scene_is_doesnt_matter(traffic, motion):
    expected = score(scenes(), traffic)
    assert 0 < expected.epdms.mean() < 1
    found = score([moved(scene, *motion) for scene in scenes()], traffic)
    assert_same(found, expected, tolerance=1e-6)


@pytest.mark.parametrize("traffic", TRAFFICS)
def test_the_order_of_candidates_doesnt_matter(traffic):
    scorer = Scorer(scenes(), traffic)
    scene = torch.arange(3).repeat_interleave(len(CANDIDATES))
    poses = CANDIDATES.repeat(3, 1, 1)
    expected = scorer(poses, scene)
    order = torch.randperm(len(scene), generator=torch.Generator().manual_seed(0))
    found = scorer(poses[order], scene[order])
    assert torch.allclose(found.epdms[order.argsort()], expected.epdms, atol=1e-12)
    assert torch.allclose(found.states[order.argsort()], expected.states, atol=1e-12)  # SIMD rounds ends of tensors


def test_the_order_of_agents_doesnt_matter():
    def shuffled(scene):
        agents = scene.agents
        order = torch.randperm(len(agents.tokens), generator=torch.Generator().manual_seed(1))
        rows = {name: getattr(agents, name)[order] for name in ("types", "sizes", "states", "seen")}
        return replace(scene, agents=replace(agents, tokens=tuple(agents.tokens[i] for i in order.tolist()), **rows))

    assert_same(score([shuffled(scene) for scene in scenes()], LogReplay()), replayed())


@pytest.mark.slow
@pytest.mark.parametrize("traffic", TRAFFICS)
def test_a_batch_scores_like_one_by_one(traffic):
    some = CANDIDATES[::3]
    expected = score(scenes(), traffic, some)
    scorers = [Scorer([scene], traffic) for scene in scenes()]
    row = torch.zeros(1, dtype=torch.int64)
    alone = [scorer(poses[None], row) for scorer in scorers for poses in some]
    assert_same(type(expected).cat(alone), expected, tolerance=1e-12)


def test_chunks_dont_matter(monkeypatch):
    expected = replayed()
    monkeypatch.setattr("navsim_score.scorer.ROWS_AT_ONCE", 5)
    assert_same(score(scenes(), LogReplay()), expected, tolerance=1e-12)
