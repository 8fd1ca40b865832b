"""Scores worked out by hand."""

import torch

from navsim_score.columns import EXTENDED_COMFORT, MULTIPLIERS, WEIGHTS, human_filtered


def columns(**values):
    """Three rows, all 1 except for these."""
    given = {name: torch.tensor(value, dtype=torch.float64).expand(3) for name, value in values.items()}
    return dict.fromkeys((*MULTIPLIERS, *WEIGHTS), torch.ones(3, dtype=torch.float64)) | given


def test_what_the_human_fails_is_forgiven():
    """Only where it is exactly 0, and only where there is a human."""
    candidates = columns(
        no_at_fault_collisions=0.0, traffic_light_compliance=0.0, lane_keeping=0.0, two_frame_extended_comfort=0.0
    )
    human = columns(no_at_fault_collisions=0.5, traffic_light_compliance=0.0, lane_keeping=[0.0, 1.0, 0.0])
    found = human_filtered(candidates, human, torch.tensor([True, True, False]))
    assert found["no_at_fault_collisions"].tolist() == [0, 0, 0]
    assert found["traffic_light_compliance"].tolist() == [1, 1, 0]
    assert found["lane_keeping"].tolist() == [1, 0, 0]
    assert found[EXTENDED_COMFORT].tolist() == [0, 0, 0]
    assert list(found) == list(candidates) and candidates["lane_keeping"].tolist() == [0, 0, 0]
