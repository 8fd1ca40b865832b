"""Supervised fine-tuning on demonstrations, before constrained training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.errors import UserError, expect
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, OptimizerCallable, micro_batches
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.sharding import in_turn, shard
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task


class SupervisedFineTuning(RolloutModule):
    """Maximum likelihood of the column ``completion`` given the column ``prompt``.

    The loss is -log p(completion, end token | prompt), summed over tokens and averaged over prompts. A mean over tokens
    would distort the learned lengths.

    Args:
        policy: trained policy.
        sampler: samples answers in evaluation.
        task: scores answers into signals.
        objective: measured rates.
        optimizer: function of parameters.
        lr_scheduler: function of the optimizer; steps once per update.
        micro_batch_size: completions per pass, for memory; None: all at once.
        max_grad_norm: largest norm of gradients; None for no limit.
        eval_group_size: answers per prompt in evaluation.
        seed: by default the seed of `lightning.seed_everything`.

    Raises:
        FloatingPointError: gradients aren't finite.
    """

    policy: CausalLMPolicy

    def __init__(
        self,
        policy: CausalLMPolicy,
        sampler: Sampler,
        task: Task,
        objective: Objective,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None = None,
        micro_batch_size: int | None = None,
        max_grad_norm: float | None = 1.0,
        eval_group_size: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__(policy, sampler, task, objective, optimizer, lr_scheduler, eval_group_size, seed)
        least = micro_batch_size is None or micro_batch_size >= 1
        expect(least, "micro_batch_size", "at least 1", micro_batch_size)
        self.micro_batch_size, self.max_grad_norm = micro_batch_size, max_grad_norm

    def configure_model(self) -> None:
        with in_turn(self):
            self.load_policy()
            shard(self)

    def training_step(self, prompts: PromptGroups, batch_idx: int) -> None:
        examples = self.policy.examples(demonstrated(self.policy, prompts))
        counts = torch.tensor([len(examples), int(examples.mask.sum())], dtype=torch.float64, device=self.device)
        answers, tokens = all_sum(counts).tolist()
        # DDP averages gradients over the processes, where the loss needs their sum.
        scale = world()[1] / answers
        total = torch.zeros((), dtype=torch.float64, device=self.device)

        def loss(rows: Tensor) -> Tensor:
            part = examples[rows]
            value = -torch.where(part.mask, self.policy(part).log_probs, 0).sum()
            total.add_(value.detach())
            scaled: Tensor = value * scale
            return scaled

        self.accumulate(micro_batches(torch.arange(len(examples), device=self.device), self.micro_batch_size), loss)
        if self.clipped_norm(self.max_grad_norm) is None:
            raise FloatingPointError(
                f"Expected finite gradients in update {self.global_step}, but got NaN or infinity, try a smaller "
                "learning rate, or max_grad_norm."
            )
        self.take_step()
        summed = float(all_sum(total))
        self.log_dict({"sft/loss": summed / answers, "sft/token_loss": summed / tokens}, prog_bar=True)


def demonstrated(policy: CausalLMPolicy, prompts: PromptGroups) -> Rollouts:
    """The column ``completion`` as rollouts: one answer ``[B, 1, T]`` per prompt, with its end token.

    Raises:
        UserError: the column is missing, or a completion exceeds the model's context.
    """
    asked, answered = (prompts.column(name, "SupervisedFineTuning") for name in ("prompt", "completion"))
    tokens, inputs = policy.read_prompts(asked, prompts.index)
    end = policy.tokenizer.eos_token_id
    end = end if end in policy.stop_tokens else policy.stop_tokens[0]
    rows = [[*policy.tokenizer(text, add_special_tokens=False).input_ids, end] for text in answered]
    limit = policy.context_length
    for number, prompt, row in zip(prompts.index.tolist(), tokens, rows, strict=True):
        if limit is not None and len(prompt) + len(row) > limit:
            raise UserError(
                f"Expected prompt and completion to fit into the {limit} positions of '{policy.name}', but got "
                f"{len(prompt) + len(row)} tokens in prompt {number}, try leaving it out of the data."
            )
    ids, mask = policy.padded(tokens)
    answers = [torch.tensor(row) for row in rows] or [torch.zeros(0, dtype=torch.int64)]  # no prompts on this process
    actions = nn.utils.rnn.pad_sequence(answers, True, policy.pad_token)[: len(rows)].to(ids.device)
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    taken = torch.arange(actions.shape[1], device=ids.device) < lengths[:, None]
    return Rollouts(actions[:, None], taken[:, None], {"prompt_ids": ids, "prompt_mask": mask, **inputs})
