"""TRL's update, unchanged and projecting only answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
import trl
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import LEARNING_RATE, MAX_GRAD_NORM, PROMPTS, REWARDS, Setting, make_prompts


class _Ticks(TrainerCallback):  # type: ignore[misc]
    def __init__(self, meter: Meter, steps: int) -> None:
        self.meter, self.steps = meter, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.steps == 0:
            self.meter.update_ended()


def project_answers_only() -> None:
    """Have TRL project only labeled tokens to logits, as on CUDA.

    In `trl.trainer.utils`, ``_use_triton`` decides only the projection, in the forward pass of `add_fused_lm_head`. The
    kernels decide separately, and stay the CPU's.
    """
    import trl.trainer.utils

    trl.trainer.utils._use_triton = lambda device: True


def make_trainer(folder: Path, setting: Setting, updates: int, **options: Any) -> Any:
    rows = PROMPTS * setting.group
    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=rows,
        num_generations=setting.group,
        num_iterations=setting.epochs,
        max_steps=setting.epochs * (1 + updates),
        max_completion_length=setting.completion,
        generation_kwargs={"min_new_tokens": setting.completion},
        beta=setting.kl_weight,
        use_bias_correction_kl=False,
        loss_type="grpo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=MAX_GRAD_NORM,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        save_strategy="no",
        logging_steps=setting.epochs,
        disable_tqdm=True,
        **options,
    )
    return trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=list(REWARDS),
        args=config,
        train_dataset=datasets.Dataset.from_list(make_prompts(setting, updates)),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
    )


def run(folder: Path, setting: Setting, updates: int, meter: Meter, **options: Any) -> None:
    trainer = make_trainer(folder, setting, updates, **options)
    trainer._generate = meter.timed(trainer._generate)
    trainer.add_callback(_Ticks(meter, setting.epochs))
    trainer.train()
