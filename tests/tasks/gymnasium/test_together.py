"""Worlds that step together: equal to single worlds, seed by seed, to the last bit."""

from functools import partial

import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from lightning_cgrpo import CategoricalMLP, Gymnasium, NetworkPolicy
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.tasks.gymnasium.cart_poles import CartPoles
from tests.tasks.gymnasium.small_worlds import walks
from tests.tasks.gymnasium.test_environment import WALK, continuous, discrete, equal, prompts, quietly, rollout

CART_POLES = f"{CartPoles.__module__}.{CartPoles.__name__}"


def balancing():
    """Pushes a cart to the side to which the pole falls, so that most episodes are long."""
    layer = torch.nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[0.0, 0.0, -1.0, -1.0], [0.0, 0.0, 1.0, 1.0]])
    return NetworkPolicy(layer)


def cart_poles():
    torch.manual_seed(0)
    return CategoricalMLP(4, 2, hidden=(8,))


@pytest.mark.parametrize(
    ("policy", "options", "kwargs"),
    [
        (cart_poles, None, {}),
        (balancing, None, {}),
        (balancing, {"low": -0.3, "high": 0.2}, {"sutton_barto_reward": True}),
    ],
)
def test_cart_poles_equal_single_ones(policy, options, kwargs):
    """In three rollouts, also of another number of worlds, with episodes that end early and episodes that last."""
    one, together = (Gymnasium("CartPole-v1", kwargs, 60, vector=vector) for vector in (None, CART_POLES))
    lengths = set()
    for seeds in ([5, 99, 123456], [2**31, 7, 5], [1]):
        groups = prompts(seeds, **({} if options is None else {"options": [options] * len(seeds)}))
        expected, found = (rollout(policy(), environment, groups, group_size=8) for environment in (one, together))
        assert equal(found, expected)
        lengths |= set(found.lengths.flatten().tolist())
    assert len(lengths) > 3
    assert (60 in lengths) == (policy is balancing)


@pytest.mark.parametrize("make", [discrete, continuous])
def test_a_vector_environment_equals_its_worlds(make):
    """Infos that only some steps have, actions that do not begin at 0, and continuous ones."""
    policy, kwargs = make(), {"continuous": make is continuous}
    one, together = (Gymnasium(WALK, kwargs, infos=["cost"], vector=vector) for vector in (None, walks))
    for seeds in ([5, 99, 123456], [1, 2]):
        expected, found = (quietly(environment, prompts(seeds), policy) for environment in (one, together))
        assert equal(found, expected)
        assert found.lengths.unique().numel() > 1 and (found.info["info.cost"] == 0).any()


def options_that_differ():
    rollout(discrete(), Gymnasium(WALK, vector=walks), prompts(options=[{"shift": 1}, {"shift": 2}, None]))


def a_last_observation_that_is_lost():
    at_once = partial(walks, autoreset_mode=AutoresetMode.SAME_STEP)
    rollout(discrete(), Gymnasium(WALK, vector=at_once))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (options_that_differ, "same options for all worlds"),
        (a_last_observation_that_is_lost, "autoreset_mode SAME_STEP, try NEXT_STEP"),
        (lambda: Gymnasium(WALK, processes=True, vector=walks), "`vector` to be None if `processes` is true"),
        (lambda: Gymnasium(WALK, vector="my_worlds.Walks"), "environment.vector to be a function or its import path"),
        (lambda: rollout(discrete(), Gymnasium(WALK, {"fault": "raises"}, vector=walks)), "raised RuntimeError: lost"),
        (lambda: rollout(discrete(), Gymnasium(WALK, {"fault": "nan"}, vector=walks)), "reset with seed 5, .* finite"),
        (
            lambda: rollout(cart_poles(), Gymnasium("CartPole-v1", vector=CartPoleVectorEnv)),
            "environment of 'CartPole-v1' to run, but it raised .*, try a class whose reset takes a list of seeds",
        ),
    ],
)
def test_mistakes(mistake, message):
    with pytest.raises((UserError, ValueError), match=message):
        mistake()
