"""A search of learning rate and group size with Optuna, by validation's merit.

    pip install optuna
    python examples/optuna_search.py 20

Merit is at least 0 if validation's estimates meet all thresholds, then rising with the reward; below 0 it is the
distance to the thresholds. The winner is chosen on validation prompts, so `test` or
`certify` it on other prompts.
"""

import sys

import optuna
import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_cgrpo import CategoricalMLP, ConstrainedGRPO, Constraint, EnvironmentSampler, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.tasks.gridworld import Gridworld, GridworldTask

ANSWERS = 128  # per update, in every trial


def merit(trial: optuna.Trial, updates: int) -> float:
    rate = trial.suggest_float("learning rate", 1e-4, 1e-2, log=True)
    group_size = trial.suggest_categorical("group size", [4, 8, 16])
    seed_everything(0)
    module = ConstrainedGRPO(
        policy=CategoricalMLP(observation_size=30, actions=5),
        sampler=EnvironmentSampler(Gridworld(max_steps=50)),
        task=GridworldTask(),
        objective=Objective("goal", {"lava": Constraint(at_most=0.01), "battery": Constraint(at_most=0.01)}),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate),
        group_size=group_size,
    )
    data = GridworldDataModule(prompts_per_update=ANSWERS // group_size, val_prompts=256)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_steps=updates, accelerator="cpu", callbacks=[LagrangianCallback()], **quiet)
    trainer.fit(module, data)
    return trainer.validate(module, data, verbose=False)[0]["val/merit"]


def main(trials: int = 20, updates: int = 300) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(lambda trial: merit(trial, updates), n_trials=trials)
    print(f"Best merit {study.best_value:.3f} with {study.best_params}.")
    return study


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
