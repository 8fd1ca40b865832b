"""Projected ascent against its equation."""

import pytest

from lightning_cgrpo.multipliers import ProjectedAscent
from tests.multipliers.stepping import maker, step

controller = maker(ProjectedAscent, 2)


def test_steps_by_hand() -> None:
    made = controller(lr=0.5, max_multiplier=0.6)
    assert made.weights.tolist() == [1, 0, 0]
    step(made, 0.4, -0.2)
    assert made.multipliers.tolist() == pytest.approx([0.2, 0])
    step(made, 0.6, 0.2)
    assert made.multipliers.tolist() == pytest.approx([0.5, 0.1])
    step(made, 0.6, 0.8)
    assert made.multipliers.tolist() == pytest.approx([0.6, 0.5])
    assert made.weights.tolist() == pytest.approx([1 / 2.1, 0.6 / 2.1, 0.5 / 2.1])
    step(made, -0.4, -2.0)
    assert made.multipliers.tolist() == pytest.approx([0.4, 0])
