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
from lightning_cgrpo.samplers.token_choice import occurring

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
        self.step, self.prompts, self.draws = step, prompts, draws
        self.answers = Answers(step.policy, prompts.answers, step.sampling)
        self.running: dict[int, int] = {}  # answers by slot
        self.ended: dict[int, int] = {}  # answers that are still in their slot
        self.waiting = deque(self._portions())

    def run(self, look_every: int) -> Answers:
        """Answer all prompts; the host looks at every `look_every`-th token which answers have ended."""
        self._begin()
        while self.running:
            for _ in range(look_every):
                self.step.replayed()
            self._look()
            self._begin()
        self._collect(self.ended)
        return self.answers

    def _portions(self) -> list[Portion]:
        """Cut groups into portions that fit into the empty slots and pages."""
        pages, slots = self.step.pages, len(self.step.going_on)
        group_size = self.prompts.group_size
        tokens = zip(self.prompts.lengths.tolist(), self.prompts.limits.tolist(), strict=True)
        portions = []
        for prompt, (length, limit) in enumerate(tokens):
            shared, own = pages.needed(length, limit)
            most = min((pages.count - 1 - shared) // own, slots)
            if most < 1:
                raise UserError(
                    f"Expected memory for the {length + limit:,} tokens of a prompt and its answer, but got the share "
                    f"of a GPU that holds keys and values of {(pages.count - 1) * pages.size:,} tokens, try a smaller "
                    "max_new_tokens, or weights in fewer bytes (dtype: bfloat16, lora)."
                )
            for first in range(0, group_size, most):
                portions.append(Portion(prompt, prompt * group_size + first, min(most, group_size - first)))
        return portions

    def _look(self) -> None:
        """Take the pages of ended answers; the host waits for the device."""
        going_on = set(self.step.choose.running(self.step.going_on).tolist())
        for slot in [slot for slot in self.running if slot not in going_on]:
            self.ended[slot] = self.running.pop(slot)
            self.step.pages.release(slot)

    def _begin(self) -> None:
        """Begin answers that wait, if they are enough."""
        portions = self._that_fit()
        count = sum(portion.count for portion in portions)
        enough = len(portions) == len(self.waiting) or count >= FEWEST * (len(self.running) + count)
        if not portions or not enough:
            return
        for _ in portions:
            self.waiting.popleft()
        free = [slot for slot in range(len(self.step.going_on)) if slot not in self.running]
        taken = free[:count]
        # 1. Leave the slots' earlier answers.
        self._collect({slot: self.ended.pop(slot) for slot in taken if slot in self.ended})
        # 2. Give each answer its pages.
        device = self.step.policy.device
        table, source, cells = self._give_pages(portions, taken)

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        # 3. Read the prompts.
        policy = self.step.policy
        numbered = torch.tensor([portion.prompt for portion in portions], device="cpu")
        prompts = self.prompts.part(numbered).in_dtype(policy.output_weight.dtype)
        prompt_row = PromptRow.of(policy, prompts.inputs, prompts.lengths)
        attend = PackedAttention(prompt_row.layout)
        into_pages = PromptsIntoPages(attend, self.step.pages, there(source), there(cells))
        logits = prompt_row.read(policy, into_pages)
        # 4. Begin the answers.
        answer = torch.cat([portion.first + range_on_cpu(portion.count) for portion in portions])
        counts = torch.tensor([portion.count for portion in portions], device="cpu")
        of_row = there(range_on_cpu(len(portions)).repeat_interleave(counts))
        penalizes = self.step.seen is not None
        self.step.begin(
            slots=there(torch.tensor(taken, device="cpu")),
            logits=logits.index_select(0, of_row),
            position=prompt_row.layout.following.index_select(0, of_row) - 1,
            length=there(prompts.lengths).index_select(0, of_row),
            limit=there(prompts.limits).index_select(0, of_row),
            draws=self.draws.index_select(0, there(answer)),
            table=there(table),
            seen=occurring(policy, prompts.inputs).index_select(0, of_row) if penalizes else None,
        )
        self.running |= dict(zip(taken, answer.tolist(), strict=True))

    def _give_pages(self, portions: Sequence[Portion], slots: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Give pages to answers in these slots; all results are on the CPU.

        Returns:
            the slots' rows of the table ``[r, columns]``; and tokens ``[X]`` of the prompts, one prompt after another,
            with the cells of their keys and values. A prompt's last page, if it is not full, is copied for each answer.
        """
        pages = self.step.pages
        table = torch.zeros(len(slots), pages.table.shape[1], dtype=torch.int32, device="cpu")
        source, cells, row, start = [], [], 0, 0
        for portion in portions:
            length, limit = self._tokens(portion)
            shared, own = pages.give(slots[row : row + portion.count], length, limit)
            whole = len(shared) * pages.size
            source += [
                start + range_on_cpu(whole),
                (start + whole + range_on_cpu(length - whole)).repeat(portion.count),
            ]
            cells.append(cells_of(shared, pages.size, whole))
            for mine in own:
                cells.append(cells_of(mine, pages.size, length - whole))
                table[row, : len(shared) + len(mine)] = torch.tensor([*shared, *mine], dtype=torch.int32, device="cpu")
                row += 1
            start += length
        return table, torch.cat(source), torch.cat(cells)

    def _tokens(self, portion: Portion) -> tuple[int, int]:
        """Tokens of a portion's prompt, and most tokens of its answers."""
        return int(self.prompts.lengths[portion.prompt]), int(self.prompts.limits[portion.prompt])

    def _that_fit(self) -> list[Portion]:
        """Take the next portions for which slots and pages are free."""
        slots, free = len(self.step.going_on) - len(self.running), len(self.step.pages.free)
        portions = []
        for portion in self.waiting:
            shared, own = self.step.pages.needed(*self._tokens(portion))
            slots -= portion.count
            free -= shared + portion.count * own
            if min(slots, free) < 0:
                break
            portions.append(portion)
        return portions

    def _collect(self, ended: dict[int, int]) -> None:
        """Copy the answers in slots to the rollout's."""
        if not ended:
            return
        device = self.step.policy.device
        slots, answers = (torch.tensor(list(some), device="cpu") for some in (ended.keys(), ended.values()))
        slots, answers = slots.to(device, non_blocking=True), answers.to(device, non_blocking=True)
        for mine, theirs in (
            (self.answers.tokens, self.step.tokens),
            (self.answers.written, self.step.written),
            (self.answers.stopped, self.step.stopped),
            (self.answers.log_probs, self.step.log_probs),
        ):
            if mine is not None and theirs is not None:
                rows = self.step.by_slot(theirs).index_select(0, slots)
                mine.view(-1, rows.shape[1]).index_copy_(0, answers, rows)
