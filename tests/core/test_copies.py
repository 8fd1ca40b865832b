"""What code of the user changes in place is neither recorded nor trained on."""

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from lightning import Callback
from PIL import Image

from lightning_cgrpo import (
    CategoricalMLP,
    ConstrainedGRPO,
    Constraint,
    EnvironmentSampler,
    FunctionTask,
    GaussianMLP,
    Gymnasium,
    Objective,
    PromptGroups,
    Rollouts,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.copies import copied
from lightning_cgrpo.core.rollout import Signal
from lightning_cgrpo.datamodules import SeedDataModule
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.samplers.conversation.tools import call_tool
from lightning_cgrpo.samplers.environment import Environment
from lightning_cgrpo.tasks.task import Task
from tests.quiet import quiet_trainer


def spoil(value):
    """Write into all that can be written into."""
    if isinstance(value, torch.Tensor):
        value.zero_()
    elif isinstance(value, np.ndarray):
        value[...] = 0
    elif isinstance(value, Image.Image):
        value.putpixel((0, 0), 9)
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value.clear()
    elif isinstance(value, (list, tuple)):
        for item in value:
            spoil(item)
        if isinstance(value, list):
            value.clear()
    elif isinstance(value, (PromptGroups, Rollouts, Signal)):
        spoil(list(vars(value).values()))


def test_copies_share_nothing_that_can_be_written():
    def values():
        image = Image.new("L", (2, 2))
        groups = PromptGroups(torch.ones(2), {"chat": [[{"content": "a"}], []], "image": [image, image]})
        return {"array": np.ones(2), "pair": ([1], [2]), "groups": groups, "signal": Signal(torch.ones(2, 3))}

    kept = values()
    spoil(copied(kept))
    assert kept["array"].tolist() == [1, 1] and kept["pair"] == ([1], [2]) and kept["signal"].value.sum() == 6
    assert kept["groups"].index.tolist() == [1, 1] and kept["groups"].columns["chat"] == [[{"content": "a"}], []]
    assert kept["groups"].columns["image"][0].getpixel((0, 0)) == 0


Pair = namedtuple("Pair", "numbers name")


class Own(list):
    pass


@pytest.mark.parametrize(
    "container",
    [
        {"a": [1]},
        OrderedDict(a=[1]),
        defaultdict(list, a=[1]),
        Counter(a=2),
        deque([[1]]),
        {1, 2},
        bytearray(b"1"),
        Pair([1], "name"),
        Own([[1]]),
        np.array([{"a": 1}, [2]], dtype=object),
    ],
    ids=lambda container: type(container).__name__,
)
def test_every_container_is_copied_with_its_items(container):
    before = repr(container)
    copy = copied({"columns": [container]})["columns"][0]
    assert type(copy) is type(container) and repr(copy) == before
    for item in copy.values() if isinstance(copy, dict) else copy:
        if isinstance(item, (list, dict)):
            item.clear()
    if not isinstance(copy, (tuple, np.ndarray)):
        copy.clear()
    assert repr(copy) != before and repr(container) == before


class Walk:
    """Counts its steps to 3; `spoils` lists the methods that write into their arguments, or into what they returned."""

    def __init__(self, count, spoils):
        self.start, self.spoils, self.returned = torch.zeros(count, dtype=torch.long), spoils, None

    def _given(self, method, *arguments):
        values = [argument.clone() for argument in arguments]
        if method in self.spoils:
            spoil(list(arguments))
            if method == "step" and self.returned is not None:
                spoil(self.returned)
        return values

    def observe(self, states):
        [states] = self._given("observe", states)
        return states[:, None].float()

    def step(self, states, actions):
        states, actions = self._given("step", states, actions)
        self.returned = states + 1
        return self.returned

    def ended(self, states):
        [states] = self._given("ended", states)
        return states >= 3

    def report(self, states, actions, reached):
        states, actions, reached = self._given("report", states, actions, reached)
        return {"at": states.float(), "took": actions.float(), "reached": reached.float()}


class World(Environment):
    max_steps, observation_size = 4, 1

    def __init__(self, continuous, spoils=()):
        self.spoils = spoils
        if continuous:
            self.action_size = 1
        else:
            self.actions = 3

    def reset(self, prompts, group_size):
        count = len(prompts) * group_size
        if "reset" in self.spoils:
            spoil(prompts)
        return Walk(count, self.spoils)


def played(environment, policy, group_size=2):
    generator = torch.Generator().manual_seed(1)

    def noise(*shape):
        return torch.rand((2, *shape), generator=generator, dtype=torch.float64)

    prompts = PromptGroups(torch.tensor([1, 2]), {"seed": torch.tensor([5, 6]), "options": [{"a": [1]}, {"a": [1]}]})
    rollouts = EnvironmentSampler(environment).rollout(policy, prompts, group_size, noise)
    return rollouts, prompts


def assert_equal(here, there):
    for name in ("actions", "mask", "log_probs"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert torch.equal(here.inputs["observations"], there.inputs["observations"])
    for name, fact in there.info.items():
        assert torch.equal(here.info[name], fact), name


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("method", ["reset", "observe", "step", "ended", "report"])
def test_a_world_of_ones_own_that_works_in_place(continuous, method):
    torch.manual_seed(0)
    policy = GaussianMLP(1, 1) if continuous else CategoricalMLP(1, 3)
    clean, prompts = played(World(continuous), policy)
    spoiled, given = played(World(continuous, [method]), policy)
    assert_equal(spoiled, clean)
    assert given.index.tolist() == prompts.index.tolist() and given.columns["options"] == prompts.columns["options"]


class Clips(gymnasium.Env):
    """Writes into its action and into the options of its reset."""

    observation_space = Box(-9, 9, (1,), np.float32)
    action_space = Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, in_place, limits):
        self.in_place, self.limit = in_place, limits.pop() if in_place else limits[-1]

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        numbers = options["a"] if self.in_place else list(options["a"])
        return np.array([numbers.pop()], np.float32), {}

    def step(self, action):
        used = np.clip(action, -self.limit, self.limit, out=action if self.in_place else None)
        return used[:1] * 0, float(used.sum()), False, False, {}


gymnasium.register("Clips-v0", Clips, max_episode_steps=3)


@pytest.mark.parametrize("processes", [False, True])
def test_a_gymnasium_world_that_works_in_place(processes):
    torch.manual_seed(0)
    policy = GaussianMLP(1, 2)
    id = f"{__name__}:Clips-v0"
    clean, _ = played(Gymnasium(id, {"in_place": False, "limits": [0.2]}), policy)
    spoiled, prompts = played(Gymnasium(id, {"in_place": True, "limits": [0.2]}, processes=processes), policy)
    assert_equal(spoiled, clean)
    assert prompts.columns["options"] == [{"a": [1]}, {"a": [1]}]


class Shared(gymnasium.Env):
    """All worlds write their observations into one array."""

    observation_space = Box(0, np.inf, (1,), np.float32)
    action_space = Box(-np.inf, np.inf, (2,), np.float32)
    written = np.zeros(1, np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.at = seed
        return self.observed(), {}

    def observed(self):
        self.written[:] = self.at
        return self.written

    def step(self, action):
        self.at += 10
        return self.observed(), 0.0, False, False, {}


gymnasium.register("Shared-v0", Shared, max_episode_steps=2)


def test_gymnasium_worlds_that_share_an_array():
    prompts = PromptGroups(torch.arange(2), {"seed": torch.tensor([3, 4])})
    sampler = EnvironmentSampler(Gymnasium(f"{__name__}:Shared-v0"))
    rollouts = sampler.rollout(GaussianMLP(1, 2), prompts, 1, lambda *shape: torch.full((2, *shape), 0.5))
    assert rollouts.inputs["observations"].flatten().tolist() == [3, 13, 4, 14]


def test_functions_and_tools_that_work_in_place():
    seen = []

    def spoils(prompts, completions, completion_ids, colors):
        seen.append(str([prompts, completions, completion_ids, colors]))
        spoil([prompts, completions, completion_ids, colors])
        return [0.0] * 4

    chats = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    prompts = PromptGroups(torch.arange(2), {"prompt": chats, "colors": [["red"], []]})
    actions, mask = torch.ones(2, 2, 3, dtype=torch.long), torch.ones(2, 2, 3, dtype=torch.bool)
    rollouts = Rollouts(actions, mask, {}, info={"text": [["x"] * 2] * 2, "truncated": torch.zeros(2, 2)})
    FunctionTask({"first": spoils, "second": spoils}).score(prompts, rollouts)
    assert seen[0] == seen[1] and chats[0][0]["content"] == "a" and prompts.columns["colors"] == [["red"], []]

    call = {"name": "tool", "arguments": {"numbers": [1, 2]}}
    assert call_tool({"tool": lambda numbers: spoil(numbers)}, call, None) == "None"
    assert call["arguments"] == {"numbers": [1, 2]}


class Steps(Task):
    signals = {"right": "indicator", "wrong": "indicator"}  # noqa: RUF012
    spoils = False

    def score(self, prompts, rollouts):
        right = (rollouts.actions == 1)[..., 0].float()
        signals = {"right": Signal(right), "wrong": Signal(1 - right)}
        if self.spoils:
            spoil([prompts, rollouts])
        return signals


class Spoils(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for name in list(outputs):
            spoil(outputs[name])
        spoil(batch)

    on_validation_batch_end = on_train_batch_end


def module_of(world, task):
    return ConstrainedGRPO(
        CategoricalMLP(1, 3),
        EnvironmentSampler(world),
        task,
        Objective("right", {"wrong": Constraint(at_most=0.5)}),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        group_size=4,
    )


@pytest.mark.slow
def test_a_task_and_callbacks_that_work_in_place_change_no_run():
    def trained(spoils):
        torch.manual_seed(0)
        task, duals = Steps(), LagrangianCallback(SoftmaxAdam())
        task.spoils = spoils
        module = module_of(World(False), task)
        trainer = quiet_trainer(*([Spoils()] if spoils else []), duals, max_steps=3)
        trainer.fit(module, SeedDataModule(2, 32, 8, 8, 4, seed=0))
        return [*module.policy.parameters(), duals.controller.weights]

    for here, there in zip(trained(True), trained(False), strict=True):
        assert torch.equal(here, there)
