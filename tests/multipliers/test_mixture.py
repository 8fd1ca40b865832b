"""A policy of two kinds of answers, of which the constraint asks for a mixture: nearly all long answers are right, and
so are six in ten short ones. The reward is right answers, and at most a sixth of the answers may be long.

``python -m tests.multipliers.test_mixture`` prints the table of docs/results/defaults.md in a minute.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages
from lightning_cgrpo.multipliers import DampedAscent
from lightning_cgrpo.objective.objective import Constraint, Objective

LONG = 1 / 6
"""Largest share of long answers."""
UPDATES, PROMPTS, GROUP = 300, 16, 8


class Back(DampedAscent):
    """Without looking ahead."""

    @property
    def foreseen(self) -> Tensor:
        return self.smoothed


class Ahead(DampedAscent):
    """Without a return from slack."""

    def _return_lost(self, was_violated: Tensor) -> None:
        pass


class Plain(Back, Ahead):
    """With neither."""


def shares(controller: type[DampedAscent], lr: float, seed: int) -> Tensor:
    """The share of long answers that the policy asks for in each update ``[UPDATES]``.

    The policy is one logit, with prompts that differ by a standard deviation, and Adam whose step falls to a tenth.
    """
    draw = torch.Generator().manual_seed(seed)
    logit = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logit], lr)
    objective = Objective("right", {"long": Constraint(at_most=LONG)})
    advantages_of = ConstrainedAdvantages(objective, controller(margin=0.0))
    grid = torch.linspace(-3, 3, 61, dtype=torch.float64)
    density = torch.exp(-(grid**2) / 2)
    density /= density.sum()
    history = []
    for update in range(UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - 0.9 * update / UPDATES)
        prompts = torch.randn(PROMPTS, 1, generator=draw, dtype=torch.float64)
        luck = torch.rand(2, PROMPTS, GROUP, generator=draw, dtype=torch.float64)
        is_long = luck[0] < torch.sigmoid(logit.detach() + prompts)
        is_right = luck[1] < torch.where(is_long, 0.97, 0.6)
        advantages = advantages_of({"right": Signal(is_right.double()), "long": Signal(is_long.double())})
        sign = torch.where(is_long, 1.0, -1.0)
        optimizer.zero_grad()
        (-(advantages * logsigmoid(sign * (logit + prompts))).mean()).backward()
        optimizer.step()
        history.append(float((torch.sigmoid(logit.detach() + grid) * density).sum()))
    return torch.tensor(history)


def measured(controller: type[DampedAscent], lr: float, seeds: int = 4) -> tuple[float, float]:
    """The mean share in the last sixth, and the deviation within the second half; means over seeds."""
    runs = [shares(controller, lr, seed) for seed in range(seeds)]
    last = torch.stack([run[-UPDATES // 6 :].mean() for run in runs]).mean()
    swing = torch.stack([run[UPDATES // 2 :].std() for run in runs]).mean()
    return float(last), float(swing)


@pytest.mark.slow
def test_a_mixture_is_held() -> None:
    last, swing = measured(DampedAscent, 0.2)
    assert last == pytest.approx(LONG, abs=0.03)
    assert measured(Plain, 0.2)[1] > 2 * swing


if __name__ == "__main__":
    variants = {"neither": Plain, "looks ahead": Ahead, "returns": Back, "both (the default)": DampedAscent}
    print("| | 0.12 | 0.2 | 0.3 |\n|---|---|---|---|")
    for name, variant in variants.items():
        cells = ["{:.3f}, {:.3f}".format(*measured(variant, lr)) for lr in (0.12, 0.2, 0.3)]
        print(f"| {name} | " + " | ".join(cells) + " |")
