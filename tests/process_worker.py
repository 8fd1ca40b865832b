"""One process of test_processes.py: trains small policies, and leaves what the test compares.

    python process_worker.py FOLDER STRATEGY RUN...

FOLDER holds a language model and prompts. A run is the name of a function below and a number of prompts per update,
``gridworld_7``. All are in the process group that the environment describes as torchrun does.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import torch
from lightning.pytorch import Callback, Trainer

from lightning_cgrpo import (
    CategoricalMLP,
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    ConversationSampler,
    EnvironmentSampler,
    FunctionTask,
    GenerationSampler,
    LagrangianGAE,
    LanguageCritic,
    MLPCritic,
    Objective,
    Optimization,
    ScalarizedGAE,
    SupervisedFineTuning,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.distributed import world
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.datamodules import CalculatorDataModule, GridworldDataModule, PromptDataModule, SeedDataModule
from lightning_cgrpo.datamodules.base import GroupDataModule
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.objective.signals import SignalKind
from lightning_cgrpo.policies.sharding import whole_tensor
from lightning_cgrpo.tasks.calculator import calculator, correct
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask
from tests.memory import Memory
from tests.quiet import quiet_trainer

UPDATES = 20
STRATEGY = sys.argv[2] if __name__ == "__main__" else "auto"


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


SAFE = Objective("goal", {"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.01)})


def on_grids(task: GridworldTask, objective: Objective, optimization: Optimization, **options) -> ConstrainedGRPO:
    """A module for the gridworld, whose first weights are always the same."""
    torch.manual_seed(0)
    policy, sampler = CategoricalMLP(30, 5, hidden=(32,)).double(), EnvironmentSampler(Gridworld(max_steps=40))
    return ConstrainedGRPO(policy, sampler, task, objective, adam, optimization=optimization, group_size=8, **options)


def gridworld(folder: Path, prompts: int) -> dict:
    """The first updates, with everything that could differ between processes: minibatches, clipping, KL, entropy."""
    optimization = Optimization(
        epochs=2,
        minibatch_size=120 * prompts,
        micro_batch_size=50 * prompts,
        kl_weight=0.01,
        entropy_weight=0.001,
        aggregation="token_mean",
        max_grad_norm=0.05,
    )
    module = on_grids(GridworldTask(), SAFE, optimization)
    return run(module, GridworldDataModule(prompts), LagrangianCallback(SoftmaxAdam()), UPDATES)


class TaskWithNumbers(GridworldTask):
    """The gridworld's signals, the number of steps, and a signal made of both: at the goal, or within 29 steps."""

    signals: ClassVar = {**GridworldTask.signals, "steps": "number", "fine": "indicator"}

    def score(self, prompts, rollouts):
        signals = super().score(prompts, rollouts)
        fine = (signals["goal"].value > 0) | (rollouts.lengths < 30)
        return {**signals, "steps": Signal(rollouts.lengths.double()), "fine": Signal(fine.double())}


class WithSides(GridworldDataModule):
    """Grids with two columns: the side of the start, of three, and a limit of steps."""

    def source(self, split):
        source = super().source(split)
        groups = source.groups

        def with_sides(index):
            made = groups(index)
            side = made.columns["start"] % 3
            return replace(made, columns={**made.columns, "side": side, "limit": 8 + side})

        source.groups = with_sides
        return source


def grammar_module() -> ConstrainedGRPO:
    """A module with every kind of constraint, for grids of `WithSides`."""
    constraints = {
        "lava": Constraint(at_most=0.01, start=0.5, over=7),
        "brief": Constraint(signal="steps", mean_at_most=10.0, start=40.0, over=10),
        "fine": Constraint(at_least=0.9, start=0.1, over=15),
        "drift": Constraint(signal="kl", mean_at_most=1e-5),
        "lively": Constraint(signal="entropy", mean_at_least=1.6),
        "empty": Constraint(signal="battery", at_most=0.001, by={"side": [0, 1]}),
        "slow": Constraint(signal="steps", violated_above={"column": "limit"}, at_most=0.3, given="fine"),
    }
    optimization = Optimization(epochs=2, minibatch_size=1000, aggregation="token_mean")
    objective, pooled = Objective("goal", constraints), ScalarizedAdvantages("pooled")
    return on_grids(TaskWithNumbers(), objective, optimization, estimator=pooled, seed=0)


