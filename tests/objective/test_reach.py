"""What the best choice among a group's answers reaches: by trying all choices."""

import itertools

import pytest
import torch

from lightning_cgrpo import Constraint, Objective, Signal
from lightning_cgrpo.objective.reach import EVERY, Reach


def test_no_other_choice_comes_nearer_to_the_threshold():
    """Every choice of one answer for each of 4 prompts."""
    generator = torch.Generator().manual_seed(0)
    objective = Objective("goal", {"lava": Constraint(at_most=0.2), "polite": Constraint(at_least=0.9)})
    for _ in range(20):
        steps = torch.randint(1, 9, (4, 3), generator=generator).float()
        lava = (torch.rand(4, 3, generator=generator) * steps).round()
        polite = (torch.rand(4, 3, generator=generator) < 0.4).float()
        reach = Reach(objective)
        signals = {"lava": Signal(lava, count=lava, opportunities=steps), "polite": Signal(polite)}
        for half in (slice(0, 3), slice(3, 4)):
            reach.add({name: s.mapped(lambda t, half=half: t[half]) for name, s in signals.items()})
        rates = reach.rates()
        choices = list(itertools.product(range(3), repeat=4))
        excess = [sum(float(lava[row, one] - 0.2 * steps[row, one]) for row, one in enumerate(c)) for c in choices]
        found = rates["lava"]
        assert (found.rate - 0.2) * found.opportunities == pytest.approx(min(excess), abs=1e-5)
        assert rates["polite"].rate == pytest.approx(1 - polite.amax(-1).mean().item())
        meets = ((lava <= 0.2 * steps + 1e-6) & (polite == 1)).any(-1).float().mean().item()
        assert rates[EVERY].rate == pytest.approx(1 - meets)


def test_without_thresholds_there_is_nothing_to_reach():
    reach = Reach(Objective("goal", {"lava": Constraint(role="monitor")}))
    reach.add({"lava": Signal(torch.zeros(2, 3))})
    assert reach.rates() == {}
