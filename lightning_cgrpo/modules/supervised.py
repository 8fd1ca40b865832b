"""Supervised fine-tuning on demonstrations, before constrained training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_cgrpo.core.distributed import all_sum, world
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.source import PromptLoader
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.core.user_code import UserCode
from lightning_cgrpo.grpo.minibatches import LRSchedulerCallable, OptimizerCallable
from lightning_cgrpo.modules.rollout_module import RolloutModule
from lightning_cgrpo.objective.objective import Objective
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.onednn import faster_products
from lightning_cgrpo.policies.rendering import Tools, variables_of
from lightning_cgrpo.policies.sharding import in_turn, shard
from lightning_cgrpo.samplers.conversation.template import ChatTemplate
from lightning_cgrpo.samplers.generation import GenerationSampler
from lightning_cgrpo.samplers.sampler import Sampler
from lightning_cgrpo.tasks.task import Task

LOOKED_AT = 100
"""Demonstrations that are written before training."""


class SupervisedFineTuning(RolloutModule):
    """Maximum likelihood of the column ``completion`` given the column ``prompt``.

    A completion is a text, or messages: turns of the assistant, perhaps with ``tool_calls``, and between the turns
    results of tools or messages of the user. The loss counts the assistant's tokens alone, as with TRL's
    ``assistant_only_loss``. Prompts present the sampler's tools.

    The loss is -log p(completion, end token | prompt), summed over tokens and averaged over prompts. A mean over tokens
    would distort the learned lengths.

    Args:
        policy: trained policy.
        sampler: samples answers in evaluation.
        task: scores answers into signals.
        objective: measured rates.
        optimizer: function of parameters.
        lr_scheduler: function of the optimizer; steps once per update.
        micro_batch_size: completions per pass, for memory; None: all at once, under bf16-mixed on a GPU as many as its
            free memory holds (`fitting_tokens`).
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
        valid = micro_batch_size is None or micro_batch_size >= 1
        expect(valid, "micro_batch_size", "at least 1", micro_batch_size)
        self.micro_batch_size = micro_batch_size
        self.max_grad_norm = max_grad_norm

    def configure_model(self) -> None:
        with in_turn(self):
            self.load_policy()
            shard(self)

    def on_train_start(self) -> None:
        """Look at the first demonstrations, which a chat template may not write, before any is trained on."""
        super().on_train_start()
        loader = self.trainer.train_dataloader
        if isinstance(loader, PromptLoader) and loader.source.rows is not None:
            first_rows = torch.arange(min(LOOKED_AT, len(loader.source)))
            demonstration_rollouts(self.policy, loader.source.groups(first_rows), self._sampler_tools())

    def _sampler_tools(self) -> Tools:
        return self.sampler.tools if isinstance(self.sampler, GenerationSampler) else ()

    @UserCode("training_step")
    def training_step(self, prompts: PromptGroups, batch_idx: int) -> None:
        examples = self.policy.examples(demonstration_rollouts(self.policy, prompts, self._sampler_tools()))
        counts = torch.tensor([len(examples), int(examples.mask.sum())], dtype=torch.float64, device=self.device)
        answers, tokens = all_sum(counts).tolist()
        # DDP averages gradients over the processes, where the loss needs their sum.
        scale = world()[1] / answers
        summed_loss = torch.zeros((), dtype=torch.float64, device=self.device)

        def loss(rows: Tensor) -> Tensor:
            part = examples[rows]
            negative_log_likelihood = -torch.where(part.mask, self.policy(part).log_probs, 0).sum()
            summed_loss.add_(negative_log_likelihood.detach())
            return negative_log_likelihood * scale

        if self.micro_batch_size is None:
            self.manual_optimization.choose_tokens()
        rows = torch.arange(len(examples), device=self.device)
        pieces = self.manual_optimization.split_rows(examples, rows, self.micro_batch_size)
        with faster_products(self.policy):
            self.manual_optimization.accumulate(pieces, loss)
        if self.manual_optimization.clipped_norm(self.max_grad_norm) is None:
            raise FloatingPointError(
                f"Expected finite gradients in update {self.global_step}, but got NaN or infinity, try a smaller "
                "learning rate, or max_grad_norm."
            )
        self.manual_optimization.take_step()
        total_loss = float(all_sum(summed_loss))
        self.log_dict({"sft/loss": total_loss / answers, "sft/token_loss": total_loss / tokens}, prog_bar=True)


