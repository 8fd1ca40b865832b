"""Values of a column in the training data, for constraints that name a column alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningDataModule

from lightning_cgrpo.cli.configuration import Config, ConfigError
from lightning_cgrpo.cli.loading import instantiate
from lightning_cgrpo.cli.preparation import import_names
from lightning_cgrpo.errors import did_you_mean
from lightning_cgrpo.objective.constraint import ObjectiveError
from lightning_cgrpo.objective.subsets import columns_of

MOST = 32
"""Largest number of subsets, each with a multiplier."""


def read_values(constraints: Mapping[str, dict[str, Any]], config: Config) -> None:
    """Replace ``by: COLUMN`` by ``by: {COLUMN: VALUES}``, with the values of the training data in their order.

    A run's ``config.yaml`` has the values, so the same subsets resume.

    Raises:
        ConfigError: the configuration has no data module with prompts.
        ObjectiveError: the column is unknown, or has more than `MOST` values.
    """
    import_names()
    data = instantiate(config, data=LightningDataModule)["data"]
    if not hasattr(data, "source"):
        raise ConfigError(f"Expected data with prompts for by: COLUMN, but got {type(data).__name__}.")
    columns = columns_of(data.source("train"))
    for name, constraint in constraints.items():
        column = constraint.get("by")
        if not isinstance(column, str):
            continue
        if column not in columns:
            raise ObjectiveError(
                f"Expected by: of constraint '{name}' to be a column of the data, {sorted(columns)}, but got "
                f"'{column}'.{did_you_mean(column, list(columns))}"
            )
        values = list(dict.fromkeys(columns[column]))
        if len(values) > MOST:
            raise ObjectiveError(
                f"Expected by: of constraint '{name}' to be a column of at most {MOST} values, but '{column}' has "
                f"{len(values)}, try by: {{{column}: [VALUE, ...]}}."
            )
        numbers = all(isinstance(value, int | float) for value in values)
        constraint["by"] = {column: sorted(values) if numbers else sorted(map(str, values))}
