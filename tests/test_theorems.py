"""Theorem 1, its partial sensitivities and the Corollary (paper, section 3 and appendix A), on the package's code.

The closed forms are coded here from the paper, with G answers, scores psi_i [G, D], reward R and costs C_1 ... C_K.
They are compared with autograd through the estimators and with central finite differences, in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from lightning_cgrpo.core.rollout import Rollouts, Signal
from lightning_cgrpo.grpo.advantages import AdvantageEstimator, ScalarizedAdvantages, ScalarizedRewards
from lightning_cgrpo.grpo.losses import aggregation_weights, grpo_loss
from lightning_cgrpo.grpo.minibatches import with_targets
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components, Constraint, Objective
from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP

NO_STEPS = torch.zeros(0)
ROLLOUTS = Rollouts(NO_STEPS, NO_STEPS, {})


@dataclass
class Group:
    """A sampled group: reward [G], costs [K, G], scores [G, D]."""

    reward: Tensor
    costs: Tensor
    psi: Tensor

    @property
    def signed(self) -> list[tuple[int, Tensor]]:
        return [(1, self.reward), *((-1, cost) for cost in self.costs)]

    @property
    def values(self) -> Tensor:
        """As of components, ``[1 + K, 1, G]``."""
        return torch.stack([sign * x for sign, x in self.signed])[:, None]


def numerator(x: Tensor, psi: Tensor) -> Tensor:
    """N = 1/G sum_i (x_i - mean) psi_i."""
    return ((x - x.mean())[:, None] * psi).mean(0)


def sigma(x: Tensor) -> Tensor:
    return (x - x.mean()).square().mean().sqrt()


def partials_of_scalarized_rewards(group: Group, weights: Tensor) -> Tensor:
    """d g^ScRew / d lambda_j, [1 + K, D], the reward first (Theorem 1)."""
    s = sum(weight * sign * x for weight, (sign, x) in zip(weights, group.signed, strict=True))
    sigma_s = sigma(s)
    d = sum(weight * sign * numerator(x, group.psi) for weight, (sign, x) in zip(weights, group.signed, strict=True))
    rows = []
    for sign, x in group.signed:
        covariance = ((s - s.mean()) * (x - x.mean())).mean()
        rows.append(sign * numerator(x, group.psi) / sigma_s - sign * d / sigma_s**3 * covariance)
    return torch.stack(rows)


def partials_of_scalarized_advantages(group: Group, weights: Tensor) -> Tensor:
    """d g^ScAdv / d lambda_j: N_R / sigma_R and -N_k / sigma_Ck."""
    return torch.stack([sign * numerator(x, group.psi) / sigma(x) for sign, x in group.signed])


def theorem_1(group: Group, weights: Tensor) -> Tensor:
    """d g^ScRew / d z_k = lambda_k (d g / d lambda_k - sum_j lambda_j d g / d lambda_j), [1 + K, D]."""
    partials = partials_of_scalarized_rewards(group, weights)
    return weights[:, None] * (partials - (weights[:, None] * partials).sum(0))


def corollary(group: Group, weights: Tensor) -> Tensor:
    """d g^ScAdv / d z_k, [1 + K, D]: of the constraints as the paper prints it, and of the reward's logit alike."""
    reward = weights[0] * numerator(group.reward, group.psi) / sigma(group.reward)
    z = [numerator(cost, group.psi) / sigma(cost) for cost in group.costs]
    mixed = sum(weight * term for weight, term in zip(weights[1:], z, strict=True))
    rows = [weight * (-term - reward + mixed) for weight, term in zip(weights[1:], z, strict=True)]
    return torch.stack([reward + weights[0] * (mixed - reward), *rows])


def estimate(estimator: AdvantageEstimator, group: Group, weights: Tensor) -> Tensor:
    """g = 1/G sum_i A_i psi_i [D], the advantages being the package's."""
    names = [f"c{k}" for k in range(len(group.costs))]
    objective = Objective("r", {name: Constraint(at_most=0.1) for name in names})
    signals = {"r": Signal(group.reward[None])}
    signals |= {name: Signal(cost[None]) for name, cost in zip(names, group.costs, strict=True)}
    components = objective.components(signals)
    advantages = estimator(ROLLOUTS, group_statistics(components), objective.component_weights(weights))
    return (advantages[0, :, None] * group.psi).mean(0)


