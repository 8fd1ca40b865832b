"""One running deviation for each component: what is optimized is the declared problem.

`tests/test_against_loops.py` has the advantages.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.objective.group_statistics import group_statistics
from lightning_cgrpo.objective.objective import Components
from tests.grpo.test_advantages import components

WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def advantages(estimator: ScalarizedAdvantages, data: Components, weights: Tensor = WEIGHTS) -> Tensor:
    shape = data.values.shape[1:]
    rollouts = Rollouts(torch.zeros(*shape, 1), torch.ones(*shape, 1, dtype=torch.bool), {})
    return estimator(rollouts, group_statistics(data), weights[: len(data.values)])


def drawn(seed: int = 0, groups: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, groups, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["pooled", "group"])
def test_the_expected_gradient_has_one_price_for_all_prompts(scale: str) -> None:
    """Over all outcomes of two prompts' indicators, by hand: prompts that rarely violate are not dearer.

    E[sum_i A_i dlog pi(x_i)] / G is g(p) dp. With one deviation, g is equal for all p.
    """
    size, gains = 4, []
    for p in (0.1, 0.5):
        gain = 0.0
        for row in itertools.product((0.0, 1.0), repeat=size):
            chance = math.prod(p if x else 1 - p for x in row)
            estimator = ScalarizedAdvantages(scale)  # type: ignore[arg-type]
            # A second group fixes the pooled deviation in every outcome.
            values = torch.tensor([[[*row], [0.0, 0.0, 0.0, 1.0]]], dtype=torch.float64)
            estimator.load_running_state({"squares": torch.tensor([1e12]), "freedom": torch.tensor([4e12])})
            score = torch.tensor([(x - p) / (p * (1 - p)) for x in row], dtype=torch.float64)
            first = advantages(estimator, components(values), torch.ones(1)).squeeze()[0]
            gain += chance * float((first * score).mean())
        gains.append(gain)
    if scale == "pooled":
        assert gains[0] == pytest.approx(gains[1], rel=1e-9) and gains[0] == pytest.approx(2.0, rel=1e-9)
    else:
        assert gains[0] > 1.04 * gains[1]


def test_the_price_is_what_the_advantages_trade() -> None:
    """The weights times (0, price, -1) of a violation and a reward cancel."""
    estimator = ScalarizedAdvantages("pooled")
    advantages(estimator, components(drawn()))
    prices = estimator.metrics(["reward", "lava", "battery"], WEIGHTS)
    assert list(prices) == ["price/lava", "price/battery"]
    std = estimator.running_state()["squares"].div(estimator.running_state()["freedom"]).sqrt()
    assert prices["price/lava"] == pytest.approx(float(0.3 / std[1] / (0.5 / std[0])))


def test_continues_from_its_running_state_to_the_bit() -> None:
    original, resumed = ScalarizedAdvantages("pooled"), ScalarizedAdvantages("pooled")
    for update in range(3):
        advantages(original, components(drawn(update)))
    resumed.load_running_state({name: tensor.clone() for name, tensor in original.running_state().items()})
    assert torch.equal(*(advantages(e, components(drawn(9))) for e in (original, resumed)))
    assert ScalarizedAdvantages("group").running_state() == {}
    resumed.load_running_state({name: tensor[:2] for name, tensor in original.running_state().items()})
    fresh = ScalarizedAdvantages("pooled")  # as with another objective
    assert torch.equal(*(advantages(e, components(drawn(9))) for e in (fresh, resumed)))


def test_one_rare_answer_outweighs_the_rest_by_a_bound() -> None:
    """After many quiet updates the running deviation is nearly 0, and one other answer would get an advantage of 37."""
    estimator, quiet, rare = ScalarizedAdvantages("pooled"), torch.zeros(1, 16, 4), torch.zeros(1, 16, 4)
    rare[0, 3, 2] = 1.0
    for values in (rare, *[quiet] * 200, rare):
        worst = float(advantages(estimator, components(values.double()), torch.ones(1).double()).max())
    assert worst == pytest.approx(2 * math.sqrt(64), rel=0.2)