def demonstration_rollouts(policy: CausalLMPolicy, prompts: PromptGroups, tools: Tools = ()) -> Rollouts:
    """The column ``completion`` as rollouts: one answer ``[B, 1, T]`` per prompt, with its end token.

    Replies in completions of several messages are context, as in sampled conversations.

    Args:
        tools: schemas, which the chat template writes into the prompts.

    Raises:
        UserError: the column is missing, a completion exceeds the model's context, or the chat template cannot write
            the turns one by one; see `ChatTemplate`.
    """
    prompt_column = prompts.column("prompt", "SupervisedFineTuning")
    completions = prompts.column("completion", "SupervisedFineTuning")
    variables = variables_of(prompts.columns, len(prompts))
    inputs = policy.read_prompts(prompt_column, prompts.index, tools, variables)

    # A chat template is tested for the roles and calls that it has to write.
    messages: list[Mapping[str, Any]] = []
    for completion in completions:
        if not isinstance(completion, str):
            messages.extend(completion)
    user_replies = any(message["role"] == "user" for message in messages)
    calls_tools = any(message.get("tool_calls") for message in messages)

    # Encode each completion: tokens, and which of them the policy would sample itself.
    templates: dict[str, ChatTemplate] = {}
    token_rows: list[list[int]] = []
    sampled_rows: list[list[bool]] = []
    for prompt, completion, row_variables in zip(prompt_column, completions, variables, strict=True):
        if isinstance(completion, str):
            tokens = _encode_text(policy, completion, after_chat=not isinstance(prompt, str))
            sampled = [True] * len(tokens)
        else:
            # One template for all rows with the same variables, because its tests take time.
            options = {name: value for name, value in row_variables.items() if name != "tools"}
            key = repr(sorted(options.items()))
            if key not in templates:
                templates[key] = ChatTemplate(policy, tools, user_replies, options, calls_tools)
            tokens, sampled = templates[key].answer(completion)
        token_rows.append(tokens)
        sampled_rows.append(sampled)

    # Refuse completions that the model can't read.
    prompt_lengths = inputs["prompt_mask"].sum(-1).tolist()
    for number, prompt_length, tokens in zip(prompts.index.tolist(), prompt_lengths, token_rows, strict=True):
        policy.check_tokens(tokens, f"the completion of prompt {number}")
        if prompt_length > policy.room(len(tokens)):
            raise UserError(
                f"Expected prompt and completion to fit into the {policy.context_length} positions of '{policy.name}', "
                f"and the prompt into max_prompt_tokens, but got {prompt_length} and {len(tokens)} tokens in prompt "
                f"{number}, try leaving it out of the data."
            )

    actions = _pad_rows(token_rows, torch.int64, policy.pad_token)
    mask = _pad_rows(sampled_rows, torch.bool, False)
    return Rollouts(actions[:, None], mask[:, None], inputs).to(policy.device)


def _encode_text(policy: CausalLMPolicy, text: str, after_chat: bool) -> list[int]:
    """Tokens of a completion that is a text, with its end token; after a chat, the token with which turns end."""
    end = policy.tokenizer.eos_token_id
    if after_chat and policy.turn_end is not None:
        end = policy.turn_end
    elif end not in policy.stop_tokens:
        end = policy.stop_tokens[0]
    return [*policy.tokenizer(text, add_special_tokens=False).input_ids, end]


def _pad_rows(rows: Sequence[Sequence[int]], dtype: torch.dtype, value: int) -> Tensor:
    """Rows as a tensor ``[B, T]``; ``[0, 0]`` for a process without prompts."""
    if not rows:
        return torch.zeros(0, 0, dtype=dtype)
    return nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], True, value)
