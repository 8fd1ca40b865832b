"""Pictures of Gymnasium's worlds: frames of the recorded episodes, replayed from seeds."""

import os

import gymnasium
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, EnvironmentSampler, Gymnasium, GymnasiumTask, Objective
from lightning_cgrpo.callbacks import Pictures
from lightning_cgrpo.datamodules import SeedDataModule
from tests.memory import flat
from tests.quiet import quiet_trainer
from tests.tasks.gymnasium.test_environment import GROUP, SEEDS, WALK, continuous, discrete, prompts, rollout


def pictures(environment, policy, row=1, groups=None):
    groups = prompts() if groups is None else groups
    return environment.render(groups, rollout(policy, environment, groups), {}, row)


def frames(axis):
    return [image.get_array() for image in axis.images]


@pytest.mark.parametrize("make", [discrete, continuous])
def test_frames_of_the_recorded_episodes(make):
    """Walk's picture is its number of steps, which the titles name; the replay reaches the recorded observations."""
    environment = Gymnasium(WALK, {"continuous": make is continuous})
    rollouts = rollout(make(), environment)
    figure = environment.render(prompts(), rollouts, {}, 1)
    assert figure.get_suptitle() == f"replayed from seed {SEEDS[1]}"
    strips = np.array(figure.axes).reshape(GROUP, 6)
    for episode, strip in enumerate(strips):
        length = int(rollouts.mask[1, episode].sum())
        shown = [int(image[0, 0, 0]) for axis in strip for image in frames(axis)]
        assert shown[0] == 0 and shown[-1] == length and len(shown) == min(length + 1, 6) and shown == sorted(shown)
        total = float(rollouts.info["reward"][1, episode].sum())
        assert strip[0].get_title() == f"answer {episode}, return {total:.4g}"
        assert [axis.get_title() for axis in strip[1 : len(shown)]] == [f"step {step}" for step in shown[1:]]


def test_a_replay_that_differs_is_named():
    title = pictures(Gymnasium(WALK, {"fault": "drifts"}), discrete()).get_suptitle()
    assert title == f"replayed from seed {SEEDS[1]}, but the replay differs from the episode"


def test_equals_gymnasium():
    """CartPole's first and last frames are those that a world of Gymnasium's own draws."""
    environment = Gymnasium("CartPole-v1", max_steps=12)
    rollouts = rollout(CategoricalMLP(4, 2), environment)
    figure = environment.render(prompts(), rollouts, {}, 0)
    world = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    world.reset(seed=SEEDS[0])
    assert np.array_equal(frames(figure.axes[0])[0], world.render())
    for action in rollouts.info["action"][0, 0][rollouts.mask[0, 0]].tolist():
        world.step(action)
    strip = [frame for axis in figure.axes[:6] for frame in frames(axis)]
    assert np.array_equal(strip[-1], world.render()) and not np.array_equal(strip[0], strip[-1])


def test_the_callback_draws_the_sampler_s_worlds_and_changes_nothing(tmp_path):
    def run(name, *callbacks):
        sampler, task = EnvironmentSampler(Gymnasium(WALK)), GymnasiumTask()
        module = ConstrainedGRPO(discrete(), sampler, task, Objective("reward"), torch.optim.Adam, group_size=2, seed=0)
        trainer = quiet_trainer(*callbacks, max_steps=3, logger=CSVLogger(tmp_path / name, "run"))
        trainer.fit(module, SeedDataModule(2))
        return flat(module.policy)

    drawn, plain = run("drawn", Pictures(every_n_updates=2)), run("plain")
    assert torch.equal(drawn, plain)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert found == [f"drawn/run/version_0/episodes/0/{update:05d}.png" for update in (0, 2)]


@pytest.mark.parametrize(("display", "driver"), [(None, "dummy"), (":0", None)])
def test_without_a_display_pygame_looks_for_none(monkeypatch, display, driver):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    pictures(Gymnasium(WALK, {"continuous": False}), discrete())
    assert os.environ.get("SDL_VIDEODRIVER") == driver
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
