"""Ratios for another engine's samples, worked out by hand; `test_trl_oracle.py` compares whole losses with TRL's."""

import math

import pytest
import torch

from lightning_cgrpo.grpo.sampling_correction import SamplingCorrection

OLD = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5]], dtype=torch.float64).log()
SAMPLING = torch.tensor([[0.5, 0.4, 0.1, 1.0, math.nan]], dtype=torch.float64).log()
MASK = torch.ones(1, 5, dtype=torch.bool)


def weights(mask=MASK, **options):
    correction = SamplingCorrection(**options)
    return correction.bounded(correction.ratios(OLD, SAMPLING, mask))[0].tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1.25, 2, 0.5, 1]),
        ({"high": None}, [1, 1.25, 5, 0.5, 1]),
        ({"low": 0.8}, [1, 1.25, 2, 0.8, 1]),
        ({"low": 0.8, "masked": True}, [1, 1.25, 0, 0, 1]),
        ({"high": None, "sequence": True}, [3.125] * 5),
        ({"high": 3.0, "sequence": True}, [3] * 5),
        ({"high": 3.0, "sequence": True, "masked": True}, [0] * 5),
        ({"high": 4.0, "sequence": True, "masked": True}, [3.125] * 5),
    ],
)
def test_by_hand(options, expected):
    assert weights(**options) == pytest.approx(expected)


def test_padding_has_ratio_1_and_no_part_in_an_answers_ratio():
    mask = torch.tensor([[True, True, False, False, False]])
    assert weights(mask, high=None) == pytest.approx([1, 1.25, 1, 1, 1])
    assert weights(mask, high=None, sequence=True) == pytest.approx([1.25, 1.25, 1, 1, 1])


def test_single_steps_are_units_of_their_own():
    correction = SamplingCorrection(high=None, sequence=True)
    assert correction.ratios(OLD[0], SAMPLING[0], MASK[0]).tolist() == pytest.approx([1, 1.25, 5, 0.5, 1])
