"""The host's time for a decoded step of 28 tiny layers, beside transformers' `generate`.

    python -m benchmarks.host_time [--repeats 8]

On a GPU, a decoded step takes at least the host's time, because the host launches its kernels one by one. The layers
are so small that on the CPU, too, calls take most of the time. CPU seconds on one thread in float32, interleaved, the
least of the repeats; reading the prompts is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

PROMPTS, GROUP, PROMPT_TOKENS = 2, 4, 64
SHORT, LONG = 2, 34


def tiny_policy() -> CausalLMPolicy:
    config = Qwen2Config(
        vocab_size=2048,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=28,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    return CausalLMPolicy.from_model(Qwen2ForCausalLM(config).eval(), make_tokenizer())


def ours(policy: CausalLMPolicy, length: int) -> None:
    draws = torch.rand(PROMPTS, GROUP, length, dtype=torch.float64)
    inputs = policy.padded([[2 + row] * PROMPT_TOKENS for row in range(PROMPTS)])
    engine = TransformersEngine()
    with engine.session(policy):
        engine.generate(policy, inputs, GROUP, Sampling(length, min_new_tokens=length), draws)


def theirs(policy: CausalLMPolicy, length: int) -> None:
    tokens = torch.full((PROMPTS * GROUP, PROMPT_TOKENS), 2)
    sampling = {"do_sample": True, "top_k": 0, "top_p": 1.0, "min_new_tokens": length, "max_new_tokens": length}
    with torch.no_grad():
        policy.model.generate(tokens, attention_mask=torch.ones_like(tokens), **sampling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = tiny_policy()
    generators: dict[str, Callable[[int], None]] = {
        "steps": lambda length: ours(policy, length),
        "transformers' generate": lambda length: theirs(policy, length),
    }
    spent: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.repeats):
        for name, generate in generators.items():
            for length in (SHORT, LONG):
                begun = time.process_time()
                generate(length)
                spent.setdefault((name, length), []).append(time.process_time() - begun)
    for name in generators:
        step = (min(spent[name, LONG]) - min(spent[name, SHORT])) / (LONG - SHORT)
        print(f"{name}: {1e3 * step:.2f} ms a step")


if __name__ == "__main__":
    main()