def grammar(folder: Path, prompts: int) -> dict:
    """The first updates with every kind of constraint."""
    return run(grammar_module(), WithSides(prompts, eval_prompts=5), LagrangianCallback(), UPDATES, validated=True)


def critic(folder: Path, prompts: int) -> dict:
    """PPO-Lagrangian: costs by step, a critic with a schedule and minibatches of its own, and its warm-up."""
    estimator = LagrangianGAE(
        MLPCritic(30, hidden=(32,)),
        adam,
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5),
        learning=ValueLearning(epochs=2, minibatch_size=150 * prompts, micro_batch_size=50 * prompts, warmup=3),
    )
    optimization = Optimization(epochs=2, minibatch_size=120 * prompts, aggregation="token_mean")
    module = on_grids(GridworldTask(cost="steps"), SAFE, optimization, estimator=estimator)
    return run(module, GridworldDataModule(prompts), LagrangianCallback(SoftmaxAdam()), UPDATES)


def worlds(folder: Path, prompts: int) -> dict:
    """Gymnasium's CartPole with normalized observations; two processes have different numbers of worlds."""
    from lightning_cgrpo import Gymnasium, GymnasiumTask

    torch.manual_seed(0)
    module = ConstrainedGRPO(
        CategoricalMLP(4, 2, hidden=(32,), normalize=True).double(),
        EnvironmentSampler(Gymnasium("CartPole-v1", max_steps=30)),
        GymnasiumTask({"far": lambda observation: observation[..., 0].abs() > 0.05}),
        Objective("return", {"far": Constraint(at_most=0.05)}),
        optimizer=adam,
        optimization=Optimization(epochs=2, minibatch_size=50 * prompts, aggregation="token_mean"),
        group_size=8,
    )
    return run(module, SeedDataModule(prompts), LagrangianCallback(SoftmaxAdam()), UPDATES)


def even(completions, **columns):
    """Signal: an even number of characters."""
    return [float(len(text) % 2 == 0) for text in completions]


def model(folder: Path) -> CausalLMPolicy:
    return CausalLMPolicy(str(folder / "model"), dtype="float64")


def short_answers() -> tuple[GenerationSampler, FunctionTask]:
    kinds: Mapping[str, SignalKind] = {"even": "indicator"}
    return GenerationSampler(max_new_tokens=8), FunctionTask({"even": even}, kinds=kinds, max_completion_tokens=8)


def answering(
    folder: Path,
    prompts: int,
    updates: int,
    optimization: Optimization,
    constraints: Mapping[str, Constraint] = MappingProxyType({"even": Constraint(at_least=0.9)}),
    estimator: AdvantageEstimator | None = None,
    every: int = 1,
) -> dict:
    """A language model whose answers are to be short, and of even length."""
    torch.manual_seed(0)
    objective = Objective("length", dict(constraints))
    parts = {"optimization": optimization, "estimator": estimator, "group_size": 4}
    module = ConstrainedGRPO(model(folder), *short_answers(), objective, adam, **parts)
    data = PromptDataModule(str(folder / "prompts.jsonl"), prompts_per_update=prompts)
    return run(module, data, LagrangianCallback(SoftmaxAdam(), every_n_updates=every), updates)


def language(folder: Path, prompts: int) -> dict:
    """Eight updates of six or twelve optimizer steps; two of the updates wait for a dual step."""
    optimization = Optimization(epochs=2, minibatch_size=2, micro_batch_size=1, kl_weight=0.1)
    return answering(folder, prompts, 8, optimization, every=3)


