"""The library against the same algorithm written out in one file, examples/plain_cgrpo.py."""

import torch

from examples import plain_cgrpo
from lightning_cgrpo import (
    CategoricalMLP,
    ConstrainedGRPO,
    Constraint,
    EnvironmentSampler,
    Objective,
    Optimization,
    ScalarizedAdvantages,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask
from tests.memory import Memory
from tests.quiet import quiet_trainer


def test_library_equals_the_plain_loop():
    updates = 6
    torch.manual_seed(0)
    policy = CategoricalMLP(30, 5).double()
    network = plain_cgrpo.make_policy().double()
    network.load_state_dict(policy.net.state_dict())
    torch.set_default_dtype(torch.float64)
    try:
        expected = plain_cgrpo.train(updates, network, torch.optim.Adam(network.parameters(), lr=5e-4))
    finally:
        torch.set_default_dtype(torch.float32)

    module = ConstrainedGRPO(
        policy,
        EnvironmentSampler(Gridworld()),
        GridworldTask(),
        Objective("goal", {"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.01)}),
        estimator=ScalarizedAdvantages("group"),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=5e-4),
        optimization=Optimization(epochs=2, minibatch_size=2048, entropy_weight=0.001, aggregation="token_mean"),
    )
    seen, duals = Memory(), LagrangianCallback(SoftmaxAdam(lr=0.01))
    quiet_trainer(duals, seen, precision="64-true", max_steps=updates).fit(module, GridworldDataModule())

    torch.testing.assert_close(torch.stack(seen.weights), expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(policy.net.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
