"""The job of docs/released_model.md by this project, and by TRL with thresholds and with fixed weights.

    python -m benchmarks.trl released MODEL DATA OUT.json                      # two seeds: some 3.5 hours of CPU time
    python -m benchmarks.trl released MODEL DATA OUT.json --sides thresholds   # TRL's script and lightning_cgrpo.trl
    python -m benchmarks.trl released MODEL DATA OUT.json --sides ours 1,1,1,0 --seeds 0

MODEL is a directory of SmolLM2-135M-Instruct, DATA the folder that examples/released_model/prepare.py wrote. A side is
`ours`, the configuration of the example, or TRL with the weights of fields, valid and short, and its beta. `short` is
1 - tokens / 32. `thresholds` is the same script with no weights and a `Lagrangian`, which has the example's bounds on
JSON and tokens; TRL computes no exact drift to bound. All sides draw 8 answers to 4 sentences an update, with the
example's optimizer, and TRL's other options at their defaults.

The evaluation is transformers' own: it samples an answer to each held-out sentence, and takes the drift from whole
forward passes of the trained and the released model. A run is a process, on one thread; its CPU seconds and memory
include the loading. OUT.json keeps what was measured; a run in it isn't repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.trl.measure import ENVIRONMENT, ROOT, in_process, quiet

EXAMPLE = ROOT / "examples/released_model"
SIDES = ("ours", "thresholds", "1,1,1,0", "1,2,2,0", "1,1,1,0.05")
LONGEST = 32
TOKENS = 20
"""Bound on the mean, as in the example."""


def ours(model: Path, data: Path, seed: int, updates: int, out: Path) -> None:
    """Train by the example's configuration, and write the policy to `out/model`."""
    run = ["-c", "released_model.yaml", f"--model.policy.model={model}", f"--data.path={data}/train.jsonl"]
    run += [f"--data.test_path={data}/test.jsonl", f"--seed_everything={seed}", f"--trainer.max_steps={updates}"]
    run += [f"--trainer.logger.save_dir={out}/log", "--trainer.logger.name=run"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    for command in (["fit", *run], ["export", *run, "--ckpt_path=last", "--out", str(out / "model")]):
        arguments = [sys.executable, "-m", "lightning_cgrpo", *command]
        subprocess.run(arguments, cwd=EXAMPLE, env=environment, check=True, stdout=sys.stderr)


def theirs(
    model: Path, data: Path, seed: int, updates: int, out: Path, weights: list[float] | None, beta: float
) -> dict[str, float]:
    """Train by TRL, with thresholds if there are no weights, and write the model to `out/model`.

    Returns the rates and the weights of the last update; with fixed weights, none.
    """
    import datasets
    import extraction
    import trl

    def short(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [1 - len(row) / LONGEST for row in completion_ids]

    config = trl.GRPOConfig(
        output_dir=str(out / "trl"), per_device_train_batch_size=32, num_generations=8, max_steps=updates,
        max_completion_length=LONGEST, learning_rate=2e-5, lr_scheduler_type="constant", beta=beta,
        reward_weights=weights, seed=seed, bf16=False, use_cpu=True, report_to="none", save_strategy="no",
        logging_steps=1,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        str(model), reward_funcs=[extraction.fields, extraction.valid, short], args=config,
        train_dataset=datasets.load_dataset("json", data_files=str(data / "train.jsonl"), split="train"),
    )  # fmt: skip
    if weights is None:
        from lightning_cgrpo import Constraint, Objective
        from lightning_cgrpo.trl import Lagrangian

        bounds = {"valid": Constraint(at_least=0.95), "short": Constraint(mean_at_least=1 - TOKENS / LONGEST)}
        Lagrangian(trainer, Objective("fields", bounds))
    trainer.train()
    trainer.save_model(str(out / "model"))
    last = next(line for line in reversed(trainer.state.log_history) if "reward" in line)
    return {tag: value for tag, value in last.items() if tag.startswith(("rate/", "mean/", "weight/"))}


def evaluate(trained: Path, released: Path, data: Path) -> dict[str, float]:
    """Means over the held-out sentences, one sampled answer each; drift in nats per token."""
    import extraction
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(released)
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (trained, released)
    )
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    texts, lengths, drifts = [], [], []
    for row in rows:
        ids = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        with torch.no_grad():
            whole = policy.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LONGEST, **sampling)
            steps = slice(ids.shape[1] - 1, whole.shape[1] - 1)
            mine, base = (model(whole).logits[0, steps].log_softmax(-1) for model in (policy, reference))
        drifts.append((mine.exp() * (mine - base)).sum(-1).mean().item())
        lengths.append(whole.shape[1] - ids.shape[1])
        texts.append([{"content": tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)}])
    columns = {name: [row[name] for row in rows] for name in ("name", "number")}
    scores = {"fields": extraction.fields(texts, **columns), "valid": extraction.valid(texts)}
    scores |= {"tokens": lengths, "drift": drifts}
    return {name: sum(values) / len(values) for name, values in scores.items()}


def measured(side: str, model: Path, data: Path, seed: int, updates: int) -> dict[str, float]:
    """Train one side in this process (`ours`: its children), and evaluate the result."""
    sys.path.insert(0, str(EXAMPLE))
    with quiet(), tempfile.TemporaryDirectory() as folder:
        out, of = Path(folder), resource.RUSAGE_SELF
        last: dict[str, float] = {}
        if side == "ours":
            ours(model, data, seed, updates, out)
            of = resource.RUSAGE_CHILDREN
        elif side == "thresholds":
            last = theirs(model, data, seed, updates, out, None, 0.0)
        else:
            *weights, beta = map(float, side.split(","))
            theirs(model, data, seed, updates, out, weights, beta)
        used = resource.getrusage(of)
        costs = {"cpu seconds": used.ru_utime + used.ru_stime, "gigabytes": used.ru_maxrss / 1024**2}
        return costs | evaluate(out / "model", model, data) | last


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.trl released", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "data", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    model, data = options.model.resolve(), options.data.resolve()
    if options.worker:
        print(json.dumps(measured(options.sides[0], model, data, options.seeds[0], options.updates)))
        return
    results: dict[str, dict[str, float]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in options.seeds:
        for side in options.sides:
            name = f"{side} seed {seed}"
            if name not in results:
                run = (str(model), str(data), str(options.out), "--worker", "--sides", side, "--seeds", str(seed))
                results[name] = in_process("benchmarks.trl.released", *run, "--updates", str(options.updates))
                options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in results[name].items()), flush=True)


if __name__ == "__main__":
    main()
