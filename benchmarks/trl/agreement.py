"""Check that both sides compute the same, so their times are comparable."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.trl.ours import make_module
from benchmarks.trl.settings import PROMPTS, Setting, make_prompts, save_model
from benchmarks.trl.theirs import make_trainer
from lightning_cgrpo.grpo.losses import LossOptions, aggregation_weights, grpo_loss
from lightning_cgrpo.rollout import Rollouts

SETTING = Setting(24, 12, 4, 0.2, 2)
TOLERANCE = 1e-4
"""Relative to the largest entry: float32 rounding."""


def check() -> str:
    """Compare a batch's loss and gradients, after the policy has moved since sampling.

    TRL generates and scores the answers. Prompts have two lengths.

    Raises:
        ValueError: if differences exceed rounding.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        trainer = make_trainer(folder, SETTING, updates=1)
        trainer.current_gradient_accumulation_steps = 1
        rows = make_prompts(SETTING, updates=1)[PROMPTS // 2 :][:PROMPTS]
        batch = trainer._generate_and_score_completions([row for row in rows for _ in range(SETTING.group)])
        policy = make_module(folder, SETTING).policy
        policy.load()
    ours = _ours(policy, batch)
    _move(trainer.model)
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    gap = abs(loss.item() - ours[0].item()) / abs(loss.item())
    gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    apart = max(float((ours[1][name] - gradient).abs().max()) for name, gradient in gradients.items()) / largest
    if not max(gap, apart) < TOLERANCE:
        raise ValueError(f"Expected the same loss and gradients, but they differ by {gap:.1e} and {apart:.1e}.")
    return f"Same batch, relative differences: loss {gap:.0e}, gradients {apart:.0e}."


def _ours(policy: Any, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    def grouped(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (PROMPTS, SETTING.group))

    mask = grouped(batch["completion_mask"].bool())
    inputs = {name: grouped(batch[name])[:, 0] for name in ("prompt_ids", "prompt_mask")}
    inputs["prompt_mask"] = inputs["prompt_mask"].bool()
    examples = policy.examples(Rollouts(grouped(batch["completion_ids"]), mask, inputs))
    with torch.no_grad():
        before = policy(examples).log_probs  # of the policy that sampled, and of the reference
    _move(policy.model)
    loss = grpo_loss(
        policy(examples).log_probs,
        before,
        batch["advantages"][:, None].expand_as(before),
        aggregation_weights(mask, "sequence_mean").flatten(0, 1),
        LossOptions(kl_weight=SETTING.kl_weight),
        reference_log_probs=before,
    ).loss
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in policy.model.named_parameters()}


@torch.no_grad()
def _move(model: Any) -> None:
    draw = torch.Generator().manual_seed(2)
    for _, parameter in sorted(model.named_parameters()):
        parameter += 0.2 * parameter.abs().mean() * torch.randn(parameter.shape, generator=draw)
