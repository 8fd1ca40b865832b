"""Host memory of a start with `strategy: fsdp2`, with processes that read their weights in turn and all at once.

    python -m benchmarks.sharded_start      # some minutes, 12 GB; writes benchmarks/results/sharded_start.json

The model has the size of Qwen2.5-0.5B, random weights and a reference. Memory is the sum of the processes' anonymous
resident memory, sampled every 20 ms until training would begin.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import psutil
import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.half_billion import QWEN2_5_05B

RESULTS = Path(__file__).parent / "results" / "sharded_start.json"
WAYS = {
    "1 process": (1, "in_turn"),
    "2 processes, at once": (2, "at_once"),
    "2 processes, in turn": (2, "in_turn"),
}


class LoadedError(Exception):
    """Ends a process once its weights are there."""


class Stop(Callback):
    """Ends the run where training would begin."""

    def on_fit_start(self, trainer, pl_module):  # type: ignore[no-untyped-def]
        raise LoadedError


def start(folder: str, processes: int, way: str) -> None:
    """One process's start."""
    from lightning_cgrpo import (
        CausalLMPolicy,
        ConstrainedGRPO,
        FunctionTask,
        GenerationSampler,
        Objective,
        Optimization,
    )
    from lightning_cgrpo.datamodules import PromptDataModule

    module = ConstrainedGRPO(
        CausalLMPolicy(f"{folder}/model"),
        GenerationSampler(8),
        FunctionTask({}, max_completion_tokens=8),
        Objective("length"),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        optimization=Optimization(kl_weight=0.04),
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="fsdp2" if processes > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        callbacks=[Stop()],
        use_distributed_sampler=False,
    )
    turns = patch("lightning_cgrpo.modules.constrained_grpo.in_turn", lambda module: nullcontext())
    with turns if way == "at_once" else nullcontext():
        try:
            trainer.fit(module, PromptDataModule(f"{folder}/prompts.jsonl", prompts_per_update=2))
        except LoadedError:
            print("LOADED", flush=True)


def measured(folder: str, processes: int, way: str) -> dict[str, float]:
    """Peak GB and seconds of a start."""
    inner = [__file__, folder, str(processes), way]
    outer = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    begun, peak = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, *outer, *inner], stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        used = 0
        for child in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            try:
                status = Path(f"/proc/{child.pid}/status").read_text()
            except OSError:
                continue
            used += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
        peak = max(peak, used)
        time.sleep(0.02)
    output = process.stdout.read() if process.stdout else ""
    if output.count("LOADED") != processes:
        raise RuntimeError(f"Expected {processes} processes to load their weights, but got: {output[-2000:]}")
    return {"peak_gb": round(peak * 1024 / 1e9, 2), "seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from lightning_cgrpo.policies.tiny.text import make_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(Path(folder) / "tokenizer"))
        config = Qwen2Config(**QWEN2_5_05B, eos_token_id=tokenizer.eos_token_id)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        weights = 4 * model.num_parameters() / 1e9
        del model
        Path(folder, "prompts.jsonl").write_text('{"prompt": "Count."}\n' * 8)
        found = {name: measured(folder, *way) for name, way in WAYS.items()}
    result = {"float32_weights_gb": round(weights, 2), **found}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        torch.set_num_threads(1)
        start(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main()
