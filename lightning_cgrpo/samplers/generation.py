"""Answers by generating text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from lightning_cgrpo.distributed import gather_counts, world
from lightning_cgrpo.errors import UserError, expect
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.prompt_source import PromptSource
from lightning_cgrpo.rollout import PromptGroups, Rollouts
from lightning_cgrpo.samplers.engine import Replies, RolloutEngine, Sampling
from lightning_cgrpo.samplers.sampler import Noise, Sampler
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

CHECKED_AT_ONCE = 1_000


class GenerationSampler(Sampler):
    """Continues each prompt G times, until a stop token or `max_new_tokens`.

    Prompts are the column ``prompt``: texts or chat messages. Rollouts have the inputs ``prompt_ids`` and
    ``prompt_mask`` ``[B, P]``. The module computes log-probabilities, because rounding makes generation differ from
    training. In `info`:

    - ``text``: B lists of G texts without special tokens
    - ``truncated``: ``[B, G]`` bool, answers without a stop token

    Args:
        max_new_tokens: the longest answer, its stop token included.
        min_new_tokens: the shortest answer, its stop token included.
        top_p: keep the likeliest tokens with this probability; the loss ignores all filters.
        min_p: keep tokens above this share of the largest probability.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt and the answer
            (Keskar et al., 2019). The loss does not apply it, but corrects by both probabilities, as for an
            external engine (`Optimization.sampling`); ``sampling/ratio`` shows the difference.
        batch_size: most answers generated at once, in whole groups; by default all.
        engine: by default the policy's own weights in this process.
    """

    tools: Sequence[dict[str, Any]] = ()  # schemas, which the chat template writes into the prompts

    def __init__(
        self,
        max_new_tokens: int,
        min_new_tokens: int = 0,
        top_p: float = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
        batch_size: int | None = None,
        engine: RolloutEngine | None = None,
        repetition_penalty: float = 1.0,
    ) -> None:
        self.longest = max_new_tokens
        self.sampling = Sampling(max_new_tokens, min_new_tokens, top_p, top_k, min_p, repetition_penalty)
        expect(batch_size is None or batch_size >= 1, "batch_size", "at least 1", batch_size)
        self.batch_size = batch_size
        self.engine: RolloutEngine = TransformersEngine() if engine is None else engine

    def check(self, policy: CausalLMPolicy, source: PromptSource) -> None:
        """Raise a `UserError` unless all prompts of `source.rows` and `max_new_tokens` fit into the model's context.

        Policies that read images are not checked. Collective.
        """
        rows = source.rows
        if rows is None or policy.context_length is None or policy.reads_images:
            return
        rank, processes = world()
        room = policy.context_length - self.sampling.max_new_tokens
        found, first = 0, ""
        for start in range(rank, len(rows), processes * CHECKED_AT_ONCE):
            index = range(start, min(start + processes * CHECKED_AT_ONCE, len(rows)), processes)
            tokens = policy.tokenize([rows[row]["prompt"] for row in index], torch.tensor(index), self.tools)
            for row, length in zip(index, map(len, tokens), strict=True):
                if length > room:
                    found += 1
                    first = first or f" (such as prompt {row}, of {length} tokens)"
        # Every process raises, also one whose own prompts fit.
        if total := sum(gather_counts(found, policy.device)):
            raise UserError(
                f"Expected prompts and answers to fit into the {policy.context_length} positions of '{policy.name}', "
                f"but got {total} of {len(rows)} prompts with more than {room} tokens{first} and max_new_tokens "
                f"{self.sampling.max_new_tokens}, try leaving them out of the data, or a smaller max_new_tokens."
            )

    @torch.no_grad()
    def rollout(self, policy: CausalLMPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        return self.generated(policy, prompts, group_size, noise)

    def generated(
        self,
        policy: CausalLMPolicy,
        prompts: PromptGroups,
        group_size: int,
        noise: Noise,
        reply: Replies | None = None,
    ) -> Rollouts:
        """`rollout`, with the world's replies."""
        asked = prompts.column("prompt", "GenerationSampler")
        tokens, inputs = policy.read_prompts(asked, prompts.index, self.tools)
        longest, limit = max(map(len, tokens), default=1), policy.context_length
        if limit is not None and longest + self.sampling.max_new_tokens > limit:
            raise UserError(
                f"Expected prompt and answer to fit into the {limit} positions of '{policy.name}', but got a prompt of "
                f"{longest} tokens and max_new_tokens {self.sampling.max_new_tokens}, try a smaller max_new_tokens."
            )
        draws = noise(group_size, self.sampling.max_new_tokens)
        size = max(len(tokens) if self.batch_size is None else self.batch_size // group_size, 1)
        parts = []
        for start in range(0, max(len(tokens), 1), size):
            rows = slice(start, start + size)
            some = {name: tensor[rows] for name, tensor in inputs.items()}
            of_part = None if reply is None else partial(_of_part, reply, start * group_size)
            parts.append(
                self.engine.generate(policy, tokens[rows], group_size, self.sampling, draws[rows], some, of_part)
            )
        actions, mask, truncated = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "mask", "truncated")
        )
        log_probs = [part.log_probs for part in parts if part.log_probs is not None]
        texts = policy.decode(actions.flatten(0, 1), mask.flatten(0, 1))
        prompt_ids, prompt_mask = policy.padded(tokens)
        return Rollouts(
            actions=actions,
            mask=mask,
            inputs={"prompt_ids": prompt_ids, "prompt_mask": prompt_mask, **inputs},
            sampling_log_probs=torch.cat(log_probs) if log_probs else None,
            info={
                "text": [texts[i : i + group_size] for i in range(0, len(texts), group_size)],
                "truncated": truncated,
            },
        )


def _of_part(
    reply: Replies, start: int, rows: Sequence[int], turns: Sequence[list[int]], room: int
) -> Sequence[list[int]]:
    """`reply` to a part of the answers, which begins at number `start`."""
    return reply([start + row for row in rows], turns, room)
