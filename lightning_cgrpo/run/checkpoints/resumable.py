"""Checks that a run can resume from a checkpoint's content."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lightning_cgrpo.core.errors import UserError, kind_of

PARTS: dict[str, tuple[type, type | None]] = {
    "state_dict": (dict, None),
    "callbacks": (dict, None),
    "loops": (dict, dict),
    "optimizer_states": (list, dict),
    "lr_schedulers": (list, dict),
    "global_step": (int, None),
    "epoch": (int, None),
}
"""Parts that Lightning reads: the type of each, and of its items."""


def check_parts(content: Any, checkpoint: str) -> dict[str, Any]:
    """A checkpoint's content, if its parts have the types of a run's state; a part may be absent.

    Raises:
        UserError: another type.
    """
    if not isinstance(content, dict):
        raise UserError(f"Expected '{checkpoint}' to hold a run's state, but got {kind_of(content)}.")
    for part, (kind, item_kind) in PARTS.items():
        value = content.get(part, kind())
        whole = isinstance(value, kind)
        if whole and item_kind is not None:
            items = value.values() if isinstance(value, dict) else value
            whole = all(isinstance(item, item_kind) for item in items)
        if not whole:
            raise UserError(
                f"Expected '{checkpoint}' to hold a run's state, but its {part} is {value!s:.40}, try another "
                "checkpoint."
            )
    return content


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Any], checkpoint: str) -> None:
    """Raise a `UserError` unless a checkpoint's weights have the names and shapes of the policy's, `expected`."""
    for name in {**expected, **weights}:
        here = _describe_shape(expected.get(name))
        there = _describe_shape(weights.get(name))
        if here != there or "nothing" in (here, there):
            raise UserError(
                f"Expected '{checkpoint}' to hold the weights of this configuration's policy, but '{name}' is "
                f"{there} there and {here} here, try the configuration that the checkpoint was trained with "
                "(config.yaml in the run's folder)."
            )
        check_numbers(weights[name], f"the weight {name}", checkpoint)


def check_numbers(parts: Any, name: str, checkpoint: str) -> None:
    """Refuse a part of a run's state with a NaN, from which nothing is trained ever after.

    Args:
        parts: tensors and numbers, in containers.
        name: of the part.

    Raises:
        UserError: names the tensor or number.
    """
    if isinstance(parts, Mapping):
        for key, part in parts.items():
            check_numbers(part, f"{name} {key}", checkpoint)
    elif isinstance(parts, (list, tuple)):
        for number, part in enumerate(parts):
            check_numbers(part, f"{name} {number}", checkpoint)
    elif _has_nan(parts):
        raise UserError(
            f"Expected '{checkpoint}' to hold numbers, but {name} has a NaN, from which no training recovers, try an "
            "earlier checkpoint."
        )


def _has_nan(value: Any) -> bool:
    if isinstance(value, Tensor):
        return bool(value.isnan().any())
    return isinstance(value, float) and math.isnan(value)


def _describe_shape(weight: Any) -> str:
    if weight is None:
        return "nothing"
    if isinstance(weight, Tensor):
        return str(list(weight.shape))
    return f"a {type(weight).__name__}"


def check_resumable(content: Mapping[str, Any], checkpoint: str) -> None:
    """Refuse to resume from a checkpoint that lacks a part of a run's state; warn of an empty optimizer.

    Raises:
        UserError: no state of callbacks, loops or optimizers, or a part of another type.
    """
    check_parts(content, checkpoint)
    missing = []
    if "callbacks" not in content:  # an empty one is whole, because a run from Python may have no callback with a state
        missing.append("callbacks")
    if not content.get("loops"):
        missing.append("loops")
    # A sharded checkpoint, which is read without weights here, keeps optimizers in other files.
    if "state_dict" in content and not content.get("optimizer_states"):
        missing.append("optimizer_states")
    if missing:
        raise UserError(
            f"Expected '{checkpoint}' to hold the whole state of a run, but it lacks {' and '.join(missing)}, without "
            "which no run resumes exactly, try another checkpoint."
        )
    for number, optimizer in enumerate(content.get("optimizer_states", [])):
        for part in ("state", "param_groups"):
            if part not in optimizer:
                raise UserError(
                    f"Expected '{checkpoint}' to hold the whole state of a run, but optimizer {number} lacks {part}, "
                    "try another checkpoint."
                )
        check_numbers(optimizer["state"], f"the state of optimizer {number}: weight", checkpoint)
    for callback, state in content.get("callbacks", {}).items():
        if isinstance(state, Mapping) and "controller_class" in state:  # other callbacks may mean something by a NaN
            check_numbers(state, f"{callback}:", checkpoint)
    if content.get("global_step") and _optimizers_are_empty(content.get("optimizer_states", [])):
        warnings.warn(f"'{checkpoint}' holds no state of the optimizer, which begins anew.", stacklevel=2)


def _optimizers_are_empty(optimizers: Sequence[Mapping[str, Any]]) -> bool:
    """True if no optimizer has a state, although one needs it: gradient descent without momentum has none."""
    needs_state = False
    for optimizer in optimizers:
        if optimizer["state"]:
            return False
        for group in optimizer["param_groups"]:
            needs_state = needs_state or group.get("momentum") != 0
    return needs_state
