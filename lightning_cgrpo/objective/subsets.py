"""Constraints that read the prompts: subsets by the value of a column, and limits in a column; and conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.objective.constraint import Constraint, ObjectiveError, as_number

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_cgrpo.core.prompts.source import PromptSource
    from lightning_cgrpo.core.rollout import PromptGroups, Signal

SEEN = 256
"""Prompts of a source without rows in memory whose columns are looked at."""


def expand_subsets(constraints: Mapping[str, Constraint]) -> dict[str, Constraint]:
    """The constraints, with one for each value in the place of `by`, after the monitored average of all prompts."""
    expanded: dict[str, Constraint] = {}
    for name, constraint in constraints.items():
        if constraint.by is None:
            expanded[name] = constraint
            continue
        # The average over all prompts is only monitored.
        expanded[name] = replace(constraint, by=None, role="monitor", aim=None, start=None, over=None)
        for column, values in constraint.by.items():
            for value in values:
                subset_name = f"{name}/{column}={value}"
                if subset_name in constraints:
                    raise ObjectiveError(
                        f"Expected no constraint '{subset_name}', because by: of constraint '{name}' makes one, but "
                        "got one, try another name."
                    )
                signal = constraint.signal or name
                expanded[subset_name] = replace(constraint, by=None, where={column: value}, signal=signal)
    return expanded


def signal_key(name: str, constraint: Constraint) -> str:
    """Name of the signal that a constraint measures: against its limits, in its subset, under its condition."""
    key = constraint.signal or name
    if constraint.limit_column is not None:
        key += f"[beyond {constraint.limit_column}]"
    for column, value in (constraint.where or {}).items():
        key += f"[{column}={value}]"
    if constraint.given is not None:
        key += f"[given {constraint.given}]"
    return key


key = signal_key
"""The old name, for `benchmarks.given_costs`, whose code must not change: its committed runs have its fingerprint."""


def with_subsets(
    constraints: Mapping[str, Constraint], signals: Mapping[str, Signal], prompts: PromptGroups
) -> dict[str, Signal]:
    """The signals, and by `signal_key` those that constraints measure beyond limits, in subsets and under conditions.

    Of a constraint with `given`, the result also has the signal without the condition.
    """
    import torch

    all_signals = dict(signals)
    columns = _columns_of(prompts, constraints)
    for name, constraint in constraints.items():
        task_signal = constraint.signal or name
        if signal_key(name, constraint) == task_signal:
            continue
        signal = signals[task_signal]
        # Beyond the limit of each prompt.
        if constraint.limit_column is not None:
            signal = _beyond_limits(signal, columns[constraint.limit_column], constraint.limit_column)
        # On the prompts of a subset.
        for column, value in (constraint.where or {}).items():
            inside = [str(element) == str(value) for element in columns[column]]
            # The type is that of an empty list, too; the CPU may not be the default device.
            in_subset = torch.tensor(inside, dtype=torch.bool, device="cpu")  # [B]
            signal = _applied_to(signal, in_subset[:, None])
        all_signals[signal_key(name, replace(constraint, given=None))] = signal
        # For the answers that meet the condition.
        if constraint.given is not None:
            condition = signals[constraint.given]
            if not condition.of_whole_answers:
                raise ObjectiveError(
                    f"Expected constraint '{name}' to be given a signal of whole answers, but got "
                    f"'{constraint.given}', of steps, try a signal with one value for each answer."
                )
            met, _ = condition.counts()
            all_signals[signal_key(name, constraint)] = _applied_to(signal, met > 0)
    return all_signals


def _applied_to(signal: Signal, answers: Tensor) -> Signal:
    """The signal, applicable to `answers` alone, bool ``[B, G]`` or ``[B, 1]``."""
    applicable = answers.to(signal.value.device, non_blocking=True).expand(signal.value.shape[:2])
    if signal.applicable is not None:
        applicable = applicable & signal.applicable
    return replace(signal, applicable=applicable)


def _beyond_limits(signal: Signal, limits: list[Any], column: str) -> Signal:
    """The signal minus the limit of each prompt, so that a violation is on one side of 0."""
    import torch

    from lightning_cgrpo.core.rollout import over_steps

    numbers = [_limit_number(limit, column) for limit in limits]
    value = as_number(signal.value)
    if signal.of_whole_answers:  # a sum, which a critic gets by step
        value = over_steps(value)
    limit = torch.tensor(numbers, dtype=torch.float64, device="cpu").to(value, non_blocking=True)  # [B]
    # As many dimensions as the value: [B, 1] or [B, 1, 1].
    for _ in range(value.dim() - 1):
        limit = limit[..., None]
    return replace(signal, value=value - limit)


def _columns_of(prompts: PromptGroups, constraints: Mapping[str, Constraint]) -> dict[str, list[Any]]:
    """The values in each column that constraints read; the host waits for a device's tensor once, not for each."""
    columns: dict[str, list[Any]] = {}
    for name, constraint in constraints.items():
        for column in columns_read(constraint):
            if column not in columns:
                columns[column] = _as_list(prompts.column(column, f"constraint '{name}'"))
    return columns


