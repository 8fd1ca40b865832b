"""Products by oneDNN have PyTorch's numbers, in rollouts and in training."""

import pytest
import torch
from torch import nn

from lightning_cgrpo import (
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    VisionLanguagePolicy,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies import onednn
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.continuation import PromptBatch
from lightning_cgrpo.policies.onednn import CLOSE, FEWEST, arranged_weights, faster_products
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from lightning_cgrpo.tasks.functions.prompts import Prompts
from tests.policies.small_policies import gradients, loaded, perturb, ragged
from tests.quiet import quiet_trainer

PROMPTS, GROUP_SIZE, LENGTH = [[5, 6, 7], [8, 9, 10, 11]], 4, 12
FEW = 500  # weights of a large layer in these tests


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden_size=32)


@pytest.fixture
def calls(request, monkeypatch):
    """Rows of each product by oneDNN."""
    assert onednn._agrees_here(torch.float32), "on this machine"
    if "dtype" in request.fixturenames and not onednn._agrees_here(getattr(torch, request.getfixturevalue("dtype"))):
        pytest.skip("oneDNN has no products in this dtype on this processor, such as bfloat16 without AVX-512")
    monkeypatch.setattr(onednn, "FEWEST", FEW)
    monkeypatch.setattr(onednn, "SMALL", 0)
    rows, product = [], onednn._onednn_linear

    def counted(states, *others):
        rows.append(states.shape[-2])
        return product(states, *others)

    monkeypatch.setattr(onednn, "_onednn_linear", counted)
    return rows


def linears(policy):
    return [module for module in policy.modules() if isinstance(module, nn.Linear)]


def even(completion_ids, **columns):
    return [float(row[-1] % 2 == 0) for row in completion_ids]


def low(completion_ids, **columns):
    return [float(row[0] < 200) for row in completion_ids]


def logits(policy):
    """Logits after the prompts, and after a token of each answer."""
    inputs = policy.padded(PROMPTS)
    tokens = torch.arange(20, 20 + len(PROMPTS) * GROUP_SIZE)
    with torch.no_grad():
        lengths = inputs["prompt_mask"].sum(-1)
        prompts = PromptBatch(inputs, lengths, torch.full_like(lengths, LENGTH), GROUP_SIZE)
        continuation = policy.continuation(prompts)
        return torch.cat([continuation.read(), continuation.next(None, tokens)]).float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shares", [True, False])
def test_logits_are_equal_to_rounding(directory, calls, dtype, shares):
    policy = loaded(directory, dtype=dtype, share_prompts=shares)
    calls.clear()  # of the comparison at loading
    expected = logits(policy)
    assert not calls
    with arranged_weights(policy):
        found = logits(policy)
    layers = sum(layer.weight.numel() >= FEW for layer in linears(policy))
    assert len(calls) == 2 * layers, "prompts and a step, with the output layer"
    close = CLOSE[getattr(torch, dtype)]
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


def test_greedy_answers_are_equal(directory, calls):
    policy = loaded(directory)
    calls.clear()  # of the comparison at loading
    draws, sampling = torch.full((len(PROMPTS), GROUP_SIZE, LENGTH), 0.5), Sampling(LENGTH, top_k=1)
    inputs, engine = policy.padded(PROMPTS), TransformersEngine()
    expected = engine.generate(policy, inputs, GROUP_SIZE, sampling, draws)
    assert not calls
    with engine.session(policy):
        found = engine.generate(policy, inputs, GROUP_SIZE, sampling, draws)
    assert calls and torch.equal(found.actions, expected.actions) and torch.equal(found.mask, expected.mask)


def test_afterwards_weights_may_change(directory, calls):
    policy = loaded(directory)
    before = logits(policy)
    with arranged_weights(policy):
        pass
    assert not any("forward" in layer.__dict__ for layer in linears(policy))
    with torch.no_grad():
        for layer in linears(policy):
            layer.weight.mul_(1.5)
    changed = logits(policy)
    assert not torch.allclose(changed, before)
    with arranged_weights(policy):
        torch.testing.assert_close(logits(policy), changed, rtol=1e-4, atol=1e-4)


def test_adapters_are_added(directory, calls):
    pytest.importorskip("peft")
    policy = loaded(directory, lora=LoRA(rank=4, alpha=16))
    perturb(policy)
    expected = logits(policy)
    with arranged_weights(policy):
        torch.testing.assert_close(logits(policy), expected, rtol=1e-4, atol=1e-4)
    assert calls


