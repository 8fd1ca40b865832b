"""Constraints on subsets of the prompts: a column of the data has a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_cgrpo.core.errors import UserError, did_you_mean
from lightning_cgrpo.objective.constraint import Constraint, ObjectiveError

if TYPE_CHECKING:
    from lightning_cgrpo.core.prompts.source import PromptSource
    from lightning_cgrpo.core.rollout import PromptGroups, Signal

SEEN = 256
"""Prompts of a source without rows in memory whose columns are looked at."""


def expanded(constraints: Mapping[str, Constraint]) -> dict[str, Constraint]:
    """The constraints, with one for each value in the place of `by`, after the monitored average of all prompts."""
    parts: dict[str, Constraint] = {}
    for name, constraint in constraints.items():
        if constraint.by is None:
            parts[name] = constraint
            continue
        average = {"by": None, "role": "monitor", "start": None, "over": None}
        parts[name] = replace(constraint, **average)  # type: ignore[arg-type]
        for column, values in constraint.by.items():
            for value in values:
                subset = replace(constraint, by=None, where={column: value}, signal=constraint.signal or name)
                made = f"{name}/{column}={value}"
                if made in constraints:
                    raise ObjectiveError(
                        f"Expected no constraint '{made}', because by: of constraint '{name}' makes one, but got one, "
                        "try another name."
                    )
                parts[made] = subset
    return parts


def key(name: str, of: Constraint) -> str:
    """Name of the signal that a constraint measures, within its subset."""
    signal = of.signal or name
    return signal + "".join(f"[{column}={value}]" for column, value in (of.where or {}).items())


def with_subsets(
    constraints: Mapping[str, Constraint], signals: Mapping[str, Signal], prompts: PromptGroups
) -> dict[str, Signal]:
    """The signals, and those of constraints with `where`, which apply to the answers of the subset alone."""
    import torch

    from lightning_cgrpo.core.distributed import on_host

    every = dict(signals)
    for name, constraint in constraints.items():
        if constraint.where is None:
            continue
        [(column, value)] = constraint.where.items()
        of_prompts = prompts.column(column, f"constraint '{name}'")
        elements = on_host(of_prompts)[0].tolist() if isinstance(of_prompts, torch.Tensor) else of_prompts
        signal = signals[constraint.signal or name]
        within = [str(element) == str(value) for element in elements]
        inside = torch.tensor(within, dtype=torch.bool, device="cpu").to(signal.value.device, non_blocking=True)
        applicable = inside[:, None].expand(signal.value.shape[:2])
        if signal.applicable is not None:
            applicable = applicable & signal.applicable
        every[key(name, constraint)] = replace(signal, applicable=applicable)
    return every


def check_columns(constraints: Mapping[str, Constraint], source_of: Callable[[str], PromptSource]) -> None:
    """Refuse a column that training or validation prompts lack, and a subset without prompts in training data.

    Args:
        source_of: a data module's prompts by split.

    Raises:
        ObjectiveError: the nearest column or value is suggested.
    """
    subsets = {name: constraint for name, constraint in constraints.items() if constraint.where is not None}
    for split in ("train", "val") if subsets else ():
        try:
            columns = _columns(source_of(split))
        except UserError:
            if split == "train":
                raise
            columns = {}  # There is no validation.
        if not columns and split == "val":
            return
        for name, constraint in subsets.items():
            [(column, value)] = (constraint.where or {}).items()
            if column not in columns:
                raise ObjectiveError(
                    f"Expected constraint '{name}' to name a column of the {split} data, {sorted(columns)}, but got "
                    f"'{column}'.{did_you_mean(column, list(columns))}"
                )
            values = sorted({str(value) for value in columns[column]})
            if split == "train" and str(value) not in values:
                shown = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
                raise ObjectiveError(
                    f"Expected constraint '{name}' to be on a subset with prompts, but no {column} is {value}; there "
                    f"are {shown}.{did_you_mean(str(value), values)}"
                )


def _columns(source: PromptSource) -> dict[str, list[Any]]:
    """The values in each column: of all rows in memory, or of the first `SEEN` prompts."""
    import torch

    if (rows := source.rows) is not None:
        names = dict.fromkeys(column for row in rows for column in row)
        return {name: [row.get(name) for row in rows] for name in names}
    columns = source.groups(torch.arange(min(SEEN, len(source)))).columns
    return {name: list(column.tolist() if hasattr(column, "tolist") else column) for name, column in columns.items()}
