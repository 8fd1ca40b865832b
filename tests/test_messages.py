"""Messages and bytes of an update outside its gradients, as functions of the number of processes.

One process trains as the first of many; the others are simulated, and add nothing.
"""

import pickle

import pytest
import torch
import torch.distributed as dist

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    Optimization,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.datamodules import GridworldDataModule, PromptDataModule
from lightning_cgrpo.objective.evaluation import RunningSums
from tests.grids import grid_module
from tests.process_worker import even
from tests.quiet import quiet_trainer

ROW = 3 * 8
"""Bytes that each process adds to the counts of units, answers and steps."""


class Wire:
    """Records what the first of `size` processes sends, by the name of the collective."""

    def __init__(self, size: int, patch: pytest.MonkeyPatch) -> None:
        self.size, self.sent = size, []
        patch.setattr(dist, "is_initialized", lambda: True)
        patch.setattr(dist, "get_rank", lambda: 0)
        patch.setattr(dist, "get_world_size", lambda: size)
        for name in ("all_reduce", "all_gather_object", "gather_object"):
            patch.setattr(dist, name, getattr(self, name))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self.sent.append(("all_reduce", tensor.nbytes))

    def all_gather_object(self, values: list, value: object) -> None:
        self.gather_object(value, values, "all_gather")

    def gather_object(self, value: object, values: list | None, name: str = "gather") -> None:
        self.sent.append((name, len(pickle.dumps(value))))
        if values is not None:
            values[:] = [value] * self.size


def gridworld(_) -> tuple[ConstrainedGRPO, object]:
    optimization = Optimization(epochs=2, minibatch_size=20, aggregation="token_mean")
    constraints = {name: Constraint(at_most=0.01) for name in ("lava", "battery")}
    module = grid_module(constraints, max_steps=8, optimization=optimization)
    return module, GridworldDataModule(2 * 64, train_prompts=256, size=5, lava=2)


def language(model) -> tuple[ConstrainedGRPO, object]:
    module = ConstrainedGRPO(
        CausalLMPolicy(str(model)),
        GenerationSampler(max_new_tokens=4),
        FunctionTask({"even": even}, kinds={"even": "indicator"}, max_completion_tokens=4),
        Objective("length", {"even": Constraint(at_least=0.9), "entropy": Constraint(mean_at_least=1.0)}),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        optimization=Optimization(kl_weight=0.1, epochs=2),
        group_size=2,
    )
    return module, PromptDataModule([{"prompt": "Count."}] * 256, prompts_per_update=2 * 64)


MESSAGES = ["all_reduce"] * 4
"""The counts of units and steps, the estimator's deviation, the report, and the dual's counts."""


@pytest.mark.parametrize("made", [gridworld, language])
def test_messages_do_not_grow_with_the_processes_and_bytes_by_a_row(made, tiny_model, monkeypatch) -> None:
    sent = {}
    for size in (2, 64):
        module, data = made(tiny_model)
        with monkeypatch.context() as patch:
            wire = Wire(size, patch)
            # The first two updates also ask whether all tensors moved, see `FirstSteps`.
            quiet_trainer(LagrangianCallback(), max_steps=4).fit(module, data)
        in_updates = wire.sent[len(wire.sent) - 2 * len(MESSAGES) :]  # not the check of the prompts' lengths
        assert [name for name, _ in in_updates] == MESSAGES * 2
        sent[size] = sum(count for name, count in in_updates if name == "all_reduce") / 2
    assert sent[64] - sent[2] == 62 * ROW and sent[2] < 1000


def test_rows_of_prompts_go_to_the_first_process_alone(monkeypatch) -> None:
    wire, sums = Wire(64, monkeypatch), RunningSums()
    sums.add({"answers": torch.ones(3)}, PromptGroups(torch.arange(3)))
    assert len(sums.by_prompt()["answers"]) == 3 * 64
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert sums.by_prompt() is None
    assert [name for name, _ in wire.sent] == ["gather", "gather"]
