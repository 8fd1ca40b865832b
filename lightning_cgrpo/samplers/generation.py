"""Answers by generating text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_cgrpo.core.distributed import gather_counts, on_host, world
from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.prompts.source import PromptSource
from lightning_cgrpo.core.rollout import PromptGroups, Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.rendering import variables_of
from lightning_cgrpo.samplers.ends import Ends
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling
from lightning_cgrpo.samplers.sampler import Noise, Sampler
from lightning_cgrpo.samplers.transformers_engine import TransformersEngine

CHECKED = 1_000
"""Prompts whose tokens are counted before training: the longest texts, since a million would take minutes."""
ENDLESS = 20
"""Rollouts without any end token before a warning."""


class GenerationSampler(Sampler):
    """Continues each prompt G times, until a stop token, a stop string or `max_new_tokens`.

    Prompts are the column ``prompt``: texts or chat messages. Rollouts have the inputs ``prompt_ids`` and
    ``prompt_mask`` ``[B, P]``. The module computes log-probabilities, because rounding makes generation differ from
    training. In `info`:

    - ``text``: B lists of G texts without special tokens
    - ``truncated``: ``[B, G]`` bool, answers without a stop token or stop string

    Args:
        max_new_tokens: the longest answer, its stop token included.
        min_new_tokens: the shortest answer, its stop token included.
        top_p: keep the likeliest tokens with this probability; the loss ignores all filters.
        min_p: keep tokens above this share of the largest probability.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt and the answer
            (Keskar et al., 2019). The loss does not apply it, but corrects by both probabilities, as for an
            external engine (`Optimization.sampling`); ``sampling/ratio`` shows the difference.
        batch_size: most answers generated at once, in whole groups; by default all. Waiting prompts take the place of
            ended answers.
        engine: by default the policy's own weights in this process.
        stop: strings that end an answer, such as ``["</answer>"]``. The answer ends with the token that completes the
            string, and has the string in its text. In conversations, a string ends a turn.
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
        stop: Sequence[str] = (),
    ) -> None:
        self.longest = max_new_tokens
        expect(not isinstance(stop, str), "stop", "a list of strings", stop)
        self.sampling = Sampling(
            max_new_tokens, min_new_tokens, top_p, top_k, min_p, repetition_penalty, batch_size, tuple(stop)
        )
        self.engine: RolloutEngine = TransformersEngine() if engine is None else engine
        self.reads_weights = self.engine.reads_weights
        self._endless = 0

    def check(self, policy: CausalLMPolicy, source: PromptSource) -> None:
        """Raise a `UserError` unless the longest prompts of `source.rows` fit, before a long run meets the first.

        All others are checked when they are read. Of policies that read images, the first prompt alone is read.
        Collective.
        """
        Ends(policy, self.sampling)  # refuses strings that no tokens spell
        rows = source.rows
        if rows is not None:
            self.first_prompt(policy, source)
        if rows is None or policy.room(0) == math.inf or policy.reads_images:
            return
        # 1. Each process counts the tokens of its share of the longest texts.
        longest = nlargest(CHECKED, range(len(rows)), key=lambda row: _text_size(rows[row]["prompt"]))
        rank, processes = world()
        index = torch.tensor(longest[rank::processes], dtype=torch.int64)
        too_long: dict[int, int] = {}
        if len(index):
            inputs = self._read_prompts(policy, source.groups(index))
            too_long = self._too_long(policy, index, inputs)
        # 2. Every process raises, also a process whose own prompts fit.
        total = sum(gather_counts(len(too_long), policy.device))
        if total:
            among = f"{len(rows)} prompts" if len(rows) <= CHECKED else f"the {CHECKED:,} longest prompts"
            raise self._room_error(policy, total, among, too_long)

    def _too_long(self, policy: CausalLMPolicy, index: Tensor, inputs: dict[str, Tensor]) -> dict[int, int]:
        """Lengths of the prompts that leave no room for `max_new_tokens`, by number."""
        room = policy.room(self.sampling.max_new_tokens)
        if inputs["prompt_ids"].shape[1] <= room:
            return {}
        lengths = inputs["prompt_mask"].sum(-1).tolist()
        return {row: length for row, length in zip(index.tolist(), lengths, strict=True) if length > room}

    def _room_error(self, policy: CausalLMPolicy, total: int, among: str, too_long: dict[int, int]) -> UserError:
        example = ""
        if too_long:
            row, length = next(iter(too_long.items()))
            example = f" (such as prompt {row}, of {length} tokens)"
        longest = self.sampling.max_new_tokens
        if policy.room(longest) < 1:
            return UserError(
                f"Expected max_new_tokens to leave room for a prompt, in a context of {policy.context_length} "
                f"tokens, but got {longest}, try a smaller max_new_tokens."
            )
        return UserError(
            f"Expected prompts of at most {policy.room(longest):g} tokens, by max_prompt_tokens and the "
            f"{policy.context_length} positions of '{policy.name}' without max_new_tokens {longest}, but got "
            f"{total} of {among} too long{example}, try leaving them out, or a smaller max_new_tokens."
        )

    def _warn_of_endless(self, policy: CausalLMPolicy, truncated: Tensor) -> None:
        """Warn once if no answer of `ENDLESS` rollouts in a row had an end token."""
        if len(truncated) and bool(truncated.all()):
            self._endless += 1
        else:
            self._endless = 0
        if self._endless == ENDLESS:
            rank_zero_warn(
                f"No answer of the last {ENDLESS} rollouts ended before max_new_tokens, "
                f"{self.sampling.max_new_tokens}, with one of the ends {self.ends(policy)}. Try a larger "
                "max_new_tokens, chat messages as prompts, or a model whose generation_config.eos_token_id names the "
                "end of its answers."
            )

    def ends(self, policy: CausalLMPolicy) -> str:
        """The stop tokens and stop strings, for messages."""
        tokens = policy.tokenizer.convert_ids_to_tokens(list(policy.stop_tokens))
        return ", ".join([*map(str, tokens), *map(repr, self.sampling.stop)])

    @torch.no_grad()
    def rollout(self, policy: CausalLMPolicy, prompts: PromptGroups, group_size: int, noise: Noise) -> Rollouts:
        inputs = self._read_fitting_prompts(policy, prompts)
        draws = noise(group_size, self.sampling.max_new_tokens)
        with self.engine.session(policy):
            rollouts = self.engine.generate(policy, inputs, group_size, self.sampling, draws)
        return self._with_texts(policy, rollouts)

    def release(self, policy: CausalLMPolicy) -> None:
        self.engine.release(policy)

    @property
    def memory(self) -> int | None:
        return self.engine.memory

    @memory.setter
    def memory(self, most: int | None) -> None:
        self.engine.memory = most

    def _read_fitting_prompts(self, policy: CausalLMPolicy, prompts: PromptGroups) -> dict[str, Tensor]:
        """Inputs of the prompts, on the CPU.

        Raises:
            UserError: a prompt leaves no room for `max_new_tokens`.
        """
        inputs = self._read_prompts(policy, prompts)
        too_long = self._too_long(policy, prompts.index, inputs)
        if too_long:
            raise self._room_error(policy, len(too_long), f"{len(prompts)} prompts", too_long)
        return inputs

    def first_prompt(self, policy: CausalLMPolicy, source: PromptSource) -> dict[str, Tensor]:
        """Inputs of the first chat of a source in memory, else of the first prompt."""
        first = 0
        for number, row in enumerate(source.rows or ()):
            if not isinstance(row.get("prompt"), str):
                first = number
                break
        return self._read_prompts(policy, source.groups(torch.tensor([first])))

    def _read_prompts(self, policy: CausalLMPolicy, prompts: PromptGroups) -> dict[str, Tensor]:
        texts_or_chats = prompts.column("prompt", "GenerationSampler")
        variables = variables_of(prompts.columns, len(prompts))
        return policy.read_prompts(texts_or_chats, prompts.index, self.tools, variables)

    def _with_texts(self, policy: CausalLMPolicy, rollouts: Rollouts) -> Rollouts:
        """Add the answers' texts to `info`, and warn of answers that never end."""
        actions, mask, truncated = on_host(rollouts.actions, rollouts.mask, rollouts.info["truncated"])
        self._warn_of_endless(policy, truncated)
        texts = policy.decode(actions.flatten(0, 1), mask.flatten(0, 1))
        group_size = rollouts.actions.shape[1]
        rollouts.info["text"] = split_groups(texts, group_size)
        return rollouts


def split_groups(values: Sequence[Any], group_size: int) -> list[Sequence[Any]]:
    """The values of all answers, as B lists of G."""
    return [values[first : first + group_size] for first in range(0, len(values), group_size)]


def _text_size(prompt: Any) -> int:
    """Bytes of a prompt's texts: more bytes are more tokens, as a rule."""
    return len(str(prompt).encode())
