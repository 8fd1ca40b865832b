"""The weights of Lightning's `WeightAveraging` in a checkpoint."""

from __future__ import annotations

from typing import Any

LATEST = "current_model_state"
"""Key of the latest weights, if ``state_dict`` has their average."""


def name_average(checkpoint: dict[str, Any]) -> None:
    """Exchange the weights of a checkpoint that is written within a validation, if there is an average.

    The average is in the policy during the validation, so the callback writes both under the other's name.
    """
    if LATEST in checkpoint:
        average = checkpoint[LATEST]
        checkpoint[LATEST] = checkpoint["state_dict"]
        checkpoint["state_dict"] = average
