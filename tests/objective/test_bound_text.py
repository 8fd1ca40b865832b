"""The text of an interval."""

from lightning_cgrpo import Constraint


def test_a_mean_without_variation_has_no_interval():
    bound = Constraint(mean_at_most=2.0).bound
    assert bound.interval_text(0.0, 0.0) == "all equal"
    assert bound.interval_text(0.5, 1.25) == "0.5 to 1.25"
