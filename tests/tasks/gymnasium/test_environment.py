"""Gymnasium's worlds in an environment sampler: equal to stepping them by hand, from seeds alone."""

import multiprocessing
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from lightning_cgrpo import CategoricalMLP, EnvironmentSampler, GaussianMLP, Gymnasium, NetworkPolicy, RecurrentPolicy
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.core.randomness import Stream, uniform
from lightning_cgrpo.core.rollout import PromptGroups
from lightning_cgrpo.policies.action_distributions import Gaussian
from lightning_cgrpo.tasks.gymnasium.worlds import WorldsApart, WorldsHere
from tests.tasks.gymnasium import small_worlds

WALK, ODD, BRIGHT = (f"{small_worlds.__name__}:{name}-v0" for name in ("Walk", "Odd", "Bright"))
SEEDS, GROUP = [5, 99, 123456], 3
REPLAYED = r"replay an episode from its seed differ in the {} of step 1\."


def prompts(seeds=SEEDS, **columns):
    return PromptGroups(torch.arange(len(seeds)), {"seed": torch.tensor(seeds, dtype=torch.int64), **columns})


def rollout(policy, environment, groups=None, group_size=GROUP):
    groups = prompts() if groups is None else groups
    sampler = EnvironmentSampler(environment)
    sampler.check_policy(policy)

    def noise(*shape):
        return uniform(0, Stream.ROLLOUT, 3, groups.index, shape)

    with torch.no_grad():
        return sampler.rollout(policy, groups, group_size, noise)


def discrete():
    torch.manual_seed(0)
    return CategoricalMLP(2, 3, hidden=(8,))


def continuous():
    torch.manual_seed(0)
    return GaussianMLP(2, 1, low=-0.5, high=2.0, hidden=(8,))


def equal(*both):
    """Whether rollouts have the same actions, observations, ends and facts."""
    one, other = ({**of.info, "actions": of.actions, "mask": of.mask, **of.inputs} for of in both)
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


@pytest.mark.parametrize("make", [discrete, continuous])
def test_equals_gymnasium_stepped_by_hand(make):
    """The recorded actions lead a world of Gymnasium's own to the recorded observations, rewards and ends."""
    policy = make()
    kwargs = {"continuous": make is continuous}
    rollouts = rollout(policy, Gymnasium(WALK, kwargs, infos=["cost"]))
    lengths = set()
    for row, seed in enumerate(SEEDS):
        for column in range(GROUP):
            world = gymnasium.make(WALK, **kwargs)
            seen, _ = world.reset(seed=seed)
            length = int(rollouts.mask[row, column].sum())
            lengths.add(length)
            for step in range(length):
                assert torch.equal(rollouts.inputs["observations"][row, column, step], torch.from_numpy(seen))
                action = rollouts.info["action"][row, column, step].numpy()
                seen, reward, terminated, truncated, info = world.step(action)
                facts = {name: values[row, column, step] for name, values in rollouts.info.items()}
                assert torch.equal(facts["observation"], torch.from_numpy(seen))
                assert float(facts["reward"]) == pytest.approx(reward)
                assert float(facts["info.cost"]) == pytest.approx(info.get("cost", 0))
                assert (bool(facts["terminated"]), bool(facts["truncated"])) == (terminated, truncated)
                assert (terminated or truncated) == (step == length - 1)
    assert len(lengths) > 1
    padding = ~rollouts.mask
    assert not any(values[padding].any() for values in rollouts.info.values())
    found = policy(policy.examples(rollouts)).log_probs
    torch.testing.assert_close(found, rollouts.log_probs[rollouts.mask])


def test_options_reach_the_reset():
    plain = rollout(discrete(), Gymnasium(WALK)).inputs["observations"][:, :, 0, 0]
    shifted = rollout(discrete(), Gymnasium(WALK), prompts(options=[{"shift": 1}, {"shift": 2}, None]))
    moved = shifted.inputs["observations"][:, :, 0, 0] - plain
    torch.testing.assert_close(moved, torch.tensor([[1.0], [2.0], [0.0]]).expand(3, GROUP))


@pytest.mark.parametrize("id", [WALK, ODD])
def test_processes_equal_this_process(id):
    """Whatever the types of values, also of an entry of ``info`` that appears late; options are each prompt's own."""
    policy, infos = discrete(), ["cost", "late"]
    groups = prompts(options=[{"shift": 1}, {"shift": 2}, None])
    options = {"processes": False}, {"processes": True, "time_limit": 60}
    here, apart = (rollout(policy, Gymnasium(id, infos=infos, **each), groups) for each in options)
    assert equal(here, apart)
    if id == ODD:
        assert here.info["info.cost"].unique().tolist() == [0, 0.25, 0.5, 1]
        worlds = [kind(lambda: gymnasium.make(ODD), ODD, infos) for kind in (WorldsHere, WorldsApart)]
        one, other = ([*each.reset([5], [None]), *each.step([0], np.array([1]))] for each in worlds)
        assert repr(one) == repr(other), "the world's own values, with their types"


