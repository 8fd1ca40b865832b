"""The other costs of a condition, by hand."""

import torch

from benchmarks.given_costs import AmongThemselvesObjective, OverTheThresholdObjective
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.objective.objective import Constraint, Objective


def test_costs_by_hand():
    """Of four answers three are correct, two of these are long, so the batch's rate is 2/3; the threshold is 1/4."""
    correct, long = torch.tensor([[1.0, 1.0, 1.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0, 1.0]])
    declared = {"reward": "correct", "constraints": {"long": Constraint(at_most=0.25, given="correct")}}
    rows = {}
    for kind in (Objective, OverTheThresholdObjective, AmongThemselvesObjective):
        objective = kind(**declared)
        components = objective.components(objective.made({"correct": Signal(correct), "long": Signal(long)}, None))
        assert components.values[0].tolist() == correct.tolist() and components.applicable[0].all()
        rows[kind] = components.values[1, 0], components.applicable[1, 0].tolist()
    expected = torch.tensor([-1 / 3, -1 / 3, 2 / 3, 0])
    torch.testing.assert_close(rows[Objective][0], expected, check_dtype=False)
    over, among = rows[OverTheThresholdObjective], rows[AmongThemselvesObjective]
    assert over[0].tolist() == [-0.75, -0.75, 0.25, 0] and over[1] == [True] * 4
    assert among[0].diff()[:2].tolist() == [0, 1] and among[1] == [True, True, True, False]
