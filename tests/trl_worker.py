"""One process of test_trl.py: trains by TRL with a schedule and evaluations, and again from a checkpoint.

python trl_worker.py FOLDER MODEL
"""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from lightning_cgrpo import Constraint, Objective
from lightning_cgrpo.trl import Lagrangian

OBJECTIVE = Objective("brief", {"vowels": Constraint(at_least=0.8, start=0.2, over=3)})


def brief(completions, **columns):
    return [-len(text) / 100 for text in completions]


def vowels(completions, **columns):
    return [float(sum(letter in "aeiou" for letter in text) >= 2) for text in completions]


def train(folder, model, checkpoint=None):
    """All processes' rewards and this process's advantages by generation, evaluations' rewards, weights, log, rank."""
    config = GRPOConfig(
        output_dir=str(folder / ("out" if checkpoint is None else "again")),
        per_device_train_batch_size=6,  # 12 answers are 3 groups, and the second is of both processes
        per_device_eval_batch_size=6,
        num_generations=4,
        max_steps=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_completion_length=6,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    data = Dataset.from_list([{"prompt": f"Say {n}."} for n in range(9)])
    trainer = GRPOTrainer(model, [brief, vowels], args=config, train_dataset=data, eval_dataset=data.select(range(3)))
    lagrangian = Lagrangian(trainer, OBJECTIVE)
    scored, generations, evaluations = trainer._generate_and_score_completions, [], []

    def noted(inputs):
        output = scored(inputs)
        if trainer.model.training:
            generations.append((lagrangian._rewards.clone(), output["advantages"].clone()))
        else:
            evaluations.append(lagrangian._rewards.clone())
        return output

    trainer._generate_and_score_completions = noted
    trainer.train(resume_from_checkpoint=checkpoint)
    return {
        "generations": generations,
        "evaluations": evaluations,
        "weights": lagrangian.advantages.weights,
        "log": trainer.state.log_history,
        "rank": trainer.accelerator.process_index,
    }


if __name__ == "__main__":
    folder, model = Path(sys.argv[1]), sys.argv[2]
    through = train(folder, model)
    resumed = train(folder, model, str(folder / "out" / "checkpoint-1"))
    torch.save({"through": through, "resumed": resumed}, folder / f"rank_{through['rank']}.pt")
