"""Rollouts of conversations beside TRL's: the policy's own tokens per CPU second, on one thread.

    python -m benchmarks.trl.conversations
    python -m benchmarks.trl.conversations --out benchmarks/results/trl_conversations.json

Both sides have the shipped model of the calculator task, its tool, the same problems, 8 answers to each of 16 prompts,
at most three calls and 160 tokens. Weights stay as they are (a learning rate of 0), so both sample from the same
distribution, and the time is of rollouts alone. The first rollout is a warm-up. Tokens of results are not counted.
Each side runs alone in its own process; its rate is that of all measured rollouts. Needs TRL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trl.measure import Meter, in_process, quiet

PROMPTS, GROUP, LONGEST, CALLS = 16, 8, 160, 3
SIDES = ("ours", "trl")


class Counter:
    """Times rollouts, and counts the policy's own tokens, conversations and turns with results."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.tokens: list[int] = []
        self.results: list[int] = []

    def of(self, rollout: Any, own_and_results: Any) -> Any:
        timed = self.meter.timed_rollout(rollout)

        def counted(*arguments: Any, **named: Any) -> Any:
            made = timed(*arguments, **named)
            tokens, results = own_and_results(made)
            self.tokens.append(tokens)
            self.results.append(results)
            return made

        return counted

    def rates(self) -> dict[str, float]:
        seconds = sum(self.meter.rollouts[1:])
        conversations = PROMPTS * GROUP * len(self.tokens[1:])
        return {
            "tokens per second": sum(self.tokens[1:]) / seconds,
            "tokens per conversation": sum(self.tokens[1:]) / conversations,
            "tokens of results per conversation": sum(self.results[1:]) / conversations,
            "seconds per rollout": seconds / len(self.tokens[1:]),
        }


def problems(updates: int) -> list[dict[str, Any]]:
    import torch

    from lightning_cgrpo.tasks.calculator.problems import CalculatorProblems

    source = CalculatorProblems(PROMPTS * (1 + updates), "train", 0)
    return [{"prompt": chat} for chat in source.groups(torch.arange(len(source))).columns["prompt"]]


def ours(updates: int) -> dict[str, float]:
    import torch
    from lightning.pytorch import Trainer

    from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, ConversationSampler, FunctionTask, Objective
    from lightning_cgrpo.prompts.source import PromptLoader
    from lightning_cgrpo.rollout import read
    from lightning_cgrpo.tasks.calculator.functions import calculator
    from lightning_cgrpo.tasks.functions.prompts import Prompts

    counter = Counter()
    module = ConstrainedGRPO(
        CausalLMPolicy("packaged:calculator"),
        ConversationSampler(LONGEST, [calculator], max_turns=CALLS + 1, time_limit=None),
        FunctionTask({}, max_completion_tokens=LONGEST),
        Objective("length"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        group_size=GROUP,
    )

    def counts(rollouts: Any) -> tuple[int, int]:
        return int(rollouts.mask.sum()), int((read(rollouts.mask) & ~rollouts.mask).sum())

    module.sample = counter.of(module.sample, counts)  # type: ignore[method-assign]
    trainer = Trainer(
        max_steps=1 + updates, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, PromptLoader(Prompts(problems(updates)), PROMPTS))
    return counter.rates()


def theirs(updates: int) -> dict[str, float]:
    import datasets
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.chat_template_utils import qwen3_template

    from lightning_cgrpo.policies.pretrained import origin
    from lightning_cgrpo.tasks.calculator.functions import calculator

    folder = origin("packaged:calculator").path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.response_template = qwen3_template  # calls as Qwen 3 writes them
    counter = Counter()
    with tempfile.TemporaryDirectory() as out:
        config = trl.GRPOConfig(
            output_dir=out, per_device_train_batch_size=PROMPTS * GROUP, num_generations=GROUP, max_steps=1 + updates,
            max_completion_length=LONGEST, max_tool_calling_iterations=CALLS, learning_rate=0.0, beta=0.0,
            shuffle_dataset=False, gradient_checkpointing=False, bf16=False, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=config,
            train_dataset=datasets.Dataset.from_list(problems(updates)),
            processing_class=tokenizer,
            tools=[calculator],
        )

        def counts(made: Any) -> tuple[int, int]:
            tokens = [sum(mask) for mask in made[2]]
            return sum(tokens), sum(map(len, made[1])) - sum(tokens)

        trainer._generate = counter.of(trainer._generate, counts)
        trainer.train()
    return counter.rates()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=5, help="measured rollouts of each side")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        with quiet():
            numbers = ours(options.updates) if options.side == "ours" else theirs(options.updates)
        print(json.dumps(numbers))
        return
    measured = {
        side: in_process("benchmarks.trl.conversations", f"--side={side}", f"--updates={options.updates}")
        for side in SIDES
    }
    print("| | ours | TRL |\n|---|---|---|")
    for name in measured["ours"]:
        print(f"| {name} | {measured['ours'][name]:.1f} | {measured['trl'][name]:.1f} |")
    ratio = measured["ours"]["tokens per second"] / measured["trl"]["tokens per second"]
    print(f"\nTokens per second: {ratio:.1f} times TRL's.")
    if options.out:
        versions = {name: version(name) for name in ("torch", "transformers", "trl", "lightning")}
        record = {**versions, "updates": options.updates, "measured": measured, "ratio": ratio}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
