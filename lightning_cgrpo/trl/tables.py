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
        mask = torch.arange(longest, device=lengths.device) < lengths[..., None]
        clean, faults = isolate_faults(signals)
        rows = prompt_sums(self.objective, clean, Rollouts(mask.long(), mask, {}), faults, longest=longest)
        of_generation = RunningSums()
        of_generation.add({name: row.cpu() for name, row in rows.items()}, prompts)
        self._generations.append(of_generation)
        return of_generation.evaluation(self.objective)

    def begin(self, measured: Evaluation, signals: Signals, group: int, longest: int) -> None:
        """Print the rates of the first generation, and which thresholds lie out of reach or may not bind."""
        self._first = measured
        if find_spec("lightning") is None:
            return
        from lightning_cgrpo.callbacks.evaluation_tables import objective_table
        from lightning_cgrpo.callbacks.initial_rates import threshold_notes
        from lightning_cgrpo.core.output import print_table
        from lightning_cgrpo.objective.chance import shown_targets

        best = RunningSums()
        rows = best_sums(self.objective, isolate_faults(signals)[0], longest)
        first = next(iter(rows.values()), torch.zeros(0))
        best.add({name: row.cpu() for name, row in rows.items()}, PromptGroups(torch.arange(len(first)), {}))
        reached = best.rates(self.objective.means)
        chosen = Evaluation({}, {}, measured.prompts, measured.answers, reached)
        shown = {"train": measured, **({f"best of {group}": chosen} if group > 1 else {})}
        targets = shown_targets(self.objective, measured)
        print_table(objective_table(self.objective, shown, "Before training", targets))
        for line in threshold_notes(self.objective, measured, reached, group, targets):
            print(line, flush=True)

    def end(self) -> None:
        """Print the rates of the first generation beside those of the last fifth of the generations."""
        if find_spec("lightning") is None or not self._generations:
            return
        from lightning_cgrpo.callbacks.evaluation_tables import objective_table
        from lightning_cgrpo.core.output import print_table

        sums = RunningSums()
        for generation in self._generations[-max(len(self._generations) // LAST, 1) :]:
            sums.extend(generation)
        shown = {} if self._first is None else {"before": self._first}
        shown["end of training"] = sums.evaluation(self.objective)
        print_table(objective_table(self.objective, shown, "Run finished"))
