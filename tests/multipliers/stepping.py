"""Controllers that are set up, and take steps of numbers."""

from collections.abc import Callable
from typing import TypeVar

import torch

from lightning_cgrpo.multipliers import Controller

C = TypeVar("C", bound=Controller)


def maker(kind: Callable[..., C], constraints: int = 1) -> Callable[..., C]:
    """A function from a controller's arguments to a controller that is set up."""

    def controller(**arguments) -> C:
        made = kind(**arguments)
        made.setup(constraints)
        return made

    return controller


def step(controller: Controller, *violations: float) -> None:
    """One step, in which all constraints are observed."""
    controller.step(torch.tensor(violations, dtype=torch.float64), torch.ones(len(violations), dtype=torch.bool))


def multiplier(controller: Controller, violation: float) -> float:
    """Of the only constraint, after a step."""
    step(controller, violation)
    return controller.multipliers.item()


def draws(size: int, mean: float = 0.05) -> torch.Tensor:
    """Violations with a deviation of 0.3."""
    return mean + 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
