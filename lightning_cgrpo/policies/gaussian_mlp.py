"""A small policy over continuous actions."""

from __future__ import annotations

from lightning_cgrpo.policies.action_distributions import Gaussian
from lightning_cgrpo.policies.categorical_mlp import mlp, without_modules
from lightning_cgrpo.policies.network_policy import Actor, NetworkPolicy


class GaussianMLP(NetworkPolicy):
    """MLP from observations to a `Gaussian` of continuous actions; the training unit is a single step.

    Args:
        action_size: numbers of an action.
        low: lower bounds, one for all numbers or one for each; None for unbounded actions.
        high: upper bounds.
        hidden: widths of the hidden layers, with ReLU between.
        normalize: `NormalizedObservations` before the first layer.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        low: float | tuple[float, ...] | None = None,
        high: float | tuple[float, ...] | None = None,
        hidden: tuple[int, ...] = (64, 64),
        normalize: bool = False,
    ) -> None:
        super().__init__(mlp(observation_size, 2 * action_size, hidden, normalize), Gaussian(action_size, low, high))
        self.observation_size = observation_size

    def actor(self) -> Actor:
        return without_modules(self.net)
