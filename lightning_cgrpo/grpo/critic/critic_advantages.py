"""Advantages from a critic, by component and step, for PPO and PPO-Lagrangian."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_cgrpo.core.distributed import all_sum, all_sum_named
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.grpo.advantages import RELATIVE_ZERO, AdvantageEstimator, batch_moments
from lightning_cgrpo.grpo.critic.critic import Critic
from lightning_cgrpo.grpo.critic.value_learning import ValueLearning, learn_values, predict
from lightning_cgrpo.grpo.gae import generalized_advantages
from lightning_cgrpo.grpo.losses import aggregation_weights
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, OptimizerCallable, with_targets
from lightning_cgrpo.objective.group_statistics import GroupStatistics, divide_or_zero
from lightning_cgrpo.objective.objective import Components


class CriticAdvantages(nn.Module, AdvantageEstimator):
    """Generalized advantages of each component and step, combined by the weights.

    A signal of whole answers is a reward at the last step. A component whose discounted sums are equal in all answers
    of the batch, such as a cost without violations, contributes exactly 0: standardizing would blow up the critic's
    errors to unit variance.

    Args:
        critic: predicts each component.
        optimizer: function of the critic's parameters.
        lr_scheduler: function of the optimizer; steps once per update.
        gamma: discount per step; 1 for none.
        gae_lambda: 1 gives unbiased advantages of higher variance, 0 relies on the critic alone.
        bootstraps: a time limit ends the observation of an episode, and not the episode. The last step of a truncated
            episode gets gamma V of the observation reached, for components by step, as in stable-baselines3.
        learning: the critic's optimizer steps and warm-up.
    """

    def __init__(
        self,
        critic: Critic,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        bootstraps: bool = False,
        learning: ValueLearning = ValueLearning(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
            expect(0 <= value <= 1, name, "in [0, 1]", value)
        self.critic = critic
        self.learning = learning
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.bootstraps = bootstraps
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self._examples: Examples | None = None
        self._effective: Tensor | None = None
        self._sums: dict[str, Tensor] = {}
        self._skipped = 0

    @abstractmethod
    def combine(self, advantages: Tensor, used: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages ``[B, G, T]`` from ``[J, B, G, T]``, and each standardized component's factor ``[J]``. Collective.

        Args:
            used: ``[J, B, G, T]`` bool, the steps to which a component applies.
            weights: ``[J]``, 0 for components that are equal in all answers.
        """

    def configure_optimizer(self) -> tuple[Optimizer, LRScheduler | None]:
        """The critic's optimizer, and its scheduler, if there is one."""
        trained = [parameter for parameter in self.critic.parameters() if parameter.requires_grad]
        optimizer = self.make_optimizer(trained)
        if self.make_scheduler is None:
            return optimizer, None
        return optimizer, self.make_scheduler(optimizer)

    def trains_policy(self, update: int) -> bool:
        return update >= self.learning.warmup

    @torch.no_grad()
    def forward(self, rollouts: Rollouts, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """Advantages ``[B, G, T]``; keeps the critic's targets for `learn`. Collective."""
        components = statistics.components
        mask_BGT = rollouts.mask
        # The critic predicts each component before each step.
        examples = self.critic.network.examples(rollouts)
        predicted = predict(self.critic, examples, len(components.values), self.learning.micro_batch_size)
        values_JBGT = _by_rollout(predicted, mask_BGT).movedim(-1, 0)
        # Rewards of each step; the last step before a time limit gets the critic's value of what comes after it, too.
        rewards_JBGT = components.by_step(mask_BGT).to(values_JBGT.dtype)
        bootstrapped_JBGT = rewards_JBGT
        if self.bootstraps:
            bootstrapped_JBGT = rewards_JBGT + self.gamma * self._values_beyond_limits(rollouts, components)
        # Generalized advantages of each component.
        advantages_JBGT = generalized_advantages(bootstrapped_JBGT, values_JBGT, mask_BGT, self.gamma, self.gae_lambda)
        # The critic's targets, with the components last, as its heads.
        used_JBGT = mask_BGT & components.applicable[..., None]
        value_weights_JBGT = aggregation_weights(mask_BGT, "token_mean") * used_JBGT
        self._examples = with_targets(
            examples,
            rollouts,
            returns=(advantages_JBGT + values_JBGT).movedim(0, -1),
            values=values_JBGT.movedim(0, -1),
            value_weights=value_weights_JBGT.movedim(0, -1),
        )
        # The weighted combination, without components that are equal in all answers.
        varying_J = self._varying_components(rewards_JBGT, components.applicable)
        weights_J = weights.to(values_JBGT.dtype) * varying_J
        applicable_JBGT = torch.where(used_JBGT, advantages_JBGT, 0)
        combined_BGT, factors_J = self.combine(applicable_JBGT, used_JBGT, weights_J)
        self._effective = factors_J
        return torch.where(mask_BGT, combined_BGT, 0)

    def _values_beyond_limits(self, rollouts: Rollouts, components: Components) -> Tensor:
        """Values ``[J, B, G, T]`` of the observations at which time limits truncated episodes, otherwise 0. Collective.

        Raises:
            UserError: the environment reports no truncated steps, or no observations reached.
        """
        facts: list[Any] = [rollouts.info.get(name) for name in ("truncated", "terminated", "observation")]
        if not all(isinstance(fact, Tensor) and fact.shape[:3] == rollouts.mask.shape for fact in facts):
            raise UserError(
                "Expected episodes of Gymnasium with vectors as observations for estimator.bootstraps: true, but got "
                f"facts {sorted(rollouts.info)}, try bootstraps: false."
            )
        truncated, terminated, reached = facts
        # The critic predicts from the observations reached, of the limited steps alone.
        limited_BGT = rollouts.mask & truncated & ~terminated
        limited_rollouts = replace(rollouts, mask=limited_BGT, inputs={"observations": reached})
        examples = self.critic.network.examples(limited_rollouts)
        count = len(components.values)
        predicted = predict(self.critic, examples, count, self.learning.micro_batch_size)
        values_BGTJ = _by_rollout(predicted, limited_BGT)
        # Only components by step go on after the limit, and only where they apply.
        by_step_J = torch.tensor([row in components.steps for row in range(count)], device=values_BGTJ.device)
        applicable_BG1J = components.applicable.movedim(0, -1)[:, :, None]
        return torch.where(by_step_J & applicable_BG1J, values_BGTJ, 0).movedim(-1, 0)

    def _varying_components(self, rewards: Tensor, applicable: Tensor) -> Tensor:
        """``[J]`` bool, components whose discounted sums differ between any two answers of all processes."""
        discounts = self.gamma ** torch.arange(rewards.shape[-1], device=rewards.device, dtype=torch.float64)
        sums = (rewards.double() * discounts).sum(-1)  # [J, B, G]
        varying = []
        for values, used in zip(sums, applicable, strict=True):
            _, std = batch_moments(values, used)
            # A deviation that is tiny beside the mean size of the sums is what rounding leaves.
            sizes = torch.where(used, values, 0).abs()
            total_size, number = all_sum(torch.stack([sizes.sum(), used.sum().double()])).unbind()
            varying.append(std * number > RELATIVE_ZERO * total_size)
        return torch.stack(varying)

    def learn(self, optimizer: Optimizer, group_size: int, seed: int, update: int) -> None:
        """Take the critic's optimizer steps on the last batch. Collective."""
        examples = self._examples
        assert examples is not None, "advantages come first"
        self._examples = None
        loss, self._skipped = learn_values(self.critic, examples, self.learning, optimizer, group_size, seed, update)
        # Sums over all steps, [J] each, from which `metrics` has the explained variance of the old values.
        returns = examples.targets["returns"].double()
        old_values = examples.targets["values"].double()
        weights = examples.targets["value_weights"].double()
        terms = {
            "weight": weights,
            "returns": weights * returns,
            "squares": weights * returns**2,
            "errors": weights * (returns - old_values),
            "squared errors": weights * (returns - old_values) ** 2,
        }
        all_but_components = tuple(range(returns.dim() - 1))
        self._sums = {name: term.sum(all_but_components) for name, term in terms.items()}
        self._sums["loss"] = loss

    def metrics(self, names: Sequence[str], weights: Tensor) -> dict[str, float]:
        """The critic's loss, and its explained variance of each component's returns by name. Collective."""
        # One message sums the loss and the terms of every component over all processes.
        sums = {"loss": self._sums["loss"], "processes": torch.ones_like(self._sums["loss"])}
        for row, name in enumerate(names):
            for term, values in self._sums.items():
                if term != "loss":
                    sums[f"{term}/{name}"] = values[row]
        total = all_sum_named(sums)
        metrics = {"critic/loss": total["loss"] / total["processes"]}
        if self._skipped:
            metrics["critic/skipped_steps"] = self._skipped
        for name in names:
            weight = total[f"weight/{name}"]
            if not weight:
                continue
            mean = total[f"returns/{name}"] / weight
            square = total[f"squares/{name}"] / weight
            error = total[f"errors/{name}"] / weight
            squared_error = total[f"squared errors/{name}"] / weight
            variance = square - mean**2
            # Without a variance of the returns there is nothing to explain.
            if variance > RELATIVE_ZERO * square:
                metrics[f"critic/explained_variance/{name}"] = 1 - (squared_error - error**2) / variance
        return metrics

    def effective_weights(self, statistics: GroupStatistics, weights: Tensor) -> Tensor:
        """Factors of the last batch's standardized components, equal in all groups."""
        factors = weights if self._effective is None else self._effective
        return factors[:, None].expand_as(statistics.std)


class ScalarizedGAE(CriticAdvantages):
    """The method's order with a critic: standardize each component over the batch's steps, then combine.

    A = sum_j w_j (A_j - mean_j) / std_j, over all processes.
    """

    def combine(self, advantages: Tensor, used: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(advantages[0])  # [B, G, T]
        for component, steps, weight in zip(advantages, used, weights, strict=True):
            mean, std = batch_moments(component, steps)
            standardized = torch.where(steps, divide_or_zero(component - mean, std), 0)
            total = total + weight * standardized
        return total, weights


class LagrangianGAE(CriticAdvantages):
    """PPO-Lagrangian (Ray et al., 2019): combine the components' own advantages, then standardize the sum.

    S = A_reward - sum_k lambda_k A_cost_k, A = (S - mean) / std, over all processes. Weights of sum 1 give the same,
    because a common factor cancels. Without constraints this is PPO (Schulman et al., 2017).
    """

    def combine(self, advantages: Tensor, used: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.einsum("j,jbgt->bgt", weights, advantages)
        steps = used.any(0)  # [B, G, T]
        mean, std = batch_moments(total, steps)
        standardized = torch.where(steps, divide_or_zero(total - mean, std), 0)
        # A component of deviation std_j, standardized, has the factor w_j std_j / std.
        component_stds = []
        for component, component_steps in zip(advantages, used, strict=True):
            _, component_std = batch_moments(component, component_steps)
            component_stds.append(component_std)
        return standardized, divide_or_zero(weights * torch.stack(component_stds), std)


def _by_rollout(values: Tensor, mask: Tensor) -> Tensor:
    """Values ``[B, G, T, J]`` from those of steps ``[N, J]`` or answers ``[N, T, J]``."""
    shape = (*mask.shape, values.shape[-1])
    if values.dim() == 3:
        return values.view(shape)
    return values.new_zeros(shape).masked_scatter(mask[..., None], values)
