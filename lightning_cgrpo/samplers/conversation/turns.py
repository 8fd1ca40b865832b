"""Conversations, turn by turn, with any engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Rollouts, prompt_tokens
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling


class Replies(Protocol):
    """The other side of conversations."""

    def __call__(self, row: int, turn: list[int], room: int) -> list[int]:
        """Answer a turn with the world's tokens, up to the point where the policy continues.

        Args:
            row: number of the answer, in [0, B G).
            turn: the policy's tokens since the last reply, with the stop token or stop string.
            room: most tokens of the reply; the policy needs one more.

        Returns:
            The reply; an empty reply ends the answer.
        """


@dataclass
class _Answer:
    """An answer that grows by turns of the policy and replies to them.

    Attributes:
        ended: the last turn has a stop token or a stop string.
    """

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)  # 0 for replies
    sampled: list[bool] = field(default_factory=list)  # false for replies
    ended: bool = False

    def extend(self, tokens: list[int], log_probs: list[float], sampled: bool) -> None:
        self.tokens += tokens
        self.log_probs += log_probs
        self.sampled += [sampled] * len(tokens)


@torch.no_grad()
def converse(
    engine: RolloutEngine,
    policy: CausalLMPolicy,
    inputs: dict[str, Tensor],
    group_size: int,
    sampling: Sampling,
    draws: Tensor,
    reply: Replies,
) -> Rollouts:
    """Like `RolloutEngine.generate`, with replies to turns that end before their limit.

    The engine reads the whole conversation again for each turn, as token ids. The token at a place of the answer has
    the draw of this place, whichever turn it is in. The first turn has at least `min_new_tokens` tokens, so later turns
    need no minimum.
    """
    prompts: list[list[int]] = []  # of each answer
    for prompt in prompt_tokens(inputs):
        prompts += [prompt] * group_size
    draws_RT = draws.flatten(0, 1)
    answers = [_Answer() for _ in prompts]
    # In the first turn, the answers of a group share their prompt.
    rows = list(range(len(prompts)))
    turns = engine.generate(policy, inputs, group_size, sampling, draws)
    reports_log_probs = turns.sampling_log_probs is not None
    while True:
        # 1. Write the turns and the replies to them.
        _add_turns(answers, rows, turns)
        rows = _add_replies(answers, rows, reply, sampling.max_new_tokens)
        if not rows:
            break
        # 2. In later turns, each conversation is a prompt of its own.
        contexts = [prompts[row] + answers[row].tokens for row in rows]
        prompt_of_row = torch.tensor(rows, device="cpu") // group_size
        following = {name: tensor[prompt_of_row] for name, tensor in inputs.items()}
        following |= policy.padded(contexts)
        # 3. The tokens that are left to each conversation, and their draws.
        starts = torch.tensor([len(answers[row].tokens) for row in rows], device="cpu")
        limits = sampling.max_new_tokens - starts
        longest = int(limits.max())
        places = starts[:, None] + torch.arange(longest, device="cpu")
        # Draws after an answer's limit are never used.
        places = places.clamp(max=sampling.max_new_tokens - 1)
        rest = draws_RT[rows].gather(1, places.to(draws.device))
        later = replace(sampling, max_new_tokens=longest, min_new_tokens=0)
        turns = engine.generate(policy, following, 1, later, rest[:, None], limits)
    return _rollouts(policy, inputs, answers, group_size, sampling.max_new_tokens, reports_log_probs)


def _add_turns(answers: Sequence[_Answer], rows: Sequence[int], turns: Rollouts) -> None:
    """Append the turns of the answers `rows`."""
    tokens = turns.actions.flatten(0, 1)
    lengths = turns.lengths.flatten()
    tokens, lengths, cut = on_host(tokens, lengths, turns.info["truncated"].flatten())
    if turns.sampling_log_probs is None:
        log_probs = torch.zeros(tokens.shape, device="cpu")
    else:
        log_probs = turns.sampling_log_probs.reshape(tokens.shape).cpu()
    for number, row in enumerate(rows):
        length = int(lengths[number])
        answers[row].extend(tokens[number, :length].tolist(), log_probs[number, :length].tolist(), sampled=True)
        answers[row].ended = not bool(cut[number])


def _add_replies(answers: Sequence[_Answer], rows: Sequence[int], reply: Replies, longest: int) -> list[int]:
    """Append replies to the turns of `rows` that ended; return the rows that continue."""
    going_on = []
    for row in rows:
        answer = answers[row]
        if not answer.ended:
            continue
        # The turn starts after the last token of an earlier reply.
        start = len(answer.sampled)
        while start > 0 and answer.sampled[start - 1]:
            start -= 1
        room = max(longest - len(answer.tokens) - 1, 0)
        tokens = reply(row, answer.tokens[start:], room)
        if tokens:
            answer.extend(tokens, [0.0] * len(tokens), sampled=False)
            going_on.append(row)
    return going_on


def _rollouts(
    policy: CausalLMPolicy,
    inputs: dict[str, Tensor],
    answers: Sequence[_Answer],
    group_size: int,
    longest: int,
    reports_log_probs: bool,
) -> Rollouts:
    """Answers in the order (b, g) as tensors on the policy's device."""
    actions_RT = torch.full((len(answers), longest), policy.pad_token, device="cpu")
    mask_RT = torch.zeros(len(answers), longest, dtype=torch.bool, device="cpu")
    log_probs_RT = torch.zeros(len(answers), longest, device="cpu")
    truncated_R = torch.zeros(len(answers), dtype=torch.bool, device="cpu")
    for row, answer in enumerate(answers):
        length = len(answer.tokens)
        actions_RT[row, :length] = torch.tensor(answer.tokens, device="cpu")
        mask_RT[row, :length] = torch.tensor(answer.sampled, device="cpu")
        log_probs_RT[row, :length] = torch.tensor(answer.log_probs, device="cpu")
        truncated_R[row] = not answer.ended
    shape = len(inputs["prompt_ids"]), group_size, longest
    return Rollouts(
        actions=actions_RT.view(shape),
        mask=mask_RT.view(shape),
        inputs=inputs,
        sampling_log_probs=log_probs_RT.view(shape) if reports_log_probs else None,
        info={"truncated": truncated_R.view(shape[:2])},
    ).to(policy.device)
