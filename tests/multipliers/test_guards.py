"""Guards: when a stall is told."""

import math

import pytest
import torch

from lightning_cgrpo.multipliers import ProjectedAscent, SoftmaxAdam, StallDetector, rounded_up
from tests.dual_run import numbers as tensor
from tests.multipliers.stepping import draws, maker


def test_saturation() -> None:
    controller = maker(ProjectedAscent, 2)(max_multiplier=4.0)
    controller.multipliers.fill_(1.0)
    assert controller.saturation.tolist() == [0.25, 0.25]
    assert maker(SoftmaxAdam, 2)().saturation.tolist() == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("rate", "expected"), [(0.391, 0.4), (0.4, 0.4), (0.0123, 0.013), (0.0991, 0.1), (0.999, 1.0), (0.0, 0.0)]
)
def test_rounded_up(rate: float, expected: float) -> None:
    assert rounded_up(rate) == expected


class TestStallDetector:
    captured = tensor(0.03, 0.95)
    balanced = tensor(0.3, 0.3)
    both = torch.tensor([True, True])

    def detector(self, **arguments) -> StallDetector:
        made = StallDetector(**({"updates": 10} | arguments))
        made.setup(2)
        return made

    def feed(self, made: StallDetector, violations: list[float], saturation: torch.Tensor | None = None) -> list:
        saturation = self.captured if saturation is None else saturation
        return [made.update(saturation, tensor(0.1, v), self.both) for v in violations]

    def test_tells_once_and_in_time(self) -> None:
        made = self.detector()
        assert self.feed(made, [0.3] * 40) == [None] * 9 + [1] + [None] * 30
        assert self.feed(made, [0.3], self.balanced) + self.feed(made, [0.3] * 10) == [None] * 10 + [1], "and again"

    def test_a_resume_with_fewer_updates_begins_a_period(self) -> None:
        before = self.detector(updates=200)
        self.feed(before, [0.3] * 120)
        made = self.detector(updates=50)
        made.load_state_dict(before.state_dict())
        assert self.feed(made, [0.3] * 50) == [None] * 49 + [1]

    def test_noise_is_no_progress(self) -> None:
        assert 1 in self.feed(self.detector(updates=100), [0.3 + 0.1 * math.sin(t * t) for t in range(100)])

    def test_silent_where_weights_are_shared_or_the_threshold_is_met(self) -> None:
        assert set(self.feed(self.detector(), [0.3] * 50, self.balanced)) == {None}
        assert set(self.feed(self.detector(), [0.0] * 30 + [-0.1] * 30)) == {None}

    def test_silent_where_a_violation_is_noise(self) -> None:
        assert set(self.feed(self.detector(updates=200), (draws(2000, mean=0.0) / 0.3).tolist())) == {None}

    def test_tells_when_it_stops_improving(self) -> None:
        told = self.feed(self.detector(), [0.3 * 0.9 ** min(t, 20) for t in range(60)])
        assert [t for t, k in enumerate(told) if k == 1] == [29]

    def test_unobserved_updates_do_not_count(self) -> None:
        made = self.detector()
        self.feed(made, [0.3] * 5)
        for _ in range(20):
            assert made.update(self.captured, tensor(0.1, math.nan), torch.tensor([True, False])) is None
        assert self.feed(made, [0.3] * 5) == [None] * 4 + [1]

    def test_the_worst_of_two_stalls_and_the_other_starts_again(self) -> None:
        made = self.detector()
        told = [made.update(tensor(1, 1), tensor(0.2, 0.3), self.both) for _ in range(20)]
        assert told == [None] * 9 + [1] + [None] * 9 + [0]

    def test_the_worst_stalls_though_it_improves_at_the_cost_of_another(self) -> None:
        made = self.detector()
        told = [made.update(tensor(1, 1), tensor(0.2, 0.9 - 0.02 * t), self.both) for t in range(14)]
        assert told == [None] * 9 + [1] + [None] * 4
        # Out of step: the worst's period begins anew at its progress, and the other's ends four updates later.
        made, first = self.detector(), torch.tensor([False, True])
        steps = [first] * 6 + [self.both] * 10
        told = [made.update(tensor(1, 1), tensor(0.2, 0.9 - 0.02 * t), seen) for t, seen in enumerate(steps)]
        assert told == [None] * 15 + [1]
        assert made.reached[1].item() == pytest.approx(0.9 - 0.02 * 12.5)

    def test_the_worst_stalls_though_its_progress_has_just_begun_a_new_period(self) -> None:
        """Also where every update is a resumed run's first. The first value of a new period is noise."""
        told, made = [], self.detector()
        for t in range(12):
            state = made.state_dict()
            made = self.detector()
            made.load_state_dict(state)
            worst = 0.9 - 0.02 * t if t < 10 else 0.0
            told.append(made.update(tensor(1, 1), tensor(0.2, worst), torch.tensor([t > 1, True])))
        assert told == [None] * 11 + [1]
        assert made.reached[1].item() == pytest.approx(0.9 - 0.02 * 7)

    def test_a_constraint_that_has_just_reached_its_cap_does_not_stall_for_another(self) -> None:
        made = self.detector()
        told = [made.update(tensor(1, 1 if t > 7 else 0.5), tensor(0.2, 0.9), self.both) for t in range(10)]
        assert told == [None] * 9 + [0]

    def test_reached_is_the_mean_over_the_second_half(self) -> None:
        made = self.detector()
        assert 1 in self.feed(made, [0.3, 0.3, 0.3, 0.3, 0.3, 0.28, 0.30, 0.32, 0.30, 0.30])
        assert made.reached[1].item() == pytest.approx(0.3)


def test_a_resume_before_the_first_update_keeps_all_digits() -> None:
    """A checkpoint is loaded into the buffers of `setup`, which float32 would round."""
    violations = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, resumed = StallDetector(updates=8), StallDetector(updates=8)
    whole.setup(2)
    for violation in violations[:12]:
        whole.update(torch.ones(2), violation, torch.ones(2, dtype=torch.bool))
    resumed.setup(2)
    resumed.load_state_dict(whole.state_dict())
    for name, buffer in whole.named_buffers():
        assert buffer.dtype == getattr(resumed, name).dtype and torch.equal(buffer, getattr(resumed, name))
    for detector in (whole, resumed):
        detector.update(torch.zeros(2), violations[12], torch.ones(2, dtype=torch.bool))
    assert torch.equal(whole.reached, resumed.reached) and whole.reached.abs().sum() > 0
