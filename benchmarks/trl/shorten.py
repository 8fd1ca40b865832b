"""examples/trl_shorten.py with a threshold and with fixed weights: rates, rewards, weights and costs side by side.

    python -m benchmarks.trl shorten MODEL GSM8K OUT.json PAGE.md          # some 40 minutes of CPU time

MODEL is a directory of SmolLM2-135M-Instruct, GSM8K the folder with train.jsonl and test.jsonl of the word problems. A
side is `threshold`, the whole example, or TRL with the weights of `kept` and `length`. The fixed weights were chosen
before any run: a word of a sentence of 12 words is worth at most 1/12 of `kept`, and the length weighs far less, or a
little more.

A run is a process on one thread; its CPU seconds and memory include imports and loading, and exclude the evaluation,
which samples an answer to each of 128 held-out sentences. OUT.json keeps what was measured; a run in it isn't
repeated. PAGE.md gets the tables.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from benchmarks.trl.measure import in_process, quiet

SIDES = ("threshold", "1,-0.01", "1,-0.1")
UPDATES = 40
HELD_OUT = 128
LONGEST = 6
"""Words of an answer that isn't `long`."""
Side = Mapping[str, Any]
"""A run: costs, `updates` (means of each), and `held out` with the answers of the evaluation."""


def recorded(function: Callable[..., list[float]], calls: list[list[float]]) -> Callable[..., list[float]]:
    """The reward function, which also keeps its values of each call."""

    @wraps(function)
    def measured(**columns: Any) -> list[float]:
        values = function(**columns)
        calls.append(values)
        return values

    return measured


def means(kept: Sequence[float], length: Sequence[float]) -> dict[str, float]:
    """Means over answers."""
    long = sum(words > LONGEST for words in length)
    return {"kept": sum(kept) / len(kept), "words": sum(length) / len(length), "long": long / len(length)}


def measured(side: str, model: Path, gsm8k: Path, updates: int, held_out: int) -> dict[str, Any]:
    """Train one side in this process, and evaluate the result."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        from examples import trl_shorten as example

        kept: list[list[float]] = []
        length: list[list[float]] = []
        functions = example.kept, example.length
        example.kept, example.length = recorded(example.kept, kept), recorded(example.length, length)
        weights = "" if side == "threshold" else side
        trainer = example.main(str(model), gsm8k, weights, steps=updates, output_dir=folder)
        example.kept, example.length = functions
        used = resource.getrusage(resource.RUSAGE_SELF)
        rows = [means(*values) for values in zip(kept, length, strict=True)]
        lines = (line for line in trainer.state.log_history if "reward" in line)
        for row, line in zip(rows, lines, strict=True):
            row |= {name: line[name] for name in ("weight/reward", "weight/long") if name in line}
        return {
            "cpu seconds": used.ru_utime + used.ru_stime,
            "gigabytes": used.ru_maxrss / 1024**2,
            "updates": rows,
            "held out": evaluate(trainer, example.sentences(gsm8k / "test.jsonl")[:held_out]),
        }


def evaluate(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over held-out sentences, one sampled answer each, and the answers."""
    import torch

    from examples import trl_shorten as example

    torch.manual_seed(0)
    trainer.model.eval()
    tokenizer = trainer.processing_class
    texts: list[str] = []
    for start in range(0, len(rows), 32):
        prompts = [row["prompt"] for row in rows[start : start + 32]]
        form: dict[str, Any] = {"return_tensors": "pt", "return_dict": True, "padding": True, "padding_side": "left"}
        batch = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, **form)
        sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        with torch.no_grad():
            whole = trainer.model.generate(**batch, max_new_tokens=trainer.max_completion_length, **sampling)
        texts += tokenizer.batch_decode(whole[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    completions = [[{"content": text}] for text in texts]
    sentences = [row["sentence"] for row in rows]
    scores = means(example.kept(completions, sentences), example.length(completions))
    return scores | {"number": len(rows), "answers": list(zip(sentences, texts, strict=True))}


# ---------------------------------------------------------------------- the page


def interval(rate: float, number: int) -> str:
    """A 95 % interval of Clopper and Pearson; each sentence has one answer."""
    from scipy.stats import binomtest

    low, high = binomtest(round(rate * number), number).proportion_ci()
    return f"{low:.3f} to {high:.3f}"


def summary(results: Mapping[str, Side]) -> list[str]:
    lines = [
        "| | kept, last quarter | long, last quarter | words | kept, held out | long, held out | CPU seconds | GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for side, result in results.items():
        updates = result["updates"]
        last = updates[-(len(updates) // 4) :]
        kept, long, words = (sum(row[name] for row in last) / len(last) for name in ("kept", "long", "words"))
        after = result["held out"]
        lines.append(
            f"| {title(side)} | {kept:.3f} | {long:.3f} | {words:.1f} | {after['kept']:.3f} "
            f"| {after['long']:.3f} ({interval(after['long'], after['number'])}) "
            f"| {result['cpu seconds']:.0f} | {result['gigabytes']:.1f} |"
        )
    return lines


def curves(results: Mapping[str, Side], every: int = 5) -> list[str]:
    """Means over `every` updates, and the weights of the last of them."""
    lines = ["| updates | " + " | ".join(title(side) for side in results) + " | weights of `kept` and `long` |"]
    lines.append("|---" * (len(results) + 2) + "|")
    number = max(len(result["updates"]) for result in results.values())
    for start in range(0, number, every):
        cells = []
        weights = ""
        for side, result in results.items():
            rows = result["updates"][start : start + every]
            kept, long = (sum(row[name] for row in rows) / len(rows) for name in ("kept", "long"))
            cells.append(f"{kept:.2f}, {long:.2f}")
            if side == "threshold":
                weights = f"{rows[-1]['weight/reward']:.2f}, {rows[-1]['weight/long']:.2f}"
        lines.append(f"| {start + 1} to {start + every} | " + " | ".join(cells) + f" | {weights} |")
    return lines


def answers(results: Mapping[str, Side], number: int = 5) -> list[str]:
    lines = ["| sentence | " + " | ".join(title(side) for side in results) + " |"]
    lines.append("|---" * (len(results) + 1) + "|")
    first = next(iter(results.values()))["held out"]["answers"]
    for row, (sentence, _) in enumerate(first[:number]):
        cells = [sentence]
        for result in results.values():
            text = " ".join(result["held out"]["answers"][row][1].split())
            cells.append(text.replace("|", "\\|") or "(nothing)")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def title(side: str) -> str:
    return side if side == "threshold" else "weights " + side.replace(",", ", ")


def page(results: Mapping[str, Side]) -> str:
    parts = [summary(results), curves(results), answers(results)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.trl shorten", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("model", "gsm8k", "out", "page"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--sides", nargs="+", default=SIDES)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    model, gsm8k = options.model.resolve(), options.gsm8k.resolve()
    if options.worker:
        print(json.dumps(measured(options.sides[0], model, gsm8k, options.updates, options.held_out)))
        return
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for side in options.sides:
        if side not in results:
            run = (str(model), str(gsm8k), str(options.out), str(options.page), "--worker", "--sides", side)
            sizes = ("--updates", str(options.updates), "--held-out", str(options.held_out))
            results[side] = in_process("benchmarks.trl.shorten", *run, *sizes)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{side}: {results[side]['updates'][-1]}", flush=True)
    options.page.write_text(page(results))


if __name__ == "__main__":
    main()
