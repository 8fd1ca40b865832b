"""A TRL script, and five lines that hold a rate at its threshold: short answers, of which 80 % have six vowels.

    python -c "from lightning_cgrpo.policies.tiny.text import make_tiny_model as m; m('models/tiny', hidden_size=16)"
    python examples/trl_constrained.py models/tiny 300

Less than a CPU minute. docs/trl.md explains.
"""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


# The script, as it was.
def brief(completions, **columns):
    return [-len(text) / 100 for text in completions]


def vowels(completions, **columns):
    return [float(sum(letter in "aeiou" for letter in text) >= 6) for text in completions]


def script(model, steps, output_dir="runs/trl_constrained", **settings):
    config = GRPOConfig(
        output_dir=output_dir,
        per_device_train_batch_size=64,
        num_generations=16,
        max_steps=steps,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        max_completion_length=16,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **settings,
    )
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    prompts = Dataset.from_list([{"prompt": f"Say {number}."} for number in numbers])
    return GRPOTrainer(model=model, reward_funcs=[brief, vowels], args=config, train_dataset=prompts)


# What is new.
def constrain(trainer):
    from lightning_cgrpo import Constraint, Objective
    from lightning_cgrpo.trl import Lagrangian

    objective = Objective("brief", {"vowels": Constraint(at_least=0.8)})
    return Lagrangian(trainer, objective)


def main(model, steps="300", constrained=True, **settings):
    trainer = script(model, int(steps), **settings)
    if constrained:
        constrain(trainer)
    trainer.train()
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:])
