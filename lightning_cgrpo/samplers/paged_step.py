"""A decoded token of every running answer, in fixed shapes: chosen, written, and read by the model."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.policies.shared_prefix.fewer_kernels import FewerKernels
from lightning_cgrpo.policies.shared_prefix.pages import Pages
from lightning_cgrpo.policies.shared_prefix.step_sizes import StepSizes
from lightning_cgrpo.samplers.ends import Ends
from lightning_cgrpo.samplers.engine import Sampling
from lightning_cgrpo.samplers.replayed_step import ReplayedStep
from lightning_cgrpo.samplers.token_choice import TokenChoice

# Shapes: S slots, each with at most one answer of at most T tokens; V tokens in the vocabulary.


class PagedStep:
    """S slots, and the step of all of them, which a GPU replays as one graph.

    The step depends on nothing but tensors that stay in place. Waiting prompts take slots, and answers end, without
    another capture.

    Attributes:
        going_on: ``[S]`` bool, slots whose answer has not ended.
        replayed: calls the step.
    """

    def __init__(self, policy: CausalLMPolicy, sampling: Sampling, sizes: StepSizes) -> None:
        self.policy = policy
        self.sampling = sampling
        self.sizes = sizes
        self._fixed = _fixed_by(policy)
        slots = sizes.slots
        device = policy.device
        self.pages = Pages(sizes, device)
        # Answers by slot, [S T + 1]; the last place is for slots that don't go on.
        unused = slots * sampling.max_new_tokens
        self._unused_place = torch.full((), unused, dtype=torch.int64, device=device)
        places = unused + 1
        self.draws = torch.zeros(places, dtype=torch.float64, device=device)
        self.tokens = torch.full((places,), policy.pad_token, device=device)
        self.written = torch.zeros(places, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(places, dtype=torch.bool, device=device)  # the tokens that end answers
        self.log_probs: Tensor | None = None
        # The state of each slot, [S].
        self.going_on = torch.zeros(slots, dtype=torch.bool, device=device)
        self.place = torch.zeros(slots, dtype=torch.int64, device=device)  # of the next token
        self.end = torch.zeros(slots, dtype=torch.int64, device=device)  # after the limit
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)  # of the last token in its text
        self.logits: Tensor | None = None  # [S, V] of the next token
        self.seen: Tensor | None = None  # [S, V] bool, tokens to penalize
        if sampling.repetition_penalty != 1:
            self.log_probs = torch.zeros(places, device=device)
            self.seen = torch.zeros(slots, len(policy.output_weight), dtype=torch.bool, device=device)
        self.choose = TokenChoice(policy, sampling)
        self._ends = Ends(policy, sampling)
        self.matched = self._ends.start(slots)  # [S] state of the stop strings
        self._kernels = FewerKernels(policy.network)
        self._output = policy.network.get_output_embeddings()
        self.replayed = ReplayedStep(self._step, device.type)

    def serves(self, policy: CausalLMPolicy, sampling: Sampling, sizes: StepSizes) -> bool:
        """Whether the step is that of these arguments, with weights in their old places."""
        same = self.policy is policy and self.sampling == sampling and self.sizes == sizes
        return same and self._fixed == _fixed_by(policy)

    def begin(
        self, slots: Tensor, logits: Tensor, position: Tensor, length: Tensor, limit: Tensor, draws: Tensor,
        table: Tensor, seen: Tensor | None,
    ) -> None:  # fmt: skip
        """Begin answers in free slots.

        Args:
            slots: ``[r]``, like all arguments on the device.
            logits: ``[r, V]`` after the prompts.
            position: ``[r]`` of the prompts' last tokens.
            length: ``[r]`` of the prompts.
            limit: ``[r]``, most tokens.
            draws: ``[r, T]`` float64.
            table: ``[r, columns]``, pages of the slots.
            seen: ``[r, V]``, tokens to penalize.
        """
        if self.logits is None:
            self.logits = logits.new_zeros(len(self.going_on), logits.shape[1])
        self.logits.index_copy_(0, slots, logits)
        self.position.index_copy_(0, slots, position)
        place = slots * self.sampling.max_new_tokens
        self.place.index_copy_(0, slots, place)
        self.end.index_copy_(0, slots, place + limit)
        self.going_on.index_fill_(0, slots, True)
        self.by_slot(self.draws).index_copy_(0, slots, draws)
        for marks in (self.written, self.stopped):
            self.by_slot(marks).index_fill_(0, slots, False)
        if self.matched is not None:
            self.matched.index_fill_(0, slots, 0)
        self.pages.table.index_copy_(0, slots, table)
        self.pages.written.index_copy_(0, slots, length.int())
        if self.seen is not None and seen is not None:
            self.seen.index_copy_(0, slots, seen)

    def by_slot(self, places: Tensor) -> Tensor:
        """Values ``[S, T]`` of the answers, from all places ``[S T + 1]``."""
        return places[:-1].view(len(self.going_on), -1)

    def _step(self) -> None:
        assert self.logits is not None
        going_on = self.going_on
        # 1. Choose a token of each answer, and write it.
        place = torch.where(going_on, self.place, self._unused_place)
        draws = self.draws.index_select(0, place)
        chosen = self.choose(self.logits, draws, place, self.seen)
        stopped, matched = self._ends(chosen, self.matched, place)
        self.tokens.index_copy_(0, place, chosen)
        self.written.index_copy_(0, place, going_on)
        self.stopped.index_copy_(0, place, going_on & stopped)
        if self.seen is not None and self.log_probs is not None:
            self.log_probs.index_copy_(0, place, self.choose.log_probs)
            self.seen.scatter_(-1, chosen[:, None], True)
        self.place.add_(going_on)
        self.position.add_(going_on)
        # 2. Answers end by their stop token, stop string or limit.
        if self.matched is not None and matched is not None:
            self.matched.copy_(matched)
        going_on.logical_and_(~stopped).logical_and_(self.place < self.end)
        # 3. The model reads the tokens.
        self.pages.advance(going_on)
        with self._kernels.used():
            hidden = self.policy.hidden(chosen, self.position[None], self.pages)
        self.logits.copy_(self._output(hidden))


def _fixed_by(policy: CausalLMPolicy) -> tuple[object, ...]:
    """Parts of a policy that a captured step has read: numbers, and the places of its weights."""
    tensors = (*policy.parameters(), *policy.buffers())
    return policy.temperature, policy.stop_tokens, policy.pad_token, [tensor.data_ptr() for tensor in tensors]