def _as_list(column: Any) -> list[Any]:
    """The values of a column, a tensor, an array or a list."""
    return list(column.tolist() if hasattr(column, "tolist") else column)


def _limit_number(limit: Any, column: str) -> float:
    """A limit of a column as a number.

    Raises:
        ObjectiveError: the limit is no finite number.
    """
    try:
        number = float(limit)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ObjectiveError(f"Expected the limits in column '{column}' to be numbers, but got {limit!r}.")
    return number


def check_columns(constraints: Mapping[str, Constraint], source_of: Callable[[str], PromptSource]) -> None:
    """Refuse a column that training or validation prompts lack, limits that are no numbers, and an empty subset.

    Args:
        source_of: a data module's prompts by split.

    Raises:
        ObjectiveError: the nearest column or value is suggested.
    """
    readers = {name: constraint for name, constraint in constraints.items() if columns_read(constraint)}
    if not readers:
        return
    for split in ("train", "val"):
        try:
            columns = _source_columns(source_of(split))
        except UserError:
            if split == "train":
                raise
            columns = {}  # There is no validation.
        if not columns and split == "val":
            return
        for name, constraint in readers.items():
            for column in columns_read(constraint):
                if column not in columns:
                    raise ObjectiveError(
                        f"Expected constraint '{name}' to name a column of the {split} data, {sorted(columns)}, but "
                        f"got '{column}'.{did_you_mean(column, list(columns))}"
                    )
            if constraint.limit_column is not None:
                for limit in columns[constraint.limit_column]:
                    _limit_number(limit, constraint.limit_column)
            if constraint.where is not None and split == "train":
                _check_inhabited(name, constraint.where, columns)


def columns_read(constraint: Constraint) -> list[str]:
    """The columns of the prompts that a constraint reads."""
    columns = list(constraint.where or {})
    if constraint.limit_column is not None:
        columns.append(constraint.limit_column)
    return columns


def _check_inhabited(name: str, where: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> None:
    """Refuse a subset without prompts."""
    [(column, value)] = where.items()
    values = sorted({str(value) for value in columns[column]})
    if str(value) not in values:
        shown = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
        raise ObjectiveError(
            f"Expected constraint '{name}' to be on a subset with prompts, but no {column} is {value}; there are "
            f"{shown}.{did_you_mean(str(value), values)}"
        )


def _source_columns(source: PromptSource) -> dict[str, list[Any]]:
    """The values in each column: of all rows in memory, or of the first `SEEN` prompts."""
    import torch

    rows = source.rows
    if rows is None:
        first_prompts = source.groups(torch.arange(min(SEEN, len(source))))
        return {name: _as_list(column) for name, column in first_prompts.columns.items()}
    return columns_of_rows(rows)


def columns_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Values by column, in the order of the first rows that have them; None where a row lacks a column."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
