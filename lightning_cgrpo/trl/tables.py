"""Tables of rates and thresholds before and after a training by TRL; needs Lightning, which prints ours."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from lightning_cgrpo.core.rollout import PromptGroups, Rollouts, Signals
from lightning_cgrpo.objective.evaluation import Evaluation, RunningSums
from lightning_cgrpo.objective.faults import isolate_faults
from lightning_cgrpo.objective.measurement import best_sums, prompt_sums
from lightning_cgrpo.objective.objective import Objective

LAST = 5
"""The last fifth of the generations is the end of training."""


class RateTables:
    """Keeps the sums of each generation, and prints rates with intervals over prompts.

    All processes hold the answers of all processes, so `add` is called within `replicated`.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._generations: list[RunningSums] = []
        self._first: Evaluation | None = None

    def add(self, signals: Signals, prompts: PromptGroups, lengths: Tensor, longest: int) -> Evaluation:
        """Add a generation; returns what the policy does in it.

        Args:
            prompts: B, with a column that tells them apart.
            lengths: ``[B, G]`` of the answers in tokens.
        """
        mask = torch.arange(longest, device=lengths.device) < lengths[..., None]  # [B, G, T]
        rollouts = Rollouts(mask.long(), mask, {})
        clean_signals, faults = isolate_faults(signals)
        sums = prompt_sums(self.objective, clean_signals, rollouts, faults, longest=longest)
        generation = RunningSums()
        generation.add({name: values.cpu() for name, values in sums.items()}, prompts)
        self._generations.append(generation)
        return generation.evaluation(self.objective)

    def begin(self, measured: Evaluation, signals: Signals, group: int, longest: int) -> None:
        """Print the rates of the first generation, and which thresholds lie out of reach or may not bind."""
        self._first = measured
        if find_spec("lightning") is None:
            return
        from lightning_cgrpo.callbacks.evaluation_tables import objective_table
        from lightning_cgrpo.callbacks.initial_rates import threshold_notes
        from lightning_cgrpo.core.output import print_table
        from lightning_cgrpo.objective.chance import shown_targets

        # Rates of the best answer to each prompt: thresholds beyond these are out of reach.
        clean_signals, _ = isolate_faults(signals)
        sums = best_sums(self.objective, clean_signals, longest)
        prompt_count = len(next(iter(sums.values()), torch.zeros(0)))
        prompts = PromptGroups(torch.arange(prompt_count), {})
        best = RunningSums()
        best.add({name: values.cpu() for name, values in sums.items()}, prompts)
        best_rates = best.rates(self.objective.means)
        shown = {"train": measured}
        if group > 1:
            shown[f"best of {group}"] = Evaluation({}, {}, measured.prompts, measured.answers, best_rates)
        targets = shown_targets(self.objective, measured)
        print_table(objective_table(self.objective, shown, "Before training", targets))
        for line in threshold_notes(self.objective, measured, best_rates, group, targets):
            print(line, flush=True)

    def end(self) -> None:
        """Print the rates of the first generation beside those of the last fifth of the generations."""
        if find_spec("lightning") is None or not self._generations:
            return
        from lightning_cgrpo.callbacks.evaluation_tables import objective_table
        from lightning_cgrpo.core.output import print_table

        last = max(len(self._generations) // LAST, 1)
        sums = RunningSums()
        for generation in self._generations[-last:]:
            sums.extend(generation)
        shown: dict[str, Evaluation] = {}
        if self._first is not None:
            shown["before"] = self._first
        shown["end of training"] = sums.evaluation(self.objective)
        print_table(objective_table(self.objective, shown, "Run finished"))
