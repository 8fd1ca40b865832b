"""Classes of one's own that lack a method, and names or settings in the place of a part, are named in one line."""

import pytest
import torch

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedAdvantages,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    ScalarizedAdvantages,
)
from lightning_cgrpo.__main__ import main
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.errors import UserError
from tests.quiet import GRIDWORLD

OWN = """\
from lightning_cgrpo import AdvantageEstimator
from lightning_cgrpo.multipliers import Controller
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task


class Sign(AdvantageEstimator):
    def __call__(self, rollouts, statistics, weights):
        return statistics.deviation.sum(0)


class Unscored(Task):
    pass


class Silent(Sampler):
    longest = 8


class Still(Controller):
    pass


class Mine(Silent):
    pass
"""


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--model.estimator=own.Sign", r"model\.estimator: .*own\.Sign \(own\.py:7\) is abstract: it lacks effect"),
        ("--model.estimator={class_path: own.Sign}", r"own\.Sign \(own\.py:7\) .* which AdvantageEstimator declares"),
        ("--model.task=own.Unscored", r"own\.Unscored \(own\.py:12\) is abstract: it lacks score, which Task declares"),
        ("--model.sampler=own.Silent", r"own\.Silent \(own\.py:16\) is abstract: it lacks rollout"),
        ("--model.sampler=own.Mine", r"own\.Mine \(own\.py:24\) is abstract: it lacks rollout"),
        ("--callbacks.multipliers.controller=own.Still", r"own\.Still \(own\.py:20\) is abstract: it lacks"),
    ],
)
def test_a_class_that_lacks_a_method_is_named(folder, monkeypatch, flag, words):
    (folder / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(UserError, match=words) as error:
        main(["fit", *GRIDWORLD, flag])
    assert "\n" not in str(error.value)


PARTS = {
    "policy": CausalLMPolicy("none"),
    "sampler": GenerationSampler(8),
    "task": FunctionTask({"size": lambda completions: [0.0] * len(completions)}),
    "objective": Objective("size"),
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"objective": {"reward": "size"}}, "`objective` to be an Objective, but got a dict"),
        ({"objective": "size"}, "`objective` to be an Objective, but got the text 'size'"),
        ({"sampler": {"max_new_tokens": 8}}, "`sampler` to be a Sampler, but got a dict"),
        ({"task": "gsm8k"}, "`task` to be a Task, but got the text 'gsm8k'"),
        ({"estimator": "ScalarizedAdvantages"}, "`estimator` to be an AdvantageEstimator, but got the text"),
        ({"estimator": ScalarizedAdvantages}, "`estimator` to be an instance, but got a class"),
        ({"optimization": {"kl_weight": 0.1}}, "`optimization` to be an Optimization, but got a dict"),
        ({"optimizer": "AdamW"}, "optimizer to be a function that makes one, but got 'AdamW'"),
    ],
)
def test_a_part_of_another_kind_is_named(part, words):
    with pytest.raises(UserError, match=words):
        ConstrainedGRPO(**{**PARTS, **part})


@pytest.mark.parametrize("controller", ["PID", {"margin": 0}])
def test_a_controllers_name_is_no_controller(controller):
    objective = Objective("size", {"long": Constraint(at_most=0.1)})
    for made in (LagrangianCallback, lambda given: ConstrainedAdvantages(objective, given)):
        with pytest.raises(UserError, match="`controller` to be a Controller, but got"):
            made(controller)
