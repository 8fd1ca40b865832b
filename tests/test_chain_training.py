"""A planner by a chain under ConstrainedGRPO: it learns what the constraint allows, and resumes exactly."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from benchmarks.run_differences import different
from lightning_cgrpo import ChainPolicy, ChainSampler, ConstrainedGRPO, Constraint, Objective, PlannerInputs
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.datamodules import SeedDataModule
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.policies.chains import DDIM, Flow
from lightning_cgrpo.tasks.task import Task
from tests.quiet import quiet_trainer
from tests.refusals import refused


class Sides(PlannerInputs):
    """Contexts of -1 or 1: the side to drive to."""

    size = 2

    def context(self, prompts):
        return (prompts.index[:, None] % 2 * 2 - 1).float()

    def answers(self, prompts, numbers):
        return {"far": numbers[..., 0] * self.context(prompts)}


class Far(Task):
    """Far on the right side; beyond 1 is a violation."""

    signals: ClassVar = {"far": "number", "beyond": "indicator"}

    def __init__(self):
        self.history = []

    def score(self, prompts, rollouts):
        far = rollouts.info["far"]
        self.history.append([far.mean(), (far > 1).float().mean()])
        return {"far": Signal(far), "beyond": Signal((far > 1).float())}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, states, times, context):
        return self.net(torch.cat([states, times[:, None], context], 1))


def module(chain, **options):
    torch.manual_seed(0)
    return ConstrainedGRPO(
        policy=ChainPolicy(Head(), 2, chain),
        sampler=ChainSampler(Sides()),
        task=Far(),
        objective=Objective("far", {"beyond": Constraint(at_most=0.2)}),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3),
        group_size=8,
        **options,
    )


def run(trained, updates, checkpoint=None):
    trainer = quiet_trainer(LagrangianCallback(), max_steps=updates)
    trainer.fit(trained, SeedDataModule(prompts_per_update=8), ckpt_path=checkpoint)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("chain", [DDIM(3, min_std=0.2), Flow(3, min_std=0.2)])
def test_it_drives_as_far_as_the_constraint_allows(chain):
    trained = module(chain, optimization=Optimization(epochs=2, minibatch_size=32, kl_weight=0.001))
    run(trained, 300)
    far, beyond = torch.tensor(trained.task.history[-100:]).mean(0).tolist()
    # A Gaussian of the last step's width with a fifth beyond 1 has its mean at 0.83; at first it is near 0.
    assert far > 0.6 and beyond == pytest.approx(0.2, abs=0.07)


def test_a_resumed_chain_goes_on_as_one_that_was_not_interrupted(tmp_path):
    options = {"optimization": Optimization(epochs=2, minibatch_size=32, kl_weight=0.01)}
    whole = module(DDIM(3), **options)
    trainer = run(whole, 6)
    first = module(DDIM(3), **options)
    run(first, 3).save_checkpoint(tmp_path / "three.ckpt")
    resumed = module(DDIM(3), **options)
    again = run(resumed, 6, tmp_path / "three.ckpt")
    assert list(different(whole.state_dict(), resumed.state_dict(), "weights")) == []
    states = [one.callbacks[0].state_dict() for one in (trainer, again)]
    assert list(different(*states, "multipliers")) == []
    assert not torch.equal(first.policy.net.net[0].weight, whole.policy.net.net[0].weight)


class Attention(nn.Module):
    """Over copies of an input, with dropout of its own."""

    def __init__(self):
        super().__init__()
        self.read, self.mix, self.write = nn.Linear(4, 8), nn.MultiheadAttention(8, 2, dropout=0.3), nn.Linear(8, 2)

    def forward(self, states, times, context):
        hidden = self.read(torch.cat([states, times[:, None], context], 1)).expand(3, -1, -1)
        return self.write(self.mix(hidden, hidden, hidden)[0][0])


class Recurrent(nn.Module):
    """Dropout between the layers of a GRU."""

    def __init__(self):
        super().__init__()
        self.mix, self.write = nn.GRU(4, 8, 2, dropout=0.3), nn.Linear(8, 2)

    def forward(self, states, times, context):
        return self.write(self.mix(torch.cat([states, times[:, None], context], 1)[None])[0][0])


@pytest.mark.parametrize("network", [Attention, Recurrent])
def test_dropout_inside_attention_and_recurrence_is_off(network):
    """The first update would refuse a difference between sampling and training."""
    trained = module(DDIM(3), optimization=Optimization(epochs=2, minibatch_size=32))
    trained.policy.net = network()
    run(trained, 1)
    assert trained.policy.net.mix.dropout == 0


def test_other_policies_and_sizes_are_refused():
    class Wide(Sides):
        size = 3

    policy = ChainPolicy(Head(), 2)
    assert "Expected policy.size to be 3" in refused(ChainSampler(Wide()).check_policy, policy)
    assert "Expected a ChainPolicy, but got Head" in refused(ChainSampler(Sides()).check_policy, Head())
