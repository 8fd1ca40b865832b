"""Runs that end after a number of environment steps."""

import torch

from examples.callbacks.step_budget import StepBudget
from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, EnvironmentSampler, Gymnasium, GymnasiumTask, Objective
from lightning_cgrpo.callbacks import Checkpoints, RunSummary
from lightning_cgrpo.datamodules import SeedDataModule
from tests.memory import Memory
from tests.quiet import quiet_trainer

BUDGET = 600


def run(folder, max_steps=-1, resume=None):
    """The steps after each update as the callback counts them, and those of each sampling."""
    torch.manual_seed(0)
    module = ConstrainedGRPO(
        CategoricalMLP(4, 2, hidden=(8,)),
        EnvironmentSampler(Gymnasium("CartPole-v1", max_steps=20)),
        GymnasiumTask(),
        Objective("truncated"),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        group_size=2,
        redraws=1,
        seed=0,
    )
    sampled, sample = [], module.sample

    def kept(*arguments):
        rollouts = sample(*arguments)
        sampled.append(int(rollouts.mask.sum()))
        return rollouts

    module.sample = kept
    logger = Memory()
    checkpoints = Checkpoints(folder, save_last=True, every_n_train_steps=1)
    parts, options = (StepBudget(BUDGET), checkpoints, summary := RunSummary()), {"enable_checkpointing": True}
    trainer = quiet_trainer(*parts, logger=logger, max_steps=max_steps, default_root_dir=folder, **options)
    trainer.fit(module, SeedDataModule(prompts_per_update=3), ckpt_path=resume)
    assert summary.record.status == "finished"
    if max_steps == -1:
        assert summary.record.asked is None
    tag = "rollout/total_steps"
    return {update: int(metrics[tag]) for update, metrics in logger.updates.items() if tag in metrics}, sampled


def test_ends_with_the_update_that_reaches_the_budget_and_a_resumed_run_counts_on(tmp_path):
    totals, sampled = run(tmp_path / "whole")
    steps = list(totals.values())
    assert list(totals) == list(range(len(steps)))
    assert steps[-2] < BUDGET <= steps[-1] == sum(sampled)
    assert len(sampled) > len(steps), "groups were redrawn"
    before, _ = run(tmp_path / "parts", max_steps=2)
    after, _ = run(tmp_path / "more", resume=tmp_path / "parts/last.ckpt")
    assert len(before) == 2 and before | after == totals
    assert run(tmp_path / "again", resume=tmp_path / "whole/last.ckpt") == ({}, []), "the budget is spent"