def test_passes_with_gradients_read_the_weights_themselves(directory, calls):
    policy = loaded(directory)
    calls.clear()  # of the comparison at loading
    ids = torch.tensor([[5, 6, 7]])
    with arranged_weights(policy):
        policy.model(input_ids=ids).logits.sum().backward()
    assert not calls and all(layer.weight.grad is not None for layer in linears(policy))


def test_without_onednn_pytorch_multiplies(directory, calls, monkeypatch):
    def missing(*arguments):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    policy = loaded(directory)
    expected = logits(policy)
    onednn._agrees_here.cache_clear()
    monkeypatch.setattr(onednn, "_onednn_linear", missing)
    try:
        with arranged_weights(policy):
            assert torch.equal(logits(policy), expected)
    finally:
        onednn._agrees_here.cache_clear()


def passed(policy):
    """Log-probabilities of ragged answers and the gradients of a weighted sum of them."""
    output = policy(policy.examples(ragged()))
    weights = torch.linspace(-1, 1, output.log_probs.numel()).view(output.log_probs.shape)
    (weights * output.log_probs + 0.1 * output.entropy).sum().backward()
    return output.log_probs.detach(), gradients(policy)


@pytest.mark.parametrize("kind", ["shared", "padded", "checkpointed", "adapters"])
def test_training_has_pytorchs_gradients(directory, calls, monkeypatch, kind):
    options = {"share_prompts": kind != "padded", "gradient_checkpointing": kind == "checkpointed"}
    if kind == "adapters":
        pytest.importorskip("peft")
        options["lora"] = LoRA(rank=4, alpha=16)
    policy = loaded(directory, **options)
    with monkeypatch.context() as patch:
        patch.setattr(onednn, "FEWEST", 10**9)
        expected, of_weights = passed(policy)
    calls.clear()
    with faster_products(policy, None):
        found, found_of_weights = passed(policy)
    assert calls
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_of_weights, of_weights, rtol=1e-4, atol=1e-5)
    assert not any("forward" in layer.__dict__ for layer in linears(policy))


def test_biases_have_gradients(calls):
    torch.manual_seed(0)
    layer, states = nn.Linear(32, 64), torch.randn(2, 5, 32, requires_grad=True)
    with faster_products(layer):
        layer(states).square().sum().backward()
    found = states.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()
    assert len(calls) == 3
    states.grad = None
    layer.zero_grad()
    layer(states).square().sum().backward()
    torch.testing.assert_close(found, (states.grad, layer.weight.grad, layer.bias.grad), rtol=1e-4, atol=1e-4)


def test_half_precision_trains_by_pytorchs_products(directory, calls):
    """Autocast casts a layer's operands, and PyTorch multiplies them by oneDNN already."""
    policy = loaded(directory)
    calls.clear()
    with torch.autocast("cpu", torch.bfloat16), faster_products(policy):
        passed(policy)
    assert not calls


def updated(directory):
    """Weights after an update with a reference."""
    module = ConstrainedGRPO(
        loaded(directory),
        GenerationSampler(LENGTH),
        FunctionTask({"even": even, "low": low}),
        Objective("even", {"low": Constraint(at_least=0.6)}),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        optimization=Optimization(kl_weight=0.02),
        group_size=8,
    )
    rows = [{"prompt": text} for text in ("one", "two and three")]
    quiet_trainer(LagrangianCallback(SoftmaxAdam()), max_steps=1).fit(module, PromptLoader(Prompts(rows), 2))
    return {name: weight.detach().clone() for name, weight in module.policy.named_parameters()}


def test_an_update_is_pytorchs(directory, calls, monkeypatch):
    trained, forward = [], onednn._Trained.__call__

    def noted(layer, states):
        trained.append(layer)
        return forward(layer, states)

    monkeypatch.setattr(onednn._Trained, "__call__", noted)
    found = updated(directory)
    assert trained
    calls.clear()
    monkeypatch.setattr(onednn, "FEWEST", 10**9)
    expected = updated(directory)
    assert not calls
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    start = dict(loaded(directory).named_parameters())
    assert any(not torch.equal(weight, start[name]) for name, weight in expected.items())


def test_packaged_models_keep_the_rounding_of_their_results():
    """Committed results and README's card were made with PyTorch's products."""
    policy = loaded("packaged:driver", VisionLanguagePolicy)
    large = [module for module in policy.modules() if type(module) is nn.Linear and module.weight.numel() >= FEWEST]
    assert large
    with arranged_weights(policy), faster_products(policy):
        assert not any("forward" in module.__dict__ for module in policy.modules())
    output = policy.network.get_output_embeddings().weight
    assert output.numel() < FEWEST  # `faster_linear` multiplies by it without a network
