"""Training passes, the head of log-probabilities, and whole updates with default settings."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer

from benchmarks.gpu.device import Attempts, Measured, Place
from benchmarks.gpu.models import GROUP, SIZES, TINY, build, random_tokens
from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import word
from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, Constraint, FunctionTask, GenerationSampler, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.rollout import Examples, Rollouts
from lightning_cgrpo.datamodules.base import PromptLoader
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.pass_memory import bytes_per_token
from lightning_cgrpo.policies.shared_prefix.log_probs import linear_log_probs
from lightning_cgrpo.tasks.functions.prompts import Prompts

PROMPT_TOKENS, ANSWER_TOKENS = 256, 256
GROUPS = (1, 4, 16)
"""Prompts of a pass."""
PROMPTS, UPDATES = 16, 2
"""Prompts of an update, and updates that are timed, after the first."""


def passes(where: Place) -> Measured:
    """Forward and backward passes of 8, 32 and 128 answers, then with layers that PyTorch compiles."""
    attempt = Attempts()
    prompt, answer = (8, 8) if where.tiny else (PROMPT_TOKENS, ANSWER_TOKENS)

    def examples(policy: CausalLMPolicy, groups: int) -> Examples:
        actions = random_tokens(groups, GROUP, answer)
        inputs = policy.padded(random_tokens(groups, prompt).tolist())
        return policy.examples(Rollouts(actions, torch.ones_like(actions, dtype=torch.bool), inputs).to(where.device))

    def one_pass(policy: CausalLMPolicy, given: Examples) -> None:
        with where.half():
            policy(given).log_probs.sum().backward()
        policy.zero_grad(set_to_none=True)

    for name, size in ({"tiny": TINY} if where.tiny else SIZES).items():
        policy = build(size, 2048 if where.tiny else 151_936, where.device)
        for groups in GROUPS if name == "0.5B" else GROUPS[:2]:
            given = examples(policy, groups)
            attempt(f"{name}, {groups * GROUP} answers", lambda p=policy, g=given: where.traced(lambda: one_pass(p, g)))  # type: ignore[misc]
        if name == "0.5B":
            for layer in policy.layers():
                layer.compile(dynamic=True)
            given = examples(policy, GROUPS[1])
            first: Measured = {}

            def compiled(policy: CausalLMPolicy = policy, given: Examples = given, first: Measured = first) -> Measured:
                first["first_seconds"] = round(where.seconds(lambda: one_pass(policy, given)), 1)
                return {**first, **where.traced(lambda: one_pass(policy, given))}

            attempt(f"{name}, {GROUPS[1] * GROUP} answers, compiled layers", compiled)
        del policy
    return attempt.result()


def head(where: Place) -> Measured:
    """Log-probabilities and entropies from hidden states, by rows of a chunk, beside their four products alone."""
    attempt = Attempts()
    width, tokens, vocabulary = (32, 64, 2048) if where.tiny else (896, 8192, 151_936)
    states = torch.randn(tokens, width, device=where.device, requires_grad=True)
    weight = torch.randn(vocabulary, width, device=where.device, requires_grad=True)
    actions = torch.zeros(tokens, dtype=torch.int64, device=where.device)

    def values(rows: int) -> None:
        with where.half():
            log_probs, entropy = linear_log_probs(states, weight, actions, rows=rows)
        (log_probs.sum() + 0.01 * entropy.sum()).backward()

    for rows in (110, 441, 1764):
        attempt(f"chunks of {rows} tokens", lambda r=rows: where.traced(lambda: values(r)))  # type: ignore[misc]
    with torch.no_grad():
        half_states, half_weight = states.bfloat16(), weight.bfloat16()
        products = where.seconds(lambda: half_states @ half_weight.T, repeats=3)
    attempt("products", lambda: {"milliseconds": round(4e3 * products, 2)})
    return attempt.result()


def even(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[-1] % 2 == 0) for row in completion_ids]


def low(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(row[0] < 1000) for row in completion_ids]


def updates(where: Place, sizes: dict[str, int], vocabulary: int, prompt: int, answer: int) -> Measured:
    """Throughput and memory of updates with default settings."""
    policy = build(sizes, vocabulary, where.device)
    module = ConstrainedGRPO(
        policy,
        GenerationSampler(answer, min_new_tokens=answer),
        FunctionTask({"even": even, "low": low}),
        Objective("even", {"low": Constraint(at_least=0.6)}),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-6),
        optimization=Optimization(kl_weight=0.02),
        group_size=GROUP,
    )
    rollouts, trainings = Meter(), Meter()
    module.sample = rollouts.timed(module.sample)  # type: ignore[method-assign]
    steps = module.policy_steps
    steps.take = trainings.timed(steps.take)  # type: ignore[method-assign]
    texts = [" ".join(map(word, row)) for row in random_tokens(4 * PROMPTS, prompt).tolist()]
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
    prompts = 2 if where.tiny else PROMPTS
    trainer.fit(module, PromptLoader(Prompts([{"prompt": text} for text in texts]), prompts))
    answers = prompts * GROUP
    result: Measured = {
        "answers": answers,
        "first_update_seconds": round(rollouts.seconds[0] + trainings.seconds[0], 2),
        "rollout_tokens_per_second": round(answers * answer * UPDATES / sum(rollouts.seconds[1:])),
        "training_tokens_per_second": round(answers * (prompt + answer) * UPDATES / sum(trainings.seconds[1:])),
        "shares_prompts": policy.shares_prompts,
        "tokens_of_a_pass": module.manual_optimization.fitting_tokens,
        "bytes_of_answers_at_once": module.sampler.memory,
        "megabytes_a_token_by_formula": round(bytes_per_token(policy) / 1e6, 2),
    }
    if not where.pretended:
        result["peak_gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return result


def update(where: Place) -> Measured:
    attempt = Attempts()
    vocabulary, prompt, answer = (2048, 8, 4) if where.tiny else (151_936, PROMPT_TOKENS, ANSWER_TOKENS)
    for name, size in ({"tiny": TINY} if where.tiny else SIZES).items():
        attempt(name, lambda s=size: updates(where, s, vocabulary, prompt, answer))  # type: ignore[misc]
    return attempt.result()
