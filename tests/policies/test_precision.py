"""Casts of weights under autocast: each once in a rollout, none for the reference, and never a stale one."""

import copy
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_cgrpo import CategoricalMLP, Constraint
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GridworldDataModule
from lightning_cgrpo.policies import precision as module_of_precision
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.precision import advise_bfloat16, automatic_precision, cast_once, keep_cast, use_tf32
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from tests.grids import grid_module
from tests.policies.small_policies import loaded
from tests.quiet import quiet_trainer
from tests.samplers.rolled import groups, rolled

CPU = torch.device("cpu")
MODEL = "packaged:word-problems"


class Casts(TorchDispatchMode):
    """Counts casts of parameters to bfloat16."""

    def __init__(self, parameters):
        super().__init__()
        self.places, self.count = {parameter.data_ptr() for parameter in parameters}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.count += args[0].data_ptr() in self.places
        return func(*args, **kwargs)


@pytest.fixture
def policy(tmp_path):
    return loaded(make_tiny_model(tmp_path / "tiny", hidden_size=32, layers=2)).eval()


def answers(policy):
    with torch.no_grad():
        return rolled(policy, 6, 3, groups(["one", "two and three"]))


def autocast():
    """As Lightning's ``bf16-mixed``."""
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)


@pytest.mark.parametrize(
    ("policy", "accelerator", "gpu", "half", "chosen"),
    [
        (CausalLMPolicy(MODEL), "auto", True, True, "bf16-mixed"),
        (CausalLMPolicy(MODEL, dtype="bfloat16"), "gpu", True, True, "bf16-mixed"),
        (CausalLMPolicy(MODEL), "cuda", True, False, "32-true"),  # a GPU older than Ampere
        (CausalLMPolicy(MODEL, dtype="float64"), "cuda", True, True, "32-true"),
        (CausalLMPolicy(MODEL), "cpu", True, True, "32-true"),
        (CausalLMPolicy(MODEL), "auto", False, True, "32-true"),
        (CategoricalMLP(3, 2), "cuda", True, True, "32-true"),
        (None, "cuda", True, True, "32-true"),
    ],
)
def test_language_models_on_a_gpu_compute_in_bfloat16(policy, accelerator, gpu, half, chosen, monkeypatch):
    monkeypatch.setattr(CUDAAccelerator, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half or including_emulation)
    assert automatic_precision(policy, accelerator) == chosen


@pytest.mark.parametrize(
    ("accelerator", "precision", "large", "multiplies", "advised"),
    [
        (CPUAccelerator(), "32-true", True, True, True),
        (CPUAccelerator(), "32-true", True, False, False),
        (CPUAccelerator(), "32-true", False, True, False),
        (CPUAccelerator(), "bf16-mixed", True, True, False),
        (CUDAAccelerator(), "32-true", True, True, False),
    ],
)
def test_large_models_are_advised_on_cpus_that_multiply_bfloat16(
    accelerator, precision, large, multiplies, advised, policy, monkeypatch
):
    said = []
    monkeypatch.setattr(module_of_precision, "rank_zero_info", said.append)
    monkeypatch.setattr(module_of_precision, "LARGE", 1000 if large else 10**9)
    for name, answer in zip(module_of_precision.BFLOAT16, (False, multiplies), strict=True):
        monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer)
    trainer = SimpleNamespace(accelerator=accelerator, precision=precision)
    advise_bfloat16(policy, trainer)
    advise_bfloat16(CategoricalMLP(500, 20), trainer)  # no language model
    assert len(said) == advised


@pytest.fixture
def undecided():
    """PyTorch's state before any choice of how float32 matrices are multiplied."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    yield
    torch.set_float32_matmul_precision(before)


def test_a_gpu_multiplies_in_tf32_unless_the_program_has_chosen(undecided):
    use_tf32(CPUAccelerator())
    assert torch.get_float32_matmul_precision() == "highest"
    use_tf32(CUDAAccelerator())
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    use_tf32(CUDAAccelerator())
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_script_on_a_gpu_has_tf32_before_the_device_is_set_up(undecided, monkeypatch):
    """Where Lightning would advise it."""
    found = []
    monkeypatch.setattr("lightning.pytorch.trainer.trainer.Trainer.accelerator", CUDAAccelerator())
    set_up = "lightning.pytorch.strategies.SingleDeviceStrategy.setup_environment"
    monkeypatch.setattr(set_up, lambda _: found.append(torch.get_float32_matmul_precision()))
    module = grid_module({"lava": Constraint(at_most=0.01)}, max_steps=5)
    data = GridworldDataModule(prompts_per_update=4, train_prompts=4)
    quiet_trainer(LagrangianCallback(), max_steps=1).fit(module, data)
    assert found == ["high"]


def test_a_rollout_casts_each_weight_once(policy):
    linear = [module.weight for module in policy.modules() if isinstance(module, nn.Linear)]
    with autocast(), Casts(linear) as once:
        answers(policy)
    assert 0 < once.count <= len(linear)


def test_passes_of_other_samplers_cast_each_weight_once(policy):
    linear = [module.weight for module in policy.modules() if isinstance(module, nn.Linear)]
    ids = torch.arange(5)[None]

    def passes():
        with torch.no_grad():
            return [policy.model(input_ids=ids).logits for _ in range(3)]

    with autocast(), Casts(linear) as every_pass:
        without = passes()
    with autocast(), cast_once(CPU), Casts(linear) as once:
        kept = passes()
    assert every_pass.count > 2 * len(linear)
    assert 0 < once.count <= len(linear)
    assert all(torch.equal(one, other) for one, other in zip(without, kept, strict=True))


def test_no_cast_outlives_the_rollout(policy):
    """A cast that stayed would be stale after the optimizer's step, and without gradient."""
    layer, x = nn.Linear(3, 2), torch.ones(1, 3)
    with autocast():
        with torch.no_grad(), cast_once(CPU):
            before = layer(x)
        with torch.no_grad():
            layer.weight.add_(1.0)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            after = layer(x)
    after.sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(after - before, torch.full((1, 2), 3.0).bfloat16(), rtol=0, atol=0.05)


def test_a_frozen_network_of_cast_weights_gives_equal_results(policy):
    rollouts = answers(policy)
    frozen = copy.deepcopy(policy).requires_grad_(False)
    keep_cast(frozen)
    size = [sum(p.numel() * p.element_size() for p in network.parameters()) for network in (policy, frozen)]
    assert size[1] < 0.8 * size[0]
    assert {module.weight.dtype for module in frozen.modules() if isinstance(module, nn.Embedding)} == {torch.float32}
    with autocast(), torch.no_grad():
        expected, found = (network(network.examples(rollouts)) for network in (policy, frozen))
    assert torch.equal(expected.log_probs, found.log_probs)
    assert torch.equal(expected.entropy, found.entropy)
