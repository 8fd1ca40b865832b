"""Decoding and training of a model's shape, or an environment's rollouts, beside this machine's limits.

    python -m benchmarks.limits MODEL [--no-training]       # MODEL is a directory with config.json
    python -m benchmarks.limits configs/cartpole.yaml [--updates 100]

Times are CPU seconds on one thread in float32.

A model has random weights. Its limit is the larger of two times: bytes of the weights over the memory's rate, and
operations over the rate of matrix products by oneDNN. Both rates are measured between the model's passes. Times are the
least of two. A decoded step leaves out the reading of prompts. Operations are 2 per weight and token; in
training 6, and 8 in the output layer, which reads answers alone and computes logits twice. Attention isn't counted.

An environment's configuration trains for some updates. After each rollout, the limit is timed on the same episodes:
the network's passes, one a step for all episodes that still run, and the steps of Gymnasium's worlds. Worlds that step
together (`environment.vector`) have a second limit with their own steps. A rollout adds resets, draws, actions, records
and log-probabilities. Times are sums over all updates but the first.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.trl.settings import make_tokenizer
from lightning_cgrpo import CausalLMPolicy, EnvironmentSampler
from lightning_cgrpo.__main__ import main as run_command
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.policies.network_policy import Actor, NetworkPolicy
from lightning_cgrpo.policies.onednn import faster_linear, faster_products
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.sampler import Noise
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine
from lightning_cgrpo.tasks.gymnasium import Gymnasium
from lightning_cgrpo.tasks.gymnasium.together import Vector
from lightning_cgrpo.tasks.gymnasium.worlds import World

PROMPT, ANSWER, REPEATS, SHAPES = 64, 17, 2, ((1, 1), (2, 4))
"""Tokens of a prompt and of an answer; prompts and answers to each."""


def sample(policy: CausalLMPolicy, prompts: int, group: int, length: int) -> Any:
    inputs = policy.padded([[2 + row] * PROMPT for row in range(prompts)])
    draws = torch.rand(prompts, group, length, dtype=torch.float64)
    sampling = Sampling(max_new_tokens=length, min_new_tokens=length)
    engine = TransformersEngine()
    with engine.session(policy):
        return engine.generate(policy, inputs, group, sampling, draws)


ROLLOUT = EnvironmentSampler.rollout


class TimedRollouts:
    """CPU seconds of rollouts, and of the parts of them that no code can leave out."""

    def __init__(self) -> None:
        self.updates = 0
        self.steps = 0
        self.rollouts = 0.0
        self.limit = 0.0
        self.limit_together = 0.0  # of worlds that step together
        self._worlds: list[World] = []

    def rollout(
        self, sampler: EnvironmentSampler, policy: NetworkPolicy, prompts: PromptGroups, group_size: int, noise: Noise
    ) -> Rollouts:
        begun = time.process_time()
        rollouts = ROLLOUT(sampler, policy, prompts, group_size, noise)
        spent = time.process_time() - begun
        if isinstance(sampler.environment, Gymnasium):
            seeds = prompts.columns["seed"].repeat_interleave(group_size).tolist()
            while len(self._worlds) < len(seeds):
                self._worlds.append(sampler.environment.make())
            for world, seed in zip(self._worlds, seeds, strict=True):
                world.reset(seed=seed)
        limit, together = self._played_again(policy.actor(), rollouts), 0.0
        if isinstance(sampler.environment, Gymnasium) and sampler.environment.vector is not None:
            together = _played_together(sampler.environment.make_vector(len(seeds)), seeds, policy.actor(), rollouts)
        self.updates += 1
        if self.updates > 1:  # the first one imports and allocates
            self.rollouts += spent
            self.limit += limit
            self.limit_together += together
            self.steps += int(rollouts.mask.sum())
        return rollouts

    def _played_again(self, actor: Actor, rollouts: Rollouts) -> float:
        """CPU seconds of the network's passes, and of the worlds' steps if there are worlds."""
        mask = rollouts.mask.flatten(0, 1)
        observations = rollouts.inputs["observations"].flatten(0, 1)
        moments = []
        for step in range(int(rollouts.lengths.max())):
            running = mask[:, step].nonzero().squeeze(-1)
            pairs = []
            if self._worlds:
                actions = rollouts.info["action"].flatten(0, 1)[running, step].numpy()
                pairs = [(self._worlds[row], action) for row, action in zip(running.tolist(), actions, strict=True)]
            moments.append((observations[running, step], pairs))
        begun = time.process_time()
        with torch.inference_mode():
            for seen, pairs in moments:
                actor(seen)
                for world, action in pairs:
                    world.step(action)
        return time.process_time() - begun


def _played_together(worlds: Vector, seeds: list[int], actor: Actor, rollouts: Rollouts) -> float:
    """CPU seconds of the network's passes for running episodes, and of the steps of all worlds together."""
    mask = rollouts.mask.flatten(0, 1)
    observations = rollouts.inputs["observations"].flatten(0, 1)
    actions = rollouts.info["action"].flatten(0, 1).numpy()
    steps = range(int(rollouts.lengths.max()))
    moments = [(observations[mask[:, step], step], actions[:, step].copy()) for step in steps]
    worlds.reset(seed=seeds)
    begun = time.process_time()
    with torch.inference_mode():
        for seen, chosen in moments:
            actor(seen)
            worlds.step(chosen)
    return time.process_time() - begun


def time_rollouts(configuration: str, updates: int) -> None:
    timed = TimedRollouts()

    def rollout(sampler: EnvironmentSampler, *arguments: Any) -> Rollouts:
        return timed.rollout(sampler, *arguments)

    with TemporaryDirectory() as folder, patch.object(EnvironmentSampler, "rollout", rollout):
        settings = {
            "trainer.max_steps": updates,
            "trainer.limit_val_batches": 0,
            "trainer.logger.save_dir": folder,
            "callbacks.initial_rates": "null",
            "callbacks.pictures": "null",
        }
        run_command(["fit", "-c", configuration, *(f"--{key}={value}" for key, value in settings.items())])
    step, limit = timed.rollouts / timed.steps, timed.limit / timed.steps
    print(
        f"{timed.steps:,} steps in {updates} updates, a step: {step * 1e6:.1f} µs, limit {limit * 1e6:.1f} µs, "
        f"{step / limit:.2f}"
    )
    if timed.limit_together:
        limit = timed.limit_together / timed.steps
        print(f"with the steps of worlds together: limit {limit * 1e6:.1f} µs, {step / limit:.2f}")


def time_model(directory: str, training: bool) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
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
        timed("multiply", lambda: faster_linear(square, square))
        timed((prompts, group, 1), lambda: sample(policy, prompts, group, 1))  # noqa: B023
        rollouts = timed((prompts, group, ANSWER), lambda: sample(policy, prompts, group, ANSWER))  # noqa: B023
        if training:
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
        if training:
            tokens = prompts * PROMPT + answers * (ANSWER - 1)
            limit = (6 * (weights - head) * tokens + 8 * head * answers * ANSWER) / multiplied
            spent = least[prompts, group]
            print(f"{answers} answers, a training pass: {spent:.2f} s, limit {limit:.2f} s, {spent / limit:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--no-training", action="store_true", help="keep no gradients: the weights' memory alone")
    parser.add_argument("--updates", type=int, default=100, help="of an environment's configuration")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model.endswith(".yaml"):
        time_rollouts(options.model, options.updates)
    else:
        time_model(options.model, not options.no_training)


if __name__ == "__main__":
    main()
