"""Scores worked out by hand."""

import math

import pytest
import torch

from lightning_cgrpo.navsim.columns import (
    EXTENDED_COMFORT,
    MULTIPLIERS,
    WEIGHTS,
    epdms,
    human_filtered,
    multiplicative_metrics_prod,
    weighted_average,
)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def columns(rows=1, **values):
    """All 1 except for these."""
    names = [*MULTIPLIERS, *WEIGHTS]
    assert set(values) <= {*names, EXTENDED_COMFORT}
    return {name: torch.ones(rows, dtype=torch.float64) for name in names} | {
        name: tensor(value).expand(rows) for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("values", "average"),
    [
        ({}, 1.0),
        ({"ego_progress": 0.4}, 11 / 14),
        ({"time_to_collision_within_bound": 0.0}, 9 / 14),
        ({"lane_keeping": 0.0, "history_comfort": 0.0}, 10 / 14),
        ({EXTENDED_COMFORT: 0.0}, 14 / 16),
        ({EXTENDED_COMFORT: 1.0, "ego_progress": 0.4}, 13 / 16),
        ({EXTENDED_COMFORT: math.nan, "ego_progress": 0.4}, 11 / 14),
    ],
)
def test_weighted_average(values, average):
    assert weighted_average(columns(**values)).item() == pytest.approx(average, abs=1e-15)
    assert epdms(columns(**values)).item() == pytest.approx(average, abs=1e-15)


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_multipliers_multiply(name):
    half = columns(**{name: 0.5, "ego_progress": 0.4})
    assert multiplicative_metrics_prod(half).item() == 0.5
    assert epdms(half).item() == pytest.approx(0.5 * 11 / 14, abs=1e-15)
    assert epdms(columns(**{name: 0.0})).item() == 0


def test_what_the_human_fails_is_forgiven():
    """Only where it is exactly 0, and only where there is a human."""
    candidates = columns(
        3, no_at_fault_collisions=0.0, traffic_light_compliance=0.0, lane_keeping=0.0, two_frame_extended_comfort=0.0
    )
    human = columns(3, no_at_fault_collisions=0.5, traffic_light_compliance=0.0, lane_keeping=[0.0, 1.0, 0.0])
    found = human_filtered(candidates, human, torch.tensor([True, True, False]))
    assert found["no_at_fault_collisions"].tolist() == [0, 0, 0]
    assert found["traffic_light_compliance"].tolist() == [1, 1, 0]
    assert found["lane_keeping"].tolist() == [1, 0, 0]
    assert found[EXTENDED_COMFORT].tolist() == [0, 0, 0]
    assert list(found) == list(candidates) and candidates["lane_keeping"].tolist() == [0, 0, 0]