def finite_differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of a vector function, [inputs, outputs]."""
    moves = step * torch.eye(len(at)).to(at)
    return torch.stack([(function(at + move) - function(at - move)) / (2 * step) for move in moves])


def random_group(seed: int, constraints: int) -> Group:
    """Costs are indicators, sums of penalties (small integers) and numbers in turn; the reward is any of them."""
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(6, 17, (), generator=generator))

    def signal(kind: int) -> Tensor:
        while True:
            values = [
                torch.rand(size, generator=generator).lt(0.4).double(),
                torch.randint(0, 5, (size,), generator=generator).double(),
                torch.randn(size, generator=generator, dtype=torch.float64),
            ][kind % 3]
            if values.unique().numel() > 1:
                return values

    psi = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    return Group(signal(seed), torch.stack([signal(seed // 3 + k) for k in range(constraints)]), psi)


def random_logits(seed: int, constraints: int) -> Tensor:
    return torch.randn(1 + constraints, generator=torch.Generator().manual_seed(1000 + seed), dtype=torch.float64)


def softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, 0)


cases = pytest.mark.parametrize(("seed", "constraints"), [(seed, count) for count in (1, 2, 3) for seed in range(9)])


through_a_softmax = pytest.mark.parametrize(
    ("estimator", "closed_form"),
    [(ScalarizedRewards(), theorem_1), (ScalarizedAdvantages("group"), corollary)],
    ids=["theorem", "corollary"],
)


@cases
@through_a_softmax
def test_sensitivities_to_logits(estimator, closed_form, seed: int, constraints: int) -> None:
    group, logits = random_group(seed, constraints), random_logits(seed, constraints)

    def g(z: Tensor) -> Tensor:
        return estimate(estimator, group, softmax(z))

    closed = closed_form(group, softmax(logits))
    assert closed.abs().max() > 1e-3
    assert torch.allclose(jacobian(g, logits).T, closed, rtol=1e-9, atol=1e-11)
    assert torch.allclose(finite_differences(g, logits), closed, rtol=1e-6, atol=1e-8)


@cases
@pytest.mark.parametrize(
    ("estimator", "partials"),
    [
        (ScalarizedRewards(), partials_of_scalarized_rewards),
        (ScalarizedAdvantages("group"), partials_of_scalarized_advantages),
    ],
    ids=["rewards", "advantages"],
)
def test_partial_sensitivities_to_unnormalized_multipliers(estimator, partials, seed: int, constraints: int) -> None:
    """Multipliers as they are, not on the simplex (appendix A, eqs. nosoftnorm)."""
    group, multipliers = random_group(seed, constraints), 3 * random_logits(seed, constraints).exp()

    def g(weights: Tensor) -> Tensor:
        return estimate(estimator, group, weights)

    closed = partials(group, multipliers)
    assert torch.allclose(jacobian(g, multipliers).T, closed, rtol=1e-9, atol=1e-11)
    assert torch.allclose(finite_differences(g, multipliers), closed, rtol=1e-5, atol=1e-8)


@cases
def test_the_scalarized_reward_estimator_in_closed_form(seed: int, constraints: int) -> None:
    """g^ScRew = (lambda_R N_R - sum lambda_k N_k) / sigma_S, and g^ScAdv with a sigma for each."""
    group, weights = random_group(seed, constraints), softmax(random_logits(seed, constraints))
    terms = [(w, sign * numerator(x, group.psi), x) for w, (sign, x) in zip(weights, group.signed, strict=True)]
    s = sum(w * sign * x for w, (sign, x) in zip(weights, group.signed, strict=True))
    rewards = sum(w * n for w, n, _ in terms) / sigma(s)
    advantages = sum(w * n / sigma(x) for w, n, x in terms)
    assert torch.allclose(estimate(ScalarizedRewards(), group, weights), rewards, rtol=1e-10, atol=1e-12)
    assert torch.allclose(estimate(ScalarizedAdvantages("group"), group, weights), advantages, rtol=1e-10, atol=1e-12)


def test_a_group_that_does_not_vary_adds_nothing_to_the_sensitivity() -> None:
    group, logits = random_group(0, 2), random_logits(0, 2)
    alive, dead = group.values, torch.ones_like(group.values)
    for estimator in (ScalarizedAdvantages("group"), ScalarizedRewards()):

        def g(z: Tensor, groups: Tensor, estimator: AdvantageEstimator = estimator) -> Tensor:
            components = Components(groups, torch.ones_like(groups, dtype=torch.bool))
            return torch.einsum("bi,id->d", estimator(ROLLOUTS, group_statistics(components), softmax(z)), group.psi)

        both = jacobian(lambda z: g(z, torch.cat([dead, alive], 1)), logits)
        alone = jacobian(lambda z: g(z, alive), logits)
        assert both.isfinite().all() and alone.abs().max() > 1e-3
        assert torch.allclose(both, alone, rtol=1e-12)


class TestAPolicy:
    """psi_i = grad_theta sum_t log pi(a_t | s_t) of a small policy; the loss at ratio 1 is the paper's estimator."""

    SIZE, STEPS = 8, 6

    @pytest.fixture
    def policy(self) -> CategoricalMLP:
        torch.manual_seed(0)
        return CategoricalMLP(observation_size=3, actions=4, hidden=(5,)).double()

    @pytest.fixture
    def rollouts(self) -> Rollouts:
        generator = torch.Generator().manual_seed(1)
        shape = (1, self.SIZE, self.STEPS)
        lengths = torch.randint(1, self.STEPS + 1, shape[:2], generator=generator)
        return Rollouts(
            actions=torch.randint(4, shape, generator=generator),
            mask=torch.arange(self.STEPS) < lengths[..., None],
            inputs={"observations": torch.randn(*shape, 3, generator=generator, dtype=torch.float64)},
        )

    def scores(self, policy: CategoricalMLP, rollouts: Rollouts) -> Tensor:
        """[G, D], one backward pass per answer, without the package's examples and loss."""
        rows = []
        for answer in range(self.SIZE):
            length = int(rollouts.mask[0, answer].sum())
            observations = rollouts.inputs["observations"][0, answer, :length]
            log_probs = policy.actor()(observations).log_softmax(-1)
            total = log_probs[torch.arange(length), rollouts.actions[0, answer, :length]].sum()
            gradients = torch.autograd.grad(total, list(policy.parameters()))
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        return torch.stack(rows)

    def gradient_of_loss(self, policy, rollouts, advantages: Tensor) -> Tensor:
        """-grad_theta of the package's loss, summed over steps, at the policy that sampled."""
        examples = with_targets(
            policy.examples(rollouts),
            rollouts,
            advantages=advantages[..., None].expand(rollouts.mask.shape),
            weights=aggregation_weights(rollouts.mask, "sequence_sum").double(),
        )
        log_probs = policy(examples).log_probs
        targets = examples.targets
        terms = grpo_loss(log_probs, log_probs.detach(), targets["advantages"], targets["weights"])
        gradients = torch.autograd.grad(terms.loss, list(policy.parameters()))
        return -torch.cat([gradient.flatten() for gradient in gradients])

    @pytest.mark.parametrize("constraints", [1, 2, 3])
    @through_a_softmax
    def test_sensitivity_of_the_gradient_step(
        self, policy, rollouts, estimator: AdvantageEstimator, closed_form, constraints: int
    ) -> None:
        drawn = random_group(4, constraints)
        assert len(drawn.reward) >= self.SIZE, "Expected a seed whose group is large enough."
        group = Group(drawn.reward[: self.SIZE], drawn.costs[:, : self.SIZE], self.scores(policy, rollouts))
        assert all(sigma(x) > 0 for _, x in group.signed)
        logits = random_logits(2, constraints)

        def step(z: Tensor) -> Tensor:
            components = Components(group.values, torch.ones_like(group.values, dtype=torch.bool))
            advantages = estimator(rollouts, group_statistics(components), softmax(z))
            return self.gradient_of_loss(policy, rollouts, advantages)

        assert torch.allclose(step(logits), estimate(estimator, group, softmax(logits)), rtol=1e-9, atol=1e-12)
        moved = finite_differences(step, logits)
        assert torch.allclose(moved, closed_form(group, softmax(logits)), rtol=1e-5, atol=1e-8)
        assert moved.abs().max() > 1e-3
