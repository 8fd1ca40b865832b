"""Generation with the policy's own weights, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.continuation import FixedContinuation, SharedContinuation
from lightning_cgrpo.policies.onednn import arranged_weights
from lightning_cgrpo.policies.precision import without_autocast
from lightning_cgrpo.policies.pretrained import at_least_float32
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling

LOOK_EVERY = {"cpu": 1}
"""Tokens between looks at which answers have ended, by kind of device; the host waits for a GPU at each look."""
LOOK_EVERY_ON_GPUS = 8


class TransformersEngine(RolloutEngine):
    """Reads each prompt once and continues it G times, at most `Sampling.batch_size` answers at a time.

    Every token has its own draw, so answers depend on the batch only by rounding. On a GPU, an ended answer leaves the
    batch at the next look, and tokens after its stop token are dropped. The padding token is never chosen, unless it is
    a stop token. Under bf16-mixed, a rollout computes with a bfloat16 copy of the weights; on the CPU, it holds copies
    of large layers' weights in oneDNN's arrangement.

    Args:
        cuda_graphs: replay each step as a CUDA graph, instead of launching its kernels one by one. For models that
            share prompts, and without data-dependent shapes (mixtures of experts have them); others ignore it or fail.
    """

    def __init__(self, cuda_graphs: bool = False) -> None:
        self.cuda_graphs = cuda_graphs

    @contextmanager
    def session(self, policy: CausalLMPolicy) -> Iterator[None]:
        with without_autocast(policy), arranged_weights(policy):
            yield

    @torch.no_grad()
    def generate(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        limits: Tensor | None = None,
    ) -> Rollouts:
        device, prompts = policy.device, len(inputs["prompt_ids"])
        lengths_B = inputs["prompt_mask"].sum(-1)
        limits_B = torch.full_like(lengths_B, sampling.max_new_tokens) if limits is None else limits
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
        draws_RT = draws.flatten(0, 1).to(device, non_blocking=True)
        answers = _Answers(policy, prompts * group_size, sampling)
        at_once = max(prompts if sampling.batch_size is None else sampling.batch_size // group_size, 1)
        for start in range(0, prompts, at_once):
            wave = slice(start, start + at_once)
            some = {name: _in_dtype(tensor[wave], policy.output_weight.dtype) for name, tensor in inputs.items()}
            first_row = start * group_size
            self._answer(policy, some, lengths_B[wave], group_size, limits_B[wave], draws_RT, answers, first_row)
        return answers.rollouts(inputs, group_size)

    def _answer(
        self,
        policy: CausalLMPolicy,
        inputs: dict[str, Tensor],
        lengths_B: Tensor,
        group_size: int,
        limits_B: Tensor,
        draws_RT: Tensor,
        answers: _Answers,
        first_row: int,
    ) -> None:
        """Answer some prompts, whose answers are `answers` from `first_row` on, with the same rows of `draws_RT`."""
        rows = torch.arange(first_row, first_row + len(lengths_B) * group_size, device=policy.device)
        draws_rT = draws_RT[rows]
        going_on = torch.ones_like(rows, dtype=torch.bool)
        choose = _Choice(policy, answers.sampling)
        if answers.log_probs_RT is not None:
            choose.seen = _occurring(policy, inputs).repeat_interleave(group_size, 0)
        longest = int(limits_B.max())
        looks = _looks(policy.device, limits_B)
        limits_r = None  # of the rows; without shorter limits, the loop's end is the limit
        if int(limits_B.min()) < longest:
            limits_r = limits_B.repeat_interleave(group_size).to(policy.device, non_blocking=True)

        continuation = policy.continuation(inputs, lengths_B, group_size, longest)
        if self.cuda_graphs and isinstance(continuation, SharedContinuation):
            continuation = FixedContinuation(policy, inputs, lengths_B, group_size, longest)
        logits = continuation.read().repeat_interleave(group_size, 0)
        for step in range(longest):
            # 1. A token of each answer.
            chosen = choose(logits, draws_rT[:, step], step)
            answers.write(rows, step, chosen, going_on, choose.log_probs)
            if choose.seen is not None:
                choose.seen = choose.seen.scatter(-1, chosen[:, None], True)
            # 2. Answers end by their stop token or limit.
            going_on = going_on & torch.isin(chosen, choose.stops, invert=True)
            if limits_r is not None:
                going_on = going_on & (limits_r > step + 1)
            # 3. At a look, ended answers leave.
            kept = None
            if step + 1 in looks:
                running = choose.running(going_on)
                if step + 1 == longest or not len(running):
                    break
                if len(running) < len(rows):
                    kept = running
                    index = running.to(policy.device, non_blocking=True)
                    rows, draws_rT, chosen, going_on = rows[index], draws_rT[index], chosen[index], going_on[index]
                    limits_r = None if limits_r is None else limits_r[index]
                    choose.seen = None if choose.seen is None else choose.seen[index]
            # 4. The model reads the tokens.
            logits = continuation.next(kept, chosen)


def _in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Images in the dtype of the weights; tokens and masks as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _looks(device: torch.device, limits: Tensor) -> set[int]:
    """Numbers of tokens after which the host looks for ended answers: regularly, and at each limit.

    No answer is read beyond its limit, because the model may have no position there.
    """
    every = LOOK_EVERY.get(device.type, LOOK_EVERY_ON_GPUS)
    return {*range(every, int(limits.max()), every), *limits.tolist()}


class _Answers:
    """The R answers of a rollout, as tensors on the policy's device."""

    def __init__(self, policy: CausalLMPolicy, rows: int, sampling: Sampling) -> None:
        self.policy, self.sampling = policy, sampling
        self.tokens_RT = torch.full((rows, sampling.max_new_tokens), policy.pad_token, device=policy.device)
        self.written_RT = torch.zeros_like(self.tokens_RT, dtype=torch.bool)
        self.log_probs_RT: Tensor | None = None  # only for corrections by both probabilities
        if sampling.repetition_penalty != 1:
            self.log_probs_RT = torch.zeros_like(self.tokens_RT, dtype=torch.float32)

    def write(self, rows: Tensor, step: int, chosen: Tensor, going_on: Tensor, log_probs: Tensor) -> None:
        """Write a token of each of `rows`; a token is the answer's only while it is `going_on`."""
        self.tokens_RT[rows, step] = chosen
        self.written_RT[rows, step] = going_on
        if self.log_probs_RT is not None:
            self.log_probs_RT[rows, step] = log_probs

    def rollouts(self, inputs: dict[str, Tensor], group_size: int) -> Rollouts:
        tokens_RT = self.tokens_RT.masked_fill_(~self.written_RT, self.policy.pad_token)
        stops = torch.tensor(self.policy.stop_tokens, device="cpu").to(tokens_RT.device, non_blocking=True)
        ended_R = (torch.isin(tokens_RT, stops) & self.written_RT).any(-1)
        log_probs_RT = self.log_probs_RT
        shape = len(inputs["prompt_ids"]), group_size, self.sampling.max_new_tokens
        return Rollouts(
            actions=tokens_RT.view(shape),
            mask=self.written_RT.view(shape),
            inputs=inputs,
            sampling_log_probs=None
            if log_probs_RT is None
            else log_probs_RT.masked_fill_(~self.written_RT, 0).view(shape),
            info={"truncated": ~ended_R.view(shape[:2])},
        )


def _occurring(policy: CausalLMPolicy, inputs: Mapping[str, Tensor]) -> Tensor:
    """``[B, V]`` bool, the tokens of each prompt."""
    ids, mask = inputs["prompt_ids"], inputs["prompt_mask"].to(torch.uint8)
    seen = mask.new_zeros(len(ids), len(policy.output_weight))
    return seen.scatter_reduce_(1, ids, mask, "amax").bool()


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
