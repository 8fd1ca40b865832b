"""Generation with the policy's own weights, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_cgrpo.core.rollout import Rollouts
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.computations.packed import PackedPrompts
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch, PromptRow, SharedContinuation
from lightning_cgrpo.policies.onednn import arranged_weights
from lightning_cgrpo.policies.pass_memory import fitting_rollout
from lightning_cgrpo.policies.precision import Copies, without_autocast
from lightning_cgrpo.policies.sharding import is_sharded
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.pages import NotedBytes, kernel_reads
from lightning_cgrpo.policies.shared_prefix.step_sizes import StepSizes
from lightning_cgrpo.samplers.answers import Answers, Running, WaitingPrompts
from lightning_cgrpo.samplers.engine import RolloutEngine, Sampling
from lightning_cgrpo.samplers.paged_rollout import PagedRollout
from lightning_cgrpo.samplers.paged_step import PagedStep
from lightning_cgrpo.samplers.token_choice import TokenChoice

LOOK_EVERY = {"cpu": 1}
"""Tokens between looks at which answers have ended, by kind of device; the host waits for a GPU at each look."""
LOOK_EVERY_ON_GPUS = 8
IN_PAGES = {"cuda"}
"""Kinds of devices that generate by `PagedStep`; a CPU is faster with one copy of each prompt (`Decoding`)."""


class TransformersEngine(RolloutEngine):
    """Reads each prompt once and continues it G times, at most `Sampling.batch_size` answers at a time.

    Every token has its own draw, so answers depend on the batch only by rounding. On a GPU, an ended answer leaves the
    batch at the next look, and tokens after its stop token are dropped. If the model shares prompts, waiting prompts
    take the place of ended answers; else they wait for the longest answer. The padding token is never chosen, unless it
    is a stop token. Under bf16-mixed, a rollout computes with a bfloat16 copy of the weights; on the CPU, it holds
    copies of large layers' weights in oneDNN's arrangement.

    Args:
        cuda_graphs: on a CUDA GPU, decode in steps of fixed shapes, of which one graph is replayed in all rollouts
            of a run (`PagedStep`), instead of launching kernels one by one. For models that share prompts and are not
            sharded; others ignore it.
    """

    def __init__(self, cuda_graphs: bool = True) -> None:
        self.cuda_graphs = cuda_graphs
        # Of `PagedStep`: the step of the last rollout, and the weights' copies that its graph reads.
        self._step: PagedStep | None = None
        self._copies: Copies = {}
        self._token_bytes: int | None = None

    @contextmanager
    def session(self, policy: CausalLMPolicy) -> Iterator[None]:
        uses_pages = self._uses_pages(policy)
        if uses_pages and self.memory is None:
            self.memory = fitting_rollout(policy)
            if self.memory is not None:
                rank_zero_info(
                    f"Answers generated at once take at most {self.memory / 2**30:g} GiB, by the GPU's free memory. "
                    "Checkpoints keep the number."
                )
        copies = self._copies if uses_pages else None
        with without_autocast(policy, copies), arranged_weights(policy):
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
        # Later turns of a conversation have other sizes each, and would need a graph each.
        own_limits = limits is not None
        if limits is None:
            limits = torch.full_like(lengths, sampling.max_new_tokens)
        inputs = {name: tensor.to(policy.device, non_blocking=True) for name, tensor in inputs.items()}
        prompts = PromptBatch(inputs, lengths, limits, group_size)
        draws = draws.flatten().to(policy.device, non_blocking=True)
        if self._uses_pages(policy) and len(lengths) and not own_limits:
            # A step is used again outside of validation, whose inference tensors nothing could write.
            with torch.inference_mode(False):
                return self._generate_in_pages(policy, prompts, sampling, draws)
        waiting = WaitingPrompts(policy, prompts, sampling)
        answers = Answers(policy, prompts.answers, sampling)
        while len(waiting):
            _answer_prompts(waiting, draws, answers)
        return answers.rollouts(inputs, group_size)

    def _uses_pages(self, policy: CausalLMPolicy) -> bool:
        """Whether answers are generated by `PagedStep`.

        Sharded weights have no place that a graph could read. Without the kernel for pages, each token would copy all
        keys and values.
        """
        kind = policy.device.type
        shares = isinstance(policy.computation, PackedPrompts) and not is_sharded(policy)
        if not (self.cuda_graphs and kind in IN_PAGES and shares):
            return False
        dtype = policy.output_weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        return kernel_reads(policy.device, dtype)

    def _generate_in_pages(
        self, policy: CausalLMPolicy, prompts: PromptBatch, sampling: Sampling, draws: Tensor
    ) -> Rollouts:
        """Generate by the step of the last rollout, if its sizes and weights are the same."""
        group_size = prompts.group_size
        # 1. The sizes of a step that suits these prompts.
        groups = len(prompts)
        if sampling.batch_size is not None:
            groups = min(max(sampling.batch_size // group_size, 1), groups)
        sizes = StepSizes.of(
            policy.device.type,
            answers=groups * group_size,
            prompt=int(prompts.lengths.max()),
            answer=sampling.max_new_tokens,
            vocabulary=len(policy.output_weight),
            token_bytes=0 if self.memory is None else self._bytes_of_a_token(policy),
            memory=self.memory,
        )
        # 2. The step of the last rollout, or a new one. An error below leaves none behind.
        step = self._step
        self._step = None
        if step is None or not step.serves(policy, sampling, sizes):
            del step  # its memory first
            step = PagedStep(policy, sampling, sizes)
        # 3. The answers.
        look_every = LOOK_EVERY.get(policy.device.type, LOOK_EVERY_ON_GPUS)
        rollout = PagedRollout(step, prompts, draws.view(-1, sampling.max_new_tokens))
        answers = rollout.run(look_every)
        self._step = step
        return answers.rollouts(prompts.inputs, group_size)

    def _bytes_of_a_token(self, policy: CausalLMPolicy) -> int:
        """Bytes of a token's keys and values, which a pass of one token shows."""
        if self._token_bytes is None:
            inputs: dict[str, Any] = policy.padded([[policy.stop_tokens[0]]])
            inputs = {name: tensor.to(policy.device, non_blocking=True) for name, tensor in inputs.items()}
            row = PromptRow.of(policy, inputs, torch.ones(1, dtype=torch.int64, device="cpu"))
            noted = NotedBytes(PackedAttention(row.layout))
            row.read(policy, noted)
            self._token_bytes = sum(noted.of_layer.values())
        return self._token_bytes


