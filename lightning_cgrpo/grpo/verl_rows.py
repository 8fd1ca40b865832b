"""Constrained GRPO on the rows of verl's batches."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.core.distributed import rank_zero_warn, replicated
from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.core.rollout import PromptGroups, Signal
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages
from lightning_cgrpo.grpo.constrained_advantages import ConstrainedAdvantages, as_signals
from lightning_cgrpo.grpo.verl_settings import Settings
from lightning_cgrpo.objective.subsets import columns_read

FILE = "lightning_cgrpo.pt"
"""The dual's state in verl's folder ``global_step_N``."""
SCORE = "score"
"""Name of the signal that is verl's own score of an answer, as in ``critic/score/mean``."""


@dataclass(frozen=True)
class Rows:
    """Rows of a batch, N of them.

    Args:
        values: by name, N values of what the reward function returned; None does not apply.
        columns: of the prompts, N values each.
        sessions: of each row; the rows of a session are one answer, which the last of them ends. None: all are answers.
        padding: rows that are no answers.
    """

    values: Mapping[str, Sequence[Any]]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sessions: Sequence[tuple[str, int]] | None = None
    padding: Sequence[bool] | None = None

    def answers(self, number: int) -> tuple[list[int], list[int]]:
        """The last row of each answer, and the answer of each row of `number`; -1 of padding."""
        padding = [False] * number if self.padding is None else self.padding
        # Without sessions, each row is a session of its own.
        sessions = self.sessions
        if sessions is None:
            sessions = [(str(row), 0) for row in range(number)]
        # The last row of each session, with its index within the session.
        last_rows: dict[str, tuple[int, int]] = {}
        for row, (session, index) in enumerate(sessions):
            if padding[row]:
                continue
            if session not in last_rows or last_rows[session][0] < index:
                last_rows[session] = (index, row)
        # Sessions are answers, numbered in the order of their first rows.
        answer_of_session = {session: answer for answer, session in enumerate(last_rows)}
        answer_of_row: list[int] = []
        for row, (session, _) in enumerate(sessions):
            answer_of_row.append(-1 if padding[row] else answer_of_session[session])
        return [row for _, row in last_rows.values()], answer_of_row


