"""Constrained GRPO in a planner's own loop: candidates in, advantages out.

Network, candidates, loss and loop are those of a toy planner that chooses among anchors. An anchor or diffusion planner
keeps its own parts, and takes its advantages from `ConstrainedAdvantages`. Of NAVSIM, signals are columns of
`drop_in.scorer_of(caches)(poses, row)`.

    python examples/planner_loop.py 400
"""

import sys

import torch
from torch import Tensor, nn

from lightning_cgrpo import ConstrainedAdvantages, Constraint, Objective


def train(updates: int, scenes: int = 32, group: int = 16) -> tuple[float, float, Tensor]:
    """Mean speed and rate of collisions of the last fifth of the updates, and the weights at the end."""
    objective = Objective("speed", {"collision": Constraint(at_most=0.05)})
    advantages_of = ConstrainedAdvantages(objective)
    anchors = torch.arange(8) / 8  # speeds
    planner = nn.Linear(len(anchors), len(anchors))
    optimizer = torch.optim.Adam(planner.parameters(), lr=2e-2)
    history = []
    for _ in range(updates):
        room = torch.rand(scenes, 1)  # a faster candidate collides
        policy = torch.distributions.Categorical(logits=planner((room > anchors).float()))
        candidates = policy.sample((group,))  # [G, B]
        speed = anchors[candidates].T
        measured = {"speed": speed, "collision": (speed > room).float()}
        loss = -(advantages_of(measured) * policy.log_prob(candidates).T).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((float(speed.mean()), float(measured["collision"].mean())))
    speeds, collisions = torch.tensor(history[-max(1, updates // 5) :]).mean(0).tolist()
    return speeds, collisions, advantages_of.controller.weights


if __name__ == "__main__":
    torch.manual_seed(0)
    print("speed {:.3f}, collisions {:.3f}, weights {}".format(*train(int(sys.argv[1]))))
