"""The first steps move every trained tensor, or a line names those at rest; half-precision weights are not trained."""

import warnings

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, FunctionTask, GenerationSampler, Objective
from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.modules import first_steps
from lightning_cgrpo.modules.first_steps import FirstSteps
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.quiet import quiet_trainer

DATA = [{"prompt": "a b"}, {"prompt": "c"}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / "tiny", hidden_size=32, layers=1)
    model = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.bfloat16)
    model.save_pretrained(folder / "bfloat16")
    AutoTokenizer.from_pretrained(folder / "tiny").save_pretrained(folder / "bfloat16")
    return folder


def adam(weights, lr):
    return torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)


def fitted(policy, lr=1e-3, steps=3, schedule=None, scale=1.0, level=0.0, optimizer=adam):
    task = FunctionTask({"long": lambda completions: [level + scale * len(text) for text in completions]})
    module = ConstrainedGRPO(
        policy,
        GenerationSampler(max_new_tokens=6),
        task,
        Objective("long"),
        lambda weights: optimizer(weights, lr=lr),
        lr_scheduler=schedule,
        group_size=4,
        seed=0,
    )
    quiet_trainer(max_steps=steps).fit(module, PromptDataModule(DATA, prompts_per_update=2))
    return module


def told(recwarn):
    return [str(one.message) for one in recwarn if "trained tensors" in str(one.message)]


# ------------------------------------------------------------------ half precision


def from_model(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "bfloat16")  # transformers keeps the saved dtype
    return CausalLMPolicy.from_model(model, AutoTokenizer.from_pretrained(folder / "bfloat16"))


HALF = {
    "bfloat16": lambda folder: CausalLMPolicy(str(folder / "tiny"), dtype="bfloat16"),
    "float16": lambda folder: CausalLMPolicy(str(folder / "tiny"), dtype="float16"),
    "the saved dtype": lambda folder: CausalLMPolicy(str(folder / "bfloat16"), dtype=None),
    "transformers' default": from_model,
}


@pytest.mark.parametrize("made", HALF.values(), ids=HALF)
def test_half_precision_weights_are_not_trained(made, directory):
    with pytest.raises(UserError, match=r"Expected float32 weights to train, but got \d+ tensors in b?float16"):
        fitted(made(directory))


def test_adapters_on_frozen_half_precision_weights_are_trained(directory, recwarn):
    """A has no gradient in the first step, because B is 0."""
    module = fitted(CausalLMPolicy(str(directory / "tiny"), dtype="bfloat16", lora=LoRA(rank=4)))
    adapters = [weight for weight in module.policy.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in adapters} == {torch.float32}
    assert all(weight.abs().sum() for weight in adapters)
    assert told(recwarn) == []


# ------------------------------------------------------------------ a run


def test_a_run_that_learns_is_told_nothing(directory, recwarn):
    fitted(CausalLMPolicy(str(directory / "tiny")), lr=1e-6)
    assert told(recwarn) == []


def test_a_run_learns_the_same_from_rewards_far_from_0(directory):
    """Steps of a quarter at 1e7, of which float32 keeps none."""
    runs = [fitted(CausalLMPolicy(str(directory / "tiny")), scale=0.25, level=level) for level in (0.0, 1e7)]
    near, far = (torch.cat([weight.flatten() for weight in run.policy.parameters()]) for run in runs)
    torch.testing.assert_close(far, near, rtol=0, atol=2e-5)
    assert (near - starting_weights(directory)).abs().max() > 1e-3


def starting_weights(directory):
    policy = CausalLMPolicy(str(directory / "tiny"))
    policy.load()
    return torch.cat([weight.flatten() for weight in policy.parameters()])


def test_a_rate_below_rounding_is_told(directory, recwarn):
    fitted(CausalLMPolicy(str(directory / "tiny")), lr=1e-12)
    (line,) = told(recwarn)
    assert "hardly moved" in line and "larger learning rate" in line


def test_a_tensor_that_no_pass_uses_is_named(directory, recwarn):
    policy = CausalLMPolicy(str(directory / "tiny"))
    policy.load()
    policy.model.forgotten = nn.Parameter(torch.ones(3))
    fitted(policy)
    (line,) = told(recwarn)
    assert line.startswith("1 of ") and "model.forgotten" in line and "had no gradient" in line


def test_a_schedule_that_begins_at_0_is_looked_at_later(directory, recwarn):
    def warm_up(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(update / 2, 1.0))

    module = fitted(CausalLMPolicy(str(directory / "tiny")), schedule=warm_up, steps=4)
    assert told(recwarn) == [] and module.manual_optimization.first_steps.steps_left == 0


# ------------------------------------------------------------------ steps by hand


def stepped(network, gradients, optimizer):
    """Steps with the given gradients by name; returns the warnings."""
    look = FirstSteps(network)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in gradients:
            for name, weight in network.named_parameters():
                weight.grad = step.get(name)
            before = look.before(optimizer)
            optimizer.step()
            look.after(before)
    return [str(one.message) for one in caught]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))


ONE, NONE = torch.ones(4), torch.zeros(4)


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([{"a": ONE, "b": ONE}] * 2, []),
        ([{"a": ONE, "b": NONE}, {"a": ONE, "b": ONE}], []),  # as of LoRA's A
        ([{}, {"a": NONE, "b": NONE}, {"a": ONE, "b": ONE}], []),  # steps that teach nothing say nothing
        ([{"a": ONE, "b": NONE}] * 2, ["1 of 2 trained tensors, such as b, had no gradient"]),
        ([{"a": ONE}] * 2, ["1 of 2 trained tensors, such as b, had no gradient"]),
        ([{"a": ONE, "b": 1e-9 * ONE}] * 2, ["1 of 2 trained tensors, such as b, hardly moved"]),
        ([{"a": ONE, "b": torch.tensor([1.0, 1, 1e-9, 0])}] * 2, []),  # two of three numbers move
        ([{"a": ONE, "b": torch.tensor([1.0, 1e-9, 1e-9, 0])}] * 2, ["such as b, hardly moved"]),
    ],
)
def test_tensors_at_rest_are_named(gradients, expected):
    network = Two()
    lines = stepped(network, gradients, torch.optim.SGD(network.parameters(), lr=0.1))
    assert len(lines) == len(expected)
    assert all(part in line for part, line in zip(expected, lines, strict=True))


def test_later_steps_are_not_looked_at(monkeypatch):
    network = Two()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    look, counted = FirstSteps(network), []
    monkeypatch.setattr(first_steps, "all_sum", lambda tensor: counted.append(1) or tensor)
    for step in range(5):
        for weight in network.parameters():
            weight.grad = torch.ones(4)
        before = look.before(optimizer)
        look.after(before)
        assert (before is None) == (step >= first_steps.STEPS)
    assert len(counted) == 2 * first_steps.STEPS


# ------------------------------------------------------------------ optimizers


class OwnClosure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (torch.optim.LBFGS, "LBFGS, which computes the loss again"),
        (OwnClosure, "OwnClosure, which computes the loss again"),
        (torch.optim.SparseAdam, "SparseAdam, which takes sparse gradients"),
    ],
)
def test_optimizers_that_take_no_dense_gradients_alone_are_refused(optimizer, told, directory):
    with pytest.raises(UserError, match=told):
        fitted(CausalLMPolicy(str(directory / "tiny")), optimizer=optimizer)
