"""The shipped configurations of Gymnasium train with every overlay, and resume exactly."""

import shlex

import pytest

from lightning_cgrpo.__main__ import main
from tests.quiet import QUIET
from tests.test_resume import killed_and_resumed

WORLDS = ("cartpole", "pendulum", "minigrid_lava")
SMALL = shlex.split(
    "--data.prompts_per_update=2 --data.val_prompts=4 --data.eval_prompts=4 --model.group_size=4 "
    f"{QUIET} --callbacks.initial_rates=null"
)
SHORT = {"pendulum": ["--model.objective.constraints.hard.over=1"]}
"""Overrides by world, because a schedule may not go past the run's end."""


def fit(*arguments):
    main(["fit", *SMALL, *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_overlays_start(world, folder):
    for name in ("fixed_weights", "ppo_lagrangian", "unconstrained"):
        steps = "--trainer.max_steps=7" if name == "ppo_lagrangian" else "--trainer.max_steps=1"  # beyond the warm-up
        fit("-c", f"configs/{world}.yaml", "-c", f"configs/ablations/{world}/{name}.yaml", steps, *SHORT.get(world, []))
        assert list(folder.glob(f"runs/{world},*{name}*/version_0/checkpoints/last.ckpt")), name


RUNS = {
    **{world: " ".join([f"-c configs/{world}.yaml", *SHORT.get(world, [])]) for world in WORLDS},
    "processes": "-c configs/cartpole.yaml --model.sampler.environment.processes=true "
    "--model.sampler.environment.vector=null",
    "returns_to_go": "-c configs/cartpole.yaml --model.estimator=ReturnsToGo --model.objective.reward=reward "
    "--model.policy.normalize=true",
    "critic": "-c configs/pendulum.yaml -c configs/ablations/pendulum/ppo_lagrangian.yaml "
    "--model.policy.normalize=true --model.estimator.critic.normalize=true --model.estimator.bootstraps=true "
    "--model.estimator.learning.warmup=1 --model.objective.constraints.hard.over=2",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_equals_uninterrupted(name, tmp_path, monkeypatch):
    """SIGKILL a process after a checkpoint; new worlds, replayed from seeds, lead to the same log and state."""
    kept = "--callbacks.checkpoints.every_n_train_steps=1 --callbacks.checkpoints.save_top_k=-1 "
    logged = "--trainer.logger=lightning.pytorch.loggers.CSVLogger --trainer.logger.save_dir=runs "
    arguments = [
        *("fit", *SMALL, *shlex.split(RUNS[name])),
        *shlex.split(kept + "--callbacks.checkpoints.monitor=null --callbacks.layout=null --callbacks.pictures=null"),
        *shlex.split(logged + "--trainer.logger.name=resumed --trainer.log_every_n_steps=1"),
        *shlex.split("--model.lr_scheduler=torch.optim.lr_scheduler.StepLR --model.lr_scheduler.step_size=2"),
        "--trainer.val_check_interval=2",
    ]
    expected = killed_and_resumed(arguments, "step=2.ckpt", 2, tmp_path, monkeypatch)
    assert any("val/reward/mean" in row for row in expected)
