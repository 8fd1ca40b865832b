"""Passes are as long as a GPU's memory allows; on a CPU nothing is chosen."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    FunctionTask,
    GenerationSampler,
    Objective,
    Optimization,
    SupervisedFineTuning,
)
from lightning_cgrpo.callbacks import Checkpoints
from lightning_cgrpo.core.rollout import Examples
from lightning_cgrpo.datamodules import PromptDataModule
from lightning_cgrpo.modules import manual_optimization
from lightning_cgrpo.policies import pass_memory
from lightning_cgrpo.policies.adapters import LoRA
from lightning_cgrpo.policies.pass_memory import bytes_per_token, fitting_tokens
from lightning_cgrpo.samplers import transformers_engine
from tests.policies.causal_families import build
from tests.policies.small_policies import loaded
from tests.quiet import quiet_trainer

PROMPT, ANSWER, ANSWERS = 128, 64, 4
LAYERS = 4
SHAPE = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": LAYERS,
    "max_position_embeddings": 512,
}  # fmt: skip
FAMILIES = {
    "qwen2": SHAPE,
    "llama": SHAPE,
    "gemma": {**SHAPE, "head_dim": 32},
    "phi3": {**SHAPE, "sliding_window": None},
    "gpt2": {"vocab_size": 500, "n_embd": 128, "n_layer": LAYERS, "n_positions": 512, "n_inner": None},
}


def kept_bytes(policy):
    """Bytes a token that autograd keeps of a training pass, besides weights and their casts."""
    ids, actions = torch.randint(500, (1, PROMPT)), torch.randint(500, (ANSWERS, ANSWER))
    every, own = (torch.ones_like(tokens, dtype=torch.bool) for tokens in (ids, actions))
    group = torch.zeros(ANSWERS, dtype=torch.int64)
    examples = Examples({}, actions, own, group, {"prompt_ids": ids, "prompt_mask": every})
    weights = {weight.untyped_storage().data_ptr() for weight in policy.parameters()}
    sizes = {2 * weight.numel() for weight in policy.parameters() if weight.ndim == 2}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and storage.nbytes() not in sizes:
            kept[storage.data_ptr()] = storage  # as long as it is kept, its place is its own
        return tensor

    autocast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    with autocast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = policy(examples)
    assert output.log_probs.requires_grad
    return sum(storage.nbytes() for storage in kept.values()) / (PROMPT + ANSWERS * ANSWER)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_keeps_no_more_bytes_than_expected(family, recomputes, tokenizer):
    model = build(family, **FAMILIES[family])
    policy = CausalLMPolicy.from_model(model, tokenizer, gradient_checkpointing=recomputes)
    expected = bytes_per_token(policy)
    if recomputes:  # later, in the backward pass, the activations of one layer come on top
        policy.gradient_checkpointing = False
        expected -= bytes_per_token(policy) / LAYERS
    probabilities = 4 * 500 * ANSWERS * ANSWER / (PROMPT + ANSWERS * ANSWER)  # of the answers, counted apart
    kept = kept_bytes(policy) - probabilities
    assert 0.6 * expected < kept < expected


def test_the_tokens_of_a_pass_follow_from_free_memory(directory, monkeypatch):
    policy, adapted = loaded(directory), loaded(directory, lora=LoRA(rank=2))
    autocast = torch.autocast("cpu", torch.bfloat16)

    def fitting(policy, *more):
        return fitting_tokens(policy, [*more, *(weight for weight in policy.parameters() if weight.requires_grad)])

    with autocast:
        assert fitting(policy) is None, "a CPU"
    trained = 5 * 4 * sum(weight.numel() for weight in policy.parameters())
    room = trained + pass_memory.LOGITS + 2000 * bytes_per_token(policy) / pass_memory.SHARE
    monkeypatch.setattr(pass_memory, "free_bytes", lambda device: room)
    assert fitting(policy) is None, "in float32, attention takes more"
    with autocast:
        assert fitting(policy) == 1024
        assert fitting(policy, torch.zeros(10**6)) == 1, "a critic has moments, too"
        monkeypatch.setattr(pass_memory, "gather_counts", lambda tokens, device: [tokens, 700])
        assert fitting(policy) == 512, "on every process"
        monkeypatch.setattr(pass_memory, "gather_counts", lambda tokens, device: [tokens])
        assert bytes_per_token(adapted) == bytes_per_token(policy)
        assert fitting(adapted) == 2048, "few weights have moments"
        monkeypatch.setattr(pass_memory, "free_bytes", lambda device: 0)
        assert fitting(policy) == 1, "an answer a pass"


def long(completions, **_):
    return [float(len(text)) for text in completions]


@pytest.fixture
def fit(directory, tmp_path, monkeypatch):
    """Trains in bf16-mixed, and returns the tokens that the module chose, and the answers of each pass."""
    rows = [{"prompt": f"Count to {number}.", "completion": "1, 2"} for number in range(4)]

    def run(updates, free, checkpoint=None, kind=ConstrainedGRPO, recomputes=False, **options):
        monkeypatch.setattr(pass_memory, "free_bytes", lambda device: free)
        if checkpoint is None:  # a folder belongs to one run
            for left in tmp_path.glob("*.ckpt"):
                left.unlink()
        module = kind(
            policy=CausalLMPolicy(str(directory), gradient_checkpointing=recomputes),
            sampler=GenerationSampler(max_new_tokens=8),
            task=FunctionTask({"long": long}),
            objective=Objective("long"),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
            **options,
        )
        passes = []

        def count(*_):  # not the passes of the comparison at loading
            module.policy.register_forward_hook(lambda _, given, output: passes.append(len(given[0])))

        data = PromptDataModule(rows, prompts_per_update=2)
        saved = Checkpoints(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
        how = {"enable_checkpointing": True, "precision": "bf16-mixed", "max_steps": updates}
        trainer = quiet_trainer(saved, LambdaCallback(on_train_start=count), **how)
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
        return module.manual_optimization.fitting_tokens, passes

    return run


def test_a_run_keeps_its_passes_in_checkpoints(fit, tmp_path):
    """A resume elsewhere has the same sums, whatever memory is free there."""
    chosen, passes = fit(1, free=0)
    assert chosen == 1 and set(passes) == {1}
    assert torch.load(tmp_path / "step=1.ckpt", weights_only=True)["micro_batch_tokens"] == 1
    chosen, passes = fit(2, free=2**40, checkpoint=tmp_path / "step=1.ckpt")
    assert chosen == 1 and set(passes) == {1}
    chosen, passes = fit(2, free=2**40)
    assert chosen > 2**20 and set(passes) == {16}


def test_a_run_keeps_the_memory_of_its_rollouts_in_checkpoints(fit, tmp_path, monkeypatch):
    """A resume generates as many answers at once as before."""
    monkeypatch.setattr(transformers_engine, "IN_PAGES", {"cpu"})
    fit(1, free=2**34)
    kept = torch.load(tmp_path / "step=1.ckpt", weights_only=True)["rollout_bytes"]
    assert kept == 2**31, "a quarter, rounded down, since some is for training"
    fit(2, free=2**40, checkpoint=tmp_path / "step=1.ckpt")
    assert torch.load(tmp_path / "step=2.ckpt", weights_only=True)["rollout_bytes"] == kept
    monkeypatch.setattr(pass_memory, "free_bytes", lambda device: 0)
    assert pass_memory.fitting_rollout(SimpleNamespace(device="cpu", parameters=list)) == pass_memory.LEAST_ROLLOUT


@pytest.mark.parametrize(
    ("recomputes", "free", "told"),
    [(True, 2**40, True), (True, pass_memory.LOGITS + 2**24, False), (False, 2**40, False)],
)
def test_a_run_that_recomputes_without_need_is_told(fit, monkeypatch, recomputes, free, told):
    said = []
    monkeypatch.setattr(manual_optimization, "rank_zero_info", said.append)
    fit(1, free=free, recomputes=recomputes)
    assert any("tokens, by the GPU's free memory" in line for line in said)
    assert any("Without gradient_checkpointing, a pass would have" in line for line in said) == told


def test_demonstrations_fit_too(fit):
    assert fit(1, free=0, kind=SupervisedFineTuning) == (1, [1, 1])
    assert fit(1, free=2**40, kind=SupervisedFineTuning)[1] == [2]
    assert fit(1, free=0, kind=SupervisedFineTuning, micro_batch_size=2) == (None, [2])


@pytest.mark.parametrize(("options", "most"), [({"micro_batch_size": 2}, 2), ({"micro_batch_tokens": 10**6}, 16)])
def test_options_win(fit, tmp_path, options, most):
    chosen, passes = fit(1, free=0, optimization=Optimization(**options))
    assert chosen is None and set(passes) == {most}
    assert "micro_batch_tokens" not in torch.load(tmp_path / "step=1.ckpt", weights_only=True)