class Method:
    """Advantages of verl's rows, whose rates of violation move the weights of the next batch.

    A group of fewer answers than the largest group has places to which no signal applies. The driver holds all
    answers, so nothing is communicated.
    """

    def __init__(self, settings: Settings) -> None:
        estimator = ScalarizedAdvantages(settings.scale)
        self.objective = settings.objective
        self.advantages = ConstrainedAdvantages(settings.objective, settings.controller, estimator)
        self.rows: Rows | None = None
        """Rows of the batch whose advantages verl asks for next."""
        self._logged: list[dict[str, float]] = []
        self._checked = False
        """True once a batch, the first also of a resumed run, had all signals."""

    @property
    def columns(self) -> list[str]:
        """Columns of the prompts that constraints read."""
        columns: set[str] = set()
        for constraint in self.objective.constraints.values():
            columns.update(columns_read(constraint))
        return sorted(columns)

    def estimate(self, scores: Tensor, prompts: Sequence[Any]) -> Tensor:
        """Advantages ``[N]`` of `rows`, and a step of the dual.

        Args:
            scores: ``[N]``, verl's own.
            prompts: N of them; equal values are one group.
        """
        rows = self.rows
        self.rows = None
        if rows is None:
            raise UserError(
                "Expected a trainer of verl to hand over the signals, but got none, try verl 0.9.1, which is tested."
            )
        # The rows of an answer become one entry of its prompt's group.
        last_rows, answer_of_row = rows.answers(len(scores))
        places = group_places([prompts[row] for row in last_rows])
        groups = 1 + max(group for group, _ in places)
        group_size = 1 + max(place for _, place in places)
        index = tuple(torch.tensor(places).T)  # the group and the place of each answer, [answers] each
        # Lay the signals of all answers out by group.
        measured = self.measured_values(rows, scores, last_rows)  # [answers] each
        shape = (groups, group_size)
        signals = as_signals({name: spread_over_groups(values, index, shape) for name, values in measured.items()})
        with replicated():
            group_columns = self.group_columns(rows, last_rows, places)
            signals = self.objective.made(signals, PromptGroups(torch.arange(groups), group_columns))
            self.log(signals, measured)
            # Advantages by the weights of now, then a step of the dual, which moves the weights of the next batch.
            advantages = self.advantages.estimate(signals)[index]  # [answers]
            self.advantages.step(signals)
        # All rows of an answer have its advantage; padding, the answer -1, has the last entry, 0.
        padded = torch.cat([advantages.float(), torch.zeros(1)])
        return padded[torch.tensor(answer_of_row)].to(scores)

    def measured_values(self, rows: Rows, scores: Tensor, last_rows: list[int]) -> dict[str, Tensor]:
        """Values ``[answers]`` by signal, float32; NaN does not apply."""
        measured = {}
        for name in self.objective.signal_names:
            if name == SCORE:
                measured[name] = scores.detach().cpu().float()[last_rows]
                continue
            if name not in rows.values and not self._checked:
                known = [SCORE, *rows.values]
                raise UserError(
                    f"Expected verl's reward function to return '{name}', but got {', '.join(known)}, try returning "
                    f"{{'score': ..., '{name}': ...}}.{did_you_mean(name, known)}"
                )
            values = rows.values.get(name, [None] * len(scores))
            numbers = [number_or_nan(name, values[row]) for row in last_rows]
            measured[name] = torch.tensor(numbers, dtype=torch.float32)
        self._checked = True
        return measured

    def group_columns(self, rows: Rows, last_rows: list[int], places: list[tuple[int, int]]) -> dict[str, list[Any]]:
        """The columns of the prompts, from the first answer of each group."""
        first_rows = [row for row, (_, place) in zip(last_rows, places, strict=True) if place == 0]
        columns: dict[str, list[Any]] = {}
        for name, values in rows.columns.items():
            columns[name] = [values[row] for row in first_rows]
        return columns

    # ------------------------------------------------------------------ logs

    def log(self, signals: Mapping[str, Signal], measured: Mapping[str, Tensor]) -> None:
        advantages = self.advantages
        tags = advantages.rates(signals)
        tags |= {f"weight/{name}": weight for name, weight in advantages.weights.items()}
        tags |= {f"threshold/{name}": threshold for name, threshold in advantages.thresholds.items()}
        for name, values in measured.items():
            inapplicable = 1 - float(values.isfinite().float().mean())
            if inapplicable:
                tags[f"inapplicable/{name}"] = inapplicable
        self._logged.append(tags)

    def take_logged(self) -> dict[str, float]:
        """Means by tag over the batches since the last call."""
        values_by_tag: dict[str, list[float]] = {}
        for tags in self._logged:
            for tag, value in tags.items():
                values_by_tag.setdefault(tag, []).append(value)
        self._logged = []
        return {tag: sum(values) / len(values) for tag, values in values_by_tag.items()}

    # ------------------------------------------------------------------ checkpoints

    def save(self, folder: Path) -> None:
        """Write the state into verl's folder of a step, before verl names it the latest."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{FILE}.{os.getpid()}"
        torch.save(self.advantages.state_dict(), unfinished)
        os.replace(unfinished, folder / FILE)

    def load(self, folder: Path) -> None:
        """Continue exactly; a checkpoint without multipliers is told."""
        if not (folder / FILE).is_file():
            rank_zero_warn(
                f"The checkpoint {folder} has no {FILE}: the multipliers are those that "
                f"{type(self.advantages.controller).__name__} starts with."
            )
            return
        self.advantages.load_state_dict(torch.load(folder / FILE, map_location="cpu", weights_only=True))


def group_places(prompts: Sequence[Any]) -> list[tuple[int, int]]:
    """The group and the place within the group of each answer; groups in the order of their first answers.

    Example:
        >>> group_places(["b", "a", "b"])
        [(0, 0), (1, 0), (0, 1)]
    """
    groups: dict[Any, int] = {}
    sizes: list[int] = []
    places = []
    for prompt in prompts:
        group = groups.setdefault(prompt, len(groups))
        if group == len(sizes):
            sizes.append(0)
        places.append((group, sizes[group]))
        sizes[group] += 1
    return places


def spread_over_groups(values: Tensor, index: tuple[Tensor, ...], shape: tuple[int, int]) -> Tensor:
    """Values of answers in groups ``[B, G]``, NaN where a group has no answer."""
    groups = torch.full(shape, math.nan)
    groups[index] = values
    return groups


def number_or_nan(name: str, value: Any) -> float:
    """A value of a reward function; None and numbers that aren't finite become NaN."""
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"Expected verl's reward function to return a number as '{name}', but got {value!r}.") from None
    return number if math.isfinite(number) else math.nan
