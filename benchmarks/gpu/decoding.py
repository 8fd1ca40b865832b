"""Decoding by default and kernel by kernel, at 32, 128 and 512 answers; equal tokens; the choice of tokens alone."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.device import Attempts, Measured, Place
from benchmarks.gpu.models import GROUP, SIZES, TINY, build, random_tokens
from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.token_choice import TokenChoice
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPTS = (4, 16, 64)
PROMPT_TOKENS, SHORT, LONG = 256, 64, 192
"""Tokens of a prompt, and of two answers whose difference is that of steps alone."""
ENGINES = {"default": True, "kernel by kernel": False}
"""With `cuda_graphs` or without."""


def generated(
    where: Place,
    policy: CausalLMPolicy,
    engine: TransformersEngine,
    prompts: Tensor,
    answer: int,
    half: bool = True,
    **options: Any,
) -> Tensor:
    """Tokens of a rollout."""
    draw = torch.Generator().manual_seed(0)
    draws = torch.rand(len(prompts), GROUP, answer, generator=draw, dtype=torch.float64)
    sampling = Sampling(answer, **{"min_new_tokens": answer, **options})
    with where.half() if half else nullcontext(), engine.session(policy):
        return engine.generate(policy, policy.padded(prompts.tolist()), GROUP, sampling, draws).actions


def speed(where: Place, policy: CausalLMPolicy, graphs: bool, prompts: int) -> Measured:
    """Milliseconds a step and tokens a second; with 32 answers also a trace of a rollout's steps."""
    width, short, long = (8, 3, 6) if where.tiny else (PROMPT_TOKENS, SHORT, LONG)
    given, seconds = random_tokens(prompts, width), []
    for answer in (short, long):
        engine = TransformersEngine(graphs)

        def call(answer: int = answer, engine: TransformersEngine = engine) -> object:
            return generated(where, policy, engine, given, answer)

        call()  # libraries are ready, and the graph is captured
        seconds.append(where.seconds(call))
    step = (seconds[1] - seconds[0]) / (long - short)
    result: Measured = {
        "milliseconds_a_step": round(1e3 * step, 3),
        "tokens_per_second": round(prompts * GROUP * long / seconds[1]),
    }
    if engine._step is not None:
        result |= {"captures": engine._step.replayed.captures, "slots": engine._step.sizes.slots}
    if prompts == PROMPTS[0]:
        result["a step of a rollout"] = where.traced(call, long)
    return result


def equal_tokens(where: Place) -> Measured:
    """Shares of tokens that are those of steps without a graph, of a tiny model, with refills and without."""
    policy = build(TINY, 2048, where.device)
    prompts, answer = (random_tokens(4, 8), 6) if where.tiny else (random_tokens(8, 40), 300)
    results: Measured = {}
    for half in (False, True):
        plain = generated(where, policy, TransformersEngine(False), prompts, answer, half, min_new_tokens=0)
        for size in (None, 2 * GROUP):
            options = {"min_new_tokens": 0, "batch_size": size}
            found = generated(where, policy, TransformersEngine(), prompts, answer, half, **options)
            label = f"{'bfloat16' if half else 'float32'}, batch_size {size}"
            results[label] = float((found == plain).cpu().double().mean())
    return results


def decoding(where: Place) -> Measured:
    attempt = Attempts()
    attempt("equal tokens", lambda: equal_tokens(where))
    for name, size in ({"tiny": TINY} if where.tiny else SIZES).items():
        policy = build(size, 2048 if where.tiny else 151_936, where.device)
        for prompts in PROMPTS[:2] if where.tiny else PROMPTS:
            for kind, graphs in ENGINES.items():
                if graphs or prompts < PROMPTS[-1]:
                    label = f"{name}, {prompts * GROUP} answers, {kind}"
                    attempt(label, lambda g=graphs, n=prompts, p=policy: speed(where, p, g, n))  # type: ignore[misc]
        del policy
    return attempt.result()


def choice(where: Place) -> Measured:
    """The choice of a token for 32, 128 and 512 answers, a part of each step."""
    attempt = Attempts()
    policy: Any = SimpleNamespace(device=where.device, pad_token=1, stop_tokens=(0,), temperature=1.0, name="")
    for prompts in PROMPTS[:1] if where.tiny else PROMPTS:
        rows = prompts * GROUP
        logits = torch.randn(rows, 2048 if where.tiny else 151_936, device=where.device, dtype=torch.bfloat16)
        draws = torch.rand(rows, device=where.device, dtype=torch.float64)
        place = torch.zeros(rows, device=where.device, dtype=torch.int64)
        choose = TokenChoice(policy, Sampling(64))
        attempt(f"{rows} answers", lambda c=choose, a=(logits, draws, place): where.traced(lambda: c(*a, None)))  # type: ignore[misc]
    return attempt.result()
