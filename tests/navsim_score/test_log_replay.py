"""Logged agents at 10 Hz, traffic lights, and log replay."""

import numpy as np
import pytest
import torch
from scipy.interpolate import interp1d

from driving_scenes.scene import Agents, Lights
from navsim_score.batch.agent_tracks import interpolate_agents
from navsim_score.batch.scene_batch import SceneBatch
from navsim_score.batch.surfaces import red_at_steps
from navsim_score.expert.pdm_closed import plan
from navsim_score.traffic.log_replay import LogReplay
from tests.driving_scenes.scenes import agent, crossing, straight_road


def random_agents(seen, seed=0):
    generator = torch.Generator().manual_seed(seed)
    seen = torch.tensor(seen, dtype=torch.bool)
    states = torch.randn(len(seen), 12, 5, generator=generator, dtype=torch.float64) * 5 * seen[..., None]
    times = torch.arange(-3, 9, dtype=torch.float64) / 2
    names = tuple(map(str, range(len(seen))))
    return Agents(names, torch.arange(len(seen)) % 7, torch.ones(len(seen), 3), times, states, seen)


def test_tracks_are_interpolated_as_scipy_does():
    rng = np.random.default_rng(0)
    agents = random_agents(rng.random((40, 12)) < 0.6)
    poses, velocities, present, first_speed = interpolate_agents(agents)
    steps = np.arange(41) * 0.1
    for row in range(40):
        seen = agents.seen[row].numpy() & (agents.times >= 0).numpy()
        times, states = agents.times.numpy()[seen], agents.states[row].numpy()[seen].copy()
        if len(times) < 2:
            assert present[row].all() if len(times) else not present[row].any()
            continue
        states[:, 2] = np.unwrap(states[:, 2])
        within = (steps >= times[0]) & (steps <= times[-1])
        assert np.array_equal(present[row].numpy(), within)
        expected = interp1d(times, states, axis=0)(steps[within])
        assert np.allclose(poses[row, within, :2], expected[:, :2], atol=1e-12)
        assert np.allclose(np.exp(1j * poses[row, within, 2].numpy()), np.exp(1j * expected[:, 2]), atol=1e-12)
        moves = row % 7 < 3
        assert np.allclose(velocities[row, within], expected[:, 3:] * moves, atol=1e-12)
        assert first_speed[row].item() == pytest.approx(np.hypot(*states[0, 3:]) * moves)
        assert not poses[row, ~within].any()


def test_an_agent_that_is_seen_once_is_always_there():
    seen = np.zeros((3, 12), dtype=bool)
    seen[0, 7] = True  # at 2 s
    seen[1, 3] = seen[1, 1] = True  # now and before
    seen[2, :3] = True  # only before
    agents = random_agents(seen)
    poses, _, present, first_speed = interpolate_agents(agents)
    assert present.all(1).tolist() == [True, True, False]
    assert not present[2].any()
    assert torch.allclose(poses[0, :, :2], agents.states[0, 7, :2].expand(41, 2))
    assert first_speed[0].item() == pytest.approx(agents.states[0, 7, 3:].norm().item())


def test_lights_are_held_for_half_a_second():
    times = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    red = torch.tensor([[True], [False], [True]])
    found = red_at_steps(Lights(times, red, ~red))[:, 0]
    assert found.nonzero()[:, 0].tolist() == [*range(5), *range(20, 25)]
    assert not red_at_steps(Lights(times[:0], red[:0], red[:0])).any()


def test_red_connectors_of_other_routes_dont_count():
    scenes = [crossing(), crossing(route=["before"]), crossing(red=False)]
    reds = [SceneBatch.of([scene], plan([scene])).surfaces.red for scene in scenes]
    assert [red.sum().item() for red in reds] == [30, 0, 0]


def test_what_touches_the_ego_now_is_left_out_for_good():
    near = [agent("overlapping", 5.5, -1.75), agent("ahead", 12, -1.75), agent("later", 1, -1.75, times=[1.0, 2.0])]
    scene = straight_road(near)
    batch = SceneBatch.of([scene, straight_road()], plan([scene, straight_road()]))
    rows = torch.tensor([1, 0, 0])
    traffic = LogReplay()(batch, torch.zeros(3, 41, 11), rows)
    assert traffic.of_row.tolist() == rows.tolist()
    assert traffic.present[0].any(1).tolist() == [False, True, True]
    assert traffic.present[0, 2].nonzero()[:, 0].tolist() == list(range(10, 21))
    assert not traffic.present[1].any()
    assert traffic.types[1].tolist() == [-1, -1, -1]
