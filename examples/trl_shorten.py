"""A TRL script on a released model, and five lines that hold a rate: nine in ten sentences get at most six words.

    python examples/trl_shorten.py SmolLM2 PATH/TO/gsm8k                # a model, and where train.jsonl lies
    python examples/trl_shorten.py SmolLM2 PATH/TO/gsm8k 1,-0.04        # TRL alone, with fixed weights

SmolLM2-135M-Instruct takes some ten CPU minutes. docs/trl.md has the results.
"""

import json
import re
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def sentences(file):
    """First sentences of word problems, of 11 to 13 words."""
    rows = []
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        sentence = re.split(r"(?<=[.?!])\s", json.loads(line)["question"].strip())[0]
        if 11 <= len(words(sentence)) <= 13:
            instruction = {"role": "system", "content": "Shorten to six words."}
            rows.append({"prompt": [instruction, {"role": "user", "content": sentence}], "sentence": sentence})
    return rows


def words(text):
    return re.findall(r"[\w'-]+", text.lower())


# The script, as it was.
def kept(completions, sentence, **columns):
    """Share of the sentence's words that the answer has."""
    shares = []
    for (message,), original in zip(completions, sentence, strict=True):
        wanted = set(words(original))
        shares.append(len(wanted & set(words(message["content"]))) / len(wanted))
    return shares


def length(completions, **columns):
    """Words of the answer."""
    return [float(len(words(message["content"]))) for (message,) in completions]


def script(model, rows, weights=None, steps=40, **settings):
    config = GRPOConfig(
        reward_weights=weights,
        per_device_train_batch_size=16,
        num_generations=8,
        max_steps=steps,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        max_completion_length=16,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **settings,
    )
    return GRPOTrainer(model=model, reward_funcs=[kept, length], args=config, train_dataset=Dataset.from_list(rows))


# What is new.
def constrain(trainer):
    from lightning_cgrpo import Constraint, Objective
    from lightning_cgrpo.trl import Lagrangian

    objective = Objective("kept", {"long": Constraint(at_most=0.1, signal="length", violated_above=6)})
    return Lagrangian(trainer, objective)


def main(model, gsm8k, weights="", **settings):
    fixed = [float(weight) for weight in weights.split(",")] if weights else None
    trainer = script(model, sentences(Path(gsm8k) / "train.jsonl"), fixed, **settings)
    if fixed is None:
        constrain(trainer)
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