def _answer_prompts(waiting: WaitingPrompts, draws: Tensor, answers: Answers) -> None:
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
        # 3. At a look, ended answers leave. No answer is read beyond its limit: the model may have no position.
        kept = None
        if step % look_every == 0 or not running.left.all():
            going_on = choose.running_rows(running.going_on)
            if not len(going_on):
                return
            if len(going_on) < len(running.prompt):
                kept = going_on
                index = kept.to(policy.device, non_blocking=True)
                running = running.only_rows(kept, index)
                chosen = chosen[index]
        # 4. The model reads the tokens.
        logits = continuation.next(kept, chosen)
        # 5. Waiting prompts take the place of ended answers.
        if kept is not None:
            prompts = waiting.to_join(running)
            if prompts:
                logits, running = _join_prompts(continuation, logits, running, waiting, prompts)


def _join_prompts(
    continuation: Continuation, logits: Tensor, running: Running, waiting: WaitingPrompts, prompts: int
) -> tuple[Tensor, Running]:
    """Append the next `prompts` and their answers to the logits ``[r, V]`` and to the running answers."""
    further, other = waiting.begin(prompts)
    assert isinstance(continuation, SharedContinuation) and isinstance(other, SharedContinuation)
    after_prompts = continuation.join(other).repeat_interleave(waiting.group_size, 0)  # [new answers, V]
    return torch.cat([logits, after_prompts]), running.with_answers(further)
