"""Time and memory of three updates with random weights of Qwen2.5-0.5B's size, on real GSM8K questions.

    python -m benchmarks.half_billion --data PATH/TO/gsm8k      # some minutes and 14 GB; writes benchmarks/results/

The configuration is Qwen2.5-0.5B's. The tokenizer is a byte-level BPE trained on the questions, because Qwen's needs a
network; prompts have about as many tokens. Random weights write answers of the full allowed length. Memory is the peak
resident set of each phase, sampled every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_cgrpo import CausalLMPolicy, ConstrainedGRPO, Constraint, GenerationSampler, Objective
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.datamodules import GSM8KDataModule
from lightning_cgrpo.grpo.minibatches import Optimization
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.policies.tiny.text import make_tiny_model
from lightning_cgrpo.records import read_records
from lightning_cgrpo.tasks.gsm8k import GSM8KTask

RESULTS = Path(__file__).parent / "results" / "half_billion.json"
QWEN2_5_05B = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}


class Phases:
    """Each phase's CPU and wall seconds, and peak resident set."""

    def __init__(self) -> None:
        self.phase = "start"
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        outer, self.phase = self.phase, name
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - wall
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0) + time.process_time() - cpu
        self.phase = outer

    def _watch(self) -> None:
        process = psutil.Process()
        while True:
            phase = self.phase
            self.peak[phase] = max(self.peak.get(phase, 0), process.memory_info().rss)
            time.sleep(0.02)


class Watched(ConstrainedGRPO):
    """An update with watched phases."""

    phases: Phases

    def sample(self, *args: Any) -> Any:
        with self.phases.of("rollout"):
            return super().sample(*args)

    def score(self, *args: Any) -> Any:
        with self.phases.of("score"):
            return super().score(*args)

    def _log_probs(self, *args: Any) -> Any:
        with self.phases.of("reference"):
            return super()._log_probs(*args)

    def _optimize(self, *args: Any) -> Any:
        with self.phases.of("optimize"):
            return super()._optimize(*args)


def policy(data: str, folder: Path) -> CausalLMPolicy:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    texts = [record.text("question") for record in read_records(data, "train")]
    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(folder / "tokenizer", texts, vocabulary=8192))
    config = Qwen2Config(**QWEN2_5_05B, eos_token_id=tokenizer.eos_token_id)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return CausalLMPolicy.from_model(model, tokenizer)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data/gsm8k", help="a folder with train.jsonl")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=2, help="questions per update")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        made = policy(given.data, Path(folder))
    module = Watched(
        policy=made,
        sampler=GenerationSampler(given.tokens),
        task=GSM8KTask(given.tokens),
        objective=Objective("length", {name: Constraint(at_least=0.75) for name in ("correctness", "format")}),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-6),
        optimization=Optimization(kl_weight=0.04),
        group_size=given.group_size,
    )
    module.phases = Phases()
    data = GSM8KDataModule(given.data, given.prompts, val_prompts=0)
    trainer = Trainer(
        max_steps=given.updates,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LagrangianCallback(SoftmaxAdam())],
    )
    before = psutil.Process().memory_info().rss
    trainer.fit(module, data)
    phases = module.phases
    result = {
        "machine": f"{platform.processor() or platform.machine()}, {given.threads} threads",
        "parameters": sum(p.numel() for p in made.parameters()),
        "updates": given.updates,
        "prompts": given.prompts,
        "group_size": given.group_size,
        "answer_tokens": given.tokens,
        "gigabytes_of_policy": round(before / 1e9, 2),
        "seconds_per_update": {name: round(value / given.updates, 2) for name, value in phases.seconds.items()},
        "cpu_seconds_per_update": {name: round(v / given.updates, 2) for name, v in phases.cpu_seconds.items()},
        "peak_gigabytes": {name: round(value / 1e9, 2) for name, value in phases.peak.items()},
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
