"""The shipped recipe and its constrained training, as commands."""

import shlex

import pytest
import torch

from lightning_cgrpo.__main__ import main
from tests.quiet import QUIET
from tests.test_resume import assert_same_state

QUICK = shlex.split(
    f"{QUIET} --trainer.limit_val_batches=0 --callbacks.initial_rates=null --data.prompts_per_update=4 "
    "--model.sampler.max_new_tokens=32"
)


@pytest.mark.slow
def test_the_recipe_makes_a_model_from_which_training_starts_and_resumes(folder):
    """Two updates and two after resuming leave the state of four updates."""
    main(["fit", "-c", "configs/calculator_sft.yaml", *QUICK, "--trainer.max_steps=2"])
    assert (folder / "models/calculator/config.json").is_file()
    train = ["fit", "-c", "configs/calculator.yaml", *QUICK, "--model.group_size=2", "--callbacks.samples=null"]
    train += ["--callbacks.checkpoints.every_n_train_steps=2", "--callbacks.checkpoints.save_top_k=-1"]
    train += ["--callbacks.checkpoints.monitor=null", "--trainer.max_steps=4"]
    main(train)
    (first,) = folder.glob("runs/calculator,*/*/checkpoints/step=2.ckpt")
    main([*train, f"--ckpt_path={first}"])
    ends = [torch.load(path, weights_only=True) for path in folder.glob("runs/calculator,*/*/checkpoints/step=4.ckpt")]
    assert len(ends) == 2
    assert_same_state(*ends, 4)
    start = torch.load(first, weights_only=True)["state_dict"]
    assert any(not torch.equal(tensor, ends[0]["state_dict"][name]) for name, tensor in start.items())
