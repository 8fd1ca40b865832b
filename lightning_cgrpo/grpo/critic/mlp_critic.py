"""A small critic for environments."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_cgrpo.core.randomness import random_weights, run_seed
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.grpo.critic.critic import Critic
from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP


class MLPCritic(Critic):
    """MLP from observations to a value per component, 0 at first; the training unit is a single step.

    The seed of the hidden layers' weights is Lightning's.

    Args:
        hidden: widths of the hidden layers, with ReLU between.
        normalize: `NormalizedObservations` before the first layer.
    """

    def __init__(self, observation_size: int, hidden: tuple[int, ...] = (128, 128), normalize: bool = False) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.hidden = hidden
        self.normalize = normalize

    def load(self, components: int) -> None:
        if hasattr(self, "network"):
            return
        with random_weights(run_seed()):
            self.network = CategoricalMLP(self.observation_size, components, self.hidden, self.normalize)
        zero_heads(self.network.net[-1])

    def forward(self, examples: Examples) -> Tensor:
        return self.network.net(examples.inputs["observations"])


def zero_heads(heads: nn.Module) -> None:
    """Predict 0 at first, so that advantages begin as discounted sums of what comes."""
    for parameter in heads.parameters():
        nn.init.zeros_(parameter)
