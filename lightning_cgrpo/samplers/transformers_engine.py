"""Generation with the policy's own weights, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.pretrained import at_least_float32
from lightning_cgrpo.samplers.engine import Replies, RolloutEngine, Sampling

LOOK_EVERY = {"cpu": 1}
"""Tokens between looks at which answers have ended, by kind of device; the host waits for a GPU at each look."""
LOOK_EVERY_ON_GPUS = 8


class TransformersEngine(RolloutEngine):
    """Reads each prompt once and continues it G times, at most `Sampling.batch_size` answers at a time.

    Every token has its own draw, so answers depend on the batch only by rounding. On a GPU, an ended answer leaves the
    batch at the next look, and tokens after its stop token are dropped. The padding token is never chosen, unless it is
    a stop token.

    The world's replies enter the same cache, one token at a time, while other answers sample their tokens. Therefore a
    conversation looks after every token whether a turn has ended.
    """

    @torch.no_grad()
    def generate(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        reply: Replies | None = None,
    ) -> Rollouts:
        device, longest, prompts = policy.device, sampling.max_new_tokens, len(inputs["prompt_ids"])
        lengths = inputs["prompt_mask"].sum(-1)
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
        look_every = LOOK_EVERY.get(device.type, LOOK_EVERY_ON_GPUS) if reply is None else 1
        tokens = torch.full((prompts * group_size, longest), policy.pad_token, device=device)
        written = torch.zeros_like(tokens, dtype=torch.bool)
        truncated = torch.zeros(len(tokens), dtype=torch.bool, device=device)
        world = None if reply is None else _Replies(reply, tokens)
        log_probs = torch.zeros_like(tokens, dtype=torch.float32) if sampling.repetition_penalty != 1 else None
        every_draw = draws.flatten(0, 1).to(device, non_blocking=True)
        at_once = max(prompts if sampling.batch_size is None else sampling.batch_size // group_size, 1)
        for start in range(0, prompts, at_once):
            some = {name: tensor[start : start + at_once] for name, tensor in inputs.items()}
            of_some = lengths[start : start + at_once]
            end = start + len(of_some)
            rows = torch.arange(start * group_size, end * group_size, device=device)  # in computation
            draws, going_on = every_draw[rows], torch.ones_like(rows, dtype=torch.bool)
            choose = _Choice(policy, sampling)
            if log_probs is not None:
                choose.seen = _occurring(policy, some).repeat_interleave(group_size, 0)
            continuation = policy.continuation(some, of_some, group_size, longest)
            logits = continuation.read().repeat_interleave(group_size, 0)
            for step in range(longest):
                chosen = choose(logits, draws[:, step], step)
                replied = None if world is None else world.replied[rows, step]
                if replied is not None:
                    chosen = torch.where(replied, tokens[rows, step], chosen)
                tokens[rows, step], written[rows, step] = chosen, going_on
                if log_probs is not None:
                    log_probs[rows, step] = choose.log_probs
                if choose.seen is not None:
                    choose.seen = choose.seen.scatter(-1, chosen[:, None], True)
                continues = torch.isin(chosen, choose.stops, invert=True)
                going_on = going_on & (continues if replied is None else continues | replied)
                last, kept = step + 1 == longest, None
                if last or (step + 1) % look_every == 0:
                    running = choose.running(going_on)
                    if world is not None and len(running) < len(rows) and world.answers(rows[~going_on], step + 1):
                        going_on = going_on | world.replied[rows, step + 1]
                        running = choose.running(going_on)
                    if last or not len(running):
                        break
                    if len(running) < len(rows):
                        kept, index = running, running.to(device, non_blocking=True)
                        rows, draws, chosen, going_on = rows[index], draws[index], chosen[index], going_on[index]
                        choose.seen = None if choose.seen is None else choose.seen[index]
                logits = continuation.next(kept, chosen)
            truncated[rows] = going_on
        sampled = written if world is None else written & ~world.replied
        shape = prompts, group_size, longest
        return Rollouts(
            actions=tokens.masked_fill_(~written, policy.pad_token).view(shape),
            mask=sampled.view(shape),
            inputs=inputs,
            sampling_log_probs=None if log_probs is None else log_probs.masked_fill_(~sampled, 0).view(shape),
            info={"truncated": truncated.view(shape[:2])},
        )


def _occurring(policy: CausalLMPolicy, inputs: Mapping[str, Tensor]) -> Tensor:
    """``[B, V]`` bool, the tokens of each prompt."""
    ids, mask = inputs["prompt_ids"], inputs["prompt_mask"].to(torch.uint8)
    seen = mask.new_zeros(len(ids), len(policy.output_weight))
    return seen.scatter_reduce_(1, ids, mask, "amax").bool()


class _Replies:
    """Writes the world's replies ahead into the answers' ``tokens [R, T]``; `replied` marks them."""

    def __init__(self, reply: Replies, tokens: Tensor) -> None:
        self.reply, self.tokens = reply, tokens
        self.replied = torch.zeros_like(tokens, dtype=torch.bool)
        self.starts = [0] * len(tokens)  # of the current turns

    def answers(self, ended: Tensor, step: int) -> bool:
        """Ask for replies to the rows `ended`, whose turns end before `step`; returns whether any is answered."""
        on_cpu, written = on_host(ended, self.tokens[ended])
        rows, room = on_cpu.tolist(), max(self.tokens.shape[1] - step - 1, 0)
        turns = [row[self.starts[number] : step].tolist() for number, row in zip(rows, written, strict=True)]
        replies = self.reply(rows, turns, room)
        answered = {row: reply for row, reply in zip(rows, replies, strict=True) if reply}
        cells = [(row, step + i, token) for row, reply in answered.items() for i, token in enumerate(reply)]
        if cells:
            row, column, token = torch.tensor(cells, device="cpu").T.to(self.tokens.device, non_blocking=True)
            self.tokens[row, column], self.replied[row, column] = token, True
            self.starts = [step + len(answered[row]) if row in answered else at for row, at in enumerate(self.starts)]
        return bool(cells)


class _Choice:
    """Maps logits ``[R, V]`` and draws ``[R]`` to chosen tokens ``[R]``.

    With tokens `seen` ``[R, V]``, it penalizes them, and keeps the `log_probs` ``[R]`` of the chosen tokens.
    """

    def __init__(self, policy: CausalLMPolicy, sampling: Sampling) -> None:
        self.policy, self.sampling = policy, sampling
        never = [] if policy.pad_token in policy.stop_tokens else [policy.pad_token]
        self._early = torch.tensor([*never, *policy.stop_tokens], device="cpu").to(policy.device, non_blocking=True)
        self._never, self.stops = self._early.tensor_split([len(never)])
        self._sum = torch.zeros((), dtype=torch.float64, device=policy.device)
        self._filters = _filters(sampling)
        self.seen: Tensor | None = None
        self.log_probs = torch.zeros(0)

    def __call__(self, logits: Tensor, draws: Tensor, step: int) -> Tensor:
        sampling = self.sampling
        scaled = at_least_float32(logits)
        if self.seen is not None:
            scaled = penalized(scaled, self.seen, sampling.repetition_penalty)
        if self.policy.temperature != 1:
            scaled = scaled / self.policy.temperature
        held_back = self._early if step + 1 < sampling.min_new_tokens else self._never
        scaled = scaled.index_fill_(-1, held_back, -torch.inf)
        for kept in self._filters:
            scaled = kept(None, scaled)
        probabilities = scaled.softmax(-1)
        # If a row's largest logit is NaN or infinite, all of its probabilities are NaN, and the sum remains NaN.
        self._sum += probabilities[:, 0].sum()
        chosen = sample(probabilities, draws)
        if self.seen is not None:
            self.log_probs = probabilities.gather(-1, chosen[:, None])[:, 0].log().float()
        return chosen

    def running(self, going_on: Tensor) -> Tensor:
        """Indices of the rows that go on, on the CPU. The host waits for the device.

        Raises:
            FloatingPointError: logits were not finite.
        """
        failed, goes_on = on_host(self._sum.isnan(), going_on)
        if failed:
            raise FloatingPointError(
                f"Expected finite logits from '{self.policy.name}', but got NaN or infinity, because training diverged "
                "or a half-precision model overflowed, try a smaller learning rate, or float32 or bfloat16 weights."
            )
        return goes_on.nonzero()[:, 0]


def _filters(sampling: Sampling) -> list[Callable[[None, Tensor], Tensor]]:
    """Transformers' filters of logits ``[R, V]``: of the k likeliest tokens, by `min_p`, then by `top_p`."""
    from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    filters: list[Any] = [] if sampling.top_k is None else [TopKLogitsWarper(sampling.top_k)]
    filters += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p > 0 else []
    return filters + ([TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else [])


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits ``[R, V]`` of seen tokens by `penalty`, and multiply negative ones (Keskar et al., 2019).

    Example:
        >>> penalized(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[True, True, False]]), 2.0)
        tensor([[ 1., -4.,  2.]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def sample(probabilities: Tensor, draws: Tensor) -> Tensor:
    """Tokens ``[R]``, drawn by the inverse cumulative distribution of weights ``[R, V]`` at draws ``[R]`` in [0, 1).

    Sums are float64, because float32 would cut the tail of a large vocabulary.

    Example:
        >>> sample(torch.tensor([[0.2, 0.5, 0.3]]), torch.tensor([0.69]))
        tensor([1])
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    # A draw below 1 times the total is below the total also after rounding, because rounding is monotone. NaN, which
    # the engine reports later, must not give an index outside.
    target = draws.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(max=cumulative.shape[1] - 1)
