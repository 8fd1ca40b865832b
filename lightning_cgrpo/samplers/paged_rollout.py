"""A rollout by steps of fixed shapes: prompts wait for slots and pages, the device steps, and the host looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_cgrpo.core.errors import UserError
from lightning_cgrpo.policies.continuation import PromptBatch, PromptRow
from lightning_cgrpo.policies.shared_prefix.attention import PackedAttention
from lightning_cgrpo.policies.shared_prefix.layout import range_on_cpu
from lightning_cgrpo.policies.shared_prefix.pages import PromptsIntoPages, cells_of
from lightning_cgrpo.samplers.answers import Answers
from lightning_cgrpo.samplers.paged_step import PagedStep
from lightning_cgrpo.samplers.token_choice import prompt_tokens_seen

FEWEST = 0.25
"""Fewest answers that begin, as a share of all that run then, because a GPU's host reads prompts kernel by kernel."""

# Shapes: B prompts with G answers each, R in all, of at most T tokens; r answers begin; S slots.


@dataclass(frozen=True)
class Portion:
    """Answers to one prompt that begin together: a group, or the part of it that the pool of pages holds."""

    prompt: int
    first: int  # answer, among all R
    count: int


class PagedRollout:
    """Answers prompts in the order of their numbers, in whole groups if these fit.

    An answer gets the pages of its limit when it begins, so none waits for a page, and the first that waits begins at
    the latest when no answer runs. Lengths alone decide which answers run together, so resumes are exact.

    Args:
        step: of the sizes that suit the prompts.
        draws: ``[R, T]`` float64, on the policy's device.
    """

    def __init__(self, step: PagedStep, prompts: PromptBatch, draws: Tensor) -> None:
        self.step = step
        self.prompts = prompts
        self.draws = draws
        self.answers = Answers(step.policy, prompts.answers, step.sampling)
        self.running: dict[int, int] = {}  # answers by slot
        self.ended: dict[int, int] = {}  # answers that are still in their slot
        self.waiting = deque(self._cut_groups())

    def run(self, look_every: int) -> Answers:
        """Answer all prompts; the host looks at every `look_every`-th token which answers have ended."""
        self._begin_waiting()
        while self.running:
            for _ in range(look_every):
                self.step.replayed()
            self._look_for_ended()
            self._begin_waiting()
        self._collect_answers(self.ended)
        return self.answers

    def _cut_groups(self) -> list[Portion]:
        """Cut groups into portions that fit into the empty slots and pages."""
        pages = self.step.pages
        slots = len(self.step.going_on)
        group_size = self.prompts.group_size
        portions = []
        token_counts = zip(self.prompts.lengths.tolist(), self.prompts.limits.tolist(), strict=True)
        for prompt, (length, limit) in enumerate(token_counts):
            shared, own = pages.needed(length, limit)
            most = min((pages.count - 1 - shared) // own, slots)  # answers that the empty pool holds
            if most < 1:
                raise UserError(
                    f"Expected memory for the {length + limit:,} tokens of a prompt and its answer, but got the share "
                    f"of a GPU that holds keys and values of {(pages.count - 1) * pages.size:,} tokens, try a smaller "
                    "max_new_tokens, or weights in fewer bytes (dtype: bfloat16, lora)."
                )
            for first in range(0, group_size, most):
                count = min(most, group_size - first)
                portions.append(Portion(prompt, prompt * group_size + first, count))
        return portions

    def _look_for_ended(self) -> None:
        """Take the pages of ended answers; the host waits for the device."""
        going_on = set(self.step.choose.running_rows(self.step.going_on).tolist())
        ended_now = [slot for slot in self.running if slot not in going_on]
        for slot in ended_now:
            self.ended[slot] = self.running.pop(slot)
            self.step.pages.release(slot)

    def _begin_waiting(self) -> None:
        """Begin answers that wait, if they are enough."""
        portions = self._fitting_portions()
        count = sum(portion.count for portion in portions)
        enough = len(portions) == len(self.waiting) or count >= FEWEST * (len(self.running) + count)
        if not portions or not enough:
            return
        for _ in portions:
            self.waiting.popleft()
        # 1. Take free slots, and copy the answers that ended in them.
        free = [slot for slot in range(len(self.step.going_on)) if slot not in self.running]
        slots = free[:count]
        self._collect_answers({slot: self.ended.pop(slot) for slot in slots if slot in self.ended})
        # 2. Give each answer its pages.
        table, source, cells = self._give_pages(portions, slots)
        policy = self.step.policy

        def to_device(tensor: Tensor) -> Tensor:
            return tensor.to(policy.device, non_blocking=True)

        # 3. Read the prompts, once for all answers of a portion.
        numbered = torch.tensor([portion.prompt for portion in portions], device="cpu")
        prompts = self.prompts.part(numbered).in_dtype(policy.output_weight.dtype)
        prompt_row = PromptRow.of(policy, prompts.inputs, prompts.lengths)
        attend = PackedAttention(prompt_row.layout)
        into_pages = PromptsIntoPages(attend, self.step.pages, to_device(source), to_device(cells))
        logits = prompt_row.read(policy, into_pages)  # [portions, V]
        # 4. Begin the answers, each from its prompt's logits.
        answers = torch.cat([portion.first + range_on_cpu(portion.count) for portion in portions])
        counts = torch.tensor([portion.count for portion in portions], device="cpu")
        portion_of = to_device(range_on_cpu(len(portions)).repeat_interleave(counts))  # [r]
        seen = None
        if self.step.seen is not None:
            seen = prompt_tokens_seen(policy, prompts.inputs).index_select(0, portion_of)
        self.step.begin(
            slots=to_device(torch.tensor(slots, device="cpu")),
            logits=logits.index_select(0, portion_of),
            position=prompt_row.layout.following.index_select(0, portion_of) - 1,
            length=to_device(prompts.lengths).index_select(0, portion_of),
            limit=to_device(prompts.limits).index_select(0, portion_of),
            draws=self.draws.index_select(0, to_device(answers)),
            table=to_device(table),
            seen=seen,
        )
        self.running |= dict(zip(slots, answers.tolist(), strict=True))

    def _give_pages(self, portions: Sequence[Portion], slots: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Give pages to answers in these slots; all results are on the CPU.

        Returns:
            the slots' rows of the table ``[r, columns]``; and tokens ``[X]`` of the prompts, one prompt after another,
            with the cells of their keys and values. A prompt's last page, if it is not full, is copied for each answer.
        """
        pages = self.step.pages
        table = torch.zeros(len(slots), pages.table.shape[1], dtype=torch.int32, device="cpu")
        source = []
        cells = []
        row = 0  # of the table
        start = 0  # of the prompt, among the tokens of all prompts
        for portion in portions:
            length, limit = self._token_counts(portion.prompt)
            shared, own = pages.give(slots[row : row + portion.count], length, limit)
            # The prompt's full pages are written once. Each answer gets a copy of the rest.
            whole = len(shared) * pages.size
            rest = length - whole
            source.append(start + range_on_cpu(whole))
            source.append((start + whole + range_on_cpu(rest)).repeat(portion.count))
            cells.append(cells_of(shared, pages.size, whole))
            for own_pages in own:
                cells.append(cells_of(own_pages, pages.size, rest))
                columns = torch.tensor([*shared, *own_pages], dtype=torch.int32, device="cpu")
                table[row, : len(columns)] = columns
                row += 1
            start += length
        return table, torch.cat(source), torch.cat(cells)

    def _token_counts(self, prompt: int) -> tuple[int, int]:
        """Tokens of a prompt, and most tokens of its answers."""
        return int(self.prompts.lengths[prompt]), int(self.prompts.limits[prompt])

    def _fitting_portions(self) -> list[Portion]:
        """The next portions for which slots and pages are free."""
        free_slots = len(self.step.going_on) - len(self.running)
        free_pages = len(self.step.pages.free)
        portions = []
        for portion in self.waiting:
            shared, own = self.step.pages.needed(*self._token_counts(portion.prompt))
            free_slots -= portion.count
            free_pages -= shared + portion.count * own
            if free_slots < 0 or free_pages < 0:
                break
            portions.append(portion)
        return portions

    def _collect_answers(self, ended: dict[int, int]) -> None:
        """Copy the answers in slots to the rollout's."""
        if not ended:
            return
        device = self.step.policy.device
        slots = torch.tensor(list(ended.keys()), device="cpu").to(device, non_blocking=True)
        answers = torch.tensor(list(ended.values()), device="cpu").to(device, non_blocking=True)
        for all_answers, in_slots in (
            (self.answers.tokens, self.step.tokens),
            (self.answers.written, self.step.written),
            (self.answers.stopped, self.step.stopped),
            (self.answers.log_probs, self.step.log_probs),
        ):
            if all_answers is not None and in_slots is not None:
                rows = self.step.by_slot(in_slots).index_select(0, slots)
                all_answers.view(-1, rows.shape[1]).index_copy_(0, answers, rows)