def test_a_process_that_dies_is_named():
    before = set(multiprocessing.active_children())
    with pytest.raises(UserError, match=r"reset with seed 5, to run, but its process ended with status -9"):
        rollout(discrete(), Gymnasium(ODD, {"kind": "dies"}, processes=True), prompts([5]))
    assert set(multiprocessing.active_children()) <= before


def quietly(environment, groups=None, policy=None):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return rollout(policy or discrete(), environment, groups)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(
    ("wrapper", "value"),
    [("gymnasium.wrappers.NormalizeReward", "reward"), (f"{small_worlds.__name__}.Totals", r"info\.cost")],
)
def test_a_wrapper_that_keeps_state_over_resets_is_told(wrapper, value, processes):
    """First observations are equal."""
    wrappers = ["gymnasium.wrappers.ClipReward", wrapper, "gymnasium.wrappers.RecordEpisodeStatistics"]
    wrappers[0] = {wrappers[0]: {"min_reward": -5, "max_reward": 5}}
    environment = Gymnasium(ODD, infos=["cost"], wrappers=wrappers, processes=processes)
    with pytest.warns(UserWarning, match=REPLAYED.format(value)):
        rollout(discrete(), environment)
    if wrapper.endswith("Totals"):
        quietly(Gymnasium(ODD, infos=["late"], wrappers=wrappers))  # nobody reads its entry


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Gymnasium, ODD, {"kind": "counts"}), REPLAYED.format("reward")),
        (partial(Gymnasium, ODD, {"kind": "noisy"}), REPLAYED.format("reward")),
        (partial(Gymnasium, WALK, {"fault": "drifts"}), REPLAYED.format("observation")),
        (partial(Gymnasium, WALK, infos=["cost", "csot"]), r"had info\['csot'\], which counts as 0"),
        (partial(Gymnasium, WALK, vector=small_worlds.other_walks), "from a single world in the reward of step 1"),
    ],
)
def test_what_is_wrong_with_a_world_is_told_once(make, words):
    """State or randomness of its own, an info that no step has, or a difference of worlds that step together."""
    environment = make()
    with pytest.warns(UserWarning, match=words):
        rollout(discrete(), environment)
    quietly(environment)


def test_worlds_that_ignore_their_seed_are_named():
    with pytest.warns(UserWarning, match=r"Walk-v0' that were reset with the same seed start differently"):
        rollout(discrete(), Gymnasium(WALK, {"fault": "unseeded"}))
    quietly(Gymnasium(WALK))


def test_a_world_that_changes_after_some_episodes_is_named():
    environment = Gymnasium(ODD, {"kind": "hardens"})
    for _ in range(5):
        quietly(environment)
    with pytest.warns(UserWarning, match="replay an episode"):
        for _ in range(3):
            rollout(discrete(), environment)


def test_worlds_that_replay_are_left_alone():
    """The spare world changes nothing: the next episodes are those of a new environment."""
    used, groups = Gymnasium(WALK, infos=["cost"]), prompts([1, 2])
    quietly(used)
    assert equal(quietly(used, groups), quietly(Gymnasium(WALK, infos=["cost"]), groups))


def test_a_cost_as_sixth_value_is_one_of_info():
    rollouts = quietly(Gymnasium(ODD, {"kind": "six"}, infos=["cost", "late"]))
    assert (rollouts.info["info.cost"] != 0.75).any() and rollouts.info["reward"].unique().tolist() == [0.5, 1]
    plain = quietly(Gymnasium(ODD, infos=["cost"]))
    assert torch.equal(plain.info["info.cost"], rollouts.info["info.cost"]), "its own entry stands"


@pytest.mark.parametrize(("several", "count"), [("discrete", 6), ("binary", 8)])
def test_several_discrete_actions_are_one_of_the_policy(several, count):
    environment = Gymnasium(ODD, {"several": several})
    assert environment.actions == count
    torch.manual_seed(0)
    rollouts = rollout(CategoricalMLP(2, count, hidden=(8,)), environment)
    shape = {"discrete": (2, 3), "binary": (2, 2, 2)}[several]
    sums = torch.from_numpy(np.sum(np.unravel_index(rollouts.actions.numpy(), shape), axis=0))
    assert torch.equal(rollouts.info["observation"][..., 1], sums.float()) and len(rollouts.actions.unique()) > 3
    assert torch.equal(rollouts.info["action"].sum(-1), sums), "a fact is the world's own action"


def test_images_stay_bytes_and_networks_get_numbers():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    net[1].weight.data *= 1e-3
    policy, bright = NetworkPolicy(net), Gymnasium(BRIGHT)
    rollouts = rollout(policy, bright)
    with pytest.raises(UserError, match="Expected 3 outputs of the policy's network, but got 2"):
        rollout(NetworkPolicy(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))), bright)
    with pytest.raises(UserError, match="Expected 2 outputs of the policy's network, but got 1"):
        rollout(NetworkPolicy(torch.nn.Linear(2, 1), Gaussian(1, -0.5, 2.0)), Gymnasium(WALK, {"continuous": True}))
    images = rollouts.inputs["observations"]
    assert images.dtype == torch.uint8 and len(images.unique()) > 5
    expected = net(images[rollouts.mask].float()).log_softmax(-1)
    chosen = expected.gather(-1, rollouts.actions[rollouts.mask][:, None])[:, 0]
    torch.testing.assert_close(rollouts.log_probs[rollouts.mask], chosen)
    torch.testing.assert_close(policy(policy.examples(rollouts)).log_probs, chosen)


