"""Units of violations."""

import torch

from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.multipliers.units import LARGEST, Units, observed_answers
from lightning_cgrpo.objective.objective import Constraint, Objective


def test_means_alone_are_clamped() -> None:
    """A rate of 1 is 31 units above a threshold of 0.001."""
    constraints = {"rare": Constraint(at_most=0.001), "steps": Constraint(mean_at_most=10.0)}
    units = Units(Objective("goal", constraints), standard=True)
    assert LARGEST == 10
    assert units.clamped(torch.tensor([31.6, 31.6])).tolist() == torch.tensor([31.6, 10.0]).tolist()
    assert units.clamped(torch.tensor([-31.6, -31.6])).tolist() == torch.tensor([-31.6, -10.0]).tolist()


def test_signals_that_a_warm_up_leaves_unmeasured_have_no_answers() -> None:
    objective = Objective("goal", {"c": Constraint(at_most=0.1), "kl": Constraint(mean_at_most=0.1)})
    signals = {"c": Signal(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))}
    assert observed_answers(objective, signals, ["c", "kl"]).tolist() == [4, 0]
    assert observed_answers(objective, signals, ["kl"]).dtype == torch.float64
