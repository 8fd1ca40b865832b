"""Decoding and training of a model's shape with random weights, beside this machine's limits.

    python -m benchmarks.limits MODEL [--no-training]       # MODEL is a directory with config.json

The limit is the larger of two times: bytes of the weights over the memory's rate, and operations over the rate of
matrix products by oneDNN. Both rates are measured between the model's passes. Times are CPU seconds on one thread in
float32, the least of two. A decoded step leaves out the reading of prompts. Operations are 2 per weight and token; in
training 6, and 8 in the output layer, which reads answers alone and computes logits twice. Attention isn't counted.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.policies.onednn import faster_products, product
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPT, ANSWER, REPEATS, SHAPES = 64, 17, 2, ((1, 1), (2, 4))
"""Tokens of a prompt and of an answer; prompts and answers to each."""


def sample(policy: CausalLMPolicy, prompts: int, group: int, length: int) -> Any:
    inputs = policy.padded([[2 + row] * PROMPT for row in range(prompts)])
    draws = torch.rand(prompts, group, length, dtype=torch.float64)
    sampling = Sampling(max_new_tokens=length, min_new_tokens=length)
    engine = TransformersEngine()
    with engine.session(policy):
        return engine.generate(policy, inputs, group, sampling, draws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--no-training", action="store_true", help="keep no gradients: the weights' memory alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model), dtype=torch.float32)
    policy = CausalLMPolicy.from_model(model, make_tokenizer())
    large, square, vector = torch.randn(2**14, 2**12), torch.randn(2**11, 2**11), torch.randn(2**12)
    times: dict[Any, list[float]] = defaultdict(list)

    def timed(name: Any, function: Callable[[], Any]) -> Any:
        begun = time.process_time()
        result = function()
        times[name].append(time.process_time() - begun)
        return result

    for prompts, group in SHAPES * REPEATS:
        timed("read", lambda: large @ vector)
        timed("multiply", lambda: product(square, square))
        timed((prompts, group, 1), lambda: sample(policy, prompts, group, 1))  # noqa: B023
        rollouts = timed((prompts, group, ANSWER), lambda: sample(policy, prompts, group, ANSWER))  # noqa: B023
        if not options.no_training:
            examples = policy.examples(rollouts)
            with faster_products(policy):
                timed((prompts, group), lambda: policy(examples).log_probs.sum().backward())  # noqa: B023
            policy.zero_grad()
    least = {name: min(spent) for name, spent in times.items()}
    read, multiplied = large.nbytes / least["read"], 2 * len(square) ** 3 / least["multiply"]
    weights, head = sum(p.numel() for p in policy.parameters()), policy.output_weight.numel()
    print(f"{weights / 1e6:.0f} million weights, {read / 1e9:.1f} GB/s, {multiplied / 1e9:.0f} GFLOP/s")
    for prompts, group in SHAPES:
        answers = prompts * group
        step = (least[prompts, group, ANSWER] - least[prompts, group, 1]) / (ANSWER - 1)
        limit = max(4 * weights / read, 2 * weights * answers / multiplied)
        print(f"{answers} answers, a decoded step: {step * 1e3:.0f} ms, limit {limit * 1e3:.0f} ms, {step / limit:.2f}")
        if not options.no_training:
            tokens = prompts * PROMPT + answers * (ANSWER - 1)
            limit = (6 * (weights - head) * tokens + 8 * head * answers * ANSWER) / multiplied
            spent = least[prompts, group]
            print(f"{answers} answers, a training pass: {spent:.2f} s, limit {limit:.2f} s, {spent / limit:.2f}")


if __name__ == "__main__":
    main()