class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = torch.nn.GRU(2, 8, batch_first=True), torch.nn.Linear(8, 3)

    def forward(self, observations, memory):
        states, memory = self.cell(observations, memory[None])
        return self.head(states), memory[0]


def test_a_recurrent_policy_remembers():
    """The loss's log-probabilities, of whole episodes, are those of acting step by step; and they use the past."""
    torch.manual_seed(0)
    policy = RecurrentPolicy(Remembers().double(), memory_size=8)
    torch.set_default_dtype(torch.float64)
    try:
        rollouts = rollout(policy, Gymnasium(WALK))
    finally:
        torch.set_default_dtype(torch.float32)
    assert rollouts.lengths.unique().numel() > 1
    examples = policy.examples(rollouts)
    found = policy(examples).log_probs
    torch.testing.assert_close(found[examples.mask], rollouts.log_probs[rollouts.mask], rtol=0, atol=1e-12)
    short = examples[torch.tensor([0])]
    assert policy(short).log_probs.shape == short.mask.shape
    examples.inputs["observations"][:, 0] += 1
    assert not torch.allclose(policy(examples).log_probs[:, 1], found[:, 1])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", r"raised RuntimeError: lost the way \(small_worlds\.py:\d+, in step\)"),
        ("nan", "finite observations, but got NaN"),
        ("word", "a number as reward, but got 'much'"),
    ],
)
def test_a_faulty_world_is_named_with_its_seed(fault, message):
    # Without Gymnasium's own checker, which warns about these faults.
    environment = Gymnasium(WALK, {"fault": fault, "disable_env_checker": True})
    with pytest.raises(UserError, match=message) as caught:
        rollout(discrete(), environment)
    assert f"'{WALK}', reset with seed 5" in str(caught.value)


@pytest.mark.slow
def test_a_hanging_world_ends_the_run():
    environment = Gymnasium(WALK, {"fault": "hangs"}, processes=True, time_limit=5)
    with pytest.raises(UserError, match=r"Walk-v0', reset with seed 5, .* within 5 seconds"):
        rollout(discrete(), environment, prompts([5]), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rollout(discrete(), Gymnasium(ODD, {"kind": "huge"})), "number as reward"),
        (lambda: Gymnasium(ODD, {"kind": "exits"}), "SystemExit"),
        (lambda: Gymnasium("Nowhere-v0"), "gymnasium.make.*raised NameNotFound.*Try MODULE:ID"),
        (lambda: Gymnasium(WALK.replace("Walk", "Endless")), "max_steps"),
        (lambda: Gymnasium("minigrid:MiniGrid-Empty-5x5-v0", max_steps=9), "FlattenObservation"),
        (lambda: rollout(continuous(), Gymnasium(WALK)), "discrete actions.*CategoricalMLP"),
        (lambda: rollout(discrete(), Gymnasium("Pendulum-v1")), "observation_size to be 3"),
        (lambda: rollout(CategoricalMLP(3, 2), Gymnasium("Pendulum-v1")), "of 1 numbers, .* got discrete actions"),
        (lambda: rollout(GaussianMLP(3, 2), Gymnasium("Pendulum-v1")), "got actions of 2 numbers, .*action_size: 1"),
        (lambda: rollout(discrete(), Gymnasium(BRIGHT)), r"shape \(2,\), as .* got \(2, 2, 1\), try"),
        (lambda: rollout(GaussianMLP(3, 1), Gymnasium("Pendulum-v1")), "bounds"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_first_actions():
    """The world's own numbers remain: the first two of Walk's actions are -1 and 0."""
    path = "lightning_cgrpo.tasks.gymnasium.wrappers.FirstActions"
    environment = Gymnasium(WALK, max_steps=4, wrappers=[{path: {"actions": 2}}])
    assert environment.actions == 2
    answers = rollout(CategoricalMLP(2, 2, hidden=(8,)), environment)
    moved = answers.inputs["observations"][..., 1:, 0] - answers.inputs["observations"][..., :-1, 0]
    real = answers.mask[..., 1:]
    assert real.any() and torch.allclose(moved[real], (answers.actions[..., :-1] - 1.0)[real], atol=1e-6)
    for count, options in ((4, {}), (0, {}), (1, {"continuous": True})):
        with pytest.raises(UserError, match="Expected argument `actions` to be from 1 to"):
            Gymnasium(WALK, options, max_steps=4, wrappers=[{path: {"actions": count}}])


@pytest.mark.parametrize("options", [{}, {"processes": True}, {"vector": small_worlds.walks}])
def test_no_prompts_have_no_episodes(options):
    """As on a process that gets none of an update's prompts."""
    rollouts = rollout(discrete(), Gymnasium(WALK, **options), prompts([]))
    assert rollouts.mask.shape[:2] == (0, GROUP) and rollouts.info["reward"].shape == rollouts.mask.shape
