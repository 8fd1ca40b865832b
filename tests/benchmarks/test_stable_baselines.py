"""The comparison with stable-baselines3 measures episodes as the package's own test does."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecNormalize
from torch.utils.tensorboard import SummaryWriter

from benchmarks.stable_baselines import Penalized, costly, learn, play, study_steps
from lightning_cgrpo import Gymnasium
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.output import SUMMARY
from lightning_cgrpo.core.rollout import PromptGroups
from tests.cli.report.conftest import summary
from tests.tasks.gymnasium.small_worlds import Walk

WALK = f"{Walk.__module__}:Walk-v0"
SEEDS = [5, 99, 123456]
SMALL = {"envs": 2, "n_steps": 8, "batch_size": 16, "gamma": 0.9}


@pytest.mark.parametrize(
    "options",
    [{}, {"continuous": True}, {"continuous": True, "use_sde": True, "sde_sample_freq": 2}, {"normalize": True}],
    ids=["discrete", "continuous", "gSDE", "normalized"],
)
def test_played_as_by_hand(options):
    """Gymnasium's own world, stepped by the played actions, gives the recorded facts; facts after an end are 0."""
    continuous = options.pop("continuous", False)
    # Stable-baselines3 takes discrete actions from 0.
    from_zero = {"func": lambda a: a - 1, "action_space": gymnasium.spaces.Discrete(3)}
    shifted = {"gymnasium.wrappers.TransformAction": from_zero}
    environment = Gymnasium(WALK, {"continuous": continuous}, wrappers=[] if continuous else [shifted])
    model = learn(environment.make, 0, 32, **SMALL, **options)
    assert model.num_timesteps == 32 and isinstance(model.get_env(), VecNormalize) == ("normalize" in options)
    prompts = PromptGroups(torch.arange(3), {"seed": torch.tensor(SEEDS)})
    rollouts = play(model, environment, prompts)
    for row, (seed, length) in enumerate(zip(SEEDS, rollouts.lengths[:, 0].tolist(), strict=True)):
        world = gymnasium.make(WALK, continuous=continuous)
        world.reset(seed=seed)
        for step in range(length):
            facts = {name: values[row, 0, step] for name, values in rollouts.info.items()}
            action = facts["action"].numpy()
            seen, reward, terminated, truncated, _ = world.step(action if continuous else action - 1)
            assert float(facts["reward"]) == pytest.approx(reward)
            assert np.allclose(facts["observation"], seen)
            assert (terminated or truncated) == (step == length - 1)
    assert not any(values[~rollouts.mask].any() for values in rollouts.info.values())


def test_a_costly_step_earns_less():
    """Walk ends beyond 3, at its third step upwards."""
    world = Penalized(gymnasium.make(WALK), 5.0)
    (start, _), _ = world.reset(seed=0)
    assert [world.step(1)[1] - start for _ in range(3)] == pytest.approx([1, 2, -2])
    assert [costly(True, {"x_velocity": velocity}) for velocity in (0.7, 0.8)] == [False, True]


def test_steps_of_a_resumed_run(tmp_path):
    """Three updates of four answers; the second update was logged twice."""
    for version, logged in enumerate(([(0, 2.5), (1, 9.0)], [(1, 3.0), (2, 5.25)])):
        with SummaryWriter(tmp_path / f"version_{version}") as writer:
            for update, length in logged:
                writer.add_scalar("rollout/length", length, update)
        about = summary(updates=3, answers=12, status=("interrupted", "finished")[version])
        (tmp_path / f"version_{version}" / SUMMARY).write_text(json.dumps(about))
    assert study_steps(tmp_path) == 10 + 12 + 21
    (tmp_path / "version_1" / SUMMARY).write_text(json.dumps({**about, "updates": 4}))
    with pytest.raises(UserError, match="4 logged updates"):
        study_steps(tmp_path)
