"""Supervised fine-tuning: learn to answer as demonstrations do, before behavior is constrained."""

from __future__ import annotations

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from lightning_cgrpo.distributed import all_sum, world
from lightning_cgrpo.errors import UserError
from lightning_cgrpo.grpo.minibatches import micro_batches
from lightning_cgrpo.modules.rollout_module import LRSchedulerCallable, OptimizerCallable, RolloutModule
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.sharding import shard, total_norm
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task


class SupervisedFineTuning(RolloutModule):
    """Maximum likelihood of the column ``completion`` given the column ``prompt``.

    The loss is -log p(completion, end token | prompt), summed over the tokens and averaged over the batch's prompts. It
    is never a mean over tokens, in which a completion's weight would depend on how long the others of its batch are:
    that bends the mix of long and short answers that is learned.

    Evaluation samples answers and measures the objective's rates, as `ConstrainedGRPO` does.

    Args:
        policy: what is trained.
        sampler: how the policy answers prompts in evaluation.
        task: scores answers into signals.
        objective: whose rates are measured.
        optimizer: makes the optimizer from parameters.
        lr_scheduler: makes a learning-rate schedule from the optimizer, stepped once per update.
        micro_batch_size: completions of one forward and backward pass on a process; gradients accumulate over an
            update's. Changes memory, not the result. None: all at once.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
        eval_group_size: answers per prompt in evaluation.
        seed: of evaluation's answers; by default the seed of `lightning.seed_everything`.

    Raises:
        UserError: in training, if prompts have no completions, or one does not fit into the model's context; when it
            starts, if there are more updates than the schedule has.
        FloatingPointError: in training, if gradients aren't finite.
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
        if micro_batch_size is not None and micro_batch_size < 1:
            raise ValueError(f"Expected argument `micro_batch_size` to be at least 1, but got {micro_batch_size}.")
        self.micro_batch_size, self.max_grad_norm = micro_batch_size, max_grad_norm

    def configure_model(self) -> None:
        """Load the policy's weights (once)."""
        self.load_policy()
        shard(self)

    def training_step(self, prompts: PromptGroups, batch_idx: int) -> None:
        examples = self.policy.examples(demonstrated(self.policy, prompts))
        counts = torch.tensor([len(examples), int(examples.mask.sum())], dtype=torch.float64, device=self.device)
        answers, tokens = all_sum(counts).tolist()
        # DDP takes the mean over the processes of what is to be a sum over them.
        scale = world()[1] / answers
        total = torch.zeros((), dtype=torch.float64, device=self.device)

        def loss(rows: Tensor) -> Tensor:
            part = examples[rows]
            value = -torch.where(part.mask, self.policy(part).log_probs, 0).sum()
            total.add_(value.detach())
            scaled: Tensor = value * scale
            return scaled

        self.accumulate(micro_batches(torch.arange(len(examples), device=self.device), self.micro_batch_size), loss)
        norm = total_norm(self.policy)
        if not bool(norm.isfinite()):
            raise FloatingPointError(
                f"Expected finite gradients in update {self.global_step}, but got NaN or infinity, try a smaller "
                "learning rate, or max_grad_norm."
            )
        if self.max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self.policy.parameters(), self.max_grad_norm, norm)
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(scheduler, LRScheduler):
            scheduler.step()
        summed = float(all_sum(total))
        self.log_dict({"sft/loss": summed / answers, "sft/token_loss": summed / tokens}, prog_bar=True)


def demonstrated(policy: CausalLMPolicy, prompts: PromptGroups) -> Rollouts:
    """The column ``completion`` as if the policy had answered so: one answer ``[B, 1, T]`` per prompt, ended.

    Raises:
        UserError: if there is no such column, or a completion does not fit into the model's context.
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