def measuring(folder: Path, prompts: int) -> dict:
    """Minibatches of whole groups, with signals that the passes measure."""
    optimization = Optimization(
        epochs=2, minibatch_size=8, micro_batch_tokens=60, mask_truncated=True, kl_weight=0.1, exact_kl=True
    )
    constraints = {
        "even": Constraint(at_least=0.9),
        "drift": Constraint(signal="kl", mean_at_most=1e-5),
        "lively": Constraint(signal="entropy", mean_at_least=5.0),
    }
    return answering(folder, prompts, 8, optimization, constraints)


def reader(folder: Path, prompts: int) -> dict:
    """A language model as critic."""
    pieces = {"minibatch_size": 2, "micro_batch_size": 1}
    estimator = ScalarizedGAE(LanguageCritic(model(folder)), adam, learning=ValueLearning(epochs=2, **pieces))
    return answering(folder, prompts, 4, Optimization(**pieces), estimator=estimator)


def supervised(folder: Path, prompts: int) -> dict:
    """Three updates of so many demonstrations, one in each pass."""
    objective = Objective("length", {"even": Constraint(at_least=0.9, role="monitor")})
    module = SupervisedFineTuning(model(folder), *short_answers(), objective, optimizer=adam, micro_batch_size=1)
    fit(module, PromptDataModule(str(folder / "prompts.jsonl"), prompts_per_update=prompts), 3)
    return {"parameters": flattened(module)}


def conversing(folder: Path, prompts: int) -> dict:
    """Two updates on demonstrated conversations, then some on sampled conversations with the same calculator."""
    policy = model(folder)
    sampler = ConversationSampler(16, tools=[calculator], time_limit=None)
    task = FunctionTask({"correct": correct}, kinds={"correct": "indicator"}, max_completion_tokens=16)
    objective = Objective("length", {"called_calculator": Constraint(at_least=0.95)})

    fit(SupervisedFineTuning(policy, sampler, task, objective, adam), CalculatorDataModule(prompts), 2)
    module = ConstrainedGRPO(policy, sampler, task, objective, adam, group_size=4)
    return run(module, CalculatorDataModule(prompts), LagrangianCallback(SoftmaxAdam()), 4)


def run(
    module: ConstrainedGRPO, data: GroupDataModule, duals: LagrangianCallback, updates: int, validated: bool = False
) -> dict:
    """What the run leaves: multipliers after each update, prompts of this process, metrics, policy, counts pending."""
    memory = Memory()
    trainer = fit(module, data, updates, memory, duals, memory)
    if validated:
        trainer.limit_val_batches = 1
        trainer.validate(module, data, verbose=False)
    return {
        "multipliers": torch.stack(memory.weights),
        "prompts": [len(outputs["prompts"]) for outputs in memory.outputs],
        "metrics": memory.metrics,
        "pending": duals.state_dict()["rates"],
        "parameters": flattened(module),
    }


def flattened(module: RolloutModule) -> torch.Tensor:
    """All trained weights, a critic's included."""
    return torch.cat([whole_tensor(p.detach()).flatten() for p in module.parameters() if p.requires_grad])


def fit(
    module: RolloutModule, data: GroupDataModule, updates: int, logger: Memory | bool = False, *callbacks: Callback
) -> Trainer:
    _, processes = size()
    parallel = {"strategy": STRATEGY, "devices": processes, "use_distributed_sampler": False}
    trainer = quiet_trainer(*callbacks, **parallel, precision="64-true", max_steps=updates, logger=logger)
    trainer.fit(module, data)
    assert world()[1] == processes
    return trainer


def size() -> tuple[int, int]:
    """This process's rank and the number of processes, as the environment says."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


KINDS = (gridworld, grammar, critic, worlds, language, measuring, reader, supervised, conversing)
RUNS = {kind.__name__: kind for kind in KINDS}

if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    for name in sys.argv[3:]:
        kind, _, number = name.rpartition("_")
        torch.save(RUNS[kind](target, int(number)), target / f"{name}_rank_{size()[0]}.pt")
