"""Answers of a rollout: those that wait, those that go on, and their tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch
from lightning_cgrpo.samplers.ends import Ends
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.token_choice import prompt_tokens_seen

FEWEST_PROMPTS = 0.25
"""Fewest prompts that join, as a share of `at_once`, because a join copies all keys and values."""
MOST_PROMPTS_KEPT = 2
"""Most prompts with running answers, as a multiple of `at_once`, because a single answer keeps its prompt."""

# Shapes: B prompts with G answers each, R in all, of at most T tokens; r answers go on; V tokens in the vocabulary.


class WaitingPrompts:
    """The prompts whose answers have not begun, in the order of their numbers.

    Attributes:
        at_once: prompts whose answers fit in a batch.
    """

    def __init__(self, policy: CausalLMPolicy, prompts: PromptBatch, sampling: Sampling) -> None:
        self.policy = policy
        self.prompts = prompts
        self.group_size = prompts.group_size
        self.sampling = sampling
        self.ends = Ends(policy, sampling)
        most = len(prompts)
        if sampling.batch_size is not None:
            most = sampling.batch_size // self.group_size
        self.at_once = max(most, 1)
        self._joins = isinstance(policy.computation, PackedPrompts)
        self._first = 0

    def __len__(self) -> int:
        return len(self.prompts) - self._first

    def to_join(self, running: Running) -> int:
        """The number of prompts that are to join running answers now.

        It depends on the answers' lengths alone, so resumes are exact.
        """
        if not self._joins:
            return 0
        free_answers = self.at_once * self.group_size - len(running.prompt)
        free_groups = free_answers // self.group_size
        free_prompts = MOST_PROMPTS_KEPT * self.at_once - len(running.prompt.unique())
        count = min(free_groups, free_prompts, len(self))
        fewest = min(FEWEST_PROMPTS * self.at_once, len(self))
        return count if count >= fewest else 0

    def begin(self, count: int) -> tuple[Running, Continuation]:
        """All answers of the next `count` prompts, before their first tokens."""
        policy = self.policy
        following = slice(self._first, self._first + count)
        prompts = self.prompts.part(following).in_dtype(policy.output_weight.dtype)
        continuation = policy.continuation(prompts)

        # Numbers of each answer [r]: its prompt, its tokens until the limit, and its place among all answers.
        numbers = torch.arange(len(self.prompts), device="cpu")
        prompt = numbers[following].repeat_interleave(self.group_size)
        left = prompts.limits.repeat_interleave(self.group_size)
        row = self._first * self.group_size + torch.arange(len(prompt), device="cpu")
        place = row * self.sampling.max_new_tokens
        seen = None
        if self.sampling.repetition_penalty != 1:
            seen = prompt_tokens_seen(policy, prompts.inputs).repeat_interleave(self.group_size, 0)
        self._first += len(prompts)
        running = Running(
            prompt=prompt,
            left=left,
            place=place.to(policy.device, non_blocking=True),
            end=(place + left).to(policy.device, non_blocking=True),
            going_on=torch.ones(len(prompt), dtype=torch.bool, device=policy.device),
            seen=seen,
            matched=self.ends.start(len(prompt)),
        )
        return running, continuation


@dataclass(frozen=True)
class Running:
    """The answers that had not ended at the last look; some may have ended since."""

    prompt: Tensor  # [r] on the CPU
    left: Tensor  # [r] on the CPU, tokens until the limit
    place: Tensor  # [r] of the next token, among all answers' places [R T]
    end: Tensor  # [r] place after the limit
    going_on: Tensor  # [r] bool
    seen: Tensor | None  # [r, V] bool, tokens to penalize
    matched: Tensor | None  # [r] state of the stop strings, see `Ends`

    def with_tokens(self, chosen: Tensor, stopped: Tensor, matched: Tensor | None) -> Running:
        """After the next tokens ``[r]``; a token that `stopped` its answer, or is at the limit, is the last one."""
        place = self.place + 1
        seen = None
        if self.seen is not None:
            seen = self.seen.scatter(-1, chosen[:, None], True)
        return replace(
            self,
            left=self.left - 1,
            place=place,
            going_on=self.going_on & ~stopped & (place < self.end),
            seen=seen,
            matched=matched,
        )

    def only_rows(self, rows: Tensor, index: Tensor) -> Running:
        """The answers at `rows` on the CPU, which are `index` on the policy's device."""
        return Running(
            prompt=self.prompt[rows],
            left=self.left[rows],
            place=self.place[index],
            end=self.end[index],
            going_on=self.going_on[index],
            seen=None if self.seen is None else self.seen[index],
            matched=None if self.matched is None else self.matched[index],
        )

    def with_answers(self, other: Running) -> Running:
        """These answers, then the other's."""
        return Running(
            prompt=torch.cat([self.prompt, other.prompt]),
            left=torch.cat([self.left, other.left]),
            place=torch.cat([self.place, other.place]),
            end=torch.cat([self.end, other.end]),
            going_on=torch.cat([self.going_on, other.going_on]),
            seen=_append_rows(self.seen, other.seen),
            matched=_append_rows(self.matched, other.matched),
        )


class Answers:
    """The tokens of all answers, on the policy's device."""

    def __init__(self, policy: CausalLMPolicy, rows: int, sampling: Sampling) -> None:
        self.policy = policy
        self.longest = sampling.max_new_tokens
        self.tokens = torch.full((rows * self.longest,), policy.pad_token, device=policy.device)  # [R T]
        self.written = torch.zeros_like(self.tokens, dtype=torch.bool)
        self.stopped = torch.zeros_like(self.written)  # the tokens that end answers
        self.log_probs: Tensor | None = None  # only for corrections by both probabilities
        if sampling.repetition_penalty != 1:
            self.log_probs = torch.zeros_like(self.tokens, dtype=torch.float32)

    def write(self, running: Running, chosen: Tensor, stopped: Tensor, log_probs: Tensor) -> None:
        """Write a token ``[r]`` of each running answer; tokens after an answer's end are not its own.

        Args:
            stopped: ``[r]`` bool, whether the token ends its answer.
        """
        self.tokens.index_copy_(0, running.place, chosen)
        self.written.index_copy_(0, running.place, running.going_on)
        self.stopped.index_copy_(0, running.place, running.going_on & stopped)
        if self.log_probs is not None:
            self.log_probs.index_copy_(0, running.place, log_probs)

    def rollouts(self, inputs: dict[str, Tensor], group_size: int) -> Rollouts:
        shape = (len(inputs["prompt_ids"]), group_size, self.longest)
        written = self.written.view(shape)
        tokens = self.tokens.view(shape).masked_fill_(~written, self.policy.pad_token)
        log_probs = None
        if self.log_probs is not None:
            log_probs = self.log_probs.view(shape).masked_fill_(~written, 0)
        return Rollouts(
            actions=tokens,
            mask=written,
            inputs=inputs,
            sampling_log_probs=log_probs,
            info={"truncated": ~self.stopped.view(shape).any(-1)},
        )


def _append_rows(rows: Tensor | None, others: Tensor | None) -> Tensor | None:
    if rows is None or others is None:
        return None
    return torch.cat([rows, others])
