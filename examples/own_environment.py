"""An environment of your own in Python: drive fast, but skid in at most 2 % of the steps.

    python examples/own_environment.py 200

Half a minute on one CPU core; needs `pip install -e ".[gymnasium]"` in a copy of the repository. docs/environments.md
explains.
"""

import sys

import gymnasium
import numpy as np
import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_cgrpo import (
    CategoricalMLP,
    ConstrainedGRPO,
    Constraint,
    EnvironmentSampler,
    Gymnasium,
    GymnasiumTask,
    Objective,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import SeedDataModule


class IcyRoad(gymnasium.Env):
    """Stretches of road, three tenths of them icy. Action 1 is fast, and skids on every second ice; 0 is slow."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)  # 1 before ice
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        # All randomness comes from the seed, so that runs resume exactly.
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        skids = action == 1 and self.ice and self.np_random.random() < 0.5
        reward = 1.0 if action == 1 else 0.4
        return self.look(), reward, False, False, {"skid": float(skids)}

    def look(self):
        self.ice = self.np_random.random() < 0.3
        return np.array([self.ice], np.float32)


gymnasium.register("IcyRoad-v0", entry_point=IcyRoad, max_episode_steps=20)


def skids(info_skid):
    """An event of every step, from the facts that `infos` names."""
    return info_skid > 0


def main(updates="200"):
    seed_everything(0, verbose=False)
    module = ConstrainedGRPO(
        policy=CategoricalMLP(observation_size=1, actions=2, hidden=[16]),
        sampler=EnvironmentSampler(Gymnasium("IcyRoad-v0", infos=["skid"])),
        task=GymnasiumTask({"skids": skids}),
        objective=Objective("return", {"skids": Constraint(at_most=0.02)}),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        group_size=8,
    )
    trainer = Trainer(max_steps=int(updates), accelerator="cpu", logger=False, callbacks=[LagrangianCallback()])
    trainer.fit(module, SeedDataModule(prompts_per_update=4))
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
