"""Ratios for another engine's samples, worked out by hand; `test_trl_oracle.py` compares whole losses with TRL's."""

import math

import pytest
import torch

from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection

OLD = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5]], dtype=torch.float64).log()
SAMPLING = torch.tensor([[0.5, 0.4, 0.1, 1.0, math.nan]], dtype=torch.float64).log()
MASK = torch.ones(1, 5, dtype=torch.bool)


def test_single_steps_are_units_of_their_own():
    correction = SamplingCorrection(high=None, sequence=True)
    assert correction.ratios(OLD[0], SAMPLING[0], MASK[0]).tolist() == pytest.approx([1, 1.25, 5, 0.5, 1])
