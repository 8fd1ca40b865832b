"""Tokens per second in rollout and training, and peak memory, with random weights.

Decoding is measured with and without CUDA graphs. A failure of one measurement leaves the others.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from benchmarks.gpu.device import Place
from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import make_tokenizer, word
from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, Constraint, FunctionTask, GenerationSampler, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules.base import PromptLoader
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.pass_memory import bytes_per_token
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from lightning_cgrpo.tasks.functions.prompts import Prompts

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
"""Qwen2.5's configurations; each has two key-value heads and a vocabulary of 151,936."""
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PROMPTS, GROUP, PROMPT_TOKENS, ANSWER_TOKENS, UPDATES = 4, 8, 256, 256, 3


def even(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[-1] % 2 == 0) for row in completion_ids]


def low(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[0] < 1000) for row in completion_ids]


def build(sizes: dict[str, int], vocabulary: int, device: torch.device) -> CausalLMPolicy:
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        **sizes,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        return CausalLMPolicy.from_model(model, make_tokenizer())


def one_size(
    where: Place, sizes: dict[str, int], vocabulary: int, prompt: int, answer: int, passed: int | None = GROUP
) -> dict[str, Any]:
    """Throughput and memory of training with passes of `passed` answers; None: by the GPU's free memory."""
    policy = build(sizes, vocabulary, where.device)
    module = ConstrainedGRPO(
        policy,
        GenerationSampler(answer, min_new_tokens=answer),
        FunctionTask({"even": even, "low": low}),
        Objective("even", {"low": Constraint(at_least=0.6)}),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-6),
        optimization=Optimization(kl_weight=0.02, micro_batch_size=passed, max_grad_norm=1.0),
        group_size=GROUP,
    )
    rollouts, trainings = Meter(), Meter()
    module.sample = rollouts.timed(module.sample)  # type: ignore[method-assign]
    steps = module.policy_steps
    steps.take = trainings.timed(steps.take)  # type: ignore[method-assign]
    draw = torch.Generator().manual_seed(0)
    texts = [" ".join(map(word, torch.randint(2, 2048, (prompt,), generator=draw).tolist())) for _ in range(64)]
    options: dict[str, Any] = {"accelerator": "pretended", "strategy": "pretended"}
    if not where.pretended:
        options = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed"}
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(
        max_steps=1 + UPDATES,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LagrangianCallback(SoftmaxAdam())],
        **options,
    )
    trainer.fit(module, PromptLoader(Prompts([{"prompt": text} for text in texts]), PROMPTS))
    answers = PROMPTS * GROUP
    result: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "rollout_tokens_per_second": round(answers * answer * UPDATES / sum(rollouts.seconds[1:])),
        "training_tokens_per_second": round(answers * (prompt + answer) * UPDATES / sum(trainings.seconds[1:])),
        "shares_prompts": policy.shares_prompts,
    }
    if passed is None:
        result["tokens_of_a_pass"] = module.manual_optimization.fitting_tokens
        result["megabytes_a_token_by_formula"] = round(bytes_per_token(policy) / 1e6, 2)
    if not where.pretended:
        result["peak_gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return result


def generated(policy: CausalLMPolicy, prompt: int, answer: int, half: bool, graphs: bool) -> tuple[Tensor, float]:
    """Tokens of a rollout, and its seconds, with the copy in bfloat16 under `half`."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, 2048, (PROMPTS, prompt), generator=draw).tolist()
    draws = torch.rand(PROMPTS, GROUP, answer, generator=draw, dtype=torch.float64)
    inputs, sampling = policy.padded(prompts), Sampling(answer, min_new_tokens=answer)
    engine = TransformersEngine(cuda_graphs=graphs)
    kind = policy.device.type
    synchronize(kind)
    started = time.perf_counter()
    with torch.autocast("cuda" if kind == "cuda" else "cpu", torch.bfloat16, half), engine.session(policy):
        tokens = engine.generate(policy, inputs, GROUP, sampling, draws).actions
    synchronize(kind)
    return tokens, time.perf_counter() - started


def synchronize(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def decoding(policy: CausalLMPolicy, prompt: int, answer: int, graphs: bool) -> dict[str, Any]:
    """Tokens per second of whole rollouts, and milliseconds of a step: what the last half of the steps takes."""
    half = policy.device.type == "cuda"
    generated(policy, prompt, answer, half, graphs)
    _, short = generated(policy, prompt, answer // 2, half, graphs)
    _, long = generated(policy, prompt, answer, half, graphs)
    return {
        "tokens_per_second": round(PROMPTS * GROUP * answer / long),
        "milliseconds_a_step": round(1e3 * (long - short) / (answer - answer // 2), 2),
    }


def equal_with_graphs(where: Place) -> dict[str, Any]:
    """Share of equal tokens with and without graphs, of a tiny model in float32 that grows over two captures."""
    policy = build(TINY, 2048, where.device)
    prompt, answer = (8, 6) if where.pretended else (20, 300)
    plain, graphed = (generated(policy, prompt, answer, False, graphs)[0].cpu() for graphs in (False, True))
    return {"equal_tokens": float((plain == graphed).double().mean())}


def throughput(where: Place) -> dict[str, Any]:
    sizes = {"tiny": TINY} if where.pretended else SIZES
    vocabulary, prompt, answer = (2048, 8, 4) if where.pretended else (151_936, PROMPT_TOKENS, ANSWER_TOKENS)
    results: dict[str, Any] = {}

    def attempt(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        try:
            results[name] = measure()
        except Exception as error:  # of one measurement; the others go on
            results[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        # A part that runs out of time has the lines so far.
        print(json.dumps(results), file=sys.__stdout__, flush=True)

    for name, size in sizes.items():
        for graphs in (False, True):
            policy = build(size, vocabulary, where.device)
            kind = "with graphs" if graphs else "without graphs"
            attempt(f"{name}, decoding {kind}", lambda p=policy, g=graphs: decoding(p, prompt, answer, g))  # type: ignore[misc]
            del policy
    attempt("graphs, tiny model in float32", lambda: equal_with_graphs(where))
    for name, size in sizes.items():
        attempt(name, lambda s=size: one_size(where, s, vocabulary, prompt, answer))  # type: ignore[misc]
    first, size = next(iter(sizes.items()))
    attempt(f"{first}, passes by free memory", lambda: one_size(where, size, vocabulary, prompt, answer, None))
    results["passed"] = not any("error" in result for result in results.values())
    return results
