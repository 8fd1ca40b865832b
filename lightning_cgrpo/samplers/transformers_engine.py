"""Generation with the policy's own weights, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.continuation import Continuation, SharedContinuation
from lightning_cgrpo.policies.onednn import arranged_weights
from lightning_cgrpo.policies.precision import without_autocast
from lightning_cgrpo.samplers.answers import Answers, Running, WaitingPrompts
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling
from lightning_cgrpo.samplers.token_choice import TokenChoice

LOOK_EVERY = {"cpu": 1}
"""Tokens between looks at which answers have ended, by kind of device; the host waits for a GPU at each look."""
LOOK_EVERY_ON_GPUS = 8


class TransformersEngine(RolloutEngine):
    """Reads each prompt once and continues it G times, at most `Sampling.batch_size` answers at a time.

    Every token has its own draw, so answers depend on the batch only by rounding. On a GPU, an ended answer leaves the
    batch at the next look, and tokens after its stop token are dropped. Waiting prompts take the place of ended
    answers, if the model shares prompts and there are no CUDA graphs; else they wait for the longest answer. The
    padding token is never chosen, unless it is a stop token. Under bf16-mixed, a rollout computes with a bfloat16 copy
    of the weights; on the CPU, it holds copies of large layers' weights in oneDNN's arrangement.

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
        lengths = inputs["prompt_mask"].sum(-1)
        if limits is None:
            limits = torch.full_like(lengths, sampling.max_new_tokens)
        inputs = {name: tensor.to(policy.device, non_blocking=True) for name, tensor in inputs.items()}
        draws = draws.flatten().to(policy.device, non_blocking=True)
        waiting = WaitingPrompts(policy, inputs, lengths, limits, group_size, sampling, self.cuda_graphs)
        answers = Answers(policy, len(lengths) * group_size, sampling)
        while len(waiting):
            _answer(waiting, draws, answers)
        return answers.rollouts(inputs, group_size)


def _answer(waiting: WaitingPrompts, draws: Tensor, answers: Answers) -> None:
    """Answer prompts until no running answer goes on; `draws` ``[R T]`` are of all answers' tokens."""
    policy = waiting.policy
    look_every = LOOK_EVERY.get(policy.device.type, LOOK_EVERY_ON_GPUS)
    choose = TokenChoice(policy, waiting.sampling)
    running, continuation = waiting.begin(waiting.at_once)
    logits = continuation.read().repeat_interleave(waiting.group_size, 0)
    for step in count(1):
        # 1. A token of each answer.
        chosen = choose(logits, draws[running.place], running.place, running.seen)
        stopped, matched = waiting.ends(chosen, running.matched, running.place)
        answers.write(running, chosen, stopped, choose.log_probs)
        # 2. Answers end by their stop token, stop string or limit.
        running = running.with_tokens(chosen, stopped, matched)
        # 3. At a look, ended answers leave. None is read beyond its limit: the model may have no position.
        kept = None
        if step % look_every == 0 or not running.left.all():
            going_on = choose.running(running.going_on)
            if not len(going_on):
                return
            if len(going_on) < len(running.prompt):
                kept = going_on
                index = kept.to(policy.device, non_blocking=True)
                running = running.kept(kept, index)
                chosen = chosen[index]
        # 4. The model reads the tokens.
        logits = continuation.next(kept, chosen)
        # 5. Waiting prompts take the place of ended answers.
        prompts = 0 if kept is None else waiting.to_join(running)
        if prompts:
            logits, running = _joined(continuation, logits, running, waiting, prompts)


def _joined(
    continuation: Continuation, logits: Tensor, running: Running, waiting: WaitingPrompts, prompts: int
) -> tuple[Tensor, Running]:
    """Append the next `prompts` and their answers to the logits ``[r, V]`` and to the running answers."""
    further, other = waiting.begin(prompts)
    assert isinstance(continuation, SharedContinuation) and isinstance(other, SharedContinuation)
    after_prompts = continuation.join(other).repeat_interleave(waiting.group_size, 0)
    return torch.cat([logits, after_prompts]), running.joined(further)
