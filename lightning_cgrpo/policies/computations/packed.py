"""One packed row of all prompts and answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import on_host
from lightning_cgrpo.core.rollout import Examples, read_steps
from lightning_cgrpo.policies.computations.computation import Computation, LanguageModel, projected
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch, SharedContinuation
from lightning_cgrpo.policies.padded_prompts import without_text
from lightning_cgrpo.policies.policy import PolicyOutput
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.cast_products import cast_together
from lightning_cgrpo.policies.shared_prefix.fewer_kernels import FewerKernels
from lightning_cgrpo.policies.shared_prefix.layout import Layout, unpadded

FEWER_KERNELS = {"cuda"}
"""Kinds of devices whose training passes replace norms, rotations and casts; a CPU gains nothing."""


class PackedPrompts(Computation):
    """Each prompt is computed once for all its answers, in training (`Layout`) and in generation."""

    shares_prompts = True

    def log_probs(
        self, policy: LanguageModel, examples: Examples, reference: PolicyOutput | None = None
    ) -> PolicyOutput:
        states, places = packed_states(policy, examples)
        return projected(policy, examples, reference, states, places)

    def continuation(self, policy: LanguageModel, prompts: PromptBatch) -> Continuation:
        return SharedContinuation(policy, prompts)


def packed_states(policy: LanguageModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """Last hidden states ``[S, D]`` before the policy's S tokens, and the tokens' places ``[S]`` in ``[N T]``."""
    device = examples.actions.device
    # Indices are computed on the host, so that no shape waits for the device.
    group, mask, prompt_mask = on_host(examples.group, examples.mask, examples.shared["prompt_mask"])

    # A packed row has the answers in the order of their prompts.
    order = group.argsort(stable=True)
    prompt_rows, group = torch.unique(group[order], return_inverse=True)
    of_policy = mask[order]  # [N, T], tokens of the policy
    text = read_steps(of_policy)  # [N, T], with the world's tokens in between
    answer_lengths = text.sum(-1)
    numbers = torch.arange(mask.shape[1], device="cpu")
    places = order[:, None] * mask.shape[1] + numbers  # [N, T], of the tokens in `examples.actions`

    # The model reads the prompts, and then every answer except its last token, which predicts nothing.
    lengths = prompt_mask.sum(-1)[prompt_rows]
    rows = prompt_rows.to(device, non_blocking=True)
    prompts = {name: tensor[rows] for name, tensor in examples.shared.items()}
    prompt_tokens = unpadded(prompts["prompt_ids"], lengths)
    is_input = text & (text.cumsum(-1) < answer_lengths[:, None])
    input_places = places[is_input].to(device, non_blocking=True)
    ids = torch.cat([prompt_tokens, examples.actions.flatten()[input_places]])

    images = without_text(prompts)
    positions = policy.prompt_positions(prompt_tokens, lengths, images)
    layout = Layout.of(lengths, answer_lengths, group, positions, device)
    with _fewer_kernels(policy, device.type):
        states = policy.hidden(ids, layout.position_ids, PackedAttention(layout), images)

    # The layout predicts all tokens of a text; the world's tokens are left out.
    predictors = layout.predictors
    is_own = of_policy[text]
    if not bool(is_own.all()):
        predictors = predictors[is_own.nonzero()[:, 0].to(device, non_blocking=True)]
    return states[predictors], places[of_policy].to(device, non_blocking=True)


@contextmanager
def _fewer_kernels(policy: LanguageModel, kind: str) -> Iterator[None]:
    """Context of a pass on a kind of device, in which the network launches fewer kernels."""
    # A layer that recomputes its activations does so after the context, and would save other tensors.
    if kind not in FEWER_KERNELS or policy.gradient_checkpointing:
        yield
        return
    casts: AbstractContextManager[None] = nullcontext()
    if torch.is_autocast_enabled(kind):
        casts = cast_together(policy.network, torch.get_autocast_dtype(kind))
    with FewerKernels(policy.network).used(training=True), casts:
        yield
