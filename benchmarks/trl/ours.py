"""This project's update, with Lightning's Trainer and multipliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from benchmarks.trl.measure import Meter
from benchmarks.trl.settings import LEARNING_RATE, MAX_GRAD_NORM, PROMPTS, REWARDS, Setting, make_prompts
from lightning_cgrpo import (
    CausalLMPolicy,
    ConstrainedGRPO,
    Constraint,
    FunctionTask,
    GenerationSampler,
    Objective,
    Optimization,
)
from lightning_cgrpo.callbacks import LagrangianCallback
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.multipliers import SoftmaxAdam
from lightning_cgrpo.tasks.functions.prompts import Prompts


class _Ticks(Callback):
    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.meter.update_ended()


def make_module(folder: Path, setting: Setting) -> ConstrainedGRPO:
    reward, *constraints = (function.__name__ for function in REWARDS)
    return ConstrainedGRPO(
        CausalLMPolicy(str(folder)),
        GenerationSampler(setting.completion, min_new_tokens=setting.completion),
        FunctionTask({function.__name__: function for function in REWARDS}),
        Objective(reward, {name: Constraint(at_least=0.6) for name in constraints}),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True),
        optimization=Optimization(epochs=setting.epochs, kl_weight=setting.kl_weight, max_grad_norm=MAX_GRAD_NORM),
        group_size=setting.group,
    )


def run(folder: Path, setting: Setting, updates: int, meter: Meter) -> None:
    module = make_module(folder, setting)
    module.sample = meter.timed(module.sample)  # type: ignore[method-assign]
    trainer = Trainer(
        max_steps=1 + updates,
        accelerator="auto",
        devices=1,
        logger=False,
        log_every_n_steps=1,  # what is logged is computed, also without a logger
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LagrangianCallback(SoftmaxAdam()), _Ticks(meter)],
    )
    trainer.fit(module, PromptLoader(Prompts(make_prompts(setting, updates)), PROMPTS))
