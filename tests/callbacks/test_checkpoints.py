"""The last checkpoint is the end of training, and one that a longer run goes on from exactly."""

import pytest
import torch

from lightning_cgrpo.__main__ import main
from lightning_cgrpo.errors import UserError

COMMON = [
    *("-c", "configs/gridworld.yaml"),
    "--trainer.logger=lightning.pytorch.loggers.CSVLogger",
    "--trainer.logger.save_dir=runs",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    *(f"--callbacks.{name}=null" for name in ("initial_rates", "progress", "pictures")),
    "--callbacks.checkpoints.every_n_train_steps=4",
    *("--data.prompts_per_update=4", "--data.train_prompts=12", "--data.val_prompts=4"),
    *("--model.policy.hidden=[16]", "--model.group_size=4", "--model.sampler.environment.max_steps=20"),
]


def fit(name, *arguments):
    main(["fit", *COMMON, f"--trainer.logger.name={name}", *arguments])
    return f"runs/{name}/version_0/checkpoints/last.ckpt"


def read(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("updates", [2, 4, 6, 7])  # before, at, and after an interval; 6 is the end of an epoch
def test_last_is_the_end(updates, folder):
    assert read(fit("short", f"--trainer.max_steps={updates}"))["global_step"] == updates
    assert len(list(folder.glob("runs/short/*/checkpoints/last*"))) == 1


@pytest.mark.slow
def test_a_longer_run_goes_on_from_the_end(folder):
    whole = read(fit("whole", "--trainer.max_steps=9"))
    fit("parts", "--trainer.max_steps=5")
    fit("parts", "--trainer.max_steps=9", "--ckpt_path=last")
    parts = read("runs/parts/version_1/checkpoints/last.ckpt")
    assert (parts["global_step"], parts["epoch"]) == (whole["global_step"], whole["epoch"]) == (9, 2)
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(parts["state_dict"][name], tensor)


def test_a_policy_trained_with_a_reference_is_tested_without(folder):
    path = fit("reference", "--trainer.max_steps=1", "--model.optimization.kl_weight=0.1")
    assert any(name.startswith("reference.") for name in read(path)["state_dict"])
    main(["test", *COMMON, "--data.test_prompts=4", f"--ckpt_path={path}"])


def test_two_callbacks_that_set_weights_are_refused(folder):
    with pytest.raises(UserError, match=r"one callback to set the weights .* LagrangianCallback and FixedWeights"):
        fit("two", "--trainer.max_steps=1", "--callbacks.others=FixedWeights")
