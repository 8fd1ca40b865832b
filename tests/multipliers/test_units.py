"""Units of violations."""

import torch

from lightning_cgrpo.multipliers.units import LARGEST, Units
from lightning_cgrpo.objective.objective import Constraint, Objective


def test_means_alone_are_clamped() -> None:
    """A rate of 1 is 31 units above a threshold of 0.001."""
    constraints = {"rare": Constraint(at_most=0.001), "steps": Constraint(mean_at_most=10.0)}
    units = Units(Objective("goal", constraints), standard=True)
    assert LARGEST == 10
    assert units.clamped(torch.tensor([31.6, 31.6])).tolist() == torch.tensor([31.6, 10.0]).tolist()
    assert units.clamped(torch.tensor([-31.6, -31.6])).tolist() == torch.tensor([-31.6, -10.0]).tolist()
