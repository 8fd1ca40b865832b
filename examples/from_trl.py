"""A script of TRL's and its port: the same training, then the same data with a rate in the place of a reward weight.

    python -m lightning_cgrpo tiny-model models/tiny-qwen2
    python examples/from_trl.py models/tiny-qwen2 prompts.jsonl                # the port
    python examples/from_trl.py models/tiny-qwen2 prompts.jsonl constrained    # what one comes for
    python examples/from_trl.py models/tiny-qwen2 prompts.jsonl trl            # the original (needs TRL)

A line of the file: {"prompt": "Say yes.", "wanted": "yes"}. docs/coming_from_trl.md explains.
"""

import sys


# Reward functions stay as they are.
def brief(completions, **columns):
    return [-len(text) / 100 for text in completions]


def says_it(completions, wanted, **columns):
    return [float(word in text) for text, word in zip(completions, wanted, strict=True)]


def trl(model, prompts, updates):
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir="runs/trl",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,  # 16 answers to 4 prompts
        num_generations=4,
        num_iterations=2,
        max_steps=2 * updates,  # counts optimizer steps
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        max_completion_length=16,
        temperature=0.9,
        reward_weights=[1.0, 0.5],
        loss_type="dapo",
        epsilon_high=0.28,
        beta=0.04,
        mask_truncated_completions=False,
        log_completions=True,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[brief, says_it],
        args=config,
        train_dataset=load_dataset("json", data_files=prompts, split="train"),
    )
    trainer.train()
    return trainer


def port(model, prompts, updates, constrained=False):
    import torch
    from lightning.pytorch import Trainer, seed_everything

    from lightning_cgrpo import (
        CausalLMPolicy,
        ConstrainedGRPO,
        Constraint,
        FunctionTask,
        GenerationSampler,
        Objective,
        Optimization,
        ScalarizedAdvantages,
        ScalarizedRewards,
    )
    from lightning_cgrpo.callbacks import LagrangianCallback, SampleAnswers, default_callbacks
    from lightning_cgrpo.datamodules import PromptDataModule
    from lightning_cgrpo.multipliers import SoftmaxAdam

    objective, estimator = Objective({"brief": 1.0, "says_it": 0.5}), ScalarizedRewards()
    callbacks = [SampleAnswers(every_n_updates=10), *default_callbacks()]
    if constrained:
        objective = Objective("brief", {"says_it": Constraint(at_least=0.9)})
        estimator = ScalarizedAdvantages()
        callbacks.append(LagrangianCallback(SoftmaxAdam()))
    seed_everything(42)
    module = ConstrainedGRPO(
        policy=CausalLMPolicy(model, temperature=0.9, gradient_checkpointing=True),
        sampler=GenerationSampler(max_new_tokens=16),
        task=FunctionTask({"brief": brief, "says_it": says_it}),
        objective=objective,
        estimator=estimator,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0),
        optimization=Optimization(
            epochs=2,
            micro_batch_size=8,
            aggregation="token_mean",
            clip_high=0.28,
            kl_weight=0.04,
            correct_kl=True,
            max_grad_norm=1.0,
        ),
        group_size=4,
    )
    data = PromptDataModule(prompts, prompts_per_update=4)
    trainer = Trainer(max_steps=updates, accelerator="cpu", logger=False, callbacks=callbacks)
    trainer.fit(module, data)
    return trainer


def main(model, prompts, which="port", updates="10"):
    if which == "trl":
        return trl(model, prompts, int(updates))
    return port(model, prompts, int(updates), constrained=which == "constrained")


if __name__ == "__main__":
    main(*sys.argv[1:])
