"""Constrained GRPO in a planner's own loop: candidates in, advantages out.

Network, candidates, loss and loop are those of a toy planner that chooses among anchors. An anchor or diffusion planner
keeps its own parts, and copies `ConstrainedAdvantages`. Of NAVSIM, signals are columns of
`drop_in.scorer_of(caches)(poses, row)`.

    python examples/planner_loop.py 400
"""

import sys

import torch
from torch import Tensor, nn

from lightning_cgrpo import Constraint, Objective, ScalarizedAdvantages
from lightning_cgrpo.core.distributed import all_sum
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.multipliers import Controller, DampedAscent, standard_units
from lightning_cgrpo.objective.group_statistics import group_statistics


class ConstrainedAdvantages:
    """Advantages of candidates, whose rates of violation move the weights of the next call."""

    def __init__(self, objective: Objective, controller: Controller) -> None:
        self.objective, self.controller, self.estimator = objective, controller, ScalarizedAdvantages()
        controller.setup(len(objective.constrained))
        self.targets = torch.tensor([bound.bound.target for bound in objective.constrained.values()])
        self.units = standard_units(self.targets) if controller.standard_units else torch.ones_like(self.targets)

    def __call__(self, measured: dict[str, Tensor]) -> Tensor:
        """Advantages ``[B, G]`` of G candidates in each of B scenes, from signals ``[B, G]`` by name. Collective."""
        signals = {name: Signal(value) for name, value in measured.items()}
        components = self.objective.components(signals)
        weights = self.objective.component_weights(self.controller.weights).to(components.values)
        violations, opportunities = all_sum(torch.stack(self.objective.violations(signals))).cpu()
        excess = (violations / opportunities - self.targets) / self.units
        self.controller.step(excess, opportunities > 0)
        return self.estimator(None, group_statistics(components), weights)


def train(updates: int, scenes: int = 32, group: int = 16) -> tuple[float, float, Tensor]:
    """Mean speed and rate of collisions of the last fifth of the updates, and the weights at the end."""
    objective = Objective("speed", {"collision": Constraint(at_most=0.05)})
    advantages_of = ConstrainedAdvantages(objective, DampedAscent())
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
