"""The paper's controller against its equations."""

import math

import pytest
import torch

from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.multipliers.softmax import softmax_gradient
from tests.multipliers.stepping import maker, step

controller = maker(SoftmaxAdam, 2)


def logits(made: SoftmaxAdam) -> list[float]:
    return [logit.item() for logit in made.logits]


def random(seed: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_is_that_of_the_dual_function(seed: int) -> None:
    z, v = (3 * random(seed, 5)).requires_grad_(), random(seed + 100, 4)
    (torch.softmax(z, 0)[1:] * v).sum().backward()
    assert torch.allclose(softmax_gradient(z.detach(), v), z.grad, rtol=1e-12, atol=1e-15)


def test_many_steps_by_hand() -> None:
    lr, (b1, b2) = 0.05, (0.9, 0.999)
    made = controller(lr=lr)
    assert logits(made) == [0.02] * 3
    z, m, s = [0.02] * 3, [0.0] * 3, [0.0] * 3
    for t, violations in enumerate(random(0, 60).view(30, 2).tolist(), 1):
        total = sum(math.exp(x) for x in z)
        weights = [math.exp(x) / total for x in z]
        mean = weights[1] * violations[0] + weights[2] * violations[1]
        g = [w * (v - mean) for w, v in zip(weights, [0.0, *violations], strict=True)]
        m = [b1 * a + (1 - b1) * x for a, x in zip(m, g, strict=True)]
        s = [b2 * a + (1 - b2) * x * x for a, x in zip(s, g, strict=True)]
        z = [x + lr * (a / (1 - b1**t)) / (math.sqrt(b / (1 - b2**t)) + 1e-8) for x, a, b in zip(z, m, s, strict=True)]
        step(made, *violations)
        assert logits(made) == pytest.approx(z, abs=1e-12)


def test_unobserved_constraint_enters_no_sum() -> None:
    made = controller()
    made.step(torch.tensor([0.3, math.nan]), torch.tensor([True, False]))
    # v = .3/3 = .1: the reward goes down, the first constraint up.
    assert [math.copysign(1, x - 0.02) for x in logits(made)[:2]] == [-1, 1]
    assert logits(made)[2] == 0.02
    steps = {i: int(state["step"]) for i, state in made.get_extra_state().items()}
    assert steps == {0: 1, 1: 1}


def test_learning_rate_is_no_state() -> None:
    """A resumed run may change it."""
    source, changed = controller(lr=0.01), controller(lr=0.5)
    step(source, 0.3, 0.1)
    changed.load_state_dict(source.state_dict())
    before = logits(changed)
    step(changed, 0.3, 0.1)
    assert abs(logits(changed)[2] - before[2]) > 0.05
