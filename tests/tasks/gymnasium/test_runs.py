"""The shipped configurations of Gymnasium train with every overlay, and resume exactly."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.cli.configuration import PACKAGED

WORLDS = ("cartpole", "pendulum", "minigrid_lava")
QUIET = [
    "--data.prompts_per_update=2",
    "--data.val_prompts=4",
    "--data.eval_prompts=4",
    "--model.group_size=4",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--callbacks.initial_rates=null",
]


def fit(*arguments):
    main(["fit", *QUIET, *arguments])


def last(run):
    (file,) = Path().glob(f"runs/{run}/checkpoints/last.ckpt")
    return torch.load(file, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_overlays_start(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overlays = sorted((PACKAGED / "ablations" / world).glob("*.yaml"))
    assert [file.stem for file in overlays] == ["fixed_weights", "ppo_lagrangian", "unconstrained"]
    for overlay in overlays:
        name = overlay.stem
        steps = "--trainer.max_steps=7" if name == "ppo_lagrangian" else "--trainer.max_steps=1"  # beyond the warm-up
        fit("-c", f"configs/{world}.yaml", "-c", f"configs/ablations/{world}/{name}.yaml", steps)
        assert list(tmp_path.glob(f"runs/{world},*{name}*/version_0/checkpoints/last.ckpt")), name


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_resumed_equals_uninterrupted(world, tmp_path, monkeypatch):
    """New worlds, replayed from seeds: weights, optimizer and multipliers are equal bit for bit."""
    monkeypatch.chdir(tmp_path)
    base = (
        "-c",
        f"configs/{world}.yaml",
        "--trainer.logger.name=resumed",
        "--callbacks.checkpoints.every_n_train_steps=1",
    )
    fit(*base, "--trainer.max_steps=4")
    fit(*base, "--trainer.max_steps=2")
    fit(*base, "--trainer.max_steps=4", "--ckpt_path=last")
    whole, resumed = last("resumed/version_0"), last("resumed/version_2")
    kept = ("state_dict", "optimizer_states", "global_step")
    assert whole["global_step"] == resumed["global_step"] == 4
    for part in kept:
        for one, other in zip(tree_leaves(whole[part]), tree_leaves(resumed[part]), strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    multipliers = [
        next(state for name, state in checkpoint["callbacks"].items() if "LagrangianCallback" in name)
        for checkpoint in (whole, resumed)
    ]
    for one, other in zip(*map(tree_leaves, multipliers), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
